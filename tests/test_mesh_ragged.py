"""Ragged batches over a mesh axis, by heads and by Segments, compared with NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu
from tests import mesh

SLOTS, ROWS, SIZE = 17, 6, 20  # a device's items and segments, and the items of a result
KEYS = {"axis_name": mesh.AXIS}


class Global:
    """Segments of the global array: for each, its begin, end, device, place there, and number."""

    def __init__(self, begin, end, device, place, number):
        self.begin, self.end, self.device, self.place, self.number = begin, end, device, place, number

    def __iter__(self):
        return iter(zip(self.begin, self.end, self.device, self.place, strict=True))

    def by_number(self, number):
        """Returns the range of a numbered segment, empty if there is none."""
        found = np.flatnonzero(self.number == number)
        return (self.begin[found[0]], self.end[found[0]]) if found.size else (0, 0)


def by_heads(rng, counts):
    """Draws segments without gaps; returns them and each device's heads."""
    total = int(counts.sum())
    heads = np.sort(rng.integers(0, total + 1, ROWS - 2)) if total else np.zeros(0, int)
    heads = np.append(np.zeros(min(total, 1), int), heads[heads < total])  # the first item has a head
    sharded, _ = mesh.shard_heads(heads, counts, SLOTS, ROWS)
    device = np.searchsorted(np.cumsum(counts), heads, "right")
    place = np.arange(len(heads)) - np.searchsorted(device, device)
    return Global(heads, np.append(heads[1:], total)[: len(heads)], device, place, np.arange(len(heads))), sharded


def by_ranges(rng, counts):
    """Draws segments with gaps, some ending on a later device; returns them and each device's starts and ends."""
    devices, total, edges = len(counts), int(counts.sum()), np.cumsum(counts)
    cuts = np.sort(rng.integers(0, total + 1, 2 * min(ROWS, devices * 2)))
    begin, end = cuts[::2], cuts[1::2]
    is_inside = begin < total
    begin, end = begin[is_inside], end[is_inside]
    device = np.searchsorted(edges, begin, "right")
    place = np.arange(len(begin)) - np.searchsorted(device, device)
    starts, ends = np.full((2, devices, 2 * ROWS), SLOTS, np.int32)
    starts[device, place], ends[device, place] = (x - (edges - counts)[device] for x in (begin, end))
    return Global(begin, end, device, place, device * 2 * ROWS + place), (starts, ends)


def of_segments(x, keys, order, segments, count, ends=None):
    """Returns results of functions of segments."""
    given = {"count": count, **KEYS} if count is not None else KEYS
    given = {"ends": ends, **given} if ends is not None else given
    ranked = {"largest": True, **given}
    return {
        "add": mgpu.segmented_reduce(x, segments, **given),
        "median": mgpu.segmented_reduce(x, segments, "median", **given),
        "scan": mgpu.segmented_scan(x, segments, **given),
        "reverse": mgpu.segmented_scan(x, segments, "max", exclusive=True, reverse=True, **given),
        "softmax": mgpu.segmented_softmax(x, segments, **given),
        "sort": mgpu.segmented_sort(keys, segments, x, **given),
        "ids": mgpu.segment_ids(segments, SLOTS, **given),
        "shift": mgpu.segmented_shift(x, segments, 2, fill_value=-7, **given),
        "rank": mgpu.rank(keys, segments, **given),
        "runs": mgpu.run_starts(keys, segments, **given),
        "top_k": mgpu.segmented_top_k(keys, segments, 3, **ranked),
        "quantile": mgpu.segmented_quantile(x, segments, [0.25, 0.5], **given),
        "dense": mgpu.to_dense({"x": x, "keys": keys}, segments, 5, fill_value=-7, **given),
        "take": mgpu.take_segments(x, segments, order, size=SIZE, fill_value=-7, **given),
    }


