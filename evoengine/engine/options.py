"""Options of a search: fields, defaults, bounds and help texts for Python, the command line and ``evoengine.toml``.

A record of options is a frozen dataclass. A field that users can set carries an :class:`Option`; the command line turns
it into ``--field-name``. The records of the other verbs are in :mod:`evoengine.engine.verb_options`.
"""

from __future__ import annotations

import enum
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_type_hints

from evoengine.engine import choices
from evoengine.errors import ProblemError, UsageError
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.model import ACCEPT_THRESHOLD, DEFAULT_PROBLEM, NAMED_PROBLEMS, DType, Problem, Workload, parse_problem

DEFAULT_DB: Final = "leaderboard.db"
DEFAULT_BUDGET: Final = 500
DEFAULT_STRATEGY: Final = "evolution"
_CLUSTER: Final = re.compile(r"auto|[A-Za-z0-9][A-Za-z0-9.-]{0,252}:[1-9][0-9]{0,4}|\[[0-9A-Fa-f:.]+\]:[1-9][0-9]{0,4}")
_KEY: Final = re.compile(r"\d+x\d+x\d+x\d+(-[a-z0-9._]+)*-(fp16|bf16)(-[a-z0-9.+]+)*|workload-[a-z0-9_-]+-[0-9a-f]{12}")
Effort = Literal["quick", "normal", "thorough"]
"""Preset of a search's budget; nothing else differs, so that a study begun with one effort continues with another."""
BUDGETS: Final[Mapping[Effort, int]] = {"quick": 50, "normal": DEFAULT_BUDGET, "thorough": 2000}
"""Candidates of each effort."""
_SHOWN: Final = 40
"""Characters of a refused text that a message repeats."""
_MAX_DIGITS: Final = 12
"""Number of digits from which a text is not a length."""


class Panel(enum.StrEnum):
    """Sections of a verb's help, in the order in which they are printed."""

    OWN = "Options"
    """Options that only this verb has."""
    PROBLEM = "Problem"
    SEARCH = "Search"
    DEVICE = "Device"
    ACCEPTANCE = "Acceptance"
    OUTPUT = "Output"


@dataclass(frozen=True)
class Option:
    """Command-line side of a field: help text, bounds, names and place in the help.

    Within its panel an option is printed in the order of the fields, so the most used one is declared first.
    """

    help: str
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Option names; empty for one made of the field's name."""
    positional: bool = False
    panel: Panel = Panel.OWN
    values: Callable[[], Iterable[str]] | None = None
    """Values that the shell completes; None for none."""
    several: bool = False
    """Whether values may be joined by commas."""


@dataclass(frozen=True)
class OptionGroup:
    """Marks a field whose value is built by a method of another record of options."""

    record: type
    method: str = "build"


Family = Annotated[
    str,
    Option(
        "Kernel family, comma-separated families, or auto for all that support the problem.",
        metavar="NAME,…",
        panel=Panel.SEARCH,
        values=choices.families,
        several=True,
    ),
]
SpaceFile = Annotated[
    Path | None,
    Option("Search-space file. [default: the family's own]", names=("--space",), panel=Panel.SEARCH),
]
TargetName = Annotated[
    str,
    Option("GPU to predict for on the emulator.", metavar="NAME", panel=Panel.DEVICE, values=choices.targets),
]
Arch = Annotated[
    str,
    Option(
        "Architecture to compile for, such as sm_89. [default: the device's]",
        metavar="SM",
        panel=Panel.DEVICE,
        values=choices.architectures,
    ),
]
Workers = Annotated[int, Option("Compile processes, 0 for one per core.", min=0, panel=Panel.DEVICE)]
ColdL2 = Annotated[bool, Option("Flush the L2 cache before each timed call (cuda only).", panel=Panel.DEVICE)]
Database = Annotated[
    str, Option("Leaderboard: a file, or a postgresql+psycopg://… URL.", names=("--db",), panel=Panel.OUTPUT)
]
TrustSource = Annotated[
    bool,
    Option("Use the stored source even if it cannot be verified; read it first with 'leaderboard show --source'."),
]
Force = Annotated[bool, Option("Overwrite existing files.", names=("--force", "-f"), panel=Panel.OUTPUT)]
Json = Annotated[bool, Option("Print JSON.", names=("--json",), panel=Panel.OUTPUT)]


