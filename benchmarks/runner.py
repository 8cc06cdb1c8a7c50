"""Runs cases: compares each side's results, then times the sides."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import importlib
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import benchmarks
from benchmarks.case import Case, HostPeer, TorchPeer, array_bytes, equal
from benchmarks.measure import QUEUED_MS, SHORT_MS, Program, Timing, compile_program, time_program
from benchmarks.peers import NotBuilt

__all__ = ["Outcome", "Result", "Runner", "all_cases", "grid_cases", "select"]

CACHE_BYTES = 120 << 20  # at least twice an H200's L2 cache
MAX_SETS = 8  # in a program of short calls: the calls per round, and the most distinct sets of inputs
ROUNDS = 16  # rounds of a program of short calls
TINY_MS = 0.02  # if a call takes less, a round has four times as many calls
JUDGED_DEVICE = "NVIDIA H200"  # the cases' max_ms are for this device
KEPT_BYTES = 2 << 30  # the most bytes of inputs of earlier cases that are kept
# After a quick run, our side and peers whose time is below this multiple of ours are timed at full length.
QUICK_RATIO = 1.1
# If samples on a GPU spread more than DISTURBED, the timing is repeated up to AGAIN times.
DISTURBED = 0.2
AGAIN = 2


@dataclasses.dataclass(frozen=True)
class Pace:
    """The number and the length of a timing's samples.

    Args:
      queued_ms: milliseconds of work per sample.
      short_ms: a program repeats calls that take less.
      program_ms: milliseconds of a program of several calls; None for ROUNDS rounds.
    """

    samples: int
    queued_ms: float = QUEUED_MS
    short_ms: float = SHORT_MS
    program_ms: float | None = None

    def rounds(self, call_ms: float) -> int:
        """Returns one, or at least four rounds of short calls.

        The first round precedes the loop, and XLA inlines a loop of one iteration.
        """
        if self.program_ms is None:
            return ROUNDS
        rounds = round(self.program_ms / (MAX_SETS * call_ms))
        return 1 if rounds <= 1 else min(max(rounds, 4), ROUNDS)


QUICK = Pace(3, 4.0, 1.0, 2.0)


@dataclasses.dataclass
class Outcome:
    """A timing of one side, or why there is none."""

    timing: Timing | None = None
    note: str | None = None  # why the side was skipped
    error: str | None = None
    agrees: bool | None = None


@dataclasses.dataclass
class Result:
    case: Case
    ours: Outcome
    peers: dict[str, Outcome]
    floor_bytes: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return any(o.error is not None or o.agrees is False for o in (self.ours, *self.peers.values()))

    def ratio(self, peer: str) -> float | None:
        """A peer's time divided by ours; None if either has none."""
        timing = self.peers[peer].timing
        return timing.median / self.ours.timing.median if timing and self.ours.timing else None


def _modules() -> list[Any]:
    folder = pathlib.Path(benchmarks.__file__).parent  # benchmarks/peers has no cases
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
    return [importlib.import_module(f"benchmarks.{name}") for name in names]


def all_cases() -> list[Case]:
    return [case for module in _modules() for case in getattr(module, "CASES", ())]


def grid_cases() -> list[Case]:
    return [case for module in _modules() for case in getattr(module, "GRID", ())]


def select(cases: Iterable[Case], families: Sequence[str], texts: Sequence[str]) -> list[Case]:
    """Returns the cases of these families whose names contain one of the texts; empty lists select all."""
    return [
        case
        for case in cases
        if (not families or case.family in families)
        and (not texts or any(text.lower() in case.full_name.lower() for text in texts))
    ]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else ''}"


