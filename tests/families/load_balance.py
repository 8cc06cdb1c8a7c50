from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests import oracle
from tests.examples import MANY, OFFSETS, POSITIONS, Argument, Example, integer_to, interval_operands
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of
from tests.many_items import FEW, same_repeated, spots

EXAMPLES = {
    "load_balance_search": Example(
        lambda offsets, total: mgpu.load_balance_search(offsets, 64, total=total, return_rank=True),
        lambda rng, real: interval_operands(rng)[1:],
        counts=(1,),
    ),
}

GARBAGE = {
    "load_balance_search": lambda keys, repeated, indices, wild: mgpu.load_balance_search(
        indices, MANY, return_rank=True
    ),
}

BROKEN = {
    "load_balance_search: offsets": (lambda: mgpu.load_balance_search([0, 5, 4], 9), POSITIONS, 2),
    "load_balance_search: total": (lambda: mgpu.load_balance_search(OFFSETS, 9, total=10), integer_to(9), 0),
}

ARGUMENTS = {"load_balance_search: fill_value": Argument("index fill")}


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_load_balance_search(n, index):
    offsets = spots(n, index)
    intervals = np.arange(len(offsets), dtype=np.int32 if n <= FEW else np.int64)  # the type holds n
    same_repeated(mgpu.load_balance_search(offsets, n), intervals, np.diff(offsets, append=n))


LARGE_WITH_INDICES = {"load_balance_search": large_load_balance_search}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def load_balance(shape: Shape) -> Call:
    size, rank = shape.size(), shape.flag()
    m = shape.choice((0, 1, 3, size // 4, size, 2 * size + 1))
    total, dtype = shape.count(size), shape.index_dtype(size)
    fill = shape.choice((-1, -1, m, 0))
    options = {} if fill == -1 else {"fill_value": fill}
    shape.say(f"m={m}", "rank" * rank, f"fill={fill}")

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        live = draw.drawn(total, rng)
        lengths = draw.lengths_of(rng, m, size if live is None else int(live))
        offsets = np.cumsum(lengths) - lengths
        return names_of("load_balance_search", offsets=offsets.astype(dtype), total=live)

    def function(offsets: Any, **others: Any) -> Any:
        return mgpu.load_balance_search(offsets, size, return_rank=rank, **options, **others)

    def expected(offsets: Any, total: Any = None) -> list[Any]:
        objects, ranks = oracle.work_items(offsets, oracle.live_count(total, size))
        begin = min(int(offsets[0]), oracle.live_count(total, size)) if m else 0
        out = [np.full(size, fill, np.int32) for _ in range(2)]
        for to, found in zip(out, (objects, ranks), strict=True):
            to[begin : begin + len(found)] = found
        return out[: 1 + rank]

    return Call("load_balance_search", function, draw_operands, expected, shape.x64, finite=True)


DRAWN = {"load_balance": load_balance}