@dataclass(frozen=True)
class ProblemOptions:
    """The attention problem, as text and numbers."""

    problem: Annotated[
        str | None,
        Option(
            f"Shape BxHxSxD (batch, heads, sequence, head_dim), or one of {', '.join(NAMED_PROBLEMS)}.",
            metavar="SHAPE",
            panel=Panel.PROBLEM,
            values=choices.problems,
        ),
    ] = DEFAULT_PROBLEM
    causal: Annotated[bool, Option("Causal mask, aligned bottom-right.", panel=Panel.PROBLEM)] = False
    dtype: Annotated[
        str,
        Option("Element type: fp16 or bf16.", metavar="TYPE", panel=Panel.PROBLEM, values=choices.dtypes),
    ] = DType.FP16.value
    kv_heads: Annotated[int | None, Option("Number of K/V heads. [default: as many as of Q]", panel=Panel.PROBLEM)] = (
        None
    )
    seq_kv: Annotated[int | None, Option("Length of K and V. [default: as long as Q]", panel=Panel.PROBLEM)] = None
    window: Annotated[
        str | None,
        Option(
            "Keys visible before and after the diagonal, each a number or inf.",
            metavar="LEFT,RIGHT",
            panel=Panel.PROBLEM,
        ),
    ] = None
    softcap: Annotated[float, Option("Bound applied to the logits by tanh, 0 for none.", panel=Panel.PROBLEM)] = 0.0
    sink: Annotated[
        bool,
        Option("Attention sink: one extra softmax logit per head that contributes no value.", panel=Panel.PROBLEM),
    ] = False
    lse: Annotated[bool, Option("Also output the log-sum-exp of each row.", panel=Panel.PROBLEM)] = False
    lengths: Annotated[
        str | None,
        Option(
            "Lengths of packed sequences; B and S are their number and the longest.",
            metavar="N,N,…",
            panel=Panel.PROBLEM,
        ),
    ] = None
    lengths_kv: Annotated[
        str | None,
        Option("K/V lengths of packed sequences. [default: those of --lengths]", metavar="N,N,…", panel=Panel.PROBLEM),
    ] = None

    def build(self) -> Problem:
        """Parses the options.

        Raises:
            ProblemError: They do not describe a problem; the message names the option or the size.
        """
        try:
            dtype = DType(self.dtype)
        except ValueError:
            known = ", ".join(kind.value for kind in DType)
            raise ProblemError(f"unknown dtype '{self.dtype}': choose one of {known}") from None
        return parse_problem(
            self.problem or DEFAULT_PROBLEM,
            kv_heads=self.kv_heads,
            seq_kv=self.seq_kv,
            dtype=dtype,
            causal=self.causal,
            window=_window(self.window),
            softcap=self.softcap,
            sink=self.sink,
            lse=self.lse,
            lengths_q=_lengths("--lengths", self.lengths),
            lengths_kv=_lengths("--lengths-kv", self.lengths_kv),
        )


@dataclass(frozen=True)
class SelectedProblem(ProblemOptions):
    """The problem's options where they select one of the stored problems."""

    problem: Annotated[
        str | None,
        Option(
            f"Stored problem: shape BxHxSxD, one of {', '.join(NAMED_PROBLEMS)}, or a key that 'leaderboard' prints. "
            "With the options below it selects exactly one, as in 'search'. "
            "[default: the newest; all where a verb takes several]",
            metavar="SHAPE",
            panel=Panel.PROBLEM,
            values=choices.problems,
        ),
    ] = None

    def select(self) -> Problem | str | None:
        """Parses the options.

        Returns:
            The problem, or the key of a stored problem or workload; None if no option is given.

        Raises:
            ProblemError: They do not describe a problem, or a key has further options.
        """
        if self == SelectedProblem():
            return None
        if self.problem is None or not is_problem_key(self.problem):
            return self.build()
        if self != SelectedProblem(self.problem):
            raise ProblemError(f"'{self.problem}' is a key, which already states all properties: leave the others out")
        return self.problem


