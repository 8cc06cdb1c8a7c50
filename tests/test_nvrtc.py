"""NVRTC compiles the kernel headers, without host compiler, standard headers and GPU."""

import ctypes
import functools
import importlib.util
import os
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_mgpu
from jax_mgpu._src.functions import custom_operator, recurrence
from jax_mgpu._src.functions.emit import emit_order
from tests import host_functions, test_emit
from tests.jaxprs import kernel_calls

FFI = pathlib.Path(__file__).parent.parent / "ffi"
ARCHITECTURES = (75, 90, 120)

ORDER = "mgpu::FloatOrder<uint32_t>"
OPERATOR = "mgpu::Arithmetic<float, float, mgpu::ArithmeticKind::kSum>"
ROUTE = "mgpu::cuda::MoveRoute<true, true, uint32_t>"
ROWS = f"mgpu::cuda::sorting::RowProblem<{ORDER}, uint32_t, mgpu::row_shape(4, true)>"
PAIRS = f"mgpu::cuda::sorting::RowProblem<{ORDER}, uint32_t, mgpu::pairs_shape(4, true)>"
DIGITS = [f"mgpu::cuda::sorting::DigitProblem<{ORDER}, uint32_t, uint32_t, {listed}>" for listed in ("false", "true")]
FEW = f"mgpu::cuda::sorting::RowProblem<{ORDER}, mgpu::NoPayload, mgpu::kFewItemsShape>"
CELLS = f"mgpu::cuda::sorting::CellProblem<{ORDER}, uint32_t, mgpu::row_shape(4, true).sort>"
PACKED = f"mgpu::cuda::sorting::PackedProblem<{ORDER}, mgpu::NoPayload, mgpu::kFewItemsShape.sort>"

