"""Times a leaderboard kernel beside other attention libraries, on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Final

from evoengine.bench.compare_result import Comparison, make_rows, roofline_us
from evoengine.bench.compare_run import OutputCheck, OwnKernel, PeerCheck, measure, require_torch_cuda
from evoengine.bench.peer_registry import select_peers
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.protocols import Device, StopwatchOptions, TimedKernel
from evoengine.engine.gpus import find_gpu
from evoengine.engine.stored_kernels import build_for
from evoengine.engine.verb_options import CompareOptions
from evoengine.errors import CandidateError, MissingDependencyError, UsageError
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.parity.compare import judge
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.device_spec import DeviceSpec, open_device

_SEED: Final = 2_000_003
"""Seed of inputs that no search uses."""
_SAMPLE_US: Final = 5000.0
"""Length of a sample: longer than in a search, which makes the start-up of a graph negligible."""


def compare(options: CompareOptions, progress: Callable[[str], None]) -> Comparison:
    """Measures the problem's champion, or a given row, and the installed libraries.

    Args:
        options: Options of the comparison.
        progress: Receives the name of each library before it is timed.

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
    torch_version = require_torch_cuda()
    problem, plan = options.problem, _plan(options)
    case = problem_case(problem, _SEED)
    with ExitStack() as stack:
        device = stack.enter_context(closing(open_device(DeviceSpec("cuda"))))
        ours = _load_ours(options, device, plan.stopwatch.method)
        if ours.loaded is not None:
            stack.enter_context(closing(ours.loaded))
        stack.enter_context(redirect_stdout(sys.stderr))  # keeps output of libraries out of a JSON document
        findings = measure(case.inputs, ours, peers, _check_of(case), plan, progress)
        target, info = device.target, device.info
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


def find_record(options: CompareOptions, device: Device, method: str) -> Record | None:
    """The row to compare: the given one, or the problem's best row; None if there is none.

    Args:
        options: Options of the comparison.
        device: GPU at hand.
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
        rows = _by_merit(board.rows(RowFilter(problem=problem.key)), device.info.name, method)
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


def _check_of(case: ParityCase) -> OutputCheck:
    def check(output: AttentionOutput) -> PeerCheck:
        result = judge(case, output)
        return PeerCheck(result.max_error, result.reason)

    return check


def _load_ours(options: CompareOptions, device: Device, method: str) -> OwnKernel:
    """The row's kernel, built for this GPU and loaded; a missing champion is reported as a line of the table."""
    record = find_record(options, device, method)
    if record is None:
        return OwnKernel(None, f"no kernel for {options.problem.key} in {options.db}: run 'search' first")
    note = _origin(record.row, device)
    try:
        kernel = build_for(record, options.problem, device.target, device.info.arch, options.space_file)
        loaded = device.load(kernel)
    except CandidateError as error:
        return OwnKernel(None, f"{note}: {error}")
    if not isinstance(loaded, TimedKernel):
        return OwnKernel(None, f"{note}: this device does not measure")
    changed = kernel.source.template_hash != record.evaluation.template_hash
    config = f"{record.row.family}: {record.evaluation.config}"
    return OwnKernel(loaded, f"{note}, rendered from a newer template" if changed else note, config)


def _origin(row: Row, device: Device) -> str:
    if row.predicted:
        return f"row {row.id}, chosen by prediction for {row.device}"
    return f"row {row.id}" if row.device == device.info.name else f"row {row.id}, found on {row.device}"
