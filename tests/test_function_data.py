"""Functions as data, from which the library generates C++."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_mgpu._src.core import library
from tests import host_functions, test_emit

ADD = """item i32 1
flags commutes
function combine
v0 i32 add a0.0 b0.0
give v0
function dead
give i32:0
function neutral
give i32:0"""
MAPPED = """item f32 1 i32 1
element u8 3
position i32
result f32 2
flags exclusive
function combine called branches
v0 bool ne a1.0 b1.0
v1 i32 variable
switch v0 2
case
set v1 a1.0
case
v2 i32 add a1.0 b1.0
set v1 v2
end
repeat 3
v3 i32 copy v1
set v1 v3
end
loop
v4 bool lt v1 i32:5
while v4
v5 i32 mul v1 i32:2
set v1 v5
end
give a0.0 v1
function dead
give f32:0 f32:7fc00000
function nothing
v0 f32 load 0 3
give v0 f32:3f800000
function load
v0 f32 convert x0.2
v1 i64 nearest_place position 10
v2 bool is_place position 10
v3 f32 load 0 2 v1 4
v4 bool load 2 7
v5 f32 select v4 v3 v0
v6 f32 pick v1 v0 v5 f32:bf800000
v7 i32 bits v6
v8 f32 pow v6 v7
give v8 v7
function finish
give x0.0 x0.0"""
MULTIPLIED = f"""{ADD}
function finish
v0 i32 mul x0.0 e0.0
give v0""".replace("flags commutes", "result i32 1\nflags commutes next")
LESS = """item u16 2
function less
v0 bool lt a0.0 b0.1
give v0"""


def source(data: str) -> str:
    return library.cpu_library.function_source(data)


def test_what_is_written() -> None:
    text = source(MAPPED)
    for part in (
        "uint8_t f0[3];",
        "static constexpr bool kBranches = true;",
        "static constexpr bool kExclusive = true;",
        "static constexpr bool kCommutes = false;",
        "MGPU_CALLED Item combine(const Item& a, const Item& b) const {",
        "switch (xla::nearest_place(xla::convert<int32_t>(v0), int64_t(2))) {",
        "int32_t v1{};",
        "captures.get<float>(0)[int64_t(2) + v1 * int64_t(4)]",
        "(captures.get<uint8_t>(2)[int64_t(7)] != 0)",
        "xla::nearest_place(static_cast<int32_t>(position), int64_t(10))",
        "xla::bits<float>(uint32_t(2143289344u))",
    ):
        assert part in text, part
    assert "bool less(const Item& a, const Item& b) const" in source(LESS)
    text = source(MULTIPLIED)
    for part in (
        "static constexpr bool kTakesNext = true;",
        "Result finish(const Item& x, const Element& e) const {",
        "xla::mul(x.f0[0], e.f0[0])",
    ):
        assert part in text, part


def replaced(data: str, old: str, new: str) -> str:
    assert data.count(old) >= 1, old
    return data.replace(old, new, 1)


CODE = "struct Evil { Evil() { __builtin_trap(); } } evil;\n"
REFUSED = {
    "C++": CODE + "struct Function {};",
    "C++ before": CODE + ADD,
    "C++ behind": ADD + "\n" + CODE,
    "C++ in a line": replaced(ADD, "v0 i32 add a0.0 b0.0", 'asm("trap");'),
    "C++ as a name": replaced(ADD, "add", "add(1, 2); } Evil evil; int f() {"),
    "C++ as a type": replaced(ADD, "i32 1", "i32(1) 1"),
    "C++ as a constant": replaced(ADD, "i32:0", "i32:0);system("),
    "C++ as a number": replaced(MAPPED, "position 10", "position 10)+f("),
    "a preprocessor's line": "#include </etc/passwd>\n" + ADD,
    "a spliced line": replaced(ADD, "add a0.0", "add \\\na0.0"),
    "a trigraph": "??=define\n" + ADD,
    "nothing": "",
    "an item alone": "item i32 1",
    "another operation": replaced(ADD, "add", "system"),
    "a function of the headers that is no operation": replaced(ADD, "add", "cut"),
    "an element beside no item": replaced(MULTIPLIED, " next", ""),
    "an element beside two items": replaced(MULTIPLIED, "b0.0", "e0.0"),
    "an element without a result": replaced(ADD, "commutes", "commutes next"),
    "an attribute": replaced(ADD, "flags commutes", "flags commutes __attribute__((constructor))"),
    "two spaces": replaced(ADD, "add a0.0", "add  a0.0"),
    "a tab": replaced(ADD, "add a0.0", "add\ta0.0"),
    "a carriage return": replaced(ADD, "\n", "\r\n"),
    "too many operands": replaced(ADD, "b0.0", "b0.0 b0.0"),
    "too few operands": replaced(ADD, " b0.0", ""),
    "another letter": replaced(ADD, "b0.0", "x0.0"),
    "a leaf past the end": replaced(ADD, "b0.0", "b1.0"),
    "an element past the end": replaced(ADD, "b0.0", "b0.1"),
    "a negative element": replaced(ADD, "b0.0", "b0.-1"),
    "an element that wraps": replaced(ADD, "b0.0", "b0.18446744073709551616"),
    "a value that is not there yet": replaced(ADD, "b0.0", "v0"),
    "a value of another function": replaced(ADD, "dead\ngive i32:0", "dead\ngive v0"),
    "a number of another value": replaced(ADD, "v0 i32", "v1 i32"),
    "another type": replaced(ADD, "v0 i32", "v0 i64"),
    "operands of two types": replaced(ADD, "b0.0", "i64:1"),
    "a type that is not for it": replaced(ADD, "add a0.0 b0.0", "sqrt a0.0"),
    "no such type": replaced(ADD, "v0 i32", "v0 i128"),
    "a constant that does not fit": replaced(ADD, "i32:0", "i32:100000000"),
    "a constant with a sign": replaced(ADD, "i32:0", "i32:-1"),
    "a constant without digits": replaced(ADD, "i32:0", "i32:"),
    "a bool that is neither": replaced(MAPPED, "select v4", "select bool:2"),
    "too few results": replaced(ADD, "give v0", "give"),
    "too many results": replaced(ADD, "give v0", "give v0 v0"),
    "results of another type": replaced(ADD, "give v0", "give f32:0"),
    "no end": ADD.rpartition("\n")[0],
    "no function that is needed": ADD.partition("\nfunction neutral")[0],
    "a function twice": ADD + "\nfunction neutral\ngive i32:0",
    "both of two": ADD + "\nfunction nothing\ngive i32:0",
    "an order and an operator": ADD + "\nfunction less\ngive bool:1",
    "an order that may not end": replaced(LESS, "give v0", "loop\nend\ngive v0"),
    "an order of results": replaced(LESS, "function", "result i32 1\nfunction"),
    "a load without an element": replaced(MAPPED, "element u8 3\n", ""),
    "a finish without a result": replaced(MAPPED, "result f32 2\n", ""),
    "a header twice": "item i32 1\n" + ADD,
    "a header behind a function": replaced(ADD, "function dead", "result i32 1\nfunction dead"),
    "no elements": replaced(ADD, "item i32 1", "item i32 0"),
    "too many elements": replaced(ADD, "item i32 1", "item i32 129"),
    "too many leaves": replaced(ADD, "item i32 1", "item" + " i32 1" * 17),
    "an end of nothing": replaced(ADD, "give v0", "end\ngive v0"),
    "a case of nothing": replaced(ADD, "give v0", "case\ngive v0"),
    "a while of nothing": replaced(ADD, "give v0", "while bool:1\ngive v0"),
    "a while in a case": replaced(MAPPED, "set v1 a1.0", "while bool:1"),
    "a block that does not end": replaced(ADD, "give v0", "loop\ngive v0"),
    "too few cases": replaced(MAPPED, "switch v0 2", "switch v0 3"),
    "too many cases": replaced(MAPPED, "switch v0 2", "switch v0 1"),
    "no cases": replaced(MAPPED, "switch v0 2", "switch v0 0"),
    "lines before a case": replaced(MAPPED, "case\n", ""),
    "a value of another block": replaced(MAPPED, "v3 i32 copy v1", "v3 i32 copy v2"),
    "a value of a loop, after it": replaced(MAPPED, "give a0.0 v1", "give a0.0 v5"),
    "a value that is set": replaced(MAPPED, "set v1 v2", "set v2 v1"),
    "a variable of another type": replaced(MAPPED, "set v1 v2", "set v1 f32:0"),
    "steps without a number": replaced(MAPPED, "repeat 3", "repeat v1"),
    "deep blocks": replaced(ADD, "give v0", "loop\n" * 65 + "end\n" * 65 + "give v0"),
    "a place that nobody bounded": replaced(MAPPED, "load 0 2 v1 4", "load 0 2 v0 4"),
    "a place that is a constant": replaced(MAPPED, "load 0 2 v1 4", "load 0 2 i64:5 4"),
    "a place that was changed": replaced(
        MAPPED, "v2 bool is_place position 10", "v2 i64 add v1 i64:5\nv3 f32 load 0 2 v2 4"
    ),
    "no places": replaced(MAPPED, "position 10", "position 0"),
    "places of a float": replaced(MAPPED, "nearest_place position", "nearest_place v0"),
    "places of a bool": replaced(MAPPED, "nearest_place position", "nearest_place bool:1"),
    "a place of another type": replaced(MAPPED, "v1 i64 nearest_place", "v1 i32 nearest_place"),
    "an array past the end": replaced(MAPPED, "load 2 7", "load 16 7"),
    "a negative offset": replaced(MAPPED, "load 0 2", "load 0 -2"),
    "a stride that wraps": replaced(
        replaced(MAPPED, "position 10", f"position {2**40}"), "load 0 2 v1 4", f"load 0 2 v1 {2**40}"
    ),
    "an array of two types": replaced(MAPPED, "load 2 7", "load 0 7"),
    "bits of another width": replaced(MAPPED, "v7 i32 bits v6", "v7 i64 bits v6"),
    "bits of a bool": replaced(MAPPED, "v7 i32 bits v6", "v7 u8 bits v4"),
    "a position in another function": replaced(MAPPED, "give a0.0 v1", "give a0.0 position"),
    "a position of floats": replaced(MAPPED, "position i32", "position f32"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what) -> None:
    with pytest.raises(ValueError, match=r"^function: line \d+: expected "):
        source(REFUSED[what])


def test_large_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="function: expected at most 16 MB"):
        source(ADD + "\n" * (1 << 24))
    line = "v{} i32 add a0.0 b0.0\n"
    many = "".join(line.format(i) for i in range(1 << 16))
    head, tail = ADD.split(line.format(0))
    assert source(head + many + tail)
    with pytest.raises(ValueError, match="or the next value"):
        source(head + many + line.format(1 << 16) + tail)


def words_of(text: str) -> set[str]:
    """Returns the words and signs of C++, without numbers."""
    return {re.sub(r"\d+(u|ull)?$", "", word) for word in re.findall(r"\w+|[^\w\s]", text)}


def emitted() -> list[str]:
    with jax.enable_x64(True):
        cases = [case for name, case in test_emit.CASES.items() if name.split()[-1] in ("f32", "f64", "i16", "u64")]
        return [host_functions.operator(function, item).data for item, function in cases]


def test_what_is_written_is_of_few_words() -> None:
    rng = np.random.default_rng(5)
    known = {word for data in (ADD, MAPPED, LESS, *emitted()) for word in words_of(source(data))}
    letters = "abvx01289.: \n-ifu_#\\\"';{}()[]<>?%:+*&|!,\0\x80"
    taken = 0
    for _ in range(3000):
        data = [ADD, MAPPED, LESS][rng.integers(3)]
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(len(data))
            new = letters[rng.integers(len(letters))] * rng.integers(0, 2)
            data = data[:at] + new + data[at + rng.integers(0, 2) :]
        try:
            text = source(data.replace("\0", ""))
        except ValueError:
            continue
        taken += 1
        assert set(words_of(text)) <= known, data
    assert taken > 30


def reduced(data: str, n: int = 9, dtype=np.int32, **changed: int):
    """Returns a reduction by these data; its sizes are those of `ADD` unless changed."""
    sizes = {"leaves": 1, "captures": 0, "batch_rank": 0, "results": 1}
    sizes |= dict.fromkeys(("item_bytes", "widest", "packed", "result_bytes", "state_bytes"), 4)
    sizes |= changed
    operands = [jnp.arange(n).astype(dtype), jnp.zeros(0, np.int32), jnp.zeros(0, np.int32)]
    described = [(x.dtype.name, x.shape) for x in operands]
    scratch = library.cpu_library.workspace_bytes(
        "reduce_by_function", described, [(operands[0].dtype.name, ())], sizes
    )
    shapes = [jax.ShapeDtypeStruct((), operands[0].dtype), jax.ShapeDtypeStruct((scratch,), np.uint8)]
    call = jax.ffi.ffi_call(library.target("reduce_by_function"), shapes)
    run = jax.jit(lambda: call(*operands, function=data, **{name: np.int64(size) for name, size in sizes.items()})[0])
    return lambda: jax.block_until_ready(run())


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="only a GPU has handlers of functions")
def test_calls_from_elsewhere() -> None:
    assert reduced(ADD)() == 36
    for what in ("C++", "C++ in a line", "an element past the end", "a place that nobody bounded"):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"function: line \d+: expected "):
            reduced(REFUSED[what])()
    with pytest.raises(jax.errors.JaxRuntimeError, match="expected leaves of the function's types and shapes"):
        reduced(ADD, dtype=np.float32)()
    for name in ("item_bytes", "state_bytes"):
        with pytest.raises(jax.errors.JaxRuntimeError, match="expected the sizes of the function"):
            reduced(ADD, **{name: 8})()
    with pytest.raises(jax.errors.JaxRuntimeError, match="reduce_by_function"):
        reduced(LESS)()
