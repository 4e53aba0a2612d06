"""Options of a search: fields, defaults, bounds and help texts for Python, the command line and ``evoengine.toml``.

A record of options is a frozen dataclass. A field that users can set carries an :class:`Option`; the command line turns
it into ``--field-name``. The records of the other verbs are in :mod:`evoengine.engine.verb_options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

from evoengine.errors import ProblemError, UsageError
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.model import ACCEPT_THRESHOLD, DEFAULT_PROBLEM, NAMED_PROBLEMS, DType, Problem, Workload, parse_problem

DEFAULT_DB: Final = "leaderboard.db"
DEFAULT_BUDGET: Final = 500
DEFAULT_STRATEGY: Final = "evolution"
_MAX_DIGITS: Final = 12
"""No length has more digits."""


@dataclass(frozen=True)
class Option:
    """Command-line side of a field: help text, bounds and names."""

    help: str
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    names: tuple[str, ...] = ()
    """Option names; empty for one made of the field's name."""
    positional: bool = False


@dataclass(frozen=True)
class OptionGroup:
    """Marks a field whose value is built by the ``build`` method of another record of options."""

    record: type


Family = Annotated[str, Option("Kernel family, comma-separated families, or auto for all that support the problem.")]
SpaceFile = Annotated[Path | None, Option("Search-space file. [default: the family's own]", names=("--space",))]
TargetName = Annotated[str, Option("GPU to predict for on the emulator.")]
Arch = Annotated[str, Option("Architecture to compile for, such as sm_89. [default: the device's]")]
Workers = Annotated[int, Option("Compile processes, 0 for one per core.", min=0)]
ColdL2 = Annotated[bool, Option("Flush the L2 cache before each timed call (cuda only).")]
Database = Annotated[str, Option("Leaderboard: a file, or a sqlite:///FILE URL.", names=("--db",))]
TrustSource = Annotated[
    bool, Option("Use the stored source also where it cannot be verified; read it first with 'leaderboard show'.")
]
Force = Annotated[bool, Option("Overwrite existing files.", names=("--force", "-f"))]
Json = Annotated[bool, Option("Print JSON.", names=("--json",))]


@dataclass(frozen=True)
class ProblemOptions:
    """The attention problem, as text and numbers."""

    problem: Annotated[
        str, Option(f"Shape BxHxSxD (batch, heads, sequence, head_dim), or one of {', '.join(NAMED_PROBLEMS)}.")
    ] = DEFAULT_PROBLEM
    kv_heads: Annotated[int | None, Option("Number of K/V heads. [default: as many as of Q]")] = None
    seq_kv: Annotated[int | None, Option("Length of K and V. [default: as long as Q]")] = None
    causal: Annotated[bool, Option("Causal mask, aligned bottom-right.")] = False
    window: Annotated[
        str | None,
        Option("Keys visible before and after the diagonal, each a number or inf.", metavar="LEFT,RIGHT"),
    ] = None
    softcap: Annotated[float, Option("Bound applied to the logits by tanh, 0 for none.")] = 0.0
    sink: Annotated[bool, Option("Attention sink: one extra softmax logit per head that contributes no value.")] = False
    lse: Annotated[bool, Option("Also output the log-sum-exp of each row.")] = False
    lengths: Annotated[
        str | None,
        Option("Lengths of packed sequences; B and S are their number and the longest.", metavar="N,N,…"),
    ] = None
    lengths_kv: Annotated[
        str | None, Option("K/V lengths of packed sequences. [default: those of --lengths]", metavar="N,N,…")
    ] = None
    dtype: Annotated[str, Option("Element type: fp16 or bf16.")] = DType.FP16.value

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
            self.problem,
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


ProblemField = Annotated[Problem, OptionGroup(ProblemOptions)]

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
    if not isinstance(value, int | float) or kind is bool:
        return
    low, high = option.min, option.max if option.max is not None else _MOST if kind is int else None
    if value != value or (low is not None and value < low) or (high is not None and value > high):
        limits = f"from {low} to {high}" if low is not None and high is not None else f"of at least {low}"
        raise UsageError(f"{name} must be {words} {limits}, not {value}")


@dataclass(frozen=True)
class SearchOptions:
    """Options of one search.

    Raises:
        UsageError: A field has another type, or is out of its bounds.
    """

    problem: ProblemField = NAMED_PROBLEMS[DEFAULT_PROBLEM]
    """The problem; with a workload its first one."""
    budget: Annotated[int, Option("Number of distinct candidates to evaluate.", min=1)] = DEFAULT_BUDGET
    strategy: Annotated[str, Option("Search strategy: evolution, tpe, cmaes or random, or package.module:Class.")] = (
        DEFAULT_STRATEGY
    )
    seed: Annotated[int, Option("Random seed.", min=0)] = 0
    family: Family = "auto"
    space_file: SpaceFile = None
    device: Annotated[
        str, Option("auto, cuda, cuda:0,1 or cuda:all for several GPUs, emulator, or replay:FILE of a landscape.")
    ] = "auto"
    arch: Arch = ""
    target: TargetName = "l4"
    db: Database = DEFAULT_DB
    workload: Workload | None = None
    """Weighted problems that are searched as one; None for ``problem`` alone."""
    time_limit_s: Annotated[
        float | None, Option("Seconds after which the search stops.", min=0.0, names=("--time-limit",))
    ] = None
    inputs_seed: Annotated[
        int | None, Option("Seed for the inputs used by the parity gate. [default: a fresh one]", min=0)
    ] = None
    accept: Annotated[float, Option("Minimum relative speed-up needed to replace the champion.", min=0.0, max=1.0)] = (
        ACCEPT_THRESHOLD
    )
    starts: Annotated[bool, Option("Warm start: try the configs named by the search spaces first.")] = True
    forecast: Annotated[bool, Option("Warm start: try the configs that the latency model predicts fastest.")] = True
    transfer: Annotated[bool, Option("Warm start: try the best leaderboard rows of near problems and other GPUs.")] = (
        True
    )
    skip: Annotated[bool, Option("Skip configs that the latency model predicts to be far slower than the best.")] = True
    racing: Annotated[bool, Option("Stop timing clearly slower kernels after a few samples (cuda only).")] = True
    cold_l2: ColdL2 = False
    eager: Annotated[bool, Option("Time individual launches instead of a CUDA graph (cuda only).")] = False
    energy: Annotated[bool, Option("Measure the elites' energy per call at the end (cuda only).")] = True
    sanitizer: Annotated[bool, Option("Check new champions with compute-sanitizer (cuda only).")] = True
    spill_limit_bytes: Annotated[
        int, Option("Maximum spilled bytes per thread, 0 for no limit.", min=0, names=("--spill-limit",))
    ] = SPILL_LIMIT_BYTES
    workers: Workers = 0
    compile_limit_s: Annotated[
        float, Option("Maximum seconds per compilation.", min=1.0, names=("--compile-limit",))
    ] = 120.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.problem, Problem):
            raise UsageError(f"problem must be a Problem, not a {type(self.problem).__name__}")
        if self.workload is not None and not isinstance(self.workload, Workload):
            raise UsageError(f"workload must be a Workload or None, not a {type(self.workload).__name__}")


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
