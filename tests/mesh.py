"""Distributes global arrays over a mesh axis, runs functions on devices, and gathers results."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_mgpu._src.mesh import axis, exchange

AXIS = "devices"
SIZES = (1, 2, 3, 4, 8)
# With FEW, meshes of 1, 2 and 4 devices are tested only with --long.
FEW = [pytest.param(devices, marks=() if devices in (3, 8) else pytest.mark.long) for devices in SIZES]


def by_vmap(function):
    """Maps a function over `[devices, ...]` by vmap on one real device."""
    return jax.jit(jax.vmap(function, axis_name=AXIS))


def by_devices(function, devices, **options):
    """Maps a function over devices by shard_map: the default platform's or, if there are too few of them, the CPU's."""

    def one(*arguments):
        results = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    spec = P(AXIS)
    return jax.jit(jax.shard_map(one, mesh=mesh_of(devices), in_specs=spec, out_specs=spec, **options))


def mesh_of(devices):
    """Returns a mesh of the axis `AXIS`; skips the test if there are too few devices."""
    found = jax.devices() if len(jax.devices()) >= devices else jax.devices("cpu")
    if len(found) < devices:
        pytest.skip(f"fewer than {devices} devices of one platform")
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=found[:devices])


def counts_of(rng, devices, slots):
    """Draws lists of the devices' live counts."""
    empty = np.where(np.arange(devices) % 2, 0, rng.integers(0, slots + 1, devices))
    last, first = np.zeros((2, devices), int)
    last[-1], first[0] = 1, slots
    full, uneven = np.full(devices, slots), rng.integers(0, slots + 1, devices)
    return [counts.astype(np.int32) for counts in (full, uneven, empty, last, np.zeros(devices, int), first)]


def shard(x, counts, slots, fill=7):
    """Distributes a global array over devices as `[devices, slots, ...]`, with `fill` past the live items."""
    sharded = np.full((len(counts), slots, *x.shape[1:]), fill).astype(x.dtype)
    ends = np.cumsum(counts)
    for device, (count, end) in enumerate(zip(counts, ends, strict=True)):
        sharded[device, :count] = x[end - count : end]
    return sharded


def gather(x, counts):
    x = np.asarray(x)
    return np.concatenate([x[device, :count] for device, count in enumerate(counts)])


def even(total, devices):
    """Returns counts that differ by at most one, the larger ones first."""
    return np.array([total // devices + (device < total % devices) for device in range(devices)], np.int32)


def shard_heads(heads, counts, slots, length):
    """Distributes global heads: each device's own, padded, `[devices, length]`, and their number, `[devices]`."""
    ends = np.cumsum(counts)
    sharded = np.full((len(counts), length), slots + 3, np.int32)
    own = []
    for device, (count, end) in enumerate(zip(counts, ends, strict=True)):
        mine = heads[(heads >= end - count) & (heads < end)] - (end - count)
        sharded[device, : len(mine)] = mine
        own.append(len(mine))
    return sharded, np.array(own, np.int32)


def elements(types):
    """Returns the number of elements of the largest tensor type in StableHLO."""
    shapes = re.findall(r"tensor<((?:\d+x)*)(?!ui8>)\w+>", types)  # arrays of bytes are scratch memory
    return max((int(np.prod([int(n) for n in shape.split("x") if n])) for shape in shapes), default=0)


def ragged_all_to_all(operand, into, starts, sizes, places, received, *, axis_name):
    """Stands in for jax.lax.ragged_all_to_all, which does not compile for CPU devices."""
    devices, me = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    updates = sizes.shape[0] // devices
    everything = jax.lax.all_gather(operand, axis_name)
    starts, sizes, places = (
        jax.lax.all_gather(x, axis_name).reshape(devices, devices, updates)[:, me].reshape(-1)
        for x in (starts, sizes, places)
    )
    sizes = jnp.where((sizes == received).all(), sizes, 0)  # sender and receiver must agree
    slot = jnp.arange(into.shape[0])[:, None]
    hit = (slot >= places) & (slot < places + sizes)
    update = jnp.argmax(hit, 1)
    got = everything[update // updates, starts[update] + slot[:, 0] - places[update]]
    return jnp.where(hit.any(1).reshape(-1, *[1] * (got.ndim - 1)), got, into)


def empty(shape, dtype):
    """Returns what memory may hold; jax.lax.empty returns zeros on CPU devices."""
    return jnp.full(shape, 99, dtype)


def use_form(monkeypatch, form):
    """Makes functions take this form of the exchange, even for few items."""
    monkeypatch.setattr(exchange, "MOST_UPDATES", 3)
    monkeypatch.setattr(exchange, "FEW_ITEMS", 0)
    if form != "_gathered":
        monkeypatch.setattr(axis.Axis, "shares_memory", False)
        monkeypatch.setattr(exchange, "MAX_RAGGED", exchange.MAX_RAGGED if form == "_ragged" else 0)
        monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
        monkeypatch.setattr(jax.lax, "empty", empty)
