"""Writes the skeleton of a new operation: a public function with kernels on CPU and CUDA.

    python scripts/new_operation.py rotate

The skeleton builds and passes its tests; its function returns the items of `x` unchanged. CONTRIBUTING.md, "Add an
operation", says what belongs in each of its files.
"""

from __future__ import annotations

import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent

NEW = {
    "jax_mgpu/_src/ops/{name}.py": '''
"""{Title}: what it does, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jax_mgpu._src.arguments.check import expect_key
from jax_mgpu._src.core.operation import Operation, jit_eager

__all__ = ["{name}"]


@jit_eager()
def {name}(x: ArrayLike) -> jax.Array:
    """Returns the items unchanged.

    Args:
      x: `[n]`, numbers.

    Returns:
      `[n]`, of the type of x.

    Raises:
      TypeError: x does not hold numbers.
      ValueError: x is not 1-D.

    Time is O(n).

    Example:
      >>> import jax.numpy as jnp, jax_mgpu as mgpu
      >>> mgpu.{name}(jnp.array([3, 1, 2]))
      Array([3, 1, 2], dtype=int32)
    """
    (result,) = _{name}(x=expect_key("{name}", "x", x))
    return result


def _shapes(x: Any) -> Sequence[Any]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype)]


def _fallback(x: jax.Array) -> Sequence[jax.Array]:
    return [jnp.asarray(x)]


def _jvp(primals: Sequence[Any], tangents: Any) -> tuple[Any, Any]:
    return _{name}.run(primals), [tangents.x]


_{name} = Operation(
    "{name}",
    operands={{"x": 1}},
    results=("result",),
    attributes={{}},
    shapes=_shapes,
    fallback=_fallback,
)
_{name}.def_jvp(_jvp)
''',
    "ffi/ops/{name}/operands.h": """
// The call of {name} as its kernels see it.
#pragma once

#include "algorithm/common.h"

namespace mgpu {{

struct Call;

// Operand: x [.., n]. Result: [.., n].
struct {Struct}Operands {{
  const char* x;
  char* out;
  int64_t rows;  // of the batch
  int64_t row_bytes;

  explicit {Struct}Operands(const Call& call);
}};

}}  // namespace mgpu
""",
    "ffi/ops/{name}/signature.cc": """
#include "runtime/signature.h"

#include "ops/{name}/operands.h"
#include "runtime/operations.h"

namespace mgpu {{

const Signature signature::{name}{{
    .operands = {{"x: any [n]"}},
    .results = {{"result: =x [n]"}},
}};

{Struct}Operands::{Struct}Operands(const Call& call) {{
  const Arguments in(call, signature::{name});
  const Array& result = in.result("result");
  x = in["x"].as<const char>();
  out = result.as<char>();
  rows = Call::batch(result, 1);
  row_bytes = Call::length(result) * byte_width(result.dtype);
}}

int64_t workspace::{name}(const Call& call) {{
  {Struct}Operands{{call}};  // rejects a malformed call
  return 0;
}}

}}  // namespace mgpu
""",
    "ffi/ops/{name}/cpu.cc": """
// {name} on the CPU: one task per row.
#include <cstring>

#include "ops/{name}/operands.h"
#include "runtime/operations.h"

namespace mgpu {{

void cpu::{name}(const Call& call, Executor& executor) {{
  const {Struct}Operands operands(call);
  if (operands.row_bytes == 0) return;
  parallel_for(executor, operands.rows, [&](int64_t row) {{
    const int64_t begin = row * operands.row_bytes;
    std::memcpy(operands.out + begin, operands.x + begin, operands.row_bytes);
  }});
}}

}}  // namespace mgpu
""",
    "ffi/ops/{name}/cuda.cu": """
// {name} on CUDA: a copy.
#include "cuda/launch/launch.h"
#include "ops/{name}/operands.h"
#include "runtime/operations.h"

namespace mgpu::cuda {{

void {name}(const Call& call, cudaStream_t stream) {{
  const {Struct}Operands operands(call);
  check(call, cudaMemcpyAsync(operands.out, operands.x, operands.rows * operands.row_bytes, cudaMemcpyDeviceToDevice,
                              stream));
}}

}}  // namespace mgpu::cuda
""",
    "tests/test_{name}.py": '''
"""{Title} gives what NumPy gives."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jax_mgpu as mgpu


@pytest.mark.parametrize("dtype", ["int8", "uint32", "float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 1000])
def test_{name}(rng, n, dtype):
    x = rng.integers(0, 100, (3, n)).astype(dtype)
    expected = x
    for got in (mgpu.{name}(x[0]), jax.jit(mgpu.{name})(x[0])):
        np.testing.assert_array_equal(got, expected[0], strict=True)
    np.testing.assert_array_equal(jax.vmap(mgpu.{name})(x), expected, strict=True)


def test_the_gradient_of_{name}(rng):
    x, weights = rng.normal(size=(2, 5)).astype(np.float32)
    gradient = jax.grad(lambda x: mgpu.{name}(x) @ weights)(x)
    np.testing.assert_array_equal(gradient, weights, strict=True)


def test_{name}_of_a_matrix_is_an_error():
    with pytest.raises(ValueError, match=r"^{name}: x: expected a 1-D array .*, got int32\\[2,3\\]$"):
        mgpu.{name}(np.zeros((2, 3), np.int32))
''',
    "tests/families/{name}.py": '''
"""{Title}: its examples and oracles for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import jax_mgpu as mgpu
from tests.examples import Example, numbers
from tests.fuzz import draw
from tests.fuzz.draw import Call, Shape, names_of

EXAMPLES = {{"{name}": Example(mgpu.{name}, lambda rng, real: (numbers(rng, real),), differentiable=(0,))}}

GARBAGE = {{"{name}": lambda keys, repeated, indices, wild: mgpu.{name}(keys)}}

WITHOUT_PRECONDITIONS = ("{name}",)


# ---- Over 2^32 items -------------------------------------------------------------------------------------------------


def large_{name}(n):
    x = np.arange(n, dtype=np.uint8)
    assert np.array_equal(mgpu.{name}(x), x)


LARGE = {{"{name}": large_{name}}}


# ---- Drawn calls, and their oracles ----------------------------------------------------------------------------------


def {name}(shape: Shape) -> Call:
    n, dtype = shape.size(), shape.key_dtype()

    def draw_operands(rng: np.random.Generator, mixable: bool) -> dict[str, Any]:
        del mixable
        return names_of("{name}", x=draw.keys(shape, rng, dtype, n))

    return Call("{name}", mgpu.{name}, draw_operands, lambda x: [np.asarray(x)], shape.x64)


DRAWN = {{"{name}": {name}}}
''',
    "docs/reference/{name}.md": """
# {Title}

```{{eval-rst}}
.. family:: {name}
```
""",
}