def expected_items(name, x, keys, begin, end):
    part, own = x[begin:end], keys[begin:end]
    powers = np.exp(part.astype(np.float64) - part.max())
    return {
        "scan": np.cumsum(part),
        "reverse": np.append(np.maximum.accumulate(part[::-1])[::-1][1:], -np.inf)[: len(part)],
        "softmax": powers / powers.sum(),
        "shift": np.append(np.full(2, -7), part)[: len(part)],
        "rank": np.searchsorted(np.sort(own), own) + 1,
    }[name]


def check_items(got, x, keys, live, segments):
    outside = {"scan": 0, "reverse": 0, "softmax": 0, "shift": -7, "rank": 0, "ids": -1}
    for name, fill in outside.items():
        expected = np.full(len(x), float(fill))
        for number, (begin, end, _, _) in zip(segments.number, segments, strict=True):
            if end > begin:
                expected[begin:end] = number if name == "ids" else expected_items(name, x, keys, begin, end)
        np.testing.assert_allclose(mesh.gather(got[name], live), expected, rtol=2e-6, err_msg=name)
    ordered, moved = keys.copy(), x.copy()
    for begin, end, _, _ in segments:
        order = begin + np.argsort(keys[begin:end], kind="stable")
        ordered[begin:end], moved[begin:end] = keys[order], x[order]
    np.testing.assert_array_equal(mesh.gather(got["sort"][0], live), ordered)
    np.testing.assert_array_equal(mesh.gather(got["sort"][1], live), moved)


def check_rows(got, x, keys, segments):
    """Checks the results per segment; each is on the device on which its segment starts."""
    of_device = {}
    for begin, end, device, place in segments:
        part, own = x[begin:end], keys[begin:end]
        of_device.setdefault(device, set()).add(place)
        np.testing.assert_allclose(got["add"][device, place], part.sum(), rtol=1e-6)
        median = np.median(part) if len(part) else np.nan
        np.testing.assert_allclose(got["median"][device, place], median, rtol=1e-6)
        quantiles = np.quantile(part, [0.25, 0.5]) if len(part) else [np.nan, np.nan]
        np.testing.assert_allclose(got["quantile"][device, :, place], quantiles, rtol=1e-5)
        first = np.argsort(-own, kind="stable")[:3]
        top, missing = got["top_k"], 3 - len(first)
        np.testing.assert_array_equal(top.values[device, place], np.append(own[first], [0] * missing))
        np.testing.assert_array_equal(top.indices[device, place], np.append(begin + first, [-1] * missing))
        assert top.count[device, place] == len(first)
        for name, row in (("x", part), ("keys", own)):
            np.testing.assert_array_equal(got["dense"][name][device, place], np.append(row, [-7] * 5)[:5])
    for device, row in enumerate(got["top_k"].count):
        assert not row[[place not in of_device.get(device, ()) for place in range(len(row))]].any()


def check_runs(got, keys, live, segments):
    """Checks starts of runs by device, and the number of runs before each segment."""
    edges = np.cumsum(live)
    starts = [
        at for begin, end, _, _ in segments for at in range(begin, end) if at == begin or keys[at] != keys[at - 1]
    ]
    for device, (last, count) in enumerate(zip(edges, live, strict=True)):
        own = [at - (last - count) for at in starts if last - count <= at < last]
        assert got.count[device] == len(own)
        np.testing.assert_array_equal(got.starts[device, : len(own)], own)
        for begin, _, its_device, place in segments:
            if its_device == device:
                assert got.heads[device, place] == sum(at < begin - (last - count) for at in own)


def check_taken(got, x, order, segments):
    for device, wanted in enumerate(order):
        parts = [x[slice(*segments.by_number(number))] for number in wanted]
        items = np.concatenate(parts)
        lengths = [len(part) for part in parts]
        np.testing.assert_array_equal(got.values[device], np.append(items, np.full(SIZE, -7))[:SIZE])
        np.testing.assert_array_equal(got.heads[device], np.cumsum([0, *lengths])[:-1])
        assert got.count[device] == sum(lengths)


