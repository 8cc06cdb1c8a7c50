"""Boxes in an image are one object if they overlap enough, directly or through others; images form a batch.

The result has the first box of each box's object, and each object's best box, mean score and number of boxes.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

PER_IMAGE, LEAST = 20, 0.4


def inputs(rng, n):
    lengths = rng.integers(0, 2 * PER_IMAGE, max(1, n // 8 // PER_IMAGE))
    low = rng.random((lengths.sum(), 2)) * 4
    boxes = np.concatenate([low, low + 0.5 + rng.random((lengths.sum(), 2))], axis=1)
    return boxes.astype(np.float32), rng.random(lengths.sum()).astype(np.float32), lengths.astype(np.int32)


def room_of(scores):
    """Returns the sizes that arrays need for pairs of boxes of one image, and for pairs that overlap enough."""
    return len(scores) * 2 * PER_IMAGE, len(scores) * 4


def overlap(a, b):
    """Returns the intersection of boxes divided by their union."""
    sides = jnp.minimum(a[:, 2:], b[:, 2:]) - jnp.maximum(a[:, :2], b[:, :2])
    shared = jnp.prod(jnp.maximum(sides, 0), axis=1)
    return shared / (jnp.prod(a[:, 2:] - a[:, :2], axis=1) + jnp.prod(b[:, 2:] - b[:, :2], axis=1) - shared)


def least_of_all(least, boxes):
    """Returns the first box connected with each box: takes minima over neighbours until nothing changes."""

    def step(pair):
        nearest = least(pair[1])
        return pair[1], nearest[nearest]

    return jax.lax.while_loop(lambda pair: (pair[0] != pair[1]).any(), step, step((boxes, boxes)))[1]


def ours(boxes, scores, lengths):
    images, box = mgpu.Segments.from_lengths(lengths), jnp.arange(len(scores))
    later = images.ends[images.ids(len(scores))] - box
    offsets, total = mgpu.scan(later, exclusive=True, return_total=True)
    i, rank = mgpu.load_balance_search(offsets, room_of(scores)[0], total=total, return_rank=True)
    overlaps = (i >= 0) & (overlap(boxes[i], boxes[i + rank]) > LEAST)
    i, j = mgpu.select((i, i + rank), overlaps, size=room_of(scores)[1], fill_value=-1).values
    a, b = jnp.append(i, j), jnp.append(j, i)
    thing = least_of_all(lambda x: jnp.minimum(x, mgpu.reduce_by_id(x[b], a, len(scores), "min")), box)
    ops = {"best": "argmax", "mean": "mean", "boxes": "count"}
    return thing, mgpu.reduce_by_id(dict.fromkeys(ops, scores), thing, len(scores), ops)


def plain(boxes, scores, lengths):
    number, box = len(scores), jnp.arange(len(scores))
    image = jnp.repeat(jnp.arange(len(lengths)), lengths, total_repeat_length=number)
    later = jnp.cumsum(lengths)[image] - box
    firsts, pair = jnp.cumsum(later) - later, jnp.arange(room_of(scores)[0])
    i = jnp.repeat(box, later, total_repeat_length=pair.size)
    j = i + pair - firsts[i]
    overlaps = (pair < later.sum()) & (overlap(boxes[i], boxes[j]) > LEAST)
    at = jnp.nonzero(overlaps, size=room_of(scores)[1], fill_value=pair.size)[0]
    i, j = (x.at[at].get(mode="fill", fill_value=number) for x in (i, j))
    a, b = jnp.append(i, j), jnp.append(j, i)
    thing = least_of_all(lambda x: x.at[a].min(x[b], mode="drop"), box)
    highest = jax.ops.segment_max(scores, thing, number)
    best = jax.ops.segment_min(jnp.where(scores == highest[thing], box, number), thing, number)
    members = jax.ops.segment_sum(jnp.ones_like(box), thing, number)
    mean = jax.ops.segment_sum(scores, thing, number) / members
    return thing, {"best": best, "mean": mean, "boxes": members}


def compare(ours, plain):
    np.testing.assert_array_equal(ours[0], plain[0])
    np.testing.assert_array_equal(ours[1]["boxes"], plain[1]["boxes"])
    some = np.asarray(ours[1]["boxes"]) > 0
    np.testing.assert_array_equal(ours[1]["best"][some], plain[1]["best"][some])
    np.testing.assert_allclose(ours[1]["mean"][some], plain[1]["mean"][some], rtol=1e-5)
    assert np.any(np.asarray(ours[1]["boxes"]) > 2)
