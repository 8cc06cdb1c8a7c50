"""Orders joined with their customers: each region's number of orders, and their mean and greatest price.

Some customers are unknown, and regions are any numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

REGIONS = 64  # the most regions


def inputs(rng, n):
    keys = rng.permutation(n // 4 + 8).astype(np.int32)
    regions = rng.choice(rng.integers(0, 10**6, 50), keys.size).astype(np.int32)
    return rng.integers(0, n // 3 + 8, n).astype(np.int32), rng.random(n).astype(np.float32), keys, regions


def ours(customers, prices, keys, regions):
    region = mgpu.lookup(customers, keys, regions, default=-1)
    known = mgpu.select((region, prices), region >= 0)
    ops = {"orders": "count", "mean": "mean", "most": "max"}
    values = dict.fromkeys(ops, known.values[1])
    return mgpu.group_by(known.values[0], values, ops, size=REGIONS, count=known.count)


def plain(customers, prices, keys, regions):
    order = jnp.argsort(keys)
    at = jnp.minimum(jnp.searchsorted(keys[order], customers), len(keys) - 1)
    row = order[at]
    region = jnp.where(keys[row] == customers, regions[row], jnp.iinfo(jnp.int32).max)
    region, prices = jax.lax.sort((region, prices), num_keys=1)
    is_known = region < jnp.iinfo(jnp.int32).max
    is_first = is_known & (region != jnp.roll(region, 1).at[0].set(-1))
    group = jnp.where(is_known, jnp.cumsum(is_first) - 1, REGIONS)
    options = {"num_segments": REGIONS, "indices_are_sorted": True}
    found = jax.ops.segment_max(region, group, **options)
    orders = jax.ops.segment_sum(jnp.ones_like(group), group, **options)
    mean = jax.ops.segment_sum(prices, group, **options) / orders
    most = jax.ops.segment_max(prices, group, **options)
    return found, {"orders": orders, "mean": mean, "most": most}, is_first.sum()


def compare(ours, plain):
    assert int(ours[2]) == int(plain[2]) > 1
    for x, y in zip(jax.tree.leaves(ours[:2]), jax.tree.leaves(plain[:2]), strict=True):
        np.testing.assert_allclose(x[: ours[2]], y[: ours[2]], rtol=1e-4)