def is_problem_key(text: str) -> bool:
    """Whether a text has the form of a stored problem's or workload's key, such as ``1x8x512x64-fp16-causal``."""
    return _KEY.fullmatch(text) is not None


ProblemField = Annotated[Problem, OptionGroup(ProblemOptions)]
SelectedProblemField = Annotated[Problem | str | None, OptionGroup(SelectedProblem, "select")]
"""A problem; or a text that names one, or is the key of a stored one; or None for the newest."""

_KINDS: Final[Mapping[type, tuple[tuple[type, ...], str]]] = {
    bool: ((bool,), "True or False"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
    Path: ((Path,), "a Path"),
}
"""Accepted types of a field of each type, and their name in messages."""
_MOST: Final = 2**63 - 1
"""Largest whole number; SQLite stores no larger one."""


def check_fields(record: object) -> None:
    """Checks the fields of a record of options that carry an :class:`Option`: their types and bounds.

    The command line has checked them already; a record may also be made in Python.

    Raises:
        UsageError: A field has another type, or is out of its bounds.
    """
    kind: Any = type(record)
    for name, hint in _hints(kind).items():
        option = next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Option)), None)
        if option is None:
            continue
        kinds = [kind for kind in (get_args(get_args(hint)[0]) or (get_args(hint)[0],)) if kind is not type(None)]
        value, optional = getattr(record, name), type(None) in get_args(get_args(hint)[0])
        if kinds[0] in _KINDS and not (value is None and optional):
            _check_field(name, value, kinds[0], option)


@cache
def _hints(record: type) -> Mapping[str, Any]:
    return get_type_hints(record, include_extras=True)


def _check_field(name: str, value: object, kind: type, option: Option) -> None:
    allowed, words = _KINDS[kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{name} must be {words}, not a {type(value).__name__}")
    if kind in (str, Path) and not _is_argument(str(value)):
        text = ascii(str(value)[:_SHOWN])
        raise UsageError(f"{name} must be {words} without NUL and halves of surrogate pairs, not {text}")
    if not isinstance(value, int | float) or kind is bool:
        return
    low, high = option.min, option.max if option.max is not None else _MOST if kind is int else None
    if kind is float and not abs(value) <= sys.float_info.max:  # math.isfinite fails for 10**400
        raise UsageError(f"{name} must be a finite number")
    if (low is not None and value < low) or (high is not None and value > high):
        limits = f"from {low} to {high}" if low is not None and high is not None else f"of at least {low}"
        shown = value if abs(value) <= sys.float_info.max else "one of over 300 digits"  # Python prints 4300 at most
        raise UsageError(f"{name} must be {words} {limits}, not {shown}")


def _is_argument(text: str) -> bool:
    """Whether a text could come from the command line, and thus name a file."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text


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


def _window(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    sides = [None if side.strip() == "inf" else _whole(side) for side in text.split(",")]
    if len(sides) != 2 or -1 in sides:
        raise ProblemError(
            f"--window '{text}': give the keys before and after the diagonal, each a number or inf, as in 128,0"
        )
    return sides[0], sides[1]


def _lengths(option: str, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    lengths = tuple(_whole(part) for part in text.split(","))
    if -1 in lengths:
        raise ProblemError(f"{option} '{text}': give comma-separated whole numbers, as in 512,384,100")
    return lengths


def _whole(text: str) -> int:
    """A whole number of 0 or more; -1 for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else -1