# The arguments of a kernel's template, by the declarations of its parameters.
ARGUMENTS = {
    "typename Index": "int32_t",
    "typename Operator": OPERATOR,
    "typename Order": ORDER,
    "typename Payload": "uint32_t",
    "typename Word": "uint32_t",
}
# Kernels whose templates need other arguments, by header. move_words is also compiled with each header's own routes.
SPECIAL = {
    "ops/bulk/routes.cuh": ["move_words<uint32_t, mgpu::cuda::BulkRoute<true>>"],
    "ops/reduce_by_id/combine_by_id.cuh": [
        f"id_combining::combine_items<{holds_all}, mgpu::{operator}>"
        for holds_all in ("false", "true")
        for operator in (
            "Arithmetic<uint32_t, uint32_t, mgpu::ArithmeticKind::kSum>",
            "Bitwise<uint8_t>",
            "Extremum<uint64_t>",
        )
    ],
    "ops/count_bins/kernels.cuh": [
        f"counting::count_parts<mgpu::cuda::counting::{bins}>"
        for bins in ("NumberedBins<int32_t>", f"BinsBetweenEdges<{ORDER}>")
    ],
    "ops/count_bins/many_bins.cuh": [f"counting::count_many<{item}>" for item in ("int32_t", "uint8_t")],
    "ops/sorted_pair/merge_pipeline.cuh": [f"split_tiles<{ORDER}, {may_be_runs}>" for may_be_runs in ("false", "true")],
    "ops/hash_groups/kernels.cuh": [
        *(f"hash_grouping::{kernel}<uint64_t>" for kernel in ("fill_groups", "partition_rows", "start_units")),
        "hash_grouping::combine_groups<uint64_t, 2, 4096>",
    ],
    "ops/group_search/kernels.cuh": [
        f"group_searching::{kernel}<{arguments}>"
        for kernel in ("find_lasts", "search_parts")
        for arguments in ("int32_t, false", "int64_t, true")
    ],
    "ops/interval_reduce/kernels.cuh": [
        *(f"interval_reducing::combine_groups<{from_items}, {OPERATOR}>" for from_items in ("false", "true")),
        *(f"interval_reducing::reduce_intervals_of_rows<4, {listed}, {OPERATOR}>" for listed in ("false", "true")),
    ],
    "ops/intervals/add_intervals.cuh": [
        f"adding::add_intervals<{arguments}>"
        for arguments in ("1, false, float", "4, true, float", "1, true, mgpu::BFloat16", "8, false, mgpu::Half")
    ],
    "ops/intervals/kernels.cuh": [
        f"move_words<uint32_t, {ROUTE}>",
        f"move_wide_rows<uint32_t, 4, {ROUTE}>",
        f"move_wide_rows<ulonglong2, 1, {ROUTE}>",
        f"move_short_rows<uint32_t, false, {ROUTE}>",
        f"move_short_rows<ulonglong2, true, {ROUTE}>",
    ],
    "ops/load_balance/kernels.cuh": ["load_balancing::search_tiles<int32_t, true>"],
    "ops/merge/kernels.cuh": [f"merging::merge_tiles<{ORDER}, uint32_t, true>"],
    "ops/reduce/kernels.cuh": [
        *(f"reducing::reduce_whole_rows<{threads}, {OPERATOR}>" for threads in (32, 256)),
        f"reducing::reduce_by_lanes<{OPERATOR}, 4, 2>",
        f"reducing::reduce_by_blocks<{OPERATOR}, 4, 4>",
    ],
    "ops/reduce_by_id/sum_by_id.cuh": [f"id_summing::sum_ranges<{lists}, {OPERATOR}>" for lists in ("true", "false")],
    "ops/reduce_rows/kernels.cuh": [
        f"row_reducing::{kernel}<mgpu::cuda::row_reducing::Weights::{weights}, {arguments}{OPERATOR}>"
        for weights in ("kNone", "kOne", "kGroups")
        for kernel, arguments in (("reduce_tiles", ""), ("reduce_short_rows", "4, "))
    ],
    "ops/sample_top_p/kernels.cuh": [
        f"sampling::{kernel}<mgpu::cuda::sampling::{conversion}>"
        for kernel in ("find_best", "add_up_bins", "list_tokens", "draw_tokens")
        for conversion in ("FromFloat", "FromHalf")
    ],
    "ops/scan/scan_rows.cuh": [f"scanning::scan_rows<{OPERATOR}, {whole}>" for whole in ("true", "false")],
    "ops/scan_rows/kernels.cuh": [f"row_scanning::scan_tiles<{OPERATOR}, {heads}>" for heads in ("true", "false")],
    "ops/segmented_softmax/kernels.cuh": [
        "softmax::normalize_tiles<false, float>",
        "softmax::normalize_tiles<true, mgpu::Half>",
        "softmax::differentiate_tiles<false, mgpu::BFloat16>",
        "softmax::differentiate_tiles<true, double>",
        "softmax::join_parts<float>",
        "softmax::close_tiles<false, mgpu::Half>",
        "softmax::close_tiles<true, double>",
    ],
    "ops/segmented_sort/count_digits.cuh": [
        f"sorting::{kernel}<{problem}>"
        for kernel, problem in zip(("count_digits", "count_segments"), DIGITS, strict=True)
    ],
    "ops/segmented_sort/cut_rows.cuh": [f"sorting::cut_cells<{ROWS}>", f"sorting::start_segments<{ROWS}>"],
    "ops/segmented_sort/describe_tiles.cuh": ["sorting::connect_tiles<512>"],
    "ops/segmented_sort/fill_digits.cuh": [
        "sorting::fill_digits<"
        "mgpu::cuda::sorting::DigitProblem<mgpu::IntegerOrder<uint8_t>, mgpu::NoPayload, uint32_t, false>>"
    ],
    "ops/segmented_sort/list_segments.cuh": [
        "sorting::list_segments<1024>",
        f"sorting::list_long_segments<{DIGITS[1]}>",
    ],
    "ops/segmented_top_k/kernels.cuh": [
        *(f"segment_top_k::find_in_segments<{ORDER}, {lanes}>" for lanes in (1, 8, 32)),
        f"segment_top_k::sort_in_segments<{ORDER}>",
        f"segment_top_k::find_in_parts<{ORDER}, true>",
    ],
    "ops/segmented_sort/merge_rows.cuh": [
        f"sorting::split_rows<{ROWS}>",
        f"sorting::merge_rows<{ROWS}>",
        f"sorting::merge_rows<{PAIRS}>",
    ],
    "ops/segmented_sort/rank_rows.cuh": [f"sorting::rank_rows<{FEW}>", f"sorting::merge_rows_by_rank<{FEW}>"],
    "ops/segmented_sort/scatter_digits.cuh": [f"sorting::scatter_digits<{problem}>" for problem in DIGITS],
    "ops/segmented_sort/sort_rows_by_digits.cuh": [
        f"sorting::sort_rows_by_digits<mgpu::cuda::sorting::{problem}>"
        for problem in (
            f"RowDigitsProblem<{ORDER}, uint32_t>",
            "RowDigitsProblem<mgpu::FloatOrder<uint16_t>, mgpu::NoPayload>",
            "RowRanksProblem<mgpu::FloatOrder<uint64_t>, uint32_t>",
        )
    ],
    "ops/segmented_sort/sort_rows.cuh": [f"sorting::sort_rows<{problem}>" for problem in (CELLS, PACKED)],
    "ops/select/kernels.cuh": [
        "sum_tiles<mgpu::cuda::selecting::SetKept>",
        *(
            f"selecting::{kernel}mgpu::cuda::selecting::{mover}>"
            for kernel in ("write_kept<true, ", "write_kept<false, ", "fill_tails<")
            for mover in ("MoveItems<uint32_t>", "MoveItems<ulonglong2>", "MoveWideRows<uint64_t>", "SetIndices")
        ),
    ],
    "ops/top_k/short_rows.cuh": [f"short_rows::keep_best_k_of_rows<{ORDER}, {shape}>" for shape in (0, 1, 3, 8)],
    "ops/select/short_rows.cuh": ["short_rows::select<mgpu::cuda::selecting::SetIndices>"],
    "ops/sorted_search/kernels.cuh": [
        f"searching::search_tiles<{ORDER}, true>",
        f"searching::match_tiles<{ORDER}, false>",
    ],
    "ops/top_k/kernels.cuh": [
        f"ranking::keep_best_k<{ORDER}, {rest}>" for rest in ("true, 256", "true, 512", "false, 512")
    ],
    "ops/intervals/unit_intervals.cuh": [
        "put_units_in_order<ulonglong2>",
        "move_ordered_units<uint32_t>",
        f"move_likely_units<1, false, uint32_t, {ROUTE}>",
        "move_likely_units<2, true, uint8_t, mgpu::cuda::MoveRoute<true, false, uint32_t>>",
        *(f"gather_next_part<{length}, uint8_t>" for length in (1, 2)),
        "gather_mixed_tiles<uint32_t, mgpu::cuda::MoveRoute<true, false, uint32_t>>",
    ],
}
HEADERS = sorted(str(path.relative_to(FFI)) for path in FFI.rglob("*.cuh"))
NAMESPACE = re.compile(r"^namespace mgpu::cuda(?:::(\w+))? {", re.MULTILINE)
KERNEL = re.compile(
    r"(?:template <([^>]*)>\s+)?(?:static )?__global__\s+void\s+"
    r"(?:__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s+)?(\w+)\("
)
OWN_ROUTE = re.compile(r"(?:template <([^>]*)>\s+)?struct (\w+Route) {")


