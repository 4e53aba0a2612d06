"""Options that several verbs share, spelled once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from evoengine import model
from evoengine.errors import ProblemError

DEFAULT_DB: Final = "leaderboard.db"
_MOST_DIGITS: Final = 12
"""No length has so many."""

Problem = Annotated[
    str,
    typer.Option(help=f"Shape as BxHxSxD (batch, heads, sequence, head_dim), or {', '.join(model.NAMED_PROBLEMS)}."),
]
KvHeads = Annotated[int | None, typer.Option(help="Heads of K and V. [default: as many as of Q]")]
SeqKv = Annotated[int | None, typer.Option(help="Length of K and V. [default: as long as Q]")]
Causal = Annotated[bool, typer.Option("--causal", help="Causal mask, aligned bottom-right.")]
DTypeName = Annotated[str, typer.Option(help="fp16 or bf16.")]
Window = Annotated[
    str | None,
    typer.Option(
        metavar="LEFT,RIGHT", help="Keys that a row sees before and after its diagonal, each a number or inf."
    ),
]
Softcap = Annotated[float, typer.Option(help="Bound that tanh puts on the logits, 0 for none.")]
Sink = Annotated[bool, typer.Option("--sink", help="One more logit per head in the softmax, without a value.")]
Lse = Annotated[bool, typer.Option("--lse", help="The log-sum-exp of each row is an output too.")]
Lengths = Annotated[
    str | None,
    typer.Option(metavar="N,N,…", help="Packed sequences of these lengths; B and S are their number and the longest."),
]
LengthsKv = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="Their lengths in K and V. [default: those of --lengths]")
]
Family = Annotated[
    str, typer.Option(help="Kernel family, several with commas between, or auto for all that can serve the problem.")
]
SpaceFile = Annotated[Path | None, typer.Option("--space", help="Search-space file. [default: the family's own]")]
Device = Annotated[
    str, typer.Option(help="auto, cuda, cuda:0,1 or cuda:all for several, emulator, or replay:FILE of a landscape.")
]
TargetName = Annotated[str, typer.Option(help="GPU to predict for on the emulator.")]
Database = Annotated[str, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def named_problem(
    problem: Problem = model.DEFAULT_PROBLEM,
    kv_heads: KvHeads = None,
    seq_kv: SeqKv = None,
    causal: Causal = False,
    window: Window = None,
    softcap: Softcap = 0.0,
    sink: Sink = False,
    lse: Lse = False,
    lengths: Lengths = None,
    lengths_kv: LengthsKv = None,
    dtype: DTypeName = "fp16",
) -> model.Problem:
    """The problem that the options name.

    Raises:
        ProblemError: they name none.
    """
    try:
        element = model.DType(dtype)
    except ValueError:
        known = ", ".join(kind.value for kind in model.DType)
        raise ProblemError(f"unknown dtype '{dtype}': choose one of {known}") from None
    return model.parse_problem(
        problem,
        kv_heads=kv_heads,
        seq_kv=seq_kv,
        dtype=element,
        causal=causal,
        window=_window(window),
        softcap=softcap,
        sink=sink,
        lse=lse,
        lengths_q=_lengths("--lengths", lengths),
        lengths_kv=_lengths("--lengths-kv", lengths_kv),
    )


Verb = Callable[..., None]
"""What typer calls."""


def taking(parameter: str, maker: Callable[..., object]) -> Callable[[Verb], Verb]:
    """Makes a decorator that gives a verb the options of a function in place of one parameter, which is its result.

    typer reads the options off the signature, so the verb gets one that has both.

    Args:
        parameter: name of the verb's parameter.
        maker: takes the options.
    """
    shared = inspect.signature(maker, eval_str=True).parameters

    def decorate(verb: Verb) -> Verb:
        own = inspect.signature(verb, eval_str=True)

        @functools.wraps(verb)
        def call(**arguments: Any) -> None:
            made = maker(**{name: arguments.pop(name) for name in shared})
            verb(**{parameter: made}, **arguments)

        parameters = [*shared.values(), *(item for name, item in own.parameters.items() if name != parameter)]
        parameters.sort(key=lambda item: item.default is not item.empty)  # Python wants those without a default first
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        return call

    return decorate


takes_problem = taking("problem", named_problem)
"""Gives a verb the options of :func:`named_problem` in place of its parameter ``problem``."""


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
        raise ProblemError(f"{option} '{text}': give whole numbers with commas between, as in 512,384,100")
    return lengths


def _whole(text: str) -> int:
    """A number that is not negative; -1 where the text is none."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else -1
