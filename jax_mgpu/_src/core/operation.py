"""Turns the description of an operation into a JAX primitive.

A family describes an operation on one problem: ranks of operands, a shape rule, a plain-JAX form, derivative rules.
From this follow abstract evaluation, the lowerings to handlers of the same name or to plain JAX, batching and, on CUDA,
a hidden result for scratch memory. These conventions hold:

- The description names operands, results and attributes. A call passes operands by name, and a rule receives those that
  its parameters name. `expect_compiled_names` compares these names with those of the libraries.
- A call may leave out an operand, which is then `ABSENT`, an empty int32 vector.
- Attributes are ints (flags and enumerations too) or `Keyed`, which `call_attributes` replaces by attributes that
  handlers can take.
- A batch adds leading axes. An operand has all of them or, if the batch does not touch it, none; every result has all.
  Handlers take both kinds, so the batching rule moves axes. It repeats operands that are `streamed` or whose buffer a
  result may take over.
"""

from __future__ import annotations

import enum
import functools
import inspect
import warnings
from collections import namedtuple
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jax_mgpu._src.arguments.annotations import Attribute, Aval, Operands, Tangents
from jax_mgpu._src.core import library
from jax_mgpu._src.core.compat import (
    InconclusiveSize,
    LoweringContext,
    Primitive,
    ad,
    automatic,
    automatic_devices,
    batching,
    broadcast,
    compiling,
    filling_element,
    in_place,
    ir,
    is_eager,
    is_in_eager_shard_map,
    is_sharded,
    is_symbolic,
    is_zero,
    mlir,
    on_mesh_of,
    partition_spec,
    reconcile_vma,
    result_aval,
    vary_as,
    zero_tangent,
)
from jax_mgpu._src.core.eager import UnknownSizeError, jit_eager, unknown_size
from jax_mgpu._src.core.sharding import declare_batch, workspace_shape
from jax_mgpu._src.keys.bits import keeping_bits

# Imported names that other modules take from here.
__all__ = ["jit_eager"]

ABSENT = cast(jax.Array, np.zeros((0,), np.int32))  # typed as a JAX array, because it stands for an operand

REGISTRY: dict[str, Operation] = {}