def check(got, x, keys, order, live, segments):
    check_items(got, x, keys, live, segments)
    check_rows(got, x, keys, segments)
    check_runs(got["runs"], keys, live, segments)
    check_taken(got["take"], x, order, segments)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_heads(rng, devices):
    call = mesh.by_vmap(of_segments)
    for counts in mesh.counts_of(rng, devices, SLOTS):
        segments, heads = by_heads(rng, counts)
        total = int(counts.sum())
        x, keys = (rng.integers(*ends, total) for ends in ((-9, 9), (0, 4)))
        x, keys = x.astype(np.float32), keys.astype(np.int32)
        order = rng.integers(-1, len(segments.begin) + 1, (devices, 3)).astype(np.int32)
        got = jax.device_get(call(mesh.shard(x, counts, SLOTS), mesh.shard(keys, counts, SLOTS), order, heads, counts))
        check(got, x, keys, order, counts, segments)


@pytest.mark.parametrize("devices", mesh.FEW)
@pytest.mark.usefixtures("forms")
def test_segments(rng, devices):
    call = mesh.by_vmap(
        lambda x, keys, order, starts, ends: of_segments(x, keys, order, segments_of(starts, ends), None)
    )
    counts = np.full(devices, SLOTS)
    for _ in range(8):
        segments, ranges = by_ranges(rng, counts)
        x, keys = (rng.integers(*ends, devices * SLOTS) for ends in ((-9, 9), (0, 4)))
        x, keys = x.astype(np.float32), keys.astype(np.int32)
        order = rng.choice(np.append(segments.number, [-1, devices * 2 * ROWS]), (devices, 3)).astype(np.int32)
        sharded = mesh.shard(x, counts, SLOTS), mesh.shard(keys, counts, SLOTS)
        got = jax.device_get(call(*sharded, order, *ranges))
        check(got, x, keys, order, counts, segments)


def test_ends_and_a_count(rng):
    """Padding that starts past the live items is empty, and a segment may end past all items."""
    devices, past = 3, np.iinfo(np.int32).max
    call = mesh.by_vmap(of_segments)
    for counts in mesh.counts_of(rng, devices, SLOTS):
        segments, (starts, ends) = by_ranges(rng, counts)
        last = segments.end == counts.sum()
        ends[segments.device[last], segments.place[last]] = past
        x, keys = (rng.integers(*ends, counts.sum()) for ends in ((-9, 9), (0, 4)))
        x, keys = x.astype(np.float32), keys.astype(np.int32)
        order = rng.choice(np.append(segments.number, [-1, devices * 2 * ROWS]), (devices, 3)).astype(np.int32)
        sharded = mesh.shard(x, counts, SLOTS), mesh.shard(keys, counts, SLOTS)
        got = jax.device_get(call(*sharded, order, starts, counts, ends))
        check(got, x, keys, order, counts, segments)


@pytest.mark.usefixtures("forms")
def test_derivatives(rng):
    devices = 3
    segments, (starts, ends) = by_ranges(rng, np.full(devices, SLOTS))
    order = rng.choice(segments.number, (devices, 3)).astype(np.int32)
    weights = rng.normal(size=(devices, 2 * ROWS)).astype(np.float32)

    def loss(x, starts, ends, order, weights):
        given = mgpu.Segments.from_ranges(starts, ends)
        taken = mgpu.take_segments(x, given, order, size=SIZE, **KEYS)
        used = jax.numpy.arange(SIZE) < taken.count
        return (
            (mgpu.segmented_reduce(x, given, **KEYS) * weights).sum()
            + (mgpu.to_dense(x, given, 5, **KEYS) * weights[:, None]).sum()
            + jax.numpy.where(used, taken.values, 0).sum()
            + (mgpu.segmented_reduce(x, given, "mul", **KEYS) * weights).sum()
        )

    def expected(x):
        total = 0.0
        for begin, end, device, place in segments:
            part = x[begin:end]
            total = total + weights[device, place] * (part.sum() + part[:5].sum() + part.prod())
        for wanted in order:
            places = np.concatenate([np.arange(*segments.by_number(number)) for number in wanted])[:SIZE]
            total = total + x[places].sum()
        return total

    x = rng.uniform(0.5, 1.5, devices * SLOTS).astype(np.float32)
    inside = np.zeros(len(x), bool)
    for begin, end, _, _ in segments:
        inside[begin:end] = True
    whole = mesh.by_vmap(jax.grad(loss))
    # Under vmap, the losses of all devices are added, so items get the cotangents of all of them.
    got = whole(np.where(inside, x, np.inf).reshape(devices, SLOTS), starts, ends, order, weights)
    np.testing.assert_allclose(np.reshape(got, -1), jax.jit(jax.grad(expected))(x), rtol=1e-4, atol=1e-5)