def insert(path: pathlib.Path, line: str, among: str) -> None:
    """Inserts a line alphabetically into the first consecutive lines that match `among`."""
    lines = path.read_text().splitlines()
    begin = next(i for i, each in enumerate(lines) if re.fullmatch(among, each))
    end = next(i for i in range(begin, len(lines)) if not re.fullmatch(among, lines[i]))
    place = next((i for i in range(begin, end) if lines[i] > line), end)
    path.write_text("\n".join([*lines[:place], line, *lines[place:]]) + "\n")
    print(f"changed  {path.name}")


def main() -> None:
    """Writes the files of one operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="name of the public function and of its files, in lower case with underscores")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the clone to change (default: this one)")
    arguments = parser.parse_args()
    name, root = arguments.name, arguments.root
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        parser.error(f"name: expected lower-case words joined by underscores, got {name!r}")
    if (root / "ffi" / "ops" / name).exists():
        parser.error(f"name: operation {name!r} already exists")
    words = {"name": name, "Title": name.replace("_", " ").capitalize(), "Struct": name.title().replace("_", "")}
    for path, text in NEW.items():
        file = root / path.format(**words)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.lstrip("\n").format(**words))
        print(f"new      {file.relative_to(root)}")
    handler = f"  OPERATION({name})".ljust(34) + " \\"
    insert(root / "ffi" / "runtime" / "operations.h", handler, r"  OPERATION\(.*")
    star = f"from jax_mgpu._src.ops.{name} import *"
    insert(root / "jax_mgpu" / "__init__.py", star, r"from jax_mgpu\._src\.ops\.\w+ import \*")
    insert(root / "docs" / "index.md", f"reference/{name}", r"reference/(?!index$|information$)\w+")


if __name__ == "__main__":
    main()
