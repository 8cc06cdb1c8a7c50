"""A level of boosted trees: histograms of gradients by feature and node, and each node's best split.

A feature's bins in a node have nearly equally many rows. Rows with node -1 are in none.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

NODES, BINS, FEATURES = 50, 32, 4


def inputs(rng, n):
    n //= FEATURES
    x = rng.normal(size=(FEATURES, n)).astype(np.float32)
    node = np.where(rng.random(n) < 0.9, NODES * rng.random(n) ** 2, -1).astype(np.int32)
    return x, (np.sin(3 * x[0]) + rng.normal(size=n)).astype(np.float32), node


def best_split(histogram):
    """Returns each node's best feature and threshold, and their gain."""
    sums, rows = (jnp.cumsum(histogram[name].reshape(FEATURES, NODES, BINS), 2) for name in ("sums", "rows"))

    def score(sums, rows):
        return sums**2 / jnp.maximum(rows, 1)

    gain = score(sums, rows) + score(sums[..., -1:] - sums, rows[..., -1:] - rows) - score(sums, rows)[..., -1:]
    gain, last = (x.reshape(FEATURES, NODES, BINS).transpose(1, 0, 2) for x in (gain, histogram["last"]))
    best = gain.reshape(NODES, -1).argmax(1)
    gain, last = (jnp.take_along_axis(x.reshape(NODES, -1), best[:, None], 1)[:, 0] for x in (gain, last))
    return best // BINS, last, gain


def ours(x, gradients, node):
    order, nodes = mgpu.group_ids(node, NODES)
    edges = nodes.starts[:, None] + jnp.arange(BINS + 1) * nodes.lengths[:, None] // BINS
    bins = mgpu.Segments.from_ranges(edges[:, :-1].reshape(-1), edges[:, 1:].reshape(-1))

    def histogram(x):
        x, slopes = mgpu.segmented_sort(x[order], nodes, gradients[order])
        ops = {"sums": "add", "rows": "count", "last": "last"}
        return mgpu.segmented_reduce({"sums": slopes, "rows": x, "last": x}, bins, ops)

    return best_split(jax.vmap(histogram)(x))


def plain(x, gradients, node):
    owner = jnp.where(node < 0, NODES, node)
    lengths = jnp.bincount(owner, length=NODES)
    starts = jnp.cumsum(lengths) - lengths
    edges = starts[:, None] + jnp.arange(BINS + 1) * lengths[:, None] // BINS
    rows, ends = jnp.diff(edges).reshape(-1), edges[:, 1:].reshape(-1)
    bins = jnp.repeat(jnp.arange(NODES * BINS), rows, total_repeat_length=len(node))
    bins = jnp.where(jnp.arange(len(node)) < lengths.sum(), bins, NODES * BINS)

    def histogram(x):
        _, x, slopes = jax.lax.sort((owner, x, gradients), num_keys=2)
        sums = jax.ops.segment_sum(slopes, bins, NODES * BINS, indices_are_sorted=True)
        last = x[jnp.maximum(ends - 1, 0)]
        return {"sums": sums, "rows": rows, "last": last}

    return best_split(jax.vmap(histogram)(x))


def compare(ours, plain):
    np.testing.assert_allclose(ours[2], plain[2], rtol=1e-3, atol=1e-3)
    for x, y in zip(ours[:2], plain[:2], strict=True):
        assert np.mean(np.asarray(x) == np.asarray(y)) > 0.9  # rounding decides between splits of equal gain
