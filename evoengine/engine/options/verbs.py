"""Options of all verbs but ``search``, ``evolve`` and ``lineage``; see :mod:`evoengine.engine.options.fields`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from evoengine.engine.options import choices
from evoengine.engine.options.fields import (
    Arch,
    ColdL2,
    Database,
    Family,
    Force,
    Option,
    Panel,
    SpaceFile,
    TargetName,
    TrustSource,
    Workers,
)
from evoengine.engine.options.problem import ProblemField, SelectedProblemField
from evoengine.engine.options.search import DEFAULT_BUDGET, DEFAULT_DB, DEFAULT_STRATEGY, SearchOptions
from evoengine.errors import UsageError
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, Problem

_MAX_DATABASE_NAME: Final = 255 - len("-journal")
"""Bytes of the longest name of a database whose files beside it have names that Linux accepts."""
DEFAULT_RECORD_COUNT: Final = 5000
_DEFAULT: Final = NAMED_PROBLEMS[DEFAULT_PROBLEM]

View = Literal["counters", "ptx", "sass", "ncu"]
OutputFile = Annotated[Path, Option("File to write; - for the terminal.", names=("--output", "-o"), panel=Panel.OUTPUT)]
_NewFile = Annotated[Path, Option("File to write.", names=("--output", "-o"), panel=Panel.OUTPUT)]
StoredRow = Annotated[
    str, Option("Row: best, rank:N, or an id that 'leaderboard' lists.", metavar="ROW", positional=True)
]
_OneDevice = Annotated[str | None, Option("Only this device: cuda, emulator, or part of a name.")]
_OneStatus = Annotated[str, Option("Only rows with this status; all for every status.")]


@dataclass(frozen=True)
class RowQuery:
    """Selection of leaderboard rows."""

    problem: SelectedProblemField = None
    device: _OneDevice = None
    """A kind (``cuda``) or part of a device's name."""
    status: _OneStatus = "ok"
    top: Annotated[int | None, Option("Rows per ranking.", min=1)] = 10
    """None for all rows."""
    pareto: Annotated[bool, Option("Only rows that no other row beats in both time and energy.")] = False
    shortlist: Annotated[
        bool,
        Option("Only predicted rows to measure first: chosen so that the fastest kernel is likely among the --top."),
    ] = False

    def __post_init__(self) -> None:
        if self.pareto and self.shortlist:
            raise UsageError("--pareto needs measured rows and --shortlist predicted ones: give one")


@dataclass(frozen=True)
class RowChoice:
    """Selection of one leaderboard row."""

    row: StoredRow = "best"
    """``best``, ``rank:N`` or an id (see :mod:`evoengine.engine.rows.reference`)."""
    problem: SelectedProblemField = None
    device: _OneDevice = None


@dataclass(frozen=True)
class ExportOptions:
    """Options of ``export``. Exactly one of ``row``, ``best``, ``problems``, ``every`` and ``top`` is given."""

    output: Annotated[str, Option("File to write; - for the terminal.", names=("--output", "-o"))]
    row: Annotated[
        str | None,
        Option("Row to export: best, rank:N, or an id that 'leaderboard' lists.", metavar="ROW", positional=True),
    ] = None
    best: Annotated[bool, Option("Export the best row; the same as the argument best.")] = False
    format: Annotated[
        str, Option("cu (program with its own check and timer), torch (module), header (C++), cubin or ptx.")
    ] = "cu"
    problem: SelectedProblemField = None
    problems: Annotated[
        str | None,
        Option(
            "Export the best kernel of each problem, given by name, shape or key, into one file (torch and header).",
            metavar="P,P,…",
        ),
    ] = None
    every: Annotated[
        bool, Option("Export the best kernel of every problem on the newest row's device.", names=("--all",))
    ] = False
    top: Annotated[
        int | None,
        Option("Export the shortlist of N predicted kernels; the module measures them on its GPU (torch).", min=1),
    ] = None
    device: _OneDevice = None
    db: Database = DEFAULT_DB
    space_file: SpaceFile = None
    trust_source: TrustSource = False
    force: Force = False


