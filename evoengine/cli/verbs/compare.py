"""``compare``: ours beside every peer that is installed, in one table."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from evoengine.bench.compare_result import (
    HEADINGS,
    Comparison,
    ComparisonRow,
    PeerStatus,
    cells,
    document,
    facts,
    make_rows,
    markdown,
    roofline_us,
)
from evoengine.bench.compare_run import OutputCheck, OwnKernel, PeerCheck, measure, require_torch_cuda
from evoengine.bench.peer_protocol import Peer
from evoengine.bench.peer_registry import select_peers
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.cli.output.console import command_name, make_console, print_json, print_table
from evoengine.cli.output.files import write_whole
from evoengine.device.protocols import Device, StopwatchOptions, TimedKernel
from evoengine.engine.families import space_of_row
from evoengine.engine.gpus import find_gpu
from evoengine.errors import CandidateError, MissingDependencyError, UsageError
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Record, Row, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.parity.compare import judge
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.space.data_dirs import data_dir

_SEED = 2_000_003
"""Of inputs that no search has seen."""
_SAMPLE_US = 5000.0
"""Longer than a search's samples: nobody waits for thousands of candidates, and the graph's start weighs less."""


@dataclass(frozen=True)
class CompareRequest:
    """What a user asks to be compared."""

    problem: Problem
    db: str
    row_id: int | None = None
    """None for the champion."""
    peers: str | None = None
    """Comma-separated names; None for all."""
    calls: int | None = None
    """Calls in one graph; None follows the problem's size."""
    samples: int | None = None
    cold_l2: bool = False
    space_file: Path | None = None
    """What the search was given with ``--space``; None for the family's own."""


def run_compare(request: CompareRequest, *, json_output: bool, markdown_file: Path | None) -> None:
    """Measures, prints the table or JSON, and writes the page.

    Raises:
        UsageError: an unknown peer or row, or a page that cannot be written.
        MissingDependencyError: there is no GPU, or something that reaches it is missing.
    """
    peers = select_peers(request.peers)
    if markdown_file is not None and not markdown_file.absolute().parent.is_dir():
        raise UsageError(f"{markdown_file}: there is no folder {markdown_file.parent}")
    if find_gpu() is None:
        raise MissingDependencyError(
            "compare measures, and no NVIDIA GPU is visible: run it where 'nvidia-smi' shows one; without a GPU, "
            f"'{command_name()} leaderboard' lists predicted times"
        )
    torch_version = require_torch_cuda()
    comparison = _compare(request, peers, torch_version)
    if markdown_file is not None:
        write_whole(markdown_file, markdown(comparison))
    if json_output:
        print_json(document(comparison))
    else:
        print_comparison(comparison)


def _compare(request: CompareRequest, peers: tuple[Peer, ...], torch_version: str) -> Comparison:
    problem, plan = request.problem, _plan(request)
    notes = make_console(stderr=True)
    case = problem_case(problem, _SEED)
    with ExitStack() as stack:
        device = stack.enter_context(closing(open_device(DeviceSpec("cuda"))))
        ours = _load_ours(request, device, plan.stopwatch.method)
        if ours.loaded is not None:
            stack.enter_context(closing(ours.loaded))
        # What a library prints must not end up between the lines of a JSON document.
        stack.enter_context(redirect_stdout(sys.stderr))
        findings = measure(
            case.inputs, ours, peers, _judge_of(case), plan, lambda name: notes.print(f"… {name}", markup=False)
        )
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


def _plan(request: CompareRequest) -> TimingPlan:
    plan = plan_for(request.problem, cold=request.cold_l2, sample_us=_SAMPLE_US)
    calls = request.calls or plan.stopwatch.calls
    return replace(plan, samples=request.samples or plan.samples, stopwatch=StopwatchOptions(calls, request.cold_l2))


def _judge_of(case: ParityCase) -> OutputCheck:
    def check(output: AttentionOutput) -> PeerCheck:
        result = judge(case, output)
        return PeerCheck(result.max_error, result.reason)

    return check


def _load_ours(request: CompareRequest, device: Device, method: str) -> OwnKernel:
    """The row's kernel, rendered and compiled for this GPU; without ``--id`` a missing champion is only a row."""
    record = find_record(request, device, method)
    if record is None:
        return OwnKernel(None, f"no kernel for {request.problem.key} in {request.db}: run 'search' first")
    note = _origin(record.row, device)
    try:
        kernel = build_kernel(record, request.problem, device, request.space_file)
        loaded = device.load(kernel)
    except CandidateError as error:
        return OwnKernel(None, f"{note}: {error}")
    if not isinstance(loaded, TimedKernel):
        return OwnKernel(None, f"{note}: this device does not measure")
    changed = kernel.source.template_hash != record.evaluation.template_hash
    config = f"{record.row.family}: {record.evaluation.config}"
    return OwnKernel(loaded, f"{note}, rendered from a newer template" if changed else note, config)


def find_record(request: CompareRequest, device: Device, method: str) -> Record | None:
    """The row that is asked for, or the problem's best known one: measured here first, then elsewhere, then predicted.

    Raises:
        UsageError: no such leaderboard or row, or the row is of another problem.
    """
    problem = request.problem
    if request.row_id is None and "://" not in request.db and not Path(request.db).exists():
        return None  # peers can be compared before anything was searched
    with Leaderboard(database_url(request.db), create=False) as board:
        if request.row_id is not None:
            record = board.get(request.row_id)
            if record.row.problem != problem.key:
                raise UsageError(f"row {request.row_id} is of {record.row.problem}, not of {problem.key}")
            return record
        rows = board.rows(RowFilter(problem=problem.key))
        return board.get(best_row(rows, device.info.name, method).id) if rows else None


def best_row(rows: list[Row], gpu_name: str, method: str) -> Row:
    """The row that stands for us: the champion of this GPU and this way of timing; else the next best there is."""

    def merit(row: Row) -> tuple[bool, bool, bool, bool, float]:
        here = row.device == gpu_name and not row.predicted
        return here and row.method == method, here, not row.predicted, row.champion, -(row.median_us or float("inf"))

    return max(rows, key=merit)


def _origin(row: Row, device: Device) -> str:
    if row.predicted:
        return f"row {row.id}, chosen by prediction for {row.device}"
    return f"row {row.id}" if row.device == device.info.name else f"row {row.id}, found on {row.device}"


def build_kernel(record: Record, problem: Problem, device: Device, space_file: Path | None = None) -> Kernel:
    """Renders and compiles a row's config anew, for this GPU's architecture.

    Raises:
        CandidateError: the config no longer renders or compiles.
        UsageError: the space file is of another family.
    """
    family = record.row.family
    template = TemplateLibrary(data_dir("templates")).load(family)
    target = device.target.compiled_for(device.info.arch)
    source = template.render(record.evaluation.config, problem, space_of_row(record, space_file), target)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, device.info.arch))


def print_comparison(comparison: Comparison) -> None:
    """Prints the facts, the table and the verdict."""
    console = make_console()
    for name, value in facts(comparison):
        console.print(f"{name:<9} {value}", markup=False)
    console.print()
    print_table(console, _table(comparison.rows))
    console.print()
    console.print(comparison.verdict, markup=False)


def _table(rows: tuple[ComparisonRow, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in HEADINGS[:-1]:
        table.add_column(name, justify="left" if name == HEADINGS[0] else "right", no_wrap=True)
    table.add_column(HEADINGS[-1], overflow="fold")
    for row in rows:
        style = "bold" if row.ours else "red" if row.outcome == PeerStatus.WRONG.value else None
        table.add_row(*map(Text, cells(row)), style=style)
    return table