def base(kernel: str) -> str:
    return kernel.partition("<")[0]


def kernels_of(header: str) -> list[str]:
    """Returns a header's kernels with the template arguments to compile."""
    source = (FFI / header).read_text(encoding="utf-8")
    found = KERNEL.findall(source)
    assert source.count("__global__") == len(found), header
    special = SPECIAL.get(header, [])
    elsewhere = {base(kernel) for kernels in SPECIAL.values() for kernel in kernels}
    kernels = list(special)
    for parameters, name in found:
        kernel = "::".join(filter(None, (NAMESPACE.search(source)[1], name)))
        needed = [each for each in parameters.split(", ") if each and "=" not in each]
        if set(needed) <= ARGUMENTS.keys() and kernel not in map(base, special):
            kernels.append(kernel + f"<{', '.join(ARGUMENTS[each] for each in needed)}>" * bool(parameters))
        else:
            assert kernel in elsewhere, f"{header}: {kernel}: what are the arguments of its template?"
    for parameters, route in OWN_ROUTE.findall(source):
        needed = parameters.split(", ") if parameters else []
        if set(needed) <= ARGUMENTS.keys():
            arguments = f"<{', '.join(ARGUMENTS[each] for each in needed)}>" * bool(needed)
            kernels.append(f"move_words<uint32_t, mgpu::cuda::{route}{arguments}>")
        else:
            assert any(f"{route}<" in kernel for kernel in special), f"{header}: {route}: what are its arguments?"
    return kernels


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """Loads NVRTC from the package of jax[cuda12] or jax[cuda13], or from MGPU_TEST_NVRTC."""
    given, spec = os.environ.get("MGPU_TEST_NVRTC"), importlib.util.find_spec("nvidia")
    packages = [pathlib.Path(root) for root in spec.submodule_search_locations] if spec else []
    installed = [folder for root in packages for folder in sorted(root.glob("cu*/lib"))]
    for folder in [pathlib.Path(given)] if given else installed:
        for library in sorted(folder.glob("libnvrtc.so*")):
            # NVRTC looks for its builtins on the system's path alone.
            for builtins in library.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(str(library))
    assert not given, f"MGPU_TEST_NVRTC: no libnvrtc.so in {given}"
    pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")


