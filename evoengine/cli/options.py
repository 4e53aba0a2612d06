"""Options that several verbs share, spelled once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from evoengine import model
from evoengine.errors import ProblemError

DEFAULT_DB: Final = "leaderboard.db"

Problem = Annotated[
    str,
    typer.Option(help=f"Shape as BxHxSxD (batch, heads, sequence, head_dim), or {', '.join(model.NAMED_PROBLEMS)}."),
]
KvHeads = Annotated[int | None, typer.Option(help="Heads of K and V. [default: as many as of Q]")]
SeqKv = Annotated[int | None, typer.Option(help="Length of K and V. [default: as long as Q]")]
Causal = Annotated[bool, typer.Option("--causal", help="Causal mask, aligned bottom-right.")]
DTypeName = Annotated[str, typer.Option(help="fp16 or bf16.")]
Family = Annotated[str, typer.Option(help="Template family.")]
SpaceFile = Annotated[Path | None, typer.Option("--space", help="Search-space file. [default: the family's own]")]
TargetName = Annotated[str, typer.Option(help="GPU to predict for on the emulator.")]
Database = Annotated[str, typer.Option("--db", help="Leaderboard: a file, or a sqlite:///FILE URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse(text: str, kv_heads: int | None, seq_kv: int | None, causal: bool, dtype: str) -> model.Problem:
    """The problem that the options name.

    Raises:
        ProblemError: they name none.
    """
    try:
        element = model.DType(dtype)
    except ValueError:
        known = ", ".join(kind.value for kind in model.DType)
        raise ProblemError(f"unknown dtype '{dtype}': choose one of {known}") from None
    return model.parse_problem(text, kv_heads=kv_heads, seq_kv=seq_kv, dtype=element, causal=causal)


def database_url(text: str) -> str:
    """The URL of ``--db``: a plain file name means SQLite."""
    return text if "://" in text else f"sqlite:///{text}"