class Runner:
    """Runs cases on the default device.

    Args:
      repeats: samples per timing.
      quick: takes fewer and shorter samples, and retimes close sides.
      turn: a context while the device is in use.
    """

    def __init__(
        self,
        scale: float,
        repeats: int,
        with_peers: bool = True,
        *,
        quick: bool = False,
        turn: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ):
        self.scale = scale
        self.repeats = repeats
        self.with_peers = with_peers
        self.quick = quick
        self.turn = turn
        self.device = jax.devices()[0]
        self.on_cpu = self.device.platform == "cpu"
        self._inputs: collections.OrderedDict[Any, tuple[Any, ...]] = collections.OrderedDict()
        self._pace = Pace(repeats)

    @property
    def judged(self) -> bool:
        """Whether max_ms are for this device and scale."""
        return self.scale == 1 and self.device.device_kind == JUDGED_DEVICE

    def copy_rate(self) -> float:
        """Times a copy of 2^28 bytes (2^25 on a CPU); returns bytes read and written per millisecond."""
        x = jnp.zeros(2 ** (23 if self.on_cpu else 26), jnp.float32) + 1
        program = compile_program(jnp.copy, [(x,)])
        return 2 * array_bytes(x) / self._timing(program).median

    def inputs(self, case: Case, seed: int) -> tuple[Any, ...]:
        """Returns inputs on the device; keeps the latest ones, because cases share them."""
        key = (case.inputs, case.x64, seed)
        if key not in self._inputs:
            while len(self._inputs) >= 2 * MAX_SETS or array_bytes(list(self._inputs.values())) > KEPT_BYTES:
                self._inputs.popitem(last=False)
            with self.turn():
                made = case.inputs(np.random.default_rng(seed), self.scale)
                self._inputs[key] = jax.block_until_ready(tuple(jnp.asarray(x) for x in made))
        self._inputs.move_to_end(key)
        return self._inputs[key]

    def _timing(self, program: Program) -> Timing:
        with self.turn():
            timing = time_program(program, self._pace.samples, queued_ms=self._pace.queued_ms)
            for _ in range(0 if self.on_cpu else AGAIN):
                if timing.spread <= DISTURBED:
                    break
                again = time_program(program, self._pace.samples, queued_ms=self._pace.queued_ms)
                timing = min(timing, again, key=lambda each: each.spread)
        return timing

    def once(self, case: Case) -> Result:
        """Calls our function once, for a profiler or a memory checker."""
        result = Result(case, Outcome(), {})
        with self._guard(case, result.ours):
            jax.block_until_ready(jax.jit(case.ours)(*self.inputs(case, 0)))
        return result

    def run(self, case: Case) -> Result:
        peers = dict(case.peers) if self.with_peers else {}
        if not self.quick:
            return self._run(case, peers)
        usual, self._pace = self._pace, QUICK
        quick = self._run(case, peers)
        self._pace = usual
        ratios = {name: quick.ratio(name) for name in peers}
        close = [name for name, ratio in ratios.items() if ratio is not None and ratio < QUICK_RATIO]
        if quick.failed or not close:
            return quick
        result = self._run(case, {name: peers[name] for name in close})
        result.peers = {**quick.peers, **result.peers}
        result.seconds += quick.seconds
        return result

    def _run(self, case: Case, peers: dict[str, Any]) -> Result:
        begin = time.perf_counter()
        result = Result(case, Outcome(), {name: Outcome() for name in peers})
        inputs: tuple[Any, ...] = ()
        with self._guard(case, result.ours):
            inputs = self.inputs(case, 0)
            result.floor_bytes = int(case.bytes(*inputs))
        if result.ours.error is None:
            sides = {
                name: f for name, f in {"": case.ours, **peers}.items() if not isinstance(f, (HostPeer, TorchPeer))
            }
            outcomes = {"": result.ours, **result.peers}
            programs = self._compile(case, sides, outcomes, [inputs])
            if case.replaces and "" in programs and not programs[""].has_kernels:
                for outcome in outcomes.values():
                    outcome.note = f"{case.replaces}'s own function"
                return result
            self._check(case, programs, outcomes)
            if result.ours.error is None:
                for name, program in programs.items():
                    with self._guard(case, outcomes[name]):
                        outcomes[name].timing = self._time(case, sides[name], program)
                self._host_peers(case, peers, outcomes, inputs, programs[""])
                self._torch_peers(case, peers, outcomes)
        result.seconds = time.perf_counter() - begin
        return result

    @contextlib.contextmanager
    def _guard(self, case: Case, outcome: Outcome) -> Iterator[None]:
        try:
            with jax.enable_x64(case.x64):
                yield
        except NotBuilt as missing:
            outcome.note = str(missing)
        except Exception as error:  # whatever failed, the next case must run
            outcome.error = _first_line(error)

    def _compile(
        self, case: Case, sides: dict[str, Callable[..., Any]], outcomes: dict[str, Outcome], sets: list[Any]
    ) -> dict[str, Program]:
        """Compiles in parallel; leaves out sides that fail."""

        def compile_one(name: str) -> Program | None:
            with self._guard(case, outcomes[name]):
                return compile_program(sides[name], sets)
            return None

        with ThreadPoolExecutor() as pool:
            compiled = dict(zip(sides, pool.map(compile_one, sides), strict=True))
        return {name: program for name, program in compiled.items() if program is not None}

    def _check(self, case: Case, programs: dict[str, Program], outcomes: dict[str, Outcome]) -> None:
        ours = None
        for name, program in list(programs.items()):
            if "" not in programs:
                break
            with self._guard(case, outcomes[name]), self.turn():
                results = jax.block_until_ready(program()[0])
                if name == "":
                    ours = results
                elif results is not None:
                    outcomes[name].agrees = bool((case.agree or equal)(ours, results))
            if outcomes[name].error is not None:
                del programs[name]

    def _time(self, case: Case, side: Callable[..., Any], program: Program) -> Timing:
        timing = self._timing(program)
        if self.on_cpu or timing.median > self._pace.short_ms:
            return timing
        one_set = array_bytes(program.input_sets)
        distinct = max(1, min(MAX_SETS, -(-CACHE_BYTES // one_set)))
        sets = [self.inputs(case, seed) for seed in range(distinct)]
        rounds = self._pace.rounds(timing.median)
        several = compile_program(side, [sets[i % distinct] for i in range(MAX_SETS)], rounds=rounds)
        timing = self._timing(several)
        if timing.median < TINY_MS:
            several = compile_program(side, [sets[i % distinct] for i in range(4 * MAX_SETS)], rounds=ROUNDS)
            timing = self._timing(several)
        return timing

    def _host_peers(
        self, case: Case, peers: dict[str, Any], outcomes: dict[str, Outcome], inputs: Any, ours: Program
    ) -> None:
        """Runs the peers on NumPy arrays, if the device is the CPU."""
        for name, peer in peers.items():
            if not isinstance(peer, HostPeer):
                continue
            if not self.on_cpu:
                outcomes[name].note = "CPU only"
                continue
            with self._guard(case, outcomes[name]):
                host_inputs = tuple(np.asarray(x) for x in inputs)
                program = Program(lambda sets, peer=peer: [peer.function(*sets[0])], [host_inputs])
                outcomes[name].agrees = bool((case.agree or equal)(ours()[0], program()[0]))
                outcomes[name].timing = self._timing(program)

    def _torch_peers(self, case: Case, peers: dict[str, Any], outcomes: dict[str, Outcome]) -> None:
        """Times the peers on PyTorch's arrays, on a GPU only; short calls that do not wait run in a CUDA graph."""
        for name, peer in peers.items():
            if not isinstance(peer, TorchPeer):
                continue
            try:
                torch: Any = importlib.import_module("torch")
            except ModuleNotFoundError:
                torch = None
            if self.on_cpu or torch is None or not torch.cuda.is_available():
                outcomes[name].note = "GPU only" if self.on_cpu else "no PyTorch with CUDA"
                continue
            with self._guard(case, outcomes[name]), self.turn():
                outcomes[name].timing = self._time_torch(torch, case, peer)
                torch.cuda.empty_cache()

    def _time_torch(self, torch: Any, case: Case, peer: TorchPeer) -> Timing:
        def arrays(seed: int) -> tuple[Any, ...]:
            return tuple(torch.from_dlpack(_signed(x)) for x in self.inputs(case, seed))

        @dataclasses.dataclass
        class Waiting:
            """Results for which jax.block_until_ready waits by synchronizing PyTorch."""

            results: Any

            def block_until_ready(self) -> None:
                torch.cuda.synchronize()

        one = arrays(0)
        timing = self._timing(Program(lambda sets: Waiting(peer.function(torch, *sets[0])), [one]))
        if timing.median > self._pace.short_ms or peer.waits:
            return timing
        distinct = max(1, min(MAX_SETS, -(-CACHE_BYTES // sum(x.nbytes for x in one))))
        sets = [arrays(seed) for seed in range(distinct)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # XLA works in other threads
            results = [peer.function(torch, *sets[i % distinct]) for i in range(MAX_SETS)]

        def replay(sets: Any) -> Waiting:
            graph.replay()
            return Waiting(results)

        return self._timing(Program(replay, [sets[i % distinct] for i in range(MAX_SETS)]))


def _signed(x: jax.Array) -> jax.Array:
    """Reinterprets unsigned integers as signed ones, except those of 8 bits, which PyTorch has unsigned."""
    if not jnp.issubdtype(x.dtype, jnp.unsignedinteger) or x.dtype.itemsize == 1:
        return x
    return jax.lax.bitcast_convert_type(x, f"int{8 * x.dtype.itemsize}")