@functools.cache
def known_architectures() -> list[int]:
    """Returns those of ARCHITECTURES that NVRTC supports."""
    count = ctypes.c_int()
    assert nvrtc().nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    known = (ctypes.c_int * count.value)()
    assert nvrtc().nvrtcGetSupportedArchs(known) == 0
    return [architecture for architecture in ARCHITECTURES if architecture in [*known]]


def compile_log(source: str, expressions: list[str], architecture: int) -> str:
    """Returns NVRTC's messages, empty on success."""
    library = nvrtc()
    assert architecture in known_architectures()
    program = ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    for expression in expressions:
        assert library.nvrtcAddNameExpression(program, expression.encode()) == 0
    options = [
        f"--gpu-architecture=compute_{architecture}",
        "-std=c++20",
        "-default-device",
        "-device-int128",
        f"-I{FFI}",
    ]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = library.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() or "no log" if failed else ""


def test_special_kernels_are_there() -> None:
    assert set(SPECIAL) <= set(HEADERS)
    names = {name for header in HEADERS for _, name in KERNEL.findall((FFI / header).read_text(encoding="utf-8"))}
    assert {base(kernel).rpartition("::")[2] for kernels in SPECIAL.values() for kernel in kernels} <= names


@pytest.mark.parametrize("header", HEADERS)
def test_header_compiles(header: str) -> None:
    expressions = [f"mgpu::cuda::{kernel}" for kernel in kernels_of(header)]
    for architecture in known_architectures():
        source = f'#include "{header}"\n#include "algorithm/key_order.h"\n#include "algorithm/operators.h"\n'
        log = compile_log(source, expressions, architecture)
        assert not log, f"{header} for sm_{architecture}:\n{log[:4000]}"


