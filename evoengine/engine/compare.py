"""Times a leaderboard kernel beside other attention libraries, on the GPU."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from evoengine.bench.compare_job import CompareJob, OwnKernel, PeerCheck
from evoengine.bench.compare_result import Comparison, make_rows, roofline_us
from evoengine.bench.compare_run import CompareProgress, begin_imports, measure, require_torch_cuda
from evoengine.bench.peer_registry import select_peers
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.protocols import StopwatchOptions, TimedKernel
from evoengine.engine.devices.choice import DeviceChoice
from evoengine.engine.devices.facts import describe_device
from evoengine.engine.devices.gpus import find_gpu
from evoengine.engine.options.verbs import CompareOptions, RowChoice
from evoengine.engine.rows.kernels import build_for
from evoengine.engine.rows.queries import find_record, is_there, of_rank, one_problem, problem_of
from evoengine.engine.rows.reference import RowReference, parse_row
from evoengine.errors import CandidateError, MissingDependencyError
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo, Problem
from evoengine.parity.compare import judge
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.target import Target

_SEED: Final = 2_000_003
"""Seed of inputs that no search uses."""
_SAMPLE_US: Final = 1500.0
"""Length of a sample: longer than in a search, which makes the start-up of a graph negligible."""


def compare(options: CompareOptions, progress: CompareProgress) -> Comparison:
    """Measures the problem's best row, or a given one, and the installed libraries.

    Args:
        options: Options of the comparison.
        progress: Receivers of each kernel's name and of what its process printed.

    Raises:
        UsageError: A library or row is unknown.
        MissingDependencyError: There is no GPU, or a package that reaches it is missing.
        NothingFoundError: No row has the given rank.
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
        problem = compared_problem(options)
        plan = _plan(options, problem)
        ours = own_kernel(options, problem, info, target, plan.stopwatch.method)
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


def compared_problem(options: CompareOptions) -> Problem:
    """The problem to compare on: the selected one, else that of the row, else the newest stored one.

    Raises:
        UsageError: The row or the selected key is not stored, or is a workload's, which has several problems.
    """
    reference = parse_row(options.row)
    if options.problem is None and reference.row_id is not None:
        with Leaderboard(database_url(options.db), create=False) as board:
            return problem_of(board.get(reference.row_id).study)
    return one_problem(options.problem, None, options.db)


def compared_record(options: CompareOptions, problem: Problem, gpu_name: str, method: str) -> Record | None:
    """The row to compare: the given one, or the problem's best row; None if there is none.

    Args:
        options: Options of the comparison.
        problem: Problem to compare on.
        gpu_name: Name of the GPU at hand.
        method: Way of timing.

    Raises:
        UsageError: The leaderboard or the row does not exist, or the row belongs to another problem.
        NothingFoundError: No row has the rank.
    """
    reference = parse_row(options.row)
    if reference == RowReference() and not is_there(options.db):
        return None
    with Leaderboard(database_url(options.db), create=False) as board:
        if reference.row_id is not None:
            return find_record(board, RowChoice(options.row, problem), options.db).record
        rows = _by_merit(board.rows(RowFilter(problem=problem.key)), gpu_name, method)
        if not rows:
            return None
        ranking = [row for row in rows if row.scope == rows[0].scope]
        return of_rank(board, ranking, reference, options.db)


def _by_merit(rows: list[Row], gpu_name: str, method: str) -> list[Row]:
    """Sorts rows: those measured on this GPU by this method, on this GPU, elsewhere, and predicted ones."""

    def merit(row: Row) -> tuple[bool, bool, bool, bool, float]:
        here, accepted = row.device == gpu_name and not row.predicted, row.champion and not row.predicted
        return here and row.method == method, here, not row.predicted, accepted, -(row.median_us or float("inf"))

    return sorted(rows, key=merit, reverse=True)


def _plan(options: CompareOptions, problem: Problem) -> TimingPlan:
    plan = plan_for(problem, cold=options.cold_l2, sample_us=_SAMPLE_US)
    calls = options.calls or plan.stopwatch.calls
    return replace(plan, samples=options.samples or plan.samples, stopwatch=StopwatchOptions(calls, options.cold_l2))


def own_kernel(options: CompareOptions, problem: Problem, info: DeviceInfo, target: Target, method: str) -> OwnKernel:
    """Builds the row's kernel for a GPU; needs none. A missing champion is reported as a line of the table.

    Args:
        options: Options of the comparison.
        problem: Problem to compare on.
        info: GPU at hand.
        target: Data sheet of that GPU.
        method: Way of timing.

    Raises:
        UsageError: The row is unknown, or it belongs to a variant and the user does not consent.
        NothingFoundError: No row has the rank.
    """
    record = compared_record(options, problem, info.name, method)
    if record is None:
        return OwnKernel(None, f"no kernel for {problem.key} in {database_name(options.db)}: run 'search' first")
    note = _origin(record.row, info.name)
    try:
        kernel = build_for(record, problem, target, info.arch, options.space_file, trust_source=options.trust_source)
    except CandidateError as error:
        return OwnKernel(None, f"{note}: {error}")
    changed = kernel.source.template_hash != record.evaluation.template_hash
    config = f"{record.row.family}: {record.evaluation.config}"
    return OwnKernel(KernelLoader(kernel), f"{note}, rendered from a newer template" if changed else note, config)


def _origin(row: Row, gpu_name: str) -> str:
    if row.predicted:
        return f"row {row.id}, chosen by prediction for {row.device}"
    return f"row {row.id}" if row.device == gpu_name else f"row {row.id}, found on {row.device}"
