"""Packs documents into rows of a language model's batch.

No document crosses the end of a row.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_mgpu as mgpu

WIDTH = 512


def inputs(rng, n):
    lengths = rng.integers(1, WIDTH // 4, max(1, n * 8 // WIDTH))
    tokens = rng.integers(1, 1000, lengths.sum() + 7)
    return tokens.astype(np.int32), lengths.astype(np.int32)


def starts_of(lengths):
    def place(end, length):
        start = jnp.where(end % WIDTH + length > WIDTH, -(-end // WIDTH) * WIDTH, end)
        return start + length, start

    return jax.lax.scan(place, 0, lengths)[1]


def room_of(tokens):
    return -(-len(tokens) * 2 // WIDTH) * WIDTH


def ours(tokens, lengths):
    starts, room = starts_of(lengths), jnp.zeros(room_of(tokens), tokens.dtype)
    documents = mgpu.Segments.from_ranges(starts, starts + lengths)
    packed = mgpu.interval_scatter(tokens, starts, mgpu.scan(lengths, exclusive=True), room, total=lengths.sum())
    positions = mgpu.segmented_scan(jnp.ones_like(room), documents, exclusive=True)
    return tuple(x.reshape(-1, WIDTH) for x in (packed, documents.ids(len(room)), positions))


def plain(tokens, lengths):
    starts, room = starts_of(lengths), room_of(tokens)
    token, offsets = jnp.arange(len(tokens)), jnp.cumsum(lengths) - lengths
    document = jnp.repeat(jnp.arange(len(lengths)), lengths, total_repeat_length=len(tokens))
    position = token - offsets[document]
    place = jnp.where(token < lengths.sum(), starts[document] + position, room)

    def packed(x, filler):
        return jnp.full(room, filler, x.dtype).at[place].set(x, mode="drop").reshape(-1, WIDTH)

    return packed(tokens, 0), packed(document, -1), packed(position, 0)