OPERATOR_OF_FUNCTION = "mgpu::FunctionOperator<mgpu::function::Function>"
SCALAR = jax.ShapeDtypeStruct((), np.float32)
FUNCTIONS = {
    "one that commutes": (SCALAR, lambda a, b: a + b),
    "of pairs": ((SCALAR, SCALAR), lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])),
    "of narrow and wide": (
        {"set": jax.ShapeDtypeStruct((), np.bool_), "x": jax.ShapeDtypeStruct((3,), np.float16)},
        lambda a, b: {"set": a["set"] | b["set"], "x": jnp.where(b["set"], b["x"], a["x"])},
    ),
    "with every kind of primitive": (
        SCALAR,
        lambda a, b: jax.lax.while_loop(lambda s: s < b, lambda s: jnp.exp(jnp.round(s)) + jnp.nextafter(s, b), a),
    ),
}


# Each case has the type of items, and a reduction that maps them first.
MAPPED = {
    "squares": (np.float32, lambda x: jax_mgpu.reduce(x, map=lambda x: x * x)),
    "where the first is": (np.float16, lambda x: jax_mgpu.reduce(x, "argmin", map=lambda x, i: x * (i % 3))),
    "of bytes to pairs": (
        np.uint8,
        lambda x: jax_mgpu.reduce(
            x,
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
            map=lambda x: (jnp.full((2,), 0.5), x * jnp.ones(2)),
        ),
    ),
}


def source_of(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the C++ of a case's function."""
    if name == "of a gradient":
        return host_functions.cpp(recurrence._written(np.dtype(np.float32), True, True, True).data)
    if name in FUNCTIONS:
        item, function = FUNCTIONS[name]
        return host_functions.cpp(host_functions.operator(function, item).data)
    dtype, call = MAPPED[name]
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    (equation,) = kernel_calls(call, np.zeros(9, dtype))
    return host_functions.cpp(equation.params["function"].value.written.data)


@pytest.mark.parametrize("name", [*FUNCTIONS, *MAPPED])
@pytest.mark.long
def test_functions_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(name, monkeypatch)
    for header, kernels in (
        ("ops/scan/scan_tiles.cuh", ["scanning::scan_tiles"]),
        ("ops/scan/scan_segments.cuh", ["scanning::scan_segments"]),
        (
            "ops/reduce/kernels.cuh",
            ["reducing::reduce_chunks", "reducing::reduce_states", "reducing::reduce_short_rows"],
        ),
        ("ops/reduce/segmented_reduce.cuh", ["segment_reducing::reduce_tiles", "segment_reducing::join_tiles"]),
    ):
        text = (
            f'#include "{header}"\n#include "function/operator.h"\n#include "function/primitives.h"\n'
            f"namespace mgpu::function {{\n{source}}}\n"
        )
        log = compile_log(text, [f"mgpu::cuda::{kernel}<{OPERATOR_OF_FUNCTION}>" for kernel in kernels], 90)
        assert not log, f"{header}:\n{log[:4000]}"


@pytest.mark.parametrize("name", ["one that commutes", "of pairs", "with every kind of primitive", "of a gradient"])
@pytest.mark.long
def test_functions_of_rows_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '#include "ops/scan_rows/kernels.cuh"\n#include "function/operator.h"\n#include "function/primitives.h"\n'
        f"namespace mgpu::function {{\n{source_of(name, monkeypatch)}}}\n"
    )
    flags = [f"{heads}, {wide}" for heads in ("true", "false") for wide in ("true", "false")]
    kernels = [f"row_scanning::scan_tiles<{OPERATOR_OF_FUNCTION}, {each}>" for each in flags]
    log = compile_log(text, [f"mgpu::cuda::{kernel}" for kernel in [*kernels, "row_scanning::mark_heads<>"]], 90)
    assert not log, log[:4000]


