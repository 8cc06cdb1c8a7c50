"""All uses of JAX that may change without notice, private names among them."""

from __future__ import annotations

import functools
import inspect
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax._src import config as _config
from jax._src import core as _core
from jax._src import shard_map as _shard_map
from jax._src.array import ArrayImpl
from jax._src.export import _export
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.sharding_impls import SPMDAxisContext as _SPMDAxisContext
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxprs_in_params
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo
from jaxlib.version import __version__ as jaxlib_version

from jax_mgpu._src.arguments.annotations import Aval, AxisName, DTypeLike

# Imported names that other modules take from here.
__all__ = [
    "ArrayImpl",
    "ClosedJaxpr",
    "Jaxpr",
    "JaxprEqn",
    "Literal",
    "Primitive",
    "Var",
    "ad",
    "batching",
    "ir",
    "jaxlib_version",
    "mlir",
]

T = TypeVar("T")
LoweringContext = mlir.LoweringRuleContext
WHOLE = PartitionSpec()


def switch(name: str, what: str) -> Any:
    """Returns a setting, off by default: an environment variable, and a context under which jit traces anew."""
    known = _config.config._value_holders.get(name)  # not None if the package is imported a second time
    if known is not None:
        return known
    return _config.bool_state(name, False, what, include_in_jit_key=True, include_in_trace_context=True)


def exportable(result: type) -> None:
    """Lets `jax.export` serialize a named tuple, or a pytree whose auxiliary data is a tuple of numbers or None."""
    name = f"jax_mgpu.{result.__name__}"
    _export.deserialization_registry.pop(name, None)  # the package may be imported a second time
    if hasattr(result, "_fields"):
        jax.export.register_namedtuple_serialization(result, serialized_name=name)
        return
    jax.export.register_pytree_node_serialization(
        result,
        serialized_name=name,
        serialize_auxdata=lambda numbers: b"" if numbers is None else json.dumps(numbers).encode(),
        deserialize_auxdata=lambda text: tuple(json.loads(text.decode())) if text else None,
    )


def compiling() -> AbstractContextManager[Any]:
    """In this context jit compiles even under `jax.disable_jit`."""
    return nullcontext() if compiles() else jax.disable_jit(False)


def compile_eagerly(primitive: Primitive) -> None:
    """Makes each eager call of a primitive a program of its own."""

    @functools.partial(jax.jit, static_argnums=0)
    def run(parameters: tuple[tuple[str, Any], ...], *operands: Any) -> Any:
        return primitive.bind(*operands, **dict(parameters))

    def call(*operands: Any, **parameters: Any) -> Any:
        with compiling():
            return run(tuple(parameters.items()), *operands)

    primitive.def_impl(call)