def segments_of(starts, ends):
    return mgpu.Segments.from_ranges(starts, ends)


def test_all_forms_of_segments(rng):
    devices, lengths = 2, np.array([[3, 0, 5, 2], [1, 9, 0, 4]], np.int32)
    ends = np.cumsum(lengths, 1)
    offsets = np.concatenate([np.zeros((2, 1), int), ends], 1).astype(np.int32)
    ids = np.stack([np.append(np.repeat(np.arange(4), row), np.full(SLOTS - row.sum(), -1)) for row in lengths])
    x = rng.integers(0, 9, (devices, SLOTS)).astype(np.int32)
    expected = [
        [part.sum() for part in np.split(row[: cuts[-1]], cuts[1:-1])] for row, cuts in zip(x, offsets, strict=True)
    ]

    def sums(x, lengths, offsets, ids):
        forms = [
            mgpu.Segments.from_lengths(lengths),
            mgpu.Segments.from_offsets(offsets),
            mgpu.Segments.from_ids(ids, 4),
            mgpu.Segments.from_ranges(offsets[:-1], offsets[1:]),
            mgpu.Segments.from_heads(offsets[:-1], count=offsets[-1]),
        ]
        return [mgpu.segmented_reduce(x, segments, **KEYS) for segments in forms]

    for got in mesh.by_devices(sums, devices)(x, lengths, offsets, ids.astype(np.int32)):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("devices", mesh.FEW)
def test_from_dense(rng, devices):
    def there_and_back(x, lengths):
        items, heads, count = mgpu.from_dense(x, lengths, size=3 * 5, **KEYS)
        return count, mgpu.to_dense(items, heads, 5, count=count, **KEYS)

    x = rng.normal(size=(devices, 3, 5)).astype(np.float32)
    lengths = rng.integers(1, 6, (devices, 3)).astype(np.int32)
    count, back = mesh.by_vmap(there_and_back)(x, lengths)
    np.testing.assert_array_equal(count, lengths.sum(1))
    np.testing.assert_array_equal(back, np.where(np.arange(5) < lengths[:, :, None], x, 0))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("devices", mesh.FEW)
def test_segmented_search(rng, devices, side):
    find = lambda needles, ids, haystack, heads, count: mgpu.segmented_search(  # noqa: E731
        needles, ids, haystack, heads, side, haystack_count=count, fill_value=-5, **KEYS
    )
    gaps = mesh.by_vmap(lambda needles, ids, haystack, s, e: find(needles, ids, haystack, segments_of(s, e), None))
    heads = mesh.by_vmap(find)
    for live in mesh.counts_of(rng, devices, SLOTS)[:3]:
        for with_gaps in (False, True):
            counts = np.full(devices, SLOTS, np.int32) if with_gaps else live
            segments, given = by_ranges(rng, counts) if with_gaps else by_heads(rng, counts)
            haystack = rng.integers(0, 6, int(counts.sum())).astype(np.float32)
            for begin, end, _, _ in segments:
                haystack[begin:end].sort()
            ids = rng.choice(np.append(segments.number, [-1, -1]), (devices, 9)).astype(np.int32)
            needles = rng.integers(0, 7, (devices, 9)).astype(np.float32)
            others = given if with_gaps else (given, counts)
            call = gaps if with_gaps else heads
            got = np.asarray(call(needles, ids, mesh.shard(haystack, counts, SLOTS), *others))
            for place, number in np.ndenumerate(ids):
                begin, end = segments.by_number(number)
                found = begin + np.searchsorted(haystack[begin:end], needles[place], side)
                assert got[place] == (found if number >= 0 else -5)
