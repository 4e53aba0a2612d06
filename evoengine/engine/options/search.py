"""Options of a search: fields, defaults, bounds and help texts for Python, the command line and ``evoengine.toml``.

The records of the other verbs are in ``verbs.py`` and ``evolution.py`` beside this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from evoengine.documents.escaping import shell_word
from evoengine.engine.options import choices
from evoengine.engine.options.fields import (
    Arch,
    ColdL2,
    Database,
    Family,
    Option,
    Panel,
    SpaceFile,
    TargetName,
    Workers,
    check_fields,
)
from evoengine.engine.options.problem import ProblemField
from evoengine.errors import UsageError
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.model import ACCEPT_THRESHOLD, DEFAULT_PROBLEM, NAMED_PROBLEMS, Problem, Workload

DEFAULT_DB: Final = "leaderboard.db"
DEFAULT_BUDGET: Final = 500
DEFAULT_STRATEGY: Final = "evolution"
_CLUSTER: Final = re.compile(r"auto|[A-Za-z0-9][A-Za-z0-9.-]{0,252}:[1-9][0-9]{0,4}|\[[0-9A-Fa-f:.]+\]:[1-9][0-9]{0,4}")
Effort = Literal["quick", "normal", "thorough"]
"""Preset of a search's budget; nothing else differs, so that a study begun with one effort continues with another."""
BUDGETS: Final[Mapping[Effort, int]] = {"quick": 50, "normal": DEFAULT_BUDGET, "thorough": 2000}
"""Candidates of each effort."""


def db_option(db: str) -> str:
    """Returns what a suggested command needs to read a leaderboard: `` --db`` and its name, or nothing by default."""
    from evoengine.leaderboard.database.connection import database_name

    return "" if db == DEFAULT_DB else f" --db {shell_word(database_name(db))}"


