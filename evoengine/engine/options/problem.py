"""Options of the attention problem: a new one, or one of the stored problems."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from evoengine.engine.options import choices
from evoengine.engine.options.fields import Option, OptionGroup, Panel
from evoengine.errors import ProblemError
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, DType, Problem, parse_problem

_KEY: Final = re.compile(r"\d+x\d+x\d+x\d+(-[a-z0-9._]+)*-(fp16|bf16)(-[a-z0-9.+]+)*|workload-[a-z0-9_-]+-[0-9a-f]{12}")
_MAX_DIGITS: Final = 12
"""Number of digits from which a text is not a length."""


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
