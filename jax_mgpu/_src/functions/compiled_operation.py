"""Operations that CUDA compiles at run time from a function written as lines (emit/)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jax_mgpu._src.arguments.annotations import Attribute
from jax_mgpu._src.core import library
from jax_mgpu._src.core.operation import Operation
from jax_mgpu._src.functions.emit import Layout, OperatorData

# A scan of a batch gives each row of at least LONG_ROW_BYTES its own tiles; shorter rows share tiles.
LONG_ROW_BYTES = 1 << 17


class CompiledOperation(Operation):
    """An operation that CUDA compiles from a caller's function.

    Args:
      what: the functions in words, for a warning.
      first_captured: the place of the first captured value among operands.
      captures: the number of captured values.

    Rules take `*operands`, because their number varies.
    """

    def __init__(self, name: str, what: str, first_captured: int, captures: int, **description: Any):
        self.what, self.captures = what, captures
        self.captured = slice(first_captured, first_captured + captures)
        super().__init__(name, only="cuda", is_registered=False, **description)

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, Any], platform: str, devices: int) -> bool:
        """Whether a program that could have kernels should run plain JAX."""
        if devices > 1 and self.captures:
            return True
        problem = library.compiler_problem()
        if problem:
            warn_once(f"functions as {self.what} run in plain JAX, which is slower: {problem}")
        return bool(problem)

    def attributes_of(self, written: OperatorData, operands: Sequence[Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of handlers that run an operator. Operands end with heads and a count."""
        leaves, heads, batch_rank = operands[: self.captured.start], operands[-2], self._batch_rank(operands)
        widths = [written.element.leaf_bytes(leaf) for leaf in range(len(leaves))]
        own = dict(own)
        if "reverse" in own:
            row_bytes = leaves[0].shape[batch_rank] * sum(widths)
            shares_tiles = own["width"] == 0 and batch_rank > 0 and row_bytes < LONG_ROW_BYTES
            own["segmented"] = int(heads.size > 0 or shares_tiles)
        return {
            **own,
            "leaves": len(leaves),
            "captures": self.captures,
            "batch_rank": batch_rank,
            "item_bytes": written.largest_bytes,
            "widest": max(widths),
            "packed": sum(widths),
            "results": len(written.results),
            "result_bytes": Layout.of(written.results).item_bytes,
            "state_bytes": written.state_bytes,
            "function": written.data,
        }

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
        if all(axis is None for axis in axes[self.captured]):
            return super()._batch(operands, axes, **attributes)
        # A kernel takes the same captured values for all problems.
        function: Callable[..., Any] = functools.partial(self.fallback, **attributes)
        own = [x.ndim - (axis is not None) - rank for x, axis, rank in zip(operands, axes, self.ranks, strict=True)]
        for _ in range(max(own)):
            function = jax.vmap(function, in_axes=[0 if batch_rank > 0 else None for batch_rank in own])
        results = jax.vmap(function, in_axes=axes)(*operands)
        return list(results), [0] * len(results)


def warn_once(words: str) -> None:
    """Warns of something the first time."""
    if words not in _WARNED:
        _WARNED.add(words)
        warnings.warn(f"jax_mgpu: {words}", stacklevel=2)


_WARNED: set[str] = set()