@dataclass(frozen=True)
class LockOptions:
    """Options of ``lock``."""

    output: _NewFile = Path("evoengine.lock")
    problem: SelectedProblemField = None
    gpu: Annotated[str | None, Option("Only this GPU: part of its name.")] = None
    db: Database = DEFAULT_DB
    check: Annotated[bool, Option("Write nothing; report whether the file is up to date.")] = False


@dataclass(frozen=True)
class TuneModelOptions:
    """Options of ``tune-model``."""

    file: Annotated[
        Path,
        Option(
            "Your Python file; it is executed, and its function build() returns a model and a tuple of inputs.",
            metavar="MODEL.py",
            positional=True,
        ),
    ]
    record_only: Annotated[bool, Option("Only list the model's attention calls; search nothing.")] = False
    most_sharing_cost: Annotated[
        float,
        Option(
            "Maximum relative cost of a kernel that a problem shares with another one.",
            min=0.0,
            max=1.0,
            names=("--sharing-cost",),
            metavar="SHARE",
        ),
    ] = 0.03
    budget: Annotated[
        int,
        Option("Number of distinct candidates to evaluate, over all problems.", min=1, panel=Panel.SEARCH),
    ] = DEFAULT_BUDGET
    time_limit_s: Annotated[
        float | None,
        Option(
            "Seconds after which searches stop.",
            min=0.0,
            names=("--time-limit",),
            metavar="SECONDS",
            panel=Panel.SEARCH,
        ),
    ] = None
    seed: Annotated[int, Option("Random seed of the searches.", min=0, panel=Panel.SEARCH)] = 0
    output: _NewFile = Path("evoengine.lock")
    db: Database = DEFAULT_DB


@dataclass(frozen=True)
class ProfileOptions:
    """Options of ``profile``.

    Raises:
        UsageError: More than one view, or ``again`` without ``ncu``.
    """

    row: StoredRow = "best"
    problem: SelectedProblemField = None
    device: _OneDevice = None
    db: Database = DEFAULT_DB
    lines: Annotated[int, Option("Number of most expensive source lines to show.", min=1)] = 12
    ptx: Annotated[bool, Option("Print the PTX instead.")] = False
    sass: Annotated[bool, Option("Print the machine code instead; needs nvdisasm.")] = False
    ncu: Annotated[bool, Option("Show hardware counters; the first time this needs a GPU and ncu.")] = False
    again: Annotated[bool, Option("With --ncu: count again even if counters are stored.")] = False
    space_file: SpaceFile = None
    trust_source: TrustSource = False

    def __post_init__(self) -> None:
        if self.ptx + self.sass + self.ncu > 1:
            raise UsageError("--ptx, --sass and --ncu exclude each other: give one")
        if self.again and not self.ncu:
            raise UsageError("--again counts hardware counters again: give --ncu with it")

    @property
    def choice(self) -> RowChoice:
        return RowChoice(self.row, self.problem, self.device)

    @property
    def view(self) -> View:
        return "ptx" if self.ptx else "sass" if self.sass else "ncu" if self.ncu else "counters"


@dataclass(frozen=True)
class CompareOptions:
    """Options of ``compare``."""

    problem: SelectedProblemField = None
    db: Database = DEFAULT_DB
    row: Annotated[
        str,
        Option(
            "Row to compare: best (of those measured on this GPU, if any), rank:N of its ranking, or an id.",
            names=("--id",),
            metavar="ROW",
        ),
    ] = "best"
    peers: Annotated[
        str | None,
        Option(
            "Comma-separated names of libraries. [default: all]", metavar="NAME,…", values=choices.peers, several=True
        ),
    ] = None
    calls: Annotated[int | None, Option("Calls per CUDA graph. [default: by problem size]", min=1)] = None
    samples: Annotated[int | None, Option("Timed replays per graph. [default: 30]", min=6)] = None
    cold_l2: ColdL2 = False
    space_file: SpaceFile = None
    trust_source: TrustSource = False


