"""Times a leaderboard kernel beside other attention libraries, on the GPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evoengine.bench.compare_job import CompareJob, OwnKernel, PeerCheck
from evoengine.bench.compare_result import Comparison, make_rows, roofline_us
from evoengine.bench.compare_run import CompareProgress, begin_imports, measure, require_torch_cuda
from evoengine.bench.peer_registry import select_peers
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.protocols import StopwatchOptions, TimedKernel
from evoengine.engine.devices import DeviceChoice
from evoengine.engine.gpus import find_gpu
from evoengine.engine.stored_kernels import build_for
from evoengine.engine.verb_options import CompareOptions
from evoengine.engine.worker_pools import describe_device
from evoengine.errors import CandidateError, MissingDependencyError, UsageError
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo
from evoengine.parity.compare import judge
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.target import Target

_SEED: Final = 2_000_003
"""Seed of inputs that no search uses."""
_SAMPLE_US: Final = 5000.0
"""Length of a sample: longer than in a search, which makes the start-up of a graph negligible."""


def compare(options: CompareOptions, progress: CompareProgress) -> Comparison:
    """Measures the problem's champion, or a given row, and the installed libraries.

    Args:
        options: Options of the comparison.
        progress: Receivers of each kernel's name and of what its process printed.

    Raises:
        UsageError: A library or row is unknown.
        MissingDependencyError: There is no GPU, or a package that reaches it is missing.
    """
    peers = select_peers(options.peers)
    if find_gpu() is None:
        raise MissingDependencyError(
            "compare needs an NVIDIA GPU and none is visible: run it where 'nvidia-smi' shows one; "
            "'leaderboard' lists predicted times"
        )
    with closing(begin_imports()) as imports:
        torch_version = require_torch_cuda()
        info, target = describe_device(DeviceChoice(DeviceSpec("cuda"), ""))
        problem, plan = options.problem, _plan(options)
        ours = _find_ours(options, info, target, plan.stopwatch.method)
        case = problem_case(problem, _SEED)
        job = CompareJob(case.inputs, ours, peers, CaseCheck(case), plan)
        findings = measure(job, progress, imports)
    return Comparison(
        problem=problem.key,
        device=info.name,
        versions=(("driver", info.driver), ("NVRTC", nvrtc_version()), ("torch", torch_version)),
        method=plan.stopwatch.method,
        calls=plan.stopwatch.calls,
        samples=plan.samples,
        tolerance=case.max_error,
        roofline_us=roofline_us(problem, target),
        rows=make_rows(findings, problem, target),
        config=ours.config,
    )


@dataclass(frozen=True, eq=False)
class CaseCheck:
    """Compares outputs with the reference of a case; picklable."""

    case: ParityCase

    def __call__(self, output: AttentionOutput) -> PeerCheck:
        result = judge(self.case, output)
        return PeerCheck(result.max_error, result.reason)


@dataclass(frozen=True)
class KernelLoader:
    """Loads a kernel on the GPU of the process that calls it; picklable."""

    kernel: Kernel

    def __call__(self) -> TimedKernel:
        loaded = open_device(DeviceSpec("cuda")).load(self.kernel)
        assert isinstance(loaded, TimedKernel)
        return loaded


def find_record(options: CompareOptions, gpu_name: str, method: str) -> Record | None:
    """The row to compare: the given one, or the problem's best row; None if there is none.

    Args:
        options: Options of the comparison.
        gpu_name: Name of the GPU at hand.
        method: Way of timing.

    Raises:
        UsageError: The leaderboard or the row does not exist, or the row belongs to another problem.
    """
    problem = options.problem
    if options.row_id is None and "://" not in options.db and not Path(options.db).exists():
        return None  # libraries can be compared before anything was searched
    with Leaderboard(database_url(options.db), create=False) as board:
        if options.row_id is not None:
            record = board.get(options.row_id)
            if record.row.problem != problem.key:
                raise UsageError(f"row {options.row_id} is of {record.row.problem}, not of {problem.key}")
            return record
        rows = _by_merit(board.rows(RowFilter(problem=problem.key)), gpu_name, method)
        return next(board.records(row.id for row in rows), None)


def best_row(rows: list[Row], gpu_name: str, method: str) -> Row:
    """The best row: of those measured on this GPU by this method, else on this GPU, else elsewhere, else predicted."""
    return _by_merit(rows, gpu_name, method)[0]


def _by_merit(rows: list[Row], gpu_name: str, method: str) -> list[Row]:

    def merit(row: Row) -> tuple[bool, bool, bool, bool, float]:
        here = row.device == gpu_name and not row.predicted
        return here and row.method == method, here, not row.predicted, row.champion, -(row.median_us or float("inf"))

    return sorted(rows, key=merit, reverse=True)


def _plan(options: CompareOptions) -> TimingPlan:
    plan = plan_for(options.problem, cold=options.cold_l2, sample_us=_SAMPLE_US)
    calls = options.calls or plan.stopwatch.calls
    return replace(plan, samples=options.samples or plan.samples, stopwatch=StopwatchOptions(calls, options.cold_l2))


def _find_ours(options: CompareOptions, info: DeviceInfo, target: Target, method: str) -> OwnKernel:
    """The row's kernel, built for this GPU; a missing champion is reported as a line of the table."""
    record = find_record(options, info.name, method)
    if record is None:
        return OwnKernel(None, f"no kernel for {options.problem.key} in {options.db}: run 'search' first")
    note = _origin(record.row, info.name)
    try:
        kernel = build_for(record, options.problem, target, info.arch, options.space_file)
    except CandidateError as error:
        return OwnKernel(None, f"{note}: {error}")
    changed = kernel.source.template_hash != record.evaluation.template_hash
    config = f"{record.row.family}: {record.evaluation.config}"
    return OwnKernel(KernelLoader(kernel), f"{note}, rendered from a newer template" if changed else note, config)


def _origin(row: Row, gpu_name: str) -> str:
    if row.predicted:
        return f"row {row.id}, chosen by prediction for {row.device}"
    return f"row {row.id}" if row.device == gpu_name else f"row {row.id}, found on {row.device}"
