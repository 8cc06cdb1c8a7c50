from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

import jax_mgpu as mgpu
from tests import data, oracle
from tests.examples import (
    HEADS,
    KEYS,
    Example,
    N,
    broken_ends,
    distinct,
    few,
    integer_to,
    live,
    numbers,
    positions,
    segments_apart,
)
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.fuzz.shared import differentiable_of, directed, int32, segments_with_gaps, taken
from tests.many_items import bytes_of, everywhere, pieces, same, sort_bytes, spots


def greater(a: Any, b: Any) -> Any:
    return a > b


def by_difference(a: Any, b: Any) -> Any:
    """Compares by a difference, so no keys are compared directly."""
    return a - b < 0


EXAMPLES = {
    "sort": Example(
        lambda keys, values, count: mgpu.sort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "sort, bits": Example(lambda keys: mgpu.sort(keys, descending=True, bits=8), lambda rng, real: (few(rng) % 256,)),
    "argsort": Example(
        lambda keys, count: mgpu.argsort(keys, count=count),
        lambda rng, real: (few(rng), live(rng)),
        counts=(1,),
    ),
    "mergesort": Example(
        lambda keys, values, count: mgpu.mergesort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "mergesort, columns": Example(
        lambda group, keys, values, count: mgpu.mergesort(
            (group, keys), {"v": values}, descending=(True, False), count=count
        ),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(1, 2),
        counts=(3,),
        composed=True,
    ),
    "mergesort, less": Example(
        lambda keys, values, count: mgpu.mergesort(keys, values, less=by_difference, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
        composed=True,
    ),
    "mergesort, wide columns": Example(
        lambda group, keys, other: mgpu.mergesort((group, keys, other)),
        lambda rng, real: (rng.permutation(few(rng)), distinct(rng, real), few(rng)),
        differentiable=(1,),
        composed=True,
    ),
    "mergesort_indices": Example(
        lambda keys: mgpu.mergesort_indices(keys, descending=True),
        lambda rng, real: (distinct(rng, real),),
        differentiable=(0,),
    ),
    "locality_sort": Example(
        lambda keys, values, count: mgpu.locality_sort(keys, values, count=count),
        lambda rng, real: (distinct(rng, real), numbers(rng, real), live(rng)),
        differentiable=(0, 1),
        counts=(2,),
    ),
    "locality_sort_indices": Example(
        lambda keys: mgpu.locality_sort_indices(keys, descending=True),
        lambda rng, real: (distinct(rng, real),),
        differentiable=(0,),
    ),
    "segmented_sort": Example(
        lambda keys, heads, count, values: mgpu.segmented_sort(keys, heads, values, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng), numbers(rng, real)),
        differentiable=(0, 3),
        counts=(2,),
    ),
    "segmented_sort, less": Example(
        lambda keys, heads, count: mgpu.segmented_sort(keys, heads, less=greater, count=count),
        lambda rng, real: (distinct(rng, real), positions(rng), live(rng)),
        differentiable=(0,),
        counts=(2,),
        composed=True,
    ),
    "segmented_sort, rows": Example(
        lambda keys, flags, rows: mgpu.segmented_sort(keys, None, {"rows": rows}, flags=flags, descending=True),
        lambda rng, real: (distinct(rng, real), rng.random(N) < 0.2, numbers(rng, real, N, 2)),
        differentiable=(0, 2),
    ),
    "segmented_sort, ends": Example(
        lambda keys, heads, ends, count, values: mgpu.segmented_sort(keys, heads, values, ends=ends, count=count),
        lambda rng, real: (distinct(rng, real), *segments_apart(rng), live(rng), numbers(rng, real)),
        differentiable=(0, 4),
        counts=(3,),
        composed=True,
    ),
    "segmented_sort_indices": Example(
        lambda keys, words, count: mgpu.segmented_sort_indices(keys, flags=words, count=count),
        lambda rng, real: (distinct(rng, real), rng.integers(0, 2**32, 2, dtype=np.uint32), live(rng)),
        differentiable=(0,),
        counts=(2,),
    ),
}

GARBAGE = {
    "sort": lambda keys, repeated, indices, wild: mgpu.sort(keys, repeated, count=wild[0], bits=3),
    "argsort": lambda keys, repeated, indices, wild: mgpu.argsort(keys, count=indices[0], bits=9),
    "mergesort": lambda keys, repeated, indices, wild: mgpu.mergesort(keys, repeated, count=indices[0]),
    "mergesort_indices": lambda keys, repeated, indices, wild: mgpu.mergesort_indices(keys, count=wild[0]),
    "locality_sort": lambda keys, repeated, indices, wild: mgpu.locality_sort(keys, repeated, count=wild[0]),
    "locality_sort_indices": lambda keys, repeated, indices, wild: mgpu.locality_sort_indices(
        repeated, count=indices[0]
    ),
    "segmented_sort": lambda keys, repeated, indices, wild: (
        mgpu.segmented_sort(keys, indices, repeated),
        mgpu.segmented_sort(keys.astype(np.uint8), indices[:7], repeated),
        mgpu.segmented_sort(keys.astype(np.uint8), wild[:7], count=indices[0]),
    ),
    "segmented_sort_indices": lambda keys, repeated, indices, wild: mgpu.segmented_sort_indices(
        keys, indices, count=wild[0]
    ),
}

BROKEN = {
    "sort: count": (lambda: mgpu.sort(KEYS, count=-1), integer_to(6), 0),
    "sort: keys": (lambda: mgpu.sort(KEYS, count=5, bits=2), "integers from 0 to 2**2 - 1", 3),
    "argsort: count": (lambda: mgpu.argsort(KEYS, count=7), integer_to(6), 0),
    "argsort: keys": (lambda: mgpu.argsort(-KEYS, bits=31), "integers from 0 to 2**31 - 1", 0),
    "mergesort: count": (lambda: mgpu.mergesort(KEYS, count=-1), integer_to(6), 0),
    "locality_sort: count": (lambda: mgpu.locality_sort(KEYS, count=7), integer_to(6), 0),
    "segmented_sort: heads": (lambda: mgpu.segmented_sort(KEYS, [0, 2, 1]), HEADS, 2),
    **broken_ends(mgpu.segmented_sort),
    "segmented_sort: count": (lambda: mgpu.segmented_sort(KEYS, [0], count=7), integer_to(6), 0),
    "segmented_sort_indices: heads": (lambda: mgpu.segmented_sort_indices(KEYS, [-1, 2]), HEADS, 0),
    "segmented_sort_indices: count": (lambda: mgpu.segmented_sort_indices(KEYS, [0], count=-1), integer_to(6), 0),
}
WITHOUT_PRECONDITIONS = ("locality_sort_indices", "mergesort_indices")


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def sorted_with_indices(x, heads, result):
    keys, indices = map(np.asarray, result)
    same(keys, np.concatenate([sort_bytes(p) for p in pieces(x, heads)]))
    bounds = np.append(heads, len(x))

    def check(begin, end):
        assert np.array_equal(x[indices[begin:end]], keys[begin:end])
        last = min(end + 1, len(x))
        ties = keys[begin + 1 : last] == keys[begin : last - 1]
        inner = bounds[(bounds > begin) & (bounds < last)]
        ties[inner - begin - 1] = False
        assert (np.diff(indices[begin:last]) > 0)[ties].all()  # equal keys have ascending, so distinct, indices
        for first, limit in itertools.pairwise(np.unique(np.clip(bounds, begin, end))):
            segment = np.searchsorted(bounds, first, "right") - 1
            assert indices[first:limit].min() >= bounds[segment]
            assert indices[first:limit].max() < bounds[segment + 1]

    everywhere(len(x), check)


def large_sort(n, index):
    x = bytes_of(n)
    same(mgpu.sort(x, descending=True), sort_bytes(x)[::-1])


def large_mergesort(n, index):
    x = bytes_of(n)
    same(mgpu.mergesort(x, descending=True), sort_bytes(x)[::-1])


def large_locality_sort(n, index):
    x = bytes_of(n)
    same(mgpu.locality_sort(x), sort_bytes(x))


def large_segmented_sort(n, index):
    x, heads = bytes_of(n), spots(n, index)
    same(mgpu.segmented_sort(x, heads), np.concatenate([sort_bytes(p) for p in pieces(x, heads)]))


def large_argsort(n, index):
    x = bytes_of(n)
    sorted_with_indices(x, np.zeros(1, index), (sort_bytes(x), mgpu.argsort(x)))


def large_mergesort_indices(n, index):
    sorted_with_indices(bytes_of(n), np.zeros(1, index), mgpu.mergesort_indices(bytes_of(n)))


def large_locality_sort_indices(n, index):
    sorted_with_indices(bytes_of(n), np.zeros(1, index), mgpu.locality_sort_indices(bytes_of(n)))


def large_segmented_sort_indices(n, index):
    heads = spots(n, index)
    sorted_with_indices(bytes_of(n), heads, mgpu.segmented_sort_indices(bytes_of(n), heads))


LARGE = {
    "sort": large_sort,
    "mergesort": large_mergesort,
    "locality_sort": large_locality_sort,
    "segmented_sort": large_segmented_sort,
}
LARGE_WITH_INDICES = {
    "argsort": large_argsort,
    "mergesort_indices": large_mergesort_indices,
    "locality_sort_indices": large_locality_sort_indices,
    "segmented_sort_indices": large_segmented_sort_indices,
}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def sorts(shape: Shape) -> Call:
    name = shape.choice(("sort", "mergesort", "locality_sort", "segmented_sort", "segmented_sort"))
    (dtype, descending), n = directed(shape), shape.size()
    count, indices = shape.count(n), shape.flag(0.4)
    forms = None if indices else shape.values()
    segments = shape.choice(("heads", "heads", "ends", "flags", "words")) if name == "segmented_sort" else None
    m = 0 if segments not in ("heads", "ends") else shape.choice((0, 1, 3, n // 5, n // 2, n, n + 3))
    head_dtype = shape.index_dtype(0)
    alone = name == "sort" and indices
    call = mgpu.argsort if alone else getattr(mgpu, f"{name}_indices" if indices else name)
    shape.say(segments, f"m={m}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        keys = draw.keys(shape, rng, dtype, n)
        if isinstance(dtype, draw.Columns):
            keys = draw.in_order(keys, descending, None) if rng.random() < 0.25 else keys
        elif rng.random() < 0.25:
            keys = data.in_order(keys, descending)
            if n > 1:
                i, j = rng.integers(0, n, (2, 3))
                keys[i], keys[j] = keys[j], keys[i]
                if shape.derivative:
                    keys = rng.permutation(data.in_order(draw.keys(shape, rng, dtype, n)))
        operands: dict[str, Any] = {"keys": keys}
        if segments == "heads":
            operands["heads"] = draw.positions(rng, m, n, head_dtype)
        elif segments == "ends":
            operands |= segments_with_gaps(rng, m, n, head_dtype, mixable)
        elif segments in ("flags", "words"):
            flags = rng.random(n) < rng.choice([0.02, 0.2, 0.9])
            operands["flags"] = flags if segments == "flags" else data.words_of(flags)
            if segments == "words" and n % 32 and rng.random() < 0.5:
                operands["flags"][-1:] |= np.uint32((0xFFFFFFFF << n % 32) & 0xFFFFFFFF)  # bits past the last item
        if forms is not None:
            operands["values"] = draw.draw_values(forms, rng, n)
        return operands | names_of(name, count=draw.drawn(count, rng))

    def function(keys: Any, values: Any = None, **others: Any) -> Any:
        if forms is None:
            return call(keys, descending=descending, **others)
        sorted_keys, moved = call(keys, values=draw.enter(forms, values), descending=descending, **others)
        return sorted_keys, draw.leave(forms, moved)

    def expected(
        keys: Any, heads: Any = (), ends: Any = None, flags: Any = None, values: Any = None, count: Any = None
    ) -> list[Any]:
        if segments == "words":
            flags = np.unpackbits(flags.view(np.uint8), bitorder="little")[:n].astype(bool)
        heads = np.flatnonzero(flags) if flags is not None else np.asarray(heads)
        ends = None if ends is None else np.asarray(ends)[heads < n].astype(np.int64)
        heads = heads[heads < n].astype(np.int64)
        ranks, down = draw.ranked(descending, keys)
        order = oracle.segmented_sort_indices(ranks, heads, down, count, ends)
        results = [] if alone else [x[order] for x in jax.tree.leaves(keys)]
        return [*results, *([int32(order)] if indices else taken(forms, values, order))]

    names = () if alone else ("keys", *differentiable_of(shape, forms, "values"))
    return Call(call.__name__, function, draw_operands, expected, shape.x64, names, finite=shape.finite)


DRAWN = {"sort": sorts}