@dataclass(frozen=True)
class VerifyOptions:
    """Options of ``verify``."""

    problem: SelectedProblemField = None
    top: Annotated[int, Option("Number of predicted kernels to measure: a shortlist.", min=1)] = 20
    db: Database = DEFAULT_DB
    device: Annotated[
        str,
        Option(
            "auto, cuda, cuda:0,1, cuda:all, or replay:FILE.",
            metavar="NAME",
            panel=Panel.DEVICE,
            values=choices.devices,
        ),
    ] = "auto"
    target: Annotated[
        str | None, Option("GPU that the predictions are for. [default: that of the newest prediction]")
    ] = None
    time_limit_s: Annotated[
        float | None,
        Option("Seconds after which measuring stops.", min=0.0, names=("--time-limit",), metavar="SECONDS"),
    ] = None

    def search_options(self, problem: Problem) -> SearchOptions:
        """Options of the search that measures the elites in full, without racing.

        Args:
            problem: Problem of the predictions.
        """
        return SearchOptions(
            problem,
            device=self.device,
            db=self.db,
            strategy="random",
            time_limit_s=self.time_limit_s,
            racing=False,
        )


@dataclass(frozen=True)
class SpaceOptions:
    """Options of ``space``."""

    problem: ProblemField = _DEFAULT
    family: Annotated[
        str | None,
        Option(
            "Kernel family, comma-separated families, or auto for all that support the problem. "
            "[default: mma, or that of --space]",
            metavar="NAME,…",
            panel=Panel.SEARCH,
            values=choices.families,
            several=True,
        ),
    ] = None
    space_file: SpaceFile = None
    target: TargetName = "l4"
    check: Annotated[
        str | None,
        Option("Compile these families and fail if one of their tunables has no effect.", metavar="FAMILY"),
    ] = None
    """Families, written as in ``family``, which it replaces."""


@dataclass(frozen=True)
class SelftestOptions:
    """Options of ``selftest`` and ``selftest --null``."""

    device: Annotated[
        str,
        Option(
            "auto, cuda, cuda:0,1, cuda:all or emulator.", metavar="NAME", panel=Panel.DEVICE, values=choices.devices
        ),
    ] = "auto"
    target: TargetName = "l4"
    family: Annotated[
        str,
        Option(
            "Comma-separated families, or auto for all that the device supports.",
            metavar="NAME,…",
            panel=Panel.SEARCH,
            values=choices.families,
            several=True,
        ),
    ] = "auto"
    valid: Annotated[int, Option("Number of random valid configs that must pass the gate.", min=0)] = 20
    seed: Annotated[int, Option("Seed of inputs and random configs.", min=0)] = 0
    mutants: Annotated[str | None, Option("Comma-separated names of mutants. [default: all]")] = None
    resume: Annotated[Path | None, Option("File of outcomes; a later run continues from it.")] = None
    null: Annotated[bool, Option("Search a space of identical kernels: no challenger may be accepted.")] = False
    runs: Annotated[int, Option("With --null: number of searches.", min=1)] = 20
    budget: Annotated[int, Option("With --null: candidates per search.", min=1, max=1000)] = DEFAULT_BUDGET
    strategy: Annotated[str, Option("With --null: search strategy.", metavar="NAME", values=choices.strategies)] = (
        DEFAULT_STRATEGY
    )


@dataclass(frozen=True)
class ReportOptions:
    """Options of ``report``."""

    study: Annotated[
        int | None, Option("Only this study. [default: all, the newest first]", metavar="[STUDY]", positional=True)
    ] = None
    problem: SelectedProblemField = None
    device: _OneDevice = None
    output: OutputFile = Path("report.html")
    db: Database = DEFAULT_DB
    force: Force = False


@dataclass(frozen=True)
class DashboardOptions:
    """Options of ``dashboard``."""

    db: Database = DEFAULT_DB
    port: Annotated[int, Option("Local port, 0 for any free one.", min=0, max=65535)] = 8080


@dataclass(frozen=True)
class RowExportOptions:
    """Options of ``leaderboard export``."""

    output: Annotated[Path, Option("File or folder to write; - for the terminal.", names=("--output", "-o"))]
    format: Annotated[str, Option("json, csv, t4, rbk or robust-kbench.")] = "json"
    problem: SelectedProblemField = None
    device: _OneDevice = None
    family: Annotated[str | None, Option("Only this kernel family.")] = None
    status: _OneStatus = "ok"
    problems: Annotated[Path | None, Option("rbk_config.yaml with the problems of an rbk report. [default: all]")] = (
        None
    )
    trust_source: TrustSource = False
    force: Force = False