@pytest.mark.long
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("names", test_emit.GROUPS, ids=lambda names: names[0])
def test_everything_in_functions_compiles(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC compiles the groups of functions that tests/test_emit.py runs on a GPU."""
    monkeypatch.setattr(custom_operator, "has_kernels", lambda: True)
    items, apply = test_emit.group_of(names)
    pairs = [jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape), leaf.dtype), items)] * 2
    (equation,) = kernel_calls(lambda pairs: test_emit.apply_in_kernels(apply, pairs), pairs)
    source = host_functions.cpp(equation.params["function"].value.written.data)
    text = (
        '#include "ops/scan/scan_segments.cuh"\n#include "function/operator.h"\n#include "function/primitives.h"\n'
        f"namespace mgpu::function {{\n{source}}}\n"
    )
    log = compile_log(text, [f"mgpu::cuda::scanning::scan_segments<{OPERATOR_OF_FUNCTION}>"], 90)
    assert not log, log[:4000]


PAIR = (jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.int32))
ORDERS = {
    "of floats": ((SCALAR,), lambda a, b: a < b, 32),
    "of rationals": (PAIR, lambda a, c, b, d: a.astype(jnp.float32) * d < b.astype(jnp.float32) * c, 64),
    "of bytes": ((jax.ShapeDtypeStruct((), np.uint8),), lambda a, b: (a & 3) > (b & 3), 8),
    "of 12 bytes": (
        (*PAIR, SCALAR),
        lambda a, c, x, b, d, y: (a * d).astype(jnp.float32) * y < (b * c).astype(jnp.float32) * x,
        128,
    ),
    "of 13 bytes": (
        (jax.ShapeDtypeStruct((3,), np.uint8), SCALAR, jax.ShapeDtypeStruct((3,), np.float16)),
        lambda a, x, h, b, y, k: (a < b).all() & (x < y) | (h < k).any(),
        128,
    ),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.long
def test_orders_compile(name: str) -> None:
    item, function, bits = ORDERS[name]
    source = host_functions.cpp(emit_order(jax.make_jaxpr(function)(*item, *item), item).data)
    text = (
        '#include "ops/sort_by_function/kernels.cuh"\n#include "function/primitives.h"\n'
        f"namespace mgpu::function {{\n{source}}}\n"
    )
    word = "unsigned __int128" if bits == 128 else f"uint{bits}_t"
    order = f"mgpu::FunctionOrder<mgpu::function::Function, {word}>"
    kernels = [
        f"mgpu::cuda::sorting::{kernel}<{order}, {payload}>"
        for kernel in ("sort_tiles", "plan_tiles", "merge_tiles")
        for payload in ("mgpu::NoPayload", "uint32_t")
    ]
    log = compile_log(text, kernels, 90)
    assert not log, f"{name}:\n{log[:4000]}"


WIDE_ORDERS = {
    "of rows": ((jax.ShapeDtypeStruct((32,), np.float32),), lambda a, b: a @ a < a @ b),
    "of 16 arrays": ((jax.ShapeDtypeStruct((3,), np.uint8),) * 16, lambda *x: (x[0] < x[16])[0] & (x[15] > x[31])[2]),
}


@pytest.mark.parametrize("name", WIDE_ORDERS)
@pytest.mark.long
def test_orders_of_wide_items_compile(name: str) -> None:
    item, function = WIDE_ORDERS[name]
    source = host_functions.cpp(emit_order(jax.make_jaxpr(function)(*item, *item), item).data)
    text = (
        '#include "ops/sort_by_function/kernels.cuh"\n#include "function/primitives.h"\n'
        f"namespace mgpu::function {{\n{source}}}\n"
    )
    order = "mgpu::FunctionIndexOrder<mgpu::function::Function>, mgpu::NoPayload"
    kernels = [f"mgpu::cuda::sorting::{kernel}<{order}>" for kernel in ("sort_tiles", "plan_tiles", "merge_tiles")]
    for architecture in known_architectures():
        log = compile_log(text, kernels, architecture)
        assert not log, f"{name} for sm_{architecture}:\n{log[:4000]}"
