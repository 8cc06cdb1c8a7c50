"""Global arrays over the devices of a mesh axis: distributed, processed, joined again."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jax_mgpu._src.mesh import exchange, joins, remote_gather, visits

AXIS = "devices"
SIZES = (1, 2, 3, 4, 8)
# SIZES for pytest. Most run only with --long, because programs take longer to compile than to run.
FEW = [pytest.param(devices, marks=() if devices in (3, 8) else pytest.mark.long) for devices in SIZES]


def by_vmap(function):
    """Returns the function on every device of an axis, `[devices, ...]` in and out, with only one real device."""
    return jax.jit(jax.vmap(function, axis_name=AXIS))


def by_devices(function, devices, **options):
    """Returns the function on devices of the default platform, or of the CPU, under shard_map."""

    def one(*arguments):
        results = function(*jax.tree.map(lambda x: x[0], arguments))
        return jax.tree.map(lambda x: x[None], results)

    spec = P(AXIS)
    return jax.jit(jax.shard_map(one, mesh=mesh_of(devices), in_specs=spec, out_specs=spec, **options))


def mesh_of(devices):
    """Returns a mesh of one axis; the test is skipped if there are too few devices."""
    found = jax.devices() if len(jax.devices()) >= devices else jax.devices("cpu")
    if len(found) < devices:
        pytest.skip(f"fewer than {devices} devices of one platform")
    return jax.make_mesh((devices,), (AXIS,), axis_types=(AxisType.Auto,), devices=found[:devices])


def counts_of(rng, devices, slots):
    """Draws live counts per device: all full, any, some devices empty, one item in all, none, all on one device."""
    empty = np.where(np.arange(devices) % 2, 0, rng.integers(0, slots + 1, devices))
    last, first = np.zeros((2, devices), int)
    last[-1], first[0] = 1, slots
    full, uneven = np.full(devices, slots), rng.integers(0, slots + 1, devices)
    return [counts.astype(np.int32) for counts in (full, uneven, empty, last, np.zeros(devices, int), first)]


def shard(x, counts, slots, fill=7):
    """Returns a global array distributed over devices, `[devices, slots, ...]`, with `fill` past the live items."""
    sharded = np.full((len(counts), slots, *x.shape[1:]), fill).astype(x.dtype)
    ends = np.cumsum(counts)
    for device, (count, end) in enumerate(zip(counts, ends, strict=True)):
        sharded[device, :count] = x[end - count : end]
    return sharded


def gather(x, counts):
    """Returns the global array: the live items of all devices."""
    x = np.asarray(x)
    return np.concatenate([x[device, :count] for device, count in enumerate(counts)])


def even(total, devices):
    """Returns counts that differ by at most one, the larger ones first."""
    return np.array([total // devices + (device < total % devices) for device in range(devices)], np.int32)


def shard_heads(heads, counts, slots, length):
    """Returns global heads as each device's own, `[devices, length]`, padded, with how many each has."""
    ends = np.cumsum(counts)
    sharded = np.full((len(counts), length), slots + 3, np.int32)
    own = []
    for device, (count, end) in enumerate(zip(counts, ends, strict=True)):
        mine = heads[(heads >= end - count) & (heads < end)] - (end - count)
        sharded[device, : len(mine)] = mine
        own.append(len(mine))
    return sharded, np.array(own, np.int32)


def elements(types):
    """Returns the number of elements of the largest tensor among some types of a program."""
    shapes = re.findall(r"tensor<((?:\d+x)*)(?!ui8>)\w+>", types)  # bytes are the scratch memory of kernels
    return max((int(np.prod([int(n) for n in shape.split("x") if n])) for shape in shapes), default=0)


def ragged_all_to_all(operand, into, starts, sizes, places, received, *, axis_name):
    """Does what the documentation of jax.lax.ragged_all_to_all says; the original does not compile for CPU devices."""
    devices, me = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    updates = sizes.shape[0] // devices
    everything = jax.lax.all_gather(operand, axis_name)
    starts, sizes, places = (
        jax.lax.all_gather(x, axis_name).reshape(devices, devices, updates)[:, me].reshape(-1)
        for x in (starts, sizes, places)
    )
    sizes = jnp.where((sizes == received).all(), sizes, 0)  # both sides must say the same
    slot = jnp.arange(into.shape[0])[:, None]
    hit = (slot >= places) & (slot < places + sizes)
    update = jnp.argmax(hit, 1)
    got = everything[update // updates, starts[update] + slot[:, 0] - places[update]]
    return jnp.where(hit.any(1).reshape(-1, *[1] * (got.ndim - 1)), got, into)


def use_form(monkeypatch, form):
    """Makes exchanges take this form, and unless it is that of CPUs, fetches and searches that of GPUs.

    Ragged exchanges take 4 updates per device instead of 256, which the stand-in for ragged_all_to_all searches.
    """
    monkeypatch.setattr(exchange, "_gathered", getattr(exchange, form))
    if form != "_gathered":
        monkeypatch.setattr(remote_gather, "_gathered", remote_gather._in_rounds)
        move_needles(monkeypatch)
    monkeypatch.setattr(exchange, "UPDATE_BITS", 2)
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)


def move_needles(monkeypatch):
    """Makes searches sort their needles and send them to the device of their place, as on GPUs."""
    monkeypatch.setattr(visits.SortedPair, "_gathered", visits.SortedPair._visiting)
    monkeypatch.setattr(joins.Side, "_by_platform", lambda self, kept, moved: moved)