def reconcile_vma(operands: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Gives all operands the varying manual axes of any of them, as jax.lax does under shard_map."""
    name = "auto_insert_reshard" if hasattr(_core, "auto_insert_reshard") else "standard_insert_pvary"  # in JAX 0.10.0
    varying: Sequence[jax.Array] = getattr(_core, name)(*operands)
    return varying


def vary_as(x: jax.Array, *like: object) -> jax.Array:
    """Returns `x`, typed as varying over the manual axes of `like` too."""
    return reconcile_vma([x, *(y for y in like if isinstance(y, jax.core.Tracer))])[0]


def is_varying(x: object) -> bool:
    """Whether shard_map tracks what varies, and the value or aval varies over a manual axis."""
    aval = x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)
    return bool(aval.mat.varying if hasattr(aval, "mat") else getattr(aval, "vma", ()))


def varying_alike(functions: Sequence[Callable[[], Any]], *like: object) -> list[Callable[[], Any]]:
    """Returns functions in which a result varies over the manual axes of `like` if it does in any of the given ones.

    JAX types some results, such as the indices of a sort, as varying over too few axes.
    """
    if not jax.sharding.get_abstract_mesh().manual_axes:
        return list(functions)
    kinds = [list(map(is_varying, jax.make_jaxpr(function)().out_avals)) for function in functions]
    vary = [any(column) and not all(column) for column in zip(*kinds, strict=True)]

    def alike(function: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            leaves, structure = flatten(function())
            return structure.unflatten([vary_as(x, *like) if on else x for x, on in zip(leaves, vary, strict=True)])

        return call

    return list(map(alike, functions))


def transposed(function: Callable[[jax.Array], jax.Array], like: Any, cotangent: jax.Array, *captured: object) -> Any:
    """Returns the cotangent of a linear function's operand, which has the shape and dtype of `like`.

    JAX would add the cotangents of all devices if the operand did not vary over a manual axis. So the operand varies
    like the cotangent and the captured arrays.
    """
    operand = vary_as(jnp.zeros(like.shape, like.dtype), cotangent, *captured)
    return jax.linear_transpose(function, operand)(cotangent)[0]


def moving_jvp(
    function: Callable[..., Sequence[Any]], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Sequence[Any], list[Any]]:
    """Returns the results of a function of several operands, and their tangents; a tangent that is None is zero."""
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

    def run(*values: jax.Array) -> Sequence[Any]:
        operands = [*primals]
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return function(*operands)

    results, moved = jax.jvp(run, [primals[i] for i in moving], [tangents[i] for i in moving])
    return results, [None if tangent.dtype == jax.dtypes.float0 else tangent for tangent in moved]


class PyTreeDef(Protocol):
    """A pytree's structure, whose class in jaxlib has no annotations."""

    num_leaves: int

    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...


flatten: Callable[[object], tuple[list[Any], PyTreeDef]] = jax.tree_util.tree_flatten


InconclusiveSize = _core.InconclusiveDimensionOperation


def is_symbolic(x: object) -> bool:
    """Whether a shape has symbolic dimensions of `jax.export`."""
    return not all(map(_core.is_constant_dim, getattr(x, "shape", ())))


def known_size(size: Any) -> Any:
    """Returns a size; raises JAX's error if `jax.export` does not know it. Other values stay as they are."""
    return int(size) if _core.is_symbolic_dim(size) else size


def surely(comparison: Callable[..., bool], *sizes: int) -> bool:
    """Whether the comparison holds for all values of unknown sizes."""
    try:
        return comparison(*sizes)
    except InconclusiveSize:
        return False


def smaller(size: int, limit: int) -> int:
    """Returns the smaller of a size and a limit; the size itself if JAX cannot compare them."""
    return limit if surely(lambda: size > limit) else size


def without_values(closed: ClosedJaxpr) -> Jaxpr:
    """Returns the jaxpr of a traced function, with captured values as leading arguments.

    Newer JAX keeps captured values in the jaxpr. They may be tracers, which must not outlive their trace.
    """
    jaxpr: Any = closed.jaxpr
    kept: Jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return kept


def without_unused(closed: ClosedJaxpr, used: Sequence[bool]) -> ClosedJaxpr:
    """Returns a jaxpr with these results only, without the equations that they do not need."""
    jaxpr, _ = _partial_eval.dce_jaxpr(closed.jaxpr, list(used), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def def_unused(primitive: Primitive, rule: Callable[[list[bool], JaxprEqn], JaxprEqn]) -> None:
    """Sets how an equation gives up results that a program does not use; at least one is used."""

    def remove(used: list[bool], *of_jax: Any) -> tuple[list[bool], JaxprEqn | None]:
        *_, equation = of_jax  # before the equation, JAX 0.12 passes which operands are read later
        is_used = any(used)
        return [is_used] * len(equation.invars), rule(used, equation) if is_used else None

    _partial_eval.dce_rules[primitive] = remove


def evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], *arguments: Any, rules: Mapping[str, Callable[..., Any]] | None = None
) -> list[Any]:
    """Evaluates a jaxpr that was traced where it was unknown what varies over a mesh.

    Equations are evaluated anew, and jitted parts inlined. A rule replaces a primitive: it takes parameters and
    operands, and returns the results or None.
    """

    def step(equation: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
        if equation.primitive.name in ("jit", "pjit"):
            called = equation.params["jaxpr"]
            return evaluate(called.jaxpr, called.consts, *operands, rules=rules)
        rule = (rules or {}).get(equation.primitive.name)
        replaced = None if rule is None else rule(equation.params, *operands)
        return evaluate_equation(jaxpr, equation, operands) if replaced is None else replaced

    return interpret(jaxpr, consts, arguments, lambda literal: literal.val, step)


def interpret(
    jaxpr: Jaxpr,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    literal: Callable[[Any], Any],
    step: Callable[[JaxprEqn, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Returns the results of a jaxpr over any kind of values.

    `literal` gives the value of a literal, and `step` the values of an equation's results.
    """
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(var: Var | Literal) -> Any:
        return literal(var) if isinstance(var, Literal) else known[var]

    for equation in jaxpr.eqns:
        results = step(equation, [read(var) for var in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def evaluate_equation(jaxpr: Jaxpr, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    if equation.primitive.name == "pvary":  # operands already vary
        return list(operands)
    given = {var: x for var, x in zip(equation.invars, operands, strict=True) if not isinstance(var, Literal)}
    if any(map(is_varying, given.values())):  # then literals must vary too
        named: list[Any] = [Var(var.aval) if isinstance(var, Literal) else var for var in equation.invars]
        equation = equation.replace(invars=named)
        given = {
            var: x if var in given else jnp.asarray(x, var.aval.dtype) for var, x in zip(named, operands, strict=True)
        }
    alone = jaxpr.replace(constvars=[], invars=list(given), outvars=equation.outvars, eqns=[equation])
    return jax.core.eval_jaxpr(alone, [], *reconcile_vma(list(given.values())))


# Options of mlir.register_lowering that run the rule at each call. By default, newer JAX runs it once for all equal
# calls, in a function where the rule does not see how operands are made.
in_place = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}


def filling_element(value: Any) -> Any:
    """Returns the element, `[1]`, that fills an operand of a lowering rule, or None if it is not known.

    It is known if `jnp.zeros` or `jnp.full` makes the operand in the lowered function.
    """
    element = value.type.element_type
    while ir.RankedTensorType(value.type).rank > 0:
        maker = value.owner
        if isinstance(maker, ir.Block) or maker.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            return None
        value = maker.operands[0]
    return hlo.reshape(ir.RankedTensorType.get([1], element), value)


def sort_by_region(
    ctx: LoweringContext, operands: Sequence[Any], precedes: Callable[..., Any], avals: Sequence[Any]
) -> Any:
    """Lowers to XLA's stable sort along the last axis, and returns the last operand sorted.

    `precedes` takes the scalars of two items, of the given avals, and returns a list of one bool.
    """
    axis = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ir.RankedTensorType(operands[0].type).rank - 1)
    sort = hlo.SortOp([x.type for x in operands], operands, dimension=axis, is_stable=ir.BoolAttr.get(True))
    scalars = [ir.RankedTensorType.get([], ir.RankedTensorType(x.type).element_type) for x in operands]
    block = sort.comparator.blocks.append(*[kind for kind in scalars for _ in range(2)])
    with ir.InsertionPoint(block):
        within = ctx.replace(primitive=None, avals_in=avals, avals_out=[jax.core.ShapedArray((), np.dtype(bool))])
        items = [*block.arguments[0::2], *block.arguments[1::2]]
        hlo.return_(list(mlir.lower_fun(precedes, multiple_results=True)(within, *items)))
    return sort.results[-1]


def scan_operands(params: Mapping[str, Any], operands: Sequence[Any]) -> list[list[Any]]:
    """Splits the operands of `scan` into constants, carried values, and arrays with a row per step."""
    if "ft_in" in params:
        counts = [len(part) for part in params["ft_in"].unpack()][:2]
    else:
        counts = [params["num_consts"], params["num_carry"]]
    ends = [counts[0], sum(counts)]
    return [list(operands[: ends[0]]), list(operands[ends[0] : ends[1]]), list(operands[ends[1] :])]


def automatic_devices(ctx: LoweringContext) -> int:
    """Returns the number of devices over which XLA splits a lowering rule's output; Manual axes do not count."""
    axis_context = ctx.module_context.axis_context
    if isinstance(axis_context, _SPMDAxisContext):
        sizes = axis_context.mesh.shape
        return math.prod(size for axis, size in sizes.items() if axis not in axis_context.manual_axes)
    return int(axis_context.num_devices)


def whole_axes(x: jax.Array) -> jax.Array:
    if not is_sharded(x):
        return x
    mesh = jax.typeof(x).sharding.mesh
    result: jax.Array = jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, PartitionSpec(*[None] * x.ndim)))
    return result


def is_sharded(x: jax.Array) -> bool:
    """Whether an axis is sharded over Explicit axes."""
    return any(names is not None for names in jax.typeof(x).sharding.spec)


def is_local(*arrays: jax.Array) -> bool:
    """Whether no mesh is set here and no array is known to be on one: false under shard_map and Explicit axes."""
    return jax.sharding.get_abstract_mesh().empty and all(jax.typeof(x).sharding.mesh.empty for x in arrays)


def is_of_one_device() -> bool:
    """Whether there is no mesh, or all of its axes are Manual."""
    mesh = jax.sharding.get_abstract_mesh()
    return len(mesh.manual_axes) == len(mesh.axis_names)


def is_of_cpus() -> bool | None:
    """Whether the mesh has CPU devices; None if it names none."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else bool(device.device_kind == "cpu")


def on_mesh_of(*arguments: object) -> AbstractContextManager[Any]:
    """In this context, the mesh is that of an argument over Explicit axes, if none is set.

    Then calls without `jax.set_mesh` reshard as calls under it do.
    """
    if not jax.sharding.get_abstract_mesh().empty:
        return nullcontext()
    arrays = [x for x in jax.tree.leaves(arguments) if isinstance(x, jax.Array | jax.core.ShapedArray)]
    avals = [x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x) for x in arrays]
    meshes = [aval.sharding.mesh for aval in avals if aval.sharding.mesh.explicit_axes]
    return jax.sharding.use_abstract_mesh(meshes[0]) if meshes else nullcontext()


def result_aval(
    like: jax.core.ShapedArray, shape: tuple[int, ...], dtype: DTypeLike, batch_rank: int
) -> jax.core.ShapedArray:
    """Returns a result's aval, sharded as `like` along batch axes, and varying as `like`."""
    sharding = like.sharding
    if sharding.mesh.empty:
        sharding = _core.get_cur_mesh_sharding()
    else:
        spec = PartitionSpec(*sharding.spec[:batch_rank], *[None] * (len(shape) - batch_rank))
        sharding = jax.sharding.NamedSharding(sharding.mesh, spec)
    made: jax.core.ShapedArray = like.update(shape=shape, dtype=np.dtype(dtype), weak_type=False, sharding=sharding)
    return made


def automatic(function: Callable[..., T], out_specs: Any = WHOLE) -> Callable[..., T]:
    """Makes Explicit axes of the mesh Auto in a function, so that its jax.numpy needs no output shardings.

    By default, results are unsharded.
    """
    axes = jax.sharding.get_abstract_mesh().explicit_axes
    return jax.sharding.auto_axes(function, axes=axes, out_sharding=out_specs) if axes else function


def automatic_batches(function: Callable[..., T], batch: Sequence[Any] = ()) -> Callable[..., T]:
    """`automatic` for a function that a vmap may map over Explicit axes.

    The batch is moved into the function; `batch` is the sharding of its axes.
    """
    if not jax.sharding.get_abstract_mesh().explicit_axes:
        return function
    whole = jax.custom_batching.custom_vmap(automatic(function, PartitionSpec(*batch)))

    @whole.def_vmap
    def batched(size: int, in_batched: Any, *arguments: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched)
        pairs = zip(jax.tree.leaves(arguments), jax.tree.leaves(in_batched), strict=True)
        spec = next(partition_spec(x)[0] for x, is_batched in pairs if is_batched)
        mapped = jax.vmap(function, in_axes=tuple(axes), axis_size=size)
        results = automatic_batches(mapped, (spec, *batch))(*arguments)
        return results, jax.tree.map(lambda _: True, results)

    return whole


def recomputed(function: Callable[[], T]) -> Callable[[], T]:
    """Returns a function whose derivative keeps no intermediate results under Explicit axes.

    Functions of JAX with Auto axes inside keep arrays over these, which vmap cannot map over Explicit axes in a branch.
    """
    return jax.checkpoint(function) if jax.sharding.get_abstract_mesh().explicit_axes else function


def free_of_explicit_axes() -> AbstractContextManager[Any]:
    """In this context, a traced jaxpr does not depend on the mesh's Explicit axes.

    A mesh without such axes stays set, because a jaxpr says which values vary over Manual axes.
    """
    if not jax.sharding.get_abstract_mesh().explicit_axes:
        return nullcontext()
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


def partition_spec(x: Aval) -> Sequence[Any]:
    """Returns each axis's sharding; None for all of them if the mesh is not Explicit."""
    aval = x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)
    return (*aval.sharding.spec, *[None] * (aval.ndim - len(aval.sharding.spec)))


def broadcast(x: jax.Array, shape: Sequence[int], axes: Sequence[int], spec: Sequence[Any]) -> jax.Array:
    """Broadcasts `x`, whose axes are `axes` of `shape`, sharded by `spec` under an Explicit mesh."""
    sharding = PartitionSpec(*spec) if jax.sharding.get_abstract_mesh().explicit_axes else None
    return jax.lax.broadcast_in_dim(x, shape, axes, out_sharding=sharding)


def stack(arrays: Sequence[jax.Array], axis: int = 0) -> jax.Array:
    """`jnp.stack` that also works where vmap maps only some arrays over Explicit axes."""
    return jnp.concatenate([jnp.expand_dims(x, axis) for x in arrays], axis)


def rows_sharding(x: jax.Array, rank: int = 1) -> PartitionSpec | None:
    """Returns the sharding of rows taken by indices of this rank, under an Explicit mesh.

    Trailing axes keep their sharding.
    """
    if not jax.sharding.get_abstract_mesh().explicit_axes:
        return None
    return PartitionSpec(*[None] * rank, *partition_spec(x)[1:])


def invariant_gather(x: jax.Array, axis_name: AxisName, index: jax.Array, *, tiled: bool = False) -> jax.Array:
    """Returns `[devices, ...]` from one value per device; if shard_map tracks what varies, the result does not vary.

    With `tiled`, rows of devices follow each other along the first axis.

    `index` is the device's own index, which varies if shard_map tracks what varies.
    """
    to = "invarying" if is_varying(index) else "varying"
    gathered: jax.Array = jax.lax.all_gather(x, axis_name, tiled=tiled, to=to)
    return gathered


def axes_bound(name: AxisName) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a function whose context binds the axes bound here, for rules that JAX runs later."""
    sizes = [(axis, jax.lax.axis_size(axis)) for axis in (name if isinstance(name, tuple) else (name,))]

    def bound() -> AbstractContextManager[Any]:
        known = _core.get_axis_env()
        return _core.extend_axis_env_nd([(axis, size) for axis, size in sizes if not known.axis_exists(axis)])

    return bound


# What `EagerCalls` of ffi/python/eager_calls.h reads: two options, and two states with their values outside of jit.
OPTIONS = (
    *(_config.enable_x64, _config.disable_jit),
    *(_core.trace_state_strong_ref, _core.eval_trace),
    *(_core.axis_env_state, _core.top_axis_env),
)


def has_64_bits() -> bool:
    return bool(_config.enable_x64.value)


def compiles() -> bool:
    return not _config.disable_jit.value


def cond(holds: jax.Array, true: Callable[..., T], false: Callable[..., T], *operands: Any) -> T:
    """`jax.lax.cond`, whose result has no type in JAX."""
    result: T = jax.lax.cond(holds, true, false, *operands)
    return result


def fori_loop(begin: int, end: int | jax.Array, body: Callable[[Any, T], T], first: T) -> T:
    result: T = jax.lax.fori_loop(begin, end, body, first)
    return result


def platform_dependent(*operands: Any, default: Callable[..., T], **ways: Callable[..., T]) -> T:
    result: T = jax.lax.platform_dependent(*operands, default=default, **ways)
    return result


is_eager = _core.trace_ctx.is_top_level  # whether nothing is traced, batched or differentiated here


def is_within_program() -> bool:
    """Whether calls here become part of a program, or run under shard_map.

    With Explicit axes, batches and derivatives count too: JAX cannot map a program over them that has Auto axes.
    """
    if _core.trace_ctx.is_top_level():
        return False
    return not isinstance(_outermost_trace(), _core.EvalTrace) or bool(jax.sharding.get_abstract_mesh().explicit_axes)


def is_in_eager_shard_map() -> bool:
    """Whether each operation here runs under shard_map as a separate program."""
    return isinstance(_outermost_trace(), _shard_map.ShardMapTrace)


def _outermost_trace() -> Any:
    """Returns the trace that evaluates without batches and derivatives."""
    trace = _core.trace_ctx.trace
    while not isinstance(trace, _partial_eval.DynamicJaxprTrace) and hasattr(trace, "parent_trace"):
        trace = trace.parent_trace
    return trace


def inner_jaxprs(equation: JaxprEqn) -> Iterable[Any]:
    return jaxprs_in_params(equation.params)


def has_primitive(jaxpr: Any, prefixes: tuple[str, ...]) -> bool:
    """Whether a jaxpr, or one that it calls, has a primitive whose name begins with one of the prefixes."""
    return any(
        equation.primitive.name.startswith(prefixes)
        or any(has_primitive(inner, prefixes) for inner in inner_jaxprs(equation))
        for equation in jaxpr.eqns
    )


def is_zero(tangent: object) -> bool:
    return isinstance(tangent, ad.Zero)


def zero_tangent(primal: jax.Array) -> Any:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def ffi_api_version() -> tuple[int, int] | None:
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None
