"""Random problems: shapes, types and attributes, drawn from the operation's name and a number."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from jax_mgpu._src.arguments.values import Payload
from jax_mgpu._src.core.operation import REGISTRY
from jax_mgpu._src.ops.reduce import Kind
from jax_mgpu._src.ops.segmented_softmax import Rule
from jax_mgpu._src.ops.sort_primitives import Method

Value = TypeVar("Value")
# Types and shapes of the results of one problem, and the attributes.
Function = tuple[list[tuple[Any, tuple[int, ...]]], dict[str, int]]

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
KEYS = [*INTEGERS, *FLOATS]
ROWS = [*KEYS, "bool", "complex64", "complex128"]
MOST_ITEMS = 1 << 31  # the most items of an array
MOST_NARROW = (1 << 31) - 1  # the most items with 32-bit positions


class Problem(NamedTuple):
    operation: str
    operands: list[jax.ShapeDtypeStruct]
    results: list[jax.ShapeDtypeStruct]
    attributes: dict[str, int]

    def __str__(self) -> str:
        def written(arrays: Sequence[Any]) -> str:
            return " ".join(f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in arrays)

        attributes = " ".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.operation}({written(self.operands)}) -> ({written(self.results)}) {attributes}".rstrip()


class Draw:
    """Draws the parts of a problem; collects operands in the operation's order."""

    def __init__(self, operation: str, number: int):
        self.random = random.Random(f"{operation} {number}")
        self.operands: list[jax.ShapeDtypeStruct] = []
        self.rows = 1 if self.flip(0.4) else self.size(1 << 20)
        self.batch = () if self.rows == 1 and self.flip(0.8) else (self.rows,)
        self.index = "int64" if self.flip(0.2) else "int32"

    def flip(self, probability: float = 0.5) -> bool:
        return self.random.random() < probability

    def one_of(self, values: Sequence[Value]) -> Value:
        return self.random.choice(values)

    def size(self, most: int) -> int:
        """Draws a number up to `most`, evenly over magnitudes; sometimes within 1 of 2^k or of 1.5 times 2^k."""
        if most <= 1:
            return most
        size = int(2 ** self.random.uniform(0, (most + 1).bit_length()))
        if self.flip(0.3):
            size = 2 ** (size.bit_length() - 1) * self.one_of([2, 3]) // 2 + self.random.randint(-1, 1)
        return min(max(size, 0), most)

    def length(self, most: int = MOST_ITEMS) -> int:
        """Draws the number of items of a row; the batch has at most MOST_ITEMS."""
        return 0 if self.flip(0.02) else self.size(min(most, MOST_ITEMS // max(self.rows, 1)))

    def array(self, dtype: str, *own: int, shared: bool = True) -> None:
        """Adds an operand; if it may be shared, it sometimes has no batch axes."""
        batch = () if shared and self.flip(0.3) else self.batch
        self.operands.append(jax.ShapeDtypeStruct((*batch, *own), jnp.dtype(dtype)))

    def absent(self) -> None:
        self.operands.append(jax.ShapeDtypeStruct((0,), jnp.dtype("int32")))

    def count(self) -> None:
        if self.flip():
            self.array(self.index, 1)
        else:
            self.absent()

    def payload(self, *lengths: int, shared: bool = True) -> int:
        """Draws a payload's operands; returns its mode."""
        mode = self.one_of(list(Payload))
        dtype = self.one_of(["uint32", "float32", "int64", "float64"])
        for length in lengths:
            if mode == Payload.GIVEN:
                self.array(dtype, length, shared=shared)
            else:
                self.absent()
        return mode


def operator(draw: Draw, kinds: Sequence[Kind], *, wide: bool) -> tuple[str, dict[str, int]]:
    op = draw.one_of(kinds)
    attributes = {"op": int(op), **({"wide": 0} if wide else {})}
    if op in (Kind.AND, Kind.OR, Kind.XOR):
        return draw.one_of(["bool", *INTEGERS]), attributes
    if op == Kind.LOGSUMEXP:
        return draw.one_of(FLOATS), attributes
    if wide and op == Kind.ADD and draw.flip(0.2):
        return draw.one_of(["float16", "bfloat16"]), {**attributes, "wide": 1}
    return draw.one_of(KEYS), attributes


def elements(draw: Draw) -> int:
    return 1 if draw.flip(0.4) else max(draw.size(1 << 12), 1)


def bucket_join(draw: Draw) -> dict[str, int]:
    n, m = draw.length(), draw.length()
    for length in (n, m):
        draw.array("uint32", length, shared=False)
        draw.array("int32", length, shared=False)
    bounds = 2 ** draw.random.randint(0, 16) + 1
    for _ in range(3):
        draw.array("int32", bounds)
    return {"size": draw.length(), "keep_a": draw.flip()}


def bulk_insert(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    n, m = draw.length(MOST_ITEMS // width), draw.length(MOST_ITEMS // width)
    draw.array(dtype, n, width)
    draw.array(draw.index, m)
    draw.array(dtype, m, width)
    draw.count()
    draw.array(dtype, 1)
    return {"size": n + m}


def bulk_remove(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    n = draw.length(MOST_ITEMS // width)
    draw.array(dtype, n, width)
    draw.array(draw.index, draw.length())
    draw.count()
    draw.array(dtype, 1)
    return {"size": draw.size(n)}


def count_bins(draw: Draw) -> dict[str, int]:
    bins = max(draw.size(1 << 15), 1)
    if draw.flip():
        draw.array(draw.index, draw.length())
        draw.absent()
    else:
        dtype = draw.one_of(KEYS)
        draw.array(dtype, draw.length())
        draw.array(dtype, bins + 1)
    return {"bins": bins}


def gathered_rows(draw: Draw) -> dict[str, int]:
    is_weighted = draw.flip()
    dtype, attributes = operator(draw, list(Kind), wide=True)
    if is_weighted:
        dtype, attributes = draw.one_of([*INTEGERS[2:4], *INTEGERS[6:], *FLOATS]), {"op": int(Kind.ADD), "wide": 0}
    width = draw.size(1 << 12)
    entries = n = draw.length(MOST_ITEMS // max(width, 1))
    draw.array(dtype, n, width, shared=False)
    draw.array(draw.index, draw.length())
    if draw.flip():
        entries = max(draw.length(), 1)
        draw.array(draw.index, entries, shared=False)
    else:
        draw.absent()
    if is_weighted:
        draw.array(dtype, entries, draw.one_of([1, width]), shared=False)
    else:
        draw.absent()
    draw.count()
    return attributes


def group_search(draw: Draw) -> dict[str, int]:
    n, m = draw.length(), draw.length()
    draw.array("int64" if m >= MOST_NARROW else "int32", n)
    draw.array("int32", n)
    draw.array("int32", m)
    draw.array("int32", 1)
    draw.array(draw.index, 1)
    draw.count()
    draw.count()
    return {"forward": draw.flip()}


def hash_groups(draw: Draw) -> dict[str, int]:
    n = draw.length(MOST_NARROW)
    words = ["int32", "uint32"]
    has_pairs = draw.flip(0.3)
    draw.array(draw.one_of(words if has_pairs else [*words, "int64", "uint64"]), n, shared=False)
    for _ in "xy":
        if draw.flip(0.7):
            draw.array(draw.one_of(["int32", "uint32"]), n)
        else:
            draw.absent()
    draw.count()
    draw.array(draw.one_of(words), n) if has_pairs else draw.absent()
    entries = 1 << draw.random.randint(0, 21)
    return {
        "entries": entries,
        "x_state": draw.random.randint(1, 3),
        "y_state": draw.random.randint(0, 3),
        "bucketed": draw.flip(),
    }


def interval_expand(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    objects = draw.length(MOST_ITEMS // width)
    draw.array(dtype, objects, width)
    draw.array(draw.index, objects)
    draw.count()
    draw.array(dtype, 1)
    return {"size": draw.length(MOST_ITEMS // width)}


def interval_gather(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    objects = draw.length()
    draw.array(dtype, draw.length(MOST_ITEMS // width), width)
    draw.array(draw.index, objects)
    draw.array(draw.index, objects)
    draw.count()
    draw.array(dtype, 1)
    return {"size": draw.length(MOST_ITEMS // width), "disjoint": draw.flip()}


def interval_move(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    objects, gathers = draw.length(), draw.flip()
    draw.array(dtype, draw.length(MOST_ITEMS // width), width)
    if gathers:
        draw.array(draw.index, objects)
    else:
        draw.absent()
    draw.array(draw.index, objects)
    draw.array(draw.index, objects)
    draw.count()
    draw.array(dtype, draw.length(MOST_ITEMS // width), width, shared=False)
    return {"gathers": gathers, "adds": draw.flip(0.2)}


def interval_reduce(draw: Draw) -> dict[str, int]:
    dtype, attributes = operator(draw, list(Kind), wide=False)
    width, intervals = draw.size(1 << 12), draw.length()
    draw.array(dtype, draw.length(MOST_ITEMS // max(width, 1)), width, shared=False)
    draw.array(draw.index, intervals)
    draw.array(draw.index, intervals)
    draw.count()
    return attributes


def join(draw: Draw) -> dict[str, int]:
    dtype = draw.one_of(KEYS)
    draw.array(dtype, draw.length())
    draw.array(dtype, draw.length())
    draw.count()
    draw.count()
    return {"size": draw.length(), "keep_a": draw.flip(), "keep_b": draw.flip()}


def load_balance_search(draw: Draw) -> dict[str, int]:
    draw.array(draw.index, draw.length())
    draw.count()
    return {"size": draw.length(), "return_rank": draw.flip()}


def merge(draw: Draw) -> dict[str, int]:
    dtype, of_runs = draw.one_of(KEYS), draw.flip(0.3)
    n, m = draw.length(), draw.length()
    draw.array(dtype, n)
    if of_runs:
        draw.absent()
        m = 0
    else:
        draw.array(dtype, m)
    payload = draw.payload(n, m)
    if of_runs:
        draw.operands[3] = jax.ShapeDtypeStruct((0,), jnp.dtype("int32"))
        draw.absent()
        draw.absent()
        draw.array(draw.index, draw.random.randint(1, 64))
    else:
        draw.count()
        draw.count()
        draw.absent()
    return {"descending": draw.flip(), "payload": payload, "size": draw.size(n) if of_runs else n + m}


def order_statistics(draw: Draw) -> dict[str, int]:
    draw.array(draw.one_of(KEYS), draw.length())
    draw.array(draw.index, draw.random.randint(0, 12))
    draw.count()
    return {}


def reduce(draw: Draw) -> dict[str, int]:
    dtype, attributes = operator(draw, list(Kind), wide=True)
    draw.array(dtype, draw.length(), shared=False)
    draw.count()
    return attributes


def reduce_by_id(draw: Draw) -> dict[str, int]:
    dtype, attributes = operator(draw, list(Kind), wide=True)
    width = draw.size(64)
    n = draw.length(MOST_ITEMS // max(width, 1))
    draw.array(dtype, n, width)
    draw.array(draw.index, n)
    draw.count()
    return {**attributes, "size": draw.size(1 << 12)}


def reduce_rows(draw: Draw) -> dict[str, int]:
    dtype, attributes = operator(draw, list(Kind), wide=True)
    width = draw.size(1 << 12)
    draw.array(dtype, draw.length(MOST_ITEMS // max(width, 1)), width, shared=False)
    draw.array(draw.index, draw.length())
    if draw.flip():
        draw.array(draw.index, draw.length(), shared=False)
    else:
        draw.absent()
    draw.count()
    return attributes


def run_heads(draw: Draw) -> dict[str, int]:
    draw.array(draw.one_of(KEYS), draw.length(), shared=False)
    draw.count()
    return {"size": draw.length()}


def scan(draw: Draw) -> dict[str, int]:
    kinds = [kind for kind in Kind if kind != Kind.LOGSUMEXP]
    dtype, attributes = operator(draw, kinds, wide=False)
    draw.array(dtype, draw.length(), shared=False)
    if draw.flip():
        draw.array(draw.index, draw.length())
    else:
        draw.absent()
    draw.count()
    draw.absent()  # the initial item
    return {**attributes, "exclusive": draw.flip(), "reverse": draw.flip(), "total": draw.flip()}


def segmented_reduce(draw: Draw) -> dict[str, int]:
    dtype, attributes = operator(draw, list(Kind), wide=True)
    draw.array(dtype, draw.length(), shared=False)
    draw.array(draw.index, draw.length())
    draw.count()
    return attributes


def segmented_order_statistics(draw: Draw) -> dict[str, int]:
    m = draw.length(1 << 20)
    draw.array(draw.one_of(KEYS), draw.length())
    draw.array(draw.index, m)
    draw.array(draw.index, m)
    draw.array(draw.index, draw.random.randint(0, 16), m)
    draw.count()
    return {}


def segmented_top_k(draw: Draw) -> dict[str, int]:
    m = draw.length(1 << 20)
    draw.array(draw.one_of(KEYS), draw.length())
    draw.array(draw.index, m)
    draw.array(draw.index, m)
    draw.count()
    return {"k": draw.random.randint(0, 32), "largest": draw.flip()}


def segmented_search(draw: Draw) -> dict[str, int]:
    dtype, n = draw.one_of(KEYS), draw.length()
    size, segments = (draw.length(MOST_NARROW) for _ in "ab")
    draw.array(dtype, n)
    if draw.flip():
        draw.array("int32", n)
    else:
        draw.absent()
    draw.array(dtype, size)
    draw.array("int32", segments)
    if draw.flip():
        draw.array("int32", segments)
    else:
        draw.absent()
    draw.count()
    draw.count()
    return {"right": draw.flip(), "exact": 0}


def segmented_shift(draw: Draw) -> dict[str, int]:
    dtype, width = draw.one_of(ROWS), elements(draw)
    n = draw.length(MOST_ITEMS // width)
    draw.array(dtype, n, width)
    draw.array("int64" if 2 * n >= MOST_NARROW else draw.index, draw.length())
    draw.array(draw.index, 1)
    draw.count()
    draw.array(dtype, 1)
    return {}


def scan_rows(draw: Draw) -> dict[str, int]:
    kinds = [kind for kind in Kind if kind != Kind.LOGSUMEXP]
    dtype, attributes = operator(draw, kinds, wide=False)
    width = draw.size(1 << 12)
    draw.array(dtype, draw.length(MOST_ITEMS // max(width, 1)), width, shared=False)
    if draw.flip():
        draw.array(draw.index, draw.length())
    else:
        draw.absent()
    draw.count()
    return {**attributes, "exclusive": draw.flip(), "reverse": draw.flip(), "total": draw.flip()}


def segmented_softmax(draw: Draw) -> dict[str, int]:
    dtype, width, rule = draw.one_of(FLOATS), elements(draw), draw.one_of(list(Rule))
    n = draw.length(MOST_ITEMS // width)
    draw.array(dtype, n, width, shared=False)
    if rule >= Rule.SOFTMAX_TANGENT:
        draw.array(dtype, n, width, shared=False)
    else:
        draw.absent()
    draw.array(draw.index, draw.length())
    draw.count()
    return {"rule": int(rule)}


def segmented_sort(draw: Draw) -> dict[str, int]:
    method = draw.one_of(list(Method))
    dtype = draw.one_of(["uint32", "int32", "float32"] if method == Method.PARTITIONING else KEYS)
    n, width = draw.length(), 8 * jnp.dtype(dtype).itemsize
    draw.array(dtype, n, shared=False)
    segments = draw.one_of(["heads", "flags", ""]) if method == Method.MERGING else ""
    if segments == "heads":
        draw.array(draw.index, draw.length())
    else:
        draw.absent()
    if segments == "flags" and draw.flip():
        draw.array("uint32", -(-n // 32))
    elif segments == "flags":
        draw.array("bool", n)
    else:
        draw.absent()
    draw.count()
    payload = draw.payload(n, shared=False)
    bits = draw.random.randint(1, width) if draw.flip(0.4) else width
    return {"descending": draw.flip(), "method": int(method), "bits": bits, "payload": payload}


def select(draw: Draw) -> dict[str, int]:
    dtype, width, partition = draw.one_of(ROWS), elements(draw), draw.flip()
    n = draw.length(MOST_ITEMS // width)
    draw.array(dtype, n, width)
    draw.array("bool", n)
    draw.count()
    draw.array(dtype, 1)
    return {"size": n if partition else draw.size(n), "indices": draw.flip(), "partition": partition}


def sets(draw: Draw) -> dict[str, int]:
    dtype, n, m = draw.one_of(KEYS), draw.length(), draw.length()
    draw.array(dtype, n)
    draw.array(dtype, m)
    draw.count()
    draw.count()
    draw.array(dtype, 1)
    payload = draw.payload(n, m, 1)
    size = draw.size(n + m)
    return {"kind": draw.random.randint(0, 3), "size": size, "duplicates": draw.flip(), "payload": payload}


def sorted_match(draw: Draw) -> dict[str, int]:
    return sorted_search(draw)


def sorted_search(draw: Draw) -> dict[str, int]:
    dtype = draw.one_of(KEYS)
    draw.array(dtype, draw.length())
    draw.array(dtype, draw.length())
    draw.count()
    draw.count()
    return {"right": draw.flip()}


def top_k(draw: Draw) -> dict[str, int]:
    n = draw.length()
    draw.array(draw.one_of(KEYS), n, shared=False)
    draw.count()
    return {"k": draw.size(min(n, 4096)), "largest": draw.flip()}


def top_k_candidates(draw: Draw) -> dict[str, int]:
    n = max(draw.length(MOST_NARROW), 1)
    draw.array(draw.one_of(KEYS), n, shared=False)
    draw.count()
    k = draw.size(n)
    return {"k": k, "room": max(draw.size(n), k), "largest": draw.flip()}


def sample_top_p(draw: Draw) -> dict[str, int]:
    draw.array(draw.one_of(["float16", "bfloat16", "float32"]), max(draw.length(MOST_NARROW), 1), shared=False)
    for _ in range(4):
        draw.array("float32", 1)
    return {}


def function_operand(draw: Draw) -> tuple[int, dict[str, int]]:
    """Returns the number of items, each of one leaf, and the attributes of a function."""
    dtype = draw.one_of(["uint8", "float32", "float64"])
    elements = draw.random.randint(1, 16)
    n = draw.length(MOST_ITEMS // elements)
    draw.array(dtype, n, elements, shared=False)
    item = jnp.dtype(dtype).itemsize * elements
    state = -(-max(item, 4) // 4) * 4
    sizes = {"item_bytes": item, "widest": item, "packed": item, "result_bytes": item, "state_bytes": state}
    return n, {"leaves": 1, "captures": 0, "results": 1, "batch_rank": len(draw.batch), **sizes}


def reduce_by_function(draw: Draw) -> Function:
    _, attributes = function_operand(draw)
    draw.absent()
    draw.count()
    x = draw.operands[0]
    return [(x.dtype, x.shape[-1:])], attributes


def segmented_reduce_by_function(draw: Draw) -> Function:
    _, attributes = function_operand(draw)
    segments = draw.length()
    draw.array(draw.index, segments)
    draw.count()
    x = draw.operands[0]
    return [(x.dtype, (segments, *x.shape[-1:]))], attributes


def scan_by_function(draw: Draw) -> Function:
    n, attributes = function_operand(draw)
    segmented = draw.flip()
    if segmented:
        draw.array(draw.index, draw.length())
    else:
        draw.absent()
    draw.count()
    x, total = draw.operands[0], draw.flip()
    results = [(x.dtype, (n, *x.shape[-1:]))] + [(x.dtype, x.shape[-1:])] * total
    flags = {"exclusive": draw.flip(), "reverse": draw.flip(), "total": total, "segmented": segmented}
    return results, {**attributes, **flags, "width": 0}


def segments_of_function(draw: Draw, n: int) -> None:
    if draw.flip():
        draw.array(draw.index, draw.length())
        draw.absent()
    else:
        draw.absent()
        draw.array("bool", n)
    draw.count()


def sort_by_function(draw: Draw) -> Function:
    word, n = draw.one_of([1, 2, 4, 8, 16]), draw.length(MOST_ITEMS // 4)
    dtype, own = (f"uint{8 * word}", (n,)) if word <= 4 else ("uint32", (n, word // 4))
    draw.array(dtype, *own, shared=False)
    segments_of_function(draw, n)
    payload = draw.one_of([Payload.NONE, Payload.INDICES])
    results = [(dtype, own), ("int32", (n,))][: 1 if payload == Payload.NONE else 2]
    return results, {"word_bytes": word, "captures": 0, "payload": payload}


def sort_indices_by_function(draw: Draw) -> Function:
    elements = draw.random.randint(1, 16)
    n = draw.length(MOST_ITEMS // elements)
    draw.array("float32", n, elements, shared=False)
    segments_of_function(draw, n)
    return [("int32", (n,))], {"leaves": 1, "captures": 0, "item_bytes": 4 * elements}


DRAWS: dict[str, Callable[[Draw], dict[str, int]]] = {
    of.__name__: of
    for of in (
        bucket_join,
        bulk_insert,
        bulk_remove,
        count_bins,
        gathered_rows,
        group_search,
        hash_groups,
        interval_expand,
        interval_gather,
        interval_move,
        interval_reduce,
        join,
        load_balance_search,
        merge,
        order_statistics,
        reduce,
        reduce_by_id,
        reduce_rows,
        run_heads,
        sample_top_p,
        scan,
        scan_rows,
        segmented_reduce,
        segmented_order_statistics,
        segmented_search,
        segmented_shift,
        segmented_softmax,
        segmented_sort,
        segmented_top_k,
        select,
        sets,
        sorted_match,
        sorted_search,
        top_k,
        top_k_candidates,
    )
}
FUNCTION_DRAWS: dict[str, Callable[[Draw], Function]] = {
    of.__name__: of
    for of in (
        reduce_by_function,
        scan_by_function,
        segmented_reduce_by_function,
        sort_by_function,
        sort_indices_by_function,
    )
}
OPERATIONS = sorted({*DRAWS, *FUNCTION_DRAWS})


def drawn(operation: str, number: int) -> Problem:
    draw = Draw(operation, number)
    if operation in FUNCTION_DRAWS:
        own_results, attributes = FUNCTION_DRAWS[operation](draw)
    else:
        attributes = DRAWS[operation](draw)
        of = REGISTRY[operation]
        if draw.batch and all(len(x.shape) == rank for x, rank in zip(draw.operands, of.ranks, strict=True)):
            first, *others = draw.operands  # at least one operand has the batch axes
            draw.operands = [jax.ShapeDtypeStruct((*draw.batch, *first.shape), first.dtype), *others]
        problem = [
            jax.ShapeDtypeStruct(x.shape[len(x.shape) - rank :], x.dtype)
            for x, rank in zip(draw.operands, of.ranks, strict=True)
        ]
        own_results = [(x.dtype, x.shape) for x in of.shapes(*problem, **attributes)]
    results = [jax.ShapeDtypeStruct((*draw.batch, *shape), jnp.dtype(dtype)) for dtype, shape in own_results]
    return Problem(operation, draw.operands, results, {name: int(value) for name, value in attributes.items()})