@dataclass(frozen=True)
class SearchOptions:
    """Options of one search.

    Raises:
        UsageError: The effort is unknown, or a field has another type or is out of its bounds.
    """

    problem: ProblemField = NAMED_PROBLEMS[DEFAULT_PROBLEM]
    """The problem; with a workload its first one."""
    effort: Annotated[
        Effort,
        Option(
            f"Preset of the budget: {', '.join(f'{name} ({count})' for name, count in BUDGETS.items())}.",
            metavar="NAME",
            panel=Panel.SEARCH,
        ),
    ] = "normal"
    budget: Annotated[
        int | None,
        Option(
            "Number of distinct candidates to evaluate. [default: by --effort]",
            min=1,
            panel=Panel.SEARCH,
        ),
    ] = None
    time_limit_s: Annotated[
        float | None,
        Option(
            "Seconds after which the search stops.",
            min=0.0,
            names=("--time-limit",),
            metavar="SECONDS",
            panel=Panel.SEARCH,
        ),
    ] = None
    family: Family = "auto"
    strategy: Annotated[
        str,
        Option(
            "Search strategy: evolution, tpe, cmaes or random, or package.module:Class.",
            metavar="NAME",
            panel=Panel.SEARCH,
            values=choices.strategies,
        ),
    ] = DEFAULT_STRATEGY
    seed: Annotated[int, Option("Random seed.", min=0, panel=Panel.SEARCH)] = 0
    starts: Annotated[
        bool | None,
        Option(
            "Warm start: try the configs named by the search spaces first. [default: on; off in a replay]",
            panel=Panel.SEARCH,
        ),
    ] = None
    forecast: Annotated[
        bool | None,
        Option(
            "Warm start: try the configs that the latency model predicts fastest. [default: on; off in a replay]",
            panel=Panel.SEARCH,
        ),
    ] = None
    transfer: Annotated[
        bool | None,
        Option(
            "Warm start: try the best leaderboard rows of near problems and other GPUs. [default: on; off in a replay]",
            panel=Panel.SEARCH,
        ),
    ] = None
    skip: Annotated[
        bool | None,
        Option(
            "Skip configs that the latency model predicts to be far slower than the best. "
            "[default: on; off in a replay]",
            panel=Panel.SEARCH,
        ),
    ] = None
    space_file: SpaceFile = None
    variants: Annotated[
        bool,
        Option(
            "Allow --family to name variants in --db, whose patches come from the author of that file.",
            panel=Panel.SEARCH,
        ),
    ] = False
    device: Annotated[
        str,
        Option(
            "auto, cuda, cuda:0,1 or cuda:all for several GPUs, emulator, or replay:FILE of a landscape.",
            metavar="NAME",
            panel=Panel.DEVICE,
            values=choices.devices,
        ),
    ] = "auto"
    cluster: Annotated[
        str,
        Option(
            "Run on all nodes of a Ray cluster: auto for this machine's, or the address of its head.",
            metavar="ADDRESS",
            panel=Panel.DEVICE,
        ),
    ] = ""
    target: TargetName = "l4"
    arch: Arch = ""
    workers: Workers = 0
    compile_limit_s: Annotated[
        float,
        Option(
            "Maximum seconds per compilation.",
            min=1.0,
            names=("--compile-limit",),
            metavar="SECONDS",
            panel=Panel.DEVICE,
        ),
    ] = 120.0
    racing: Annotated[
        bool,
        Option("Stop timing clearly slower kernels after a few samples (cuda only).", panel=Panel.DEVICE),
    ] = True
    cold_l2: ColdL2 = False
    eager: Annotated[
        bool, Option("Time individual launches instead of a CUDA graph (cuda only).", panel=Panel.DEVICE)
    ] = False
    energy: Annotated[
        bool, Option("Measure the elites' energy per call at the end (cuda only).", panel=Panel.DEVICE)
    ] = True
    accept: Annotated[
        float | None,
        Option(
            "Minimum relative speed-up needed to replace the champion. "
            f"[default: {ACCEPT_THRESHOLD} where times are measured, 0 where they are predicted or replayed]",
            min=0.0,
            max=1.0,
            metavar="SHARE",
            panel=Panel.ACCEPTANCE,
        ),
    ] = None
    """None for the default of the device: :attr:`evoengine.engine.search_plan.SearchPlan.accept_threshold`."""
    sanitizer: Annotated[
        bool, Option("Check new champions with compute-sanitizer (cuda only).", panel=Panel.ACCEPTANCE)
    ] = True
    inputs_seed: Annotated[
        int | None,
        Option(
            "Seed for the inputs used by the parity gate. [default: a fresh one]",
            min=0,
            panel=Panel.ACCEPTANCE,
        ),
    ] = None
    spill_limit_bytes: Annotated[
        int,
        Option(
            "Maximum spilled bytes per thread, 0 for no limit.",
            min=0,
            names=("--spill-limit",),
            metavar="BYTES",
            panel=Panel.ACCEPTANCE,
        ),
    ] = SPILL_LIMIT_BYTES
    db: Database = DEFAULT_DB
    workload: Workload | None = None
    """Weighted problems that are searched as one; None for ``problem`` alone."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cluster and _CLUSTER.fullmatch(self.cluster) is None:
            raise UsageError(
                f"--cluster '{self.cluster}': give auto, or the HOST:PORT of a head, as 'ray start' prints it"
            )
        if self.cluster and self.device.partition(":")[0] not in ("auto", "cuda", "emulator"):
            raise UsageError(f"--cluster takes no --device '{self.device}': choose auto, cuda, cuda:MODEL or emulator")
        if not isinstance(self.problem, Problem):
            raise UsageError(f"problem must be a Problem, not a {type(self.problem).__name__}")
        if self.workload is not None and not isinstance(self.workload, Workload):
            raise UsageError(f"workload must be a Workload or None, not a {type(self.workload).__name__}")
        if not isinstance(self.effort, str):
            raise UsageError(f"effort must be a text, not a {type(self.effort).__name__}")
        if self.effort not in BUDGETS:
            raise UsageError(f"unknown effort '{self.effort}': choose one of {', '.join(BUDGETS)}")

    @property
    def candidates(self) -> int:
        """Number of distinct candidates to evaluate: the budget if it is given, else that of the effort."""
        return BUDGETS[self.effort] if self.budget is None else self.budget