@dataclass(frozen=True)
class RecordOptions:
    """Options of ``landscape record``.

    Raises:
        UsageError: Options contradict each other, such as ``count`` and ``all_configs``.
    """

    output: _NewFile
    problem: ProblemField = _DEFAULT
    count: Annotated[int | None, Option(f"Distinct kernels to record. [default: {DEFAULT_RECORD_COUNT}]", min=1)] = None
    all_configs: Annotated[bool, Option("Record every valid config.", names=("--all",))] = False
    by_forecast: Annotated[
        int, Option("Number of configs to record first, out of those with fast forecasts.", metavar="N", min=0)
    ] = 0
    by_search: Annotated[
        bool, Option("Record configs that a search proposes from the times so far instead of a uniform sample.")
    ] = False
    only: Annotated[
        tuple[str, ...],
        Option("Restrict a tunable to these values; may be repeated.", metavar="NAME=VALUE,…"),
    ] = ()
    with_failing: Annotated[
        bool, Option("With --all, also record the configs one step away that the search space excludes.")
    ] = False
    family: Family = "auto"
    space_file: SpaceFile = None
    device: Annotated[
        str,
        Option(
            "auto, cuda, cuda:0,1, cuda:all or emulator.", metavar="NAME", panel=Panel.DEVICE, values=choices.devices
        ),
    ] = "auto"
    arch: Arch = ""
    target: TargetName = "l4"
    seed: Annotated[int, Option("Seed of the random sample.", min=0)] = 0
    small_cases: Annotated[
        bool, Option("Also check kernels on the gate's small cases, not only on the problem itself.")
    ] = True
    samples: Annotated[int, Option("Timing samples per kernel.", min=6)] = 30
    part: Annotated[
        str, Option("Record one part of the space, such as 1/2; 'merge' joins the parts.", metavar="N/OF")
    ] = "1/1"
    workers: Workers = 0
    cold_l2: ColdL2 = False
    time_limit_s: Annotated[
        float | None,
        Option("Seconds after which recording pauses.", min=0.0, names=("--time-limit",), metavar="SECONDS"),
    ] = None
    early: Annotated[bool, Option("At the time limit, write what is recorded so far.")] = False
    force: Force = False

    def __post_init__(self) -> None:
        if self.all_configs and self.count is not None:
            raise UsageError("--count and --all exclude each other: give one")
        if self.by_forecast and (self.all_configs or self.by_forecast > (self.count or DEFAULT_RECORD_COUNT)):
            raise UsageError("--by-forecast chooses some of --count configs: give at least as many there, and no --all")
        if self.by_search and self.all_configs:
            raise UsageError("--by-search chooses some of the configs: give --count, and no --all")
        if self.with_failing and not self.all_configs:
            raise UsageError("--with-failing needs the neighbours of every config: give --all too")

    @property
    def sample_size(self) -> int | None:
        """Number of distinct kernels to record; None for the whole space."""
        return None if self.all_configs else self.count or DEFAULT_RECORD_COUNT

    @property
    def unfinished(self) -> Path:
        """Database of a recording that is not complete; short enough for SQLite's files beside it."""
        name = f"{self.output.name}.part"
        if len(os.fsencode(name)) > _MAX_DATABASE_NAME:
            name = f"{hashlib.sha256(os.fsencode(self.output.name)).hexdigest()}.part"
        return self.output.with_name(name)

    def search_options(self) -> SearchOptions:
        """Options of the search that evaluates the configs."""
        return SearchOptions(
            self.problem,
            seed=self.seed,
            family=self.family,
            space_file=self.space_file,
            device=self.device,
            arch=self.arch,
            target=self.target,
            workers=self.workers,
            cold_l2=self.cold_l2,
            time_limit_s=self.time_limit_s,
            energy=False,
            sanitizer=False,
        )