class Operation:
    """An operation as a JAX primitive with several results.

    Args:
      name: the name of the FFI handlers and of the C++ functions and, after `mgpu_`, of the primitive.
      operands: the rank of each operand of one problem by name, in the handlers' order.
      results: the names of the results, in the handlers' order. Some values of attributes leave results out.
      attributes: the type of each attribute by name: `bool`, `int`, an enumeration, or `Keyed`.
      shapes: the shape rule, which takes `jax.ShapeDtypeStruct`s of operands, and attributes, and gives one struct per
        result.
      fallback: the operation in plain JAX, on one problem.
      aliases: names of results, by the name of the operand whose buffer they may take over if it is donated. If the
        program makes that operand from one scalar, as `jnp.zeros` does, kernels may get the scalar, `[1]`, and fill
        the result.
      streamed: operands that kernels read as one run over the batch; without batch axes, they are repeated.
      only: the one platform with kernels, if others have none. On other platforms plain JAX runs without a warning.
        `""` says that no platform has kernels, and that the libraries do not know the operation.
      is_registered: whether the libraries know the operation by these names.

    A rule takes the operands and attributes that its parameters name, or all operands in order as `*operands`. Rules of
    derivatives get the operands as a named tuple.
    """

    def __init__(
        self,
        name: str,
        *,
        operands: Mapping[str, int],
        results: Sequence[str],
        attributes: Mapping[str, type] | None = None,
        shapes: Callable[..., Sequence[jax.ShapeDtypeStruct]],
        fallback: Callable[..., Sequence[jax.Array]],
        aliases: Mapping[str, str] | None = None,
        streamed: Sequence[str] = (),
        only: str | None = None,
        is_registered: bool = True,
    ):
        self.name = name
        self.operands, self.results, self.attributes = tuple(operands), tuple(results), dict(attributes or {})
        self.Operands = namedtuple(f"{name}_operands", self.operands)  # type: ignore[misc]
        self.ranks = tuple(operands.values())
        self.shapes = self._by_name(shapes)
        self.fallback = self._by_name(fallback)
        place = self.operands.index
        self.aliases = {place(operand): self.results.index(result) for operand, result in (aliases or {}).items()}
        self.only = only
        self.transposes: dict[int, Callable[..., Any]] = {}
        # A result cannot take over the buffer of an operand without batch axes.
        self.repeated = frozenset({*map(place, streamed), *self.aliases})
        self.primitive = Primitive(f"mgpu_{name}")
        self.primitive.multiple_results = True
        self.primitive.def_impl(self._impl)
        self.primitive.def_abstract_eval(self._abstract)
        batching.primitive_batchers[self.primitive] = self._batch
        _register_lowerings(self)
        if is_registered and only != "":
            REGISTRY[name] = self

    @property
    def platforms(self) -> Sequence[str]:
        return tuple(platform for platform in library.platforms() if self.only in (None, platform))

    def warn_without_kernels(self, platforms: Sequence[str]) -> None:
        if self.only is None:
            _warn_without_kernels(platforms)

    def prefers_xla(self, operands: Sequence[Any], attributes: Mapping[str, Any], platform: str, devices: int) -> bool:
        """Whether a program that could have kernels should run plain JAX."""
        del operands, attributes, platform, devices
        return False

    def fold_batch(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> Sequence[jax.Array] | None:
        """Runs a batch in plain JAX on one device as one problem, or returns None."""
        del operands, attributes
        return None

    def call_attributes(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
        del operands
        return dict(attributes)

    def __call__(self, **named: Any) -> list[jax.Array]:
        """Binds the primitive to operands, with or without batch axes, and attributes, all by name."""
        operands = [named.pop(operand, ABSENT) for operand in self.operands]
        return self.run(operands, **named)

    def run(self, operands: Operands | Sequence[Any], **attributes: Attribute) -> list[jax.Array]:
        """Binds the primitive to all operands in their order."""
        if attributes.keys() != self.attributes.keys():
            expected, got = ", ".join(self.attributes), ", ".join(attributes)
            raise TypeError(f"{self.name}: operands and attributes: expected attributes {expected}, got {got}")
        attributes = {name: x if isinstance(x, Keyed) else int(x) for name, x in attributes.items()}
        if is_eager():
            return self._impl(*operands, **attributes)
        if is_in_eager_shard_map():  # under shard_map, an argument may not be empty
            absent = tuple((i, x.shape, np.dtype(x.dtype)) for i, x in enumerate(operands) if not x.size)
            present = [x for x in operands if x.size]
            results: list[jax.Array] = _run_within_shard_map(self, tuple(attributes.items()), absent, *present)
        else:
            results = self.primitive.bind(*reconcile_vma([in_program(x) for x in operands]), **attributes)
        return results

    def _by_name(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Turns a rule that takes some operands and attributes by name into a function of all operands in order."""
        parameters = inspect.signature(rule).parameters
        if any(parameter.kind == inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values()):
            return rule
        wanted = {name for name, parameter in parameters.items() if parameter.kind != inspect.Parameter.VAR_KEYWORD}
        unknown = wanted - {*self.operands, *self.attributes}
        if unknown:
            expected = "the names of operands and attributes"
            raise TypeError(f"{self.name}: {rule.__name__}: expected {expected}, got {', '.join(sorted(unknown))}")
        every_attribute = len(wanted) < len(parameters)
        places = [(name, i) for i, name in enumerate(self.operands) if name in wanted]

        def call(*operands: jax.Array, **attributes: Attribute) -> Any:
            taken = {name: value for name, value in attributes.items() if every_attribute or name in wanted}
            return rule(**{name: operands[i] for name, i in places}, **taken)

        return call

    def def_jvp(self, rule: Callable[..., tuple[Sequence[Any], Sequence[Any]]]) -> None:
        """Sets the forward derivative.

        `rule(primals, tangents, **attributes)` gets one problem's operands and tangents as named tuples. It returns
        results and tangents. None is a zero tangent.
        """

        def jvp(primals: Sequence[Any], tangents: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
            live = [i for i, t in enumerate(tangents) if not is_zero(t) and t.dtype != jax.dtypes.float0]
            moving: list[int] = []

            def one_problem(primals: Sequence[Any], live_tangents: Sequence[Any]) -> Any:
                tangents: list[Any] = [None] * len(primals)
                for i, tangent in zip(live, live_tangents, strict=True):
                    tangents[i] = tangent
                results, result_tangents = rule(self.Operands(*primals), self.Operands(*tangents), **attributes)
                moving[:] = [i for i, tangent in enumerate(result_tangents) if tangent is not None]
                return list(results), [result_tangents[i] for i in moving]

            given = [tangents[i] for i in live]
            # Only sharded operands need Auto axes. Without sharded operands, the axes of a surrounding vmap must stay
            # as they are.
            mapped = automatic(one_problem) if any(map(is_sharded, _arrays((*primals, *given)))) else one_problem
            axes = [0 if x.ndim > rank else None for x, rank in zip(primals, self.ranks, strict=True)]
            for _ in range(self._batch_rank(primals)):
                mapped = jax.vmap(mapped, in_axes=(axes, [axes[i] for i in live]))
            with on_mesh_of(primals, given):
                results, live_results = mapped(_arrays(primals), _arrays(given))
            result_tangents = [zero_tangent(result) for result in results]
            for i, tangent in zip(moving, live_results, strict=True):
                result_tangents[i] = vary_as(tangent, results[i])
            return results, result_tangents

        ad.primitive_jvps[self.primitive] = jvp

    def def_linear(self, **transposes: Callable[..., Any]) -> None:
        """Declares the first result linear in each of these operands; sets transposes and forward derivative.

        No other result has a tangent; without arguments, no result has one.
        """
        for operand, rule in transposes.items():
            self.def_transpose(operand, rule)
        self.def_jvp(self.linear_jvp)

    def linear_jvp(self, primals: Operands, tangents: Tangents, **attributes: Attribute) -> tuple[Any, Any]:
        """Returns results and tangents; the first result is linear in each operand with a transpose."""
        results = self.run(primals, **attributes)
        linear = {self.operands[i] for i in self.transposes}
        moving = {name: dx for name, dx in tangents._asdict().items() if dx is not None and name in linear}
        parts = [self.run(primals._replace(**{name: dx}), **attributes)[0] for name, dx in moving.items()]
        return results, [sum(parts[1:], parts[0]) if parts else None, *[None] * (len(results) - 1)]

    def def_transpose(self, operand: str, rule: Callable[..., Any]) -> None:
        """Declares the operation linear in this operand; sets its transpose.

        `rule(cotangents, operands, **attributes)` gets one problem: a cotangent per result (None if zero), and operands
        by name, linear ones as `jax.ShapeDtypeStruct`. It returns `operand`'s cotangent.
        """
        self.transposes[self.operands.index(operand)] = rule
        ad.primitive_transposes[self.primitive] = self._transpose

    def _transpose(self, cotangents: Sequence[Any], *operands: Any, **attributes: Attribute) -> list[Any]:
        linear = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
        operands = tuple(x.aval if i in linear else x for i, x in enumerate(operands))
        results: list[Any] = [None] * len(operands)
        for i in linear:
            if i not in self.transposes:
                expected = "an operand that the operation is linear in"
                raise NotImplementedError(f"{self.name}: transpose: expected {expected}, got {self.operands[i]}")
            results[i] = self._transpose_one(i, linear, cotangents, operands, attributes)
        return results

    def _transpose_one(
        self,
        operand: int,
        linear: Sequence[int],
        cotangents: Sequence[Any],
        operands: Sequence[Any],
        attributes: Mapping[str, Any],
    ) -> Any:
        aval, rank = operands[operand], self.ranks[operand]
        live = [i for i, cotangent in enumerate(cotangents) if not is_zero(cotangent)]
        if not live:
            return ad.Zero(aval)
        known = [i for i in range(len(operands)) if i not in linear]

        def one_problem(known_operands: Sequence[Any], live_cotangents: Sequence[Any]) -> Any:
            all_operands: list[Any] = [
                jax.ShapeDtypeStruct(x.shape[x.ndim - rank :], x.dtype)
                for x, rank in zip(operands, self.ranks, strict=True)
            ]
            for i, value in zip(known, known_operands, strict=True):
                all_operands[i] = value
            all_cotangents: list[Any] = [None] * len(cotangents)
            for i, value in zip(live, live_cotangents, strict=True):
                all_cotangents[i] = value
            return self.transposes[operand](all_cotangents, self.Operands(*all_operands), **attributes)

        batch_rank = self._batch_rank(operands)
        mapped = automatic(one_problem)
        for _ in range(batch_rank):
            in_axes = [0 if operands[i].ndim > self.ranks[i] else None for i in known]
            mapped = jax.vmap(mapped, in_axes=(in_axes, 0))
        result = mapped(_arrays(operands[i] for i in known), _arrays(cotangents[i] for i in live))
        if batch_rank and aval.ndim == rank:  # this operand served the whole batch
            result = result.sum(axis=tuple(range(batch_rank)))
        return vary_as(result, *(operands[i] for i in known))

    def _batch_rank(self, operands: Sequence[Any]) -> int:
        return max(int(operand.ndim) - rank for operand, rank in zip(operands, self.ranks, strict=True))

    def _impl(self, *operands: jax.Array, **attributes: Attribute) -> list[jax.Array]:
        with compiling():
            result: list[jax.Array] = _run_primitive(self, tuple(attributes.items()), *operands)
            return result

    def _abstract(self, *avals: Any, **attributes: Attribute) -> list[Any]:
        batch_rank = self._batch_rank(avals)
        like = next(aval for aval, rank in zip(avals, self.ranks, strict=True) if aval.ndim - rank == batch_rank)
        batch = like.shape[:batch_rank]
        for aval, rank in zip(avals, self.ranks, strict=True):
            if aval.ndim != rank and aval.shape[: aval.ndim - rank] != batch:
                raise ValueError(
                    f"{self.name}: batch axes of the operands: expected all of {batch} or none, got shape {aval.shape}"
                )
        problem = [
            jax.ShapeDtypeStruct(aval.shape[aval.ndim - rank :], aval.dtype)
            for aval, rank in zip(avals, self.ranks, strict=True)
        ]
        return [
            result_aval(like, (*batch, *result.shape), result.dtype, batch_rank)
            for result in self.shapes(*problem, **attributes)
        ]

    def _batch(self, operands: Sequence[Any], axes: Sequence[Any], **attributes: Attribute) -> tuple[Any, Any]:
        mapped = [axis is not None for axis in axes]
        operands = [_leading(x, axis) if axis else x for x, axis in zip(operands, axes, strict=True)]
        # The batch is the new axis and the axes of an earlier vmap, from an operand that has them.
        inner = [x.ndim - on - rank for x, on, rank in zip(operands, mapped, self.ranks, strict=True)]
        first, fullest = mapped.index(True), inner.index(max(inner))
        earlier = slice(mapped[fullest], mapped[fullest] + inner[fullest])
        batch = (operands[first].shape[0], *operands[fullest].shape[earlier])
        specs = (partition_spec(operands[first])[0], *partition_spec(operands[fullest])[earlier])
        moved = []
        for i, (x, rank) in enumerate(zip(operands, self.ranks, strict=True)):
            if not mapped[i] and not inner[i] and i not in self.repeated:
                moved.append(x)  # this operand serves the whole batch
                continue
            own = x.ndim - rank
            present = [*range(not mapped[i], 1), *range(1, 1 + inner[i]), *range(len(batch), len(batch) + rank)]
            spec = (*specs, *partition_spec(x)[own:])
            shape = (*batch, *x.shape[own:])
            repeat = functools.partial(broadcast, shape=shape, axes=present, spec=spec)
            moved.append(keeping_bits(repeat, x, repeats=True) if x.shape != shape else x)
        results = self.run(moved, **attributes)
        return results, [0] * len(results)


def _leading(x: jax.Array, axis: int) -> jax.Array:
    return keeping_bits(lambda x: jnp.moveaxis(x, axis, 0), x, repeats=True)


def in_program(x: jax.Array) -> jax.Array:
    """Returns an operand in the form in which it is traced.

    An empty operand is made anew: as a constant or argument under shard_map, it may crash the compiler of jaxlib 0.11.
    """
    if x.size:
        return jnp.asarray(x)
    return jax.lax.full_like(x, 0) if isinstance(x, jax.core.Tracer) else jnp.zeros(x.shape, x.dtype)


def _arrays(values: Iterable[Any]) -> list[Any]:
    """Returns values as JAX arrays; eager derivatives may pass NumPy arrays."""
    return [jnp.asarray(x) for x in values]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run_primitive(
    operation: Operation, attributes: tuple[tuple[str, int], ...], *operands: jax.Array
) -> list[jax.Array]:
    result: list[jax.Array] = operation.primitive.bind(*operands, **dict(attributes))
    return result


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _run_within_shard_map(
    operation: Operation,
    attributes: tuple[tuple[str, int], ...],
    absent: tuple[tuple[int, tuple[int, ...], np.dtype], ...],
    *present: jax.Array,
) -> list[jax.Array]:
    operands = list(present)
    for i, shape, dtype in absent:
        operands.insert(i, cast(jax.Array, np.zeros(shape, dtype)))
    return operation.run(operands, **dict(attributes))


class Keyed:
    """An attribute of any type, equal to others with the same key."""

    def __init__(self, key: Hashable, value: Any):
        self.key, self.value = key, value
        self._hash = hash(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self._hash & 0xFFFFFFFF:08x}"


def _register_lowerings(operation: Operation) -> None:
    pure = _plain_lowering(operation)

    def lower_anywhere(ctx: LoweringContext, *operands: ir.Value[Any], **attributes: Attribute) -> Any:
        operation.warn_without_kernels(ctx.module_context.platforms)
        return pure(ctx, *operands, **attributes)

    mlir.register_lowering(operation.primitive, lower_anywhere)
    for platform in operation.platforms:
        register_kernels(operation, platform, on=platform)


def register_kernels(operation: Operation, platform: str, on: str) -> None:
    """Lowers an operation to calls of a platform's kernels in programs for `on`."""
    lowering = _kernel_lowering(operation, platform, _plain_lowering(operation))
    # Only a rule that runs at each call sees how an aliased operand is made.
    options = in_place if operation.aliases else {}
    mlir.register_lowering(operation.primitive, lowering, platform=on, **options)


def _plain_lowering(operation: Operation) -> Callable[..., Any]:
    def fallback(*operands: jax.Array, devices: int, **attributes: Attribute) -> Sequence[jax.Array]:
        return _fallback_of(operation, operands, attributes, devices)

    lower_fallback = mlir.lower_fun(fallback, True)

    def pure(ctx: Any, *operands: ir.Value[Any], **attributes: Attribute) -> Any:
        """Lowers plain JAX, which is traced outside of `shard_map`: avals must not vary over manual axes."""
        avals = [jax.core.ShapedArray(aval.shape, aval.dtype, sharding=aval.sharding) for aval in ctx.avals_in]
        devices = automatic_devices(ctx) if operation._batch_rank(avals) else 1
        return lower_fallback(ctx.replace(avals_in=avals), *operands, devices=devices, **attributes)

    return pure


def _kernel_lowering(operation: Operation, platform: str, pure: Callable[..., Any]) -> Callable[..., Any]:
    repeated = mlir.lower_fun(
        lambda *operands, **attributes: operation.run(_repeat(operation, operands), **attributes), True
    )

    as_bytes = mlir.lower_fun(lambda *operands, **attributes: _run_as_bytes(operation, operands, attributes), True)

    def lower(ctx: Any, *operands: ir.Value[Any], **attributes: Attribute) -> Any:
        avals_in, avals_out = ctx.avals_in, list(ctx.avals_out)
        if platform == "cuda" and library.gpu_problem():
            operation.warn_without_kernels([platform])
            return pure(ctx, *operands, **attributes)
        if any(map(_is_float8, avals_in)):
            return as_bytes(ctx, *operands, **attributes)
        if platform == "cuda" and any(map(is_symbolic, avals_in)):
            named = dict(zip(operation.operands, avals_in, strict=True))
            raise unknown_size(operation.name, named, "The scratch memory of CUDA kernels follows from all sizes.")
        batch_rank = operation._batch_rank(avals_in)
        devices = automatic_devices(ctx) if batch_rank else 1
        if operation.prefers_xla(avals_in, attributes, platform, devices):
            return pure(ctx, *operands, **attributes)
        if devices > 1 and any(aval.ndim == rank for aval, rank in zip(avals_in, operation.ranks, strict=True)):
            return repeated(ctx, *operands, **attributes)
        given_attributes = operation.call_attributes(avals_in, attributes)
        numbers = {name: value for name, value in given_attributes.items() if not isinstance(value, str)}
        if platform == "cuda":
            # One more result is scratch memory, which XLA's allocator places.
            shape = _workspace_shape(operation, avals_in, avals_out, numbers, batch_rank, devices)
            avals_out.append(jax.core.ShapedArray(shape, np.dtype(np.uint8)))
        aliases = dict(operation.aliases)
        given, values = list(avals_in), list(operands)
        for index in operation.aliases if devices == 1 else ():
            if (element := filling_element(values[index])) is not None:
                given[index] = given[index].update(shape=(1,))
                values[index] = element
                del aliases[index]
        lowering = jax.ffi.ffi_lowering(library.target(operation.name), operand_output_aliases=aliases or None)
        typed = {**given_attributes, **{name: np.int64(value) for name, value in numbers.items()}}
        results: list[Any] = list(lowering(ctx.replace(avals_in=given, avals_out=avals_out), *values, **typed))
        if devices > 1:
            shapes_in, shapes_out = ([aval.shape for aval in avals] for avals in (avals_in, avals_out))
            declare_batch(results[0].owner, shapes_in, shapes_out, batch_rank)
        return results[: len(ctx.avals_out)]

    return lower


def _is_float8(aval: Aval) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating) and aval.dtype.itemsize == 1


def stored_aval(aval: Aval) -> jax.ShapeDtypeStruct:
    """Returns an operand or result as handlers get it."""
    return jax.ShapeDtypeStruct(aval.shape, np.dtype(np.uint8) if _is_float8(aval) else aval.dtype)


def _run_as_bytes(operation: Operation, operands: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """Runs an operation on float8 rows as bytes. Only the lowering does so, because derivatives need floats."""
    avals = operation._abstract(*map(jax.typeof, operands), **attributes)
    stored = [jax.lax.bitcast_convert_type(x, jnp.uint8) if _is_float8(x) else x for x in operands]
    results = operation.run(stored, **attributes)
    return [
        jax.lax.bitcast_convert_type(x, aval.dtype) if _is_float8(aval) else x
        for x, aval in zip(results, avals, strict=True)
    ]


def _repeat(operation: Operation, operands: Sequence[Any]) -> list[Any]:
    batch_rank = operation._batch_rank(operands)
    batch = next(x.shape[:batch_rank] for x, rank in zip(operands, operation.ranks, strict=True) if x.ndim > rank)

    def repeated(x: jax.Array) -> jax.Array:
        return keeping_bits(lambda x: jnp.broadcast_to(x, (*batch, *x.shape)), x, repeats=True)

    return [repeated(x) if x.ndim == rank else x for x, rank in zip(operands, operation.ranks, strict=True)]


def _workspace_shape(
    operation: Operation,
    avals_in: Sequence[Any],
    avals_out: Sequence[Any],
    attributes: Mapping[str, Any],
    batch_rank: int,
    devices: int,
) -> tuple[int, ...]:
    if devices == 1:
        return (library.workspace_bytes(operation.name, avals_in, avals_out, attributes),)

    def bytes_of(rows: int) -> int:
        batch = (rows, *[1] * (batch_rank - 1))  # the number of batch axes may be an attribute
        operands, results = (
            [jax.ShapeDtypeStruct((*batch, *aval.shape[batch_rank:]), aval.dtype) for aval in avals]
            for avals in (avals_in, avals_out)
        )
        return library.workspace_bytes(operation.name, operands, results, attributes)

    return workspace_shape(avals_out[0].shape[:batch_rank], devices, bytes_of)


def _fallback_of(
    operation: Operation, operands: Sequence[Any], attributes: Mapping[str, Any], devices: int
) -> Sequence[Any]:
    try:
        return run_fallback(operation, operands, attributes, devices)
    except (InconclusiveSize, UnknownSizeError) as error:
        raise unknown_size(operation.name, dict(zip(operation.operands, operands, strict=True)), error) from error


def run_fallback(
    operation: Operation, operands: Sequence[Any], attributes: Mapping[str, Any], devices: int = 1
) -> Sequence[Any]:
    if devices == 1 and (folded := operation.fold_batch(operands, attributes)) is not None:
        return folded

    def function(*xs: jax.Array) -> list[Any]:
        return list(operation.fallback(*xs, **attributes))

    in_axes = [0 if x.ndim > rank else None for x, rank in zip(operands, operation.ranks, strict=True)]
    for _ in range(operation._batch_rank(operands)):
        function = jax.vmap(function, in_axes=in_axes)
    results = operation._abstract(*map(jax.typeof, operands), **attributes)
    return list(automatic(function, [PartitionSpec(*partition_spec(result)) for result in results])(*operands))


def _warn_without_kernels(platforms: Sequence[str]) -> None:
    missing = ", ".join(platforms)
    if missing in _WARNED:
        return
    _WARNED.add(missing)
    exist = {"cpu", "cuda"} & set(platforms)
    how = f"To get the kernels: {library.how_to_get_kernels()}" if exist else "No kernels exist for this platform."
    warnings.warn(
        f"jax_mgpu runs without its kernels on {missing}: every operation works, through plain JAX, and is slower. "
        + how,
        stacklevel=2,
    )


_WARNED: set[str] = set()


def expect_compiled_names() -> None:
    """Raises an error if the libraries' operations, operands, results or attributes differ from Python's."""
    library.expect_names(
        {
            name: {
                "operands": list(operation.operands),
                "results": list(operation.results),
                "attributes": {attribute: _values_of(kind) for attribute, kind in operation.attributes.items()},
            }
            for name, operation in REGISTRY.items()
        }
    )


def _values_of(kind: type[int]) -> list[str] | str:
    if issubclass(kind, enum.Enum):
        return [value.name.lower() for value in kind]
    return "flag" if kind is bool else "number"
