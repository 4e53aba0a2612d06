"""Reads ``--workload FILE``: TOML with a name and weighted problems.

The schema::

    name = "prefill"            # part of a row's identity, together with a hash of the problems

    [[problems]]
    problem = "4x16x2048x64"    # a shape BxHxSxD, or a name such as default
    weight = 3                  # calls relative to the other problems; default 1
    causal = true               # further keys, as the options of search: dtype, kv_heads, seq_kv, window, softcap,
                                # sink, lse, lengths, lengths_kv

``window`` is a list of two, each a number of keys or "inf"; lengths are lists of numbers.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from evoengine.documents import convert_document
from evoengine.documents.bounds import BoundsError, read_toml
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import ProblemError, UsageError, WorkloadError
from evoengine.model import DType, Problem, Workload, WorkloadPart, parse_problem

_Whole = Annotated[int, msgspec.Meta(ge=0)]
_Side = _Whole | Literal["inf"]


class ProblemTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A problem as a table of TOML."""

    problem: str
    causal: bool = False
    dtype: DType = DType.FP16
    kv_heads: _Whole | None = None
    seq_kv: _Whole | None = None
    window: tuple[_Side, _Side] = ("inf", "inf")
    softcap: float = 0.0
    sink: bool = False
    lse: bool = False
    lengths: tuple[_Whole, ...] = ()
    lengths_kv: tuple[_Whole, ...] = ()

    def build(self) -> Problem:
        """Converts the table to a problem.

        Raises:
            ProblemError: The values do not describe a problem.
        """
        left, right = (None if side == "inf" else side for side in self.window)
        return parse_problem(
            self.problem,
            kv_heads=self.kv_heads,
            seq_kv=self.seq_kv,
            dtype=self.dtype,
            causal=self.causal,
            window=(left, right),
            softcap=self.softcap,
            sink=self.sink,
            lse=self.lse,
            lengths_q=self.lengths,
            lengths_kv=self.lengths_kv,
        )


class _Entry(ProblemTable, forbid_unknown_fields=True):
    """One ``[[problems]]`` table."""

    weight: float = 1.0


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    name: str
    problems: tuple[_Entry, ...]


def with_workload(options: SearchOptions, file: Path | None) -> SearchOptions:
    """Returns options that search the workload of a file.

    Args:
        options: Options of the search.
        file: Value of ``--workload``; None for no workload.

    Raises:
        UsageError: The options name a problem as well.
        WorkloadError: The file is malformed.
    """
    if file is None:
        return options
    if options.problem != SearchOptions().problem:
        raise UsageError(f"{file} names the problems: leave --problem and the options of a single problem out")
    workload = read_workload(file)
    return replace(options, workload=workload, problem=workload.problems[0])


def read_workload(file: Path) -> Workload:
    """Reads and checks a workload.

    Raises:
        WorkloadError: The file cannot be read or its content is invalid; the error names file, key and reason.
    """
    document = convert_document(read_problem_file(file), _Document, file, WorkloadError)
    parts = tuple(_part(file, f"problems[{index}]", entry) for index, entry in enumerate(document.problems))
    try:
        return Workload(document.name, parts)
    except ProblemError as error:
        raise WorkloadError(file, "", str(error)) from error


def read_problem_file(file: Path) -> dict[str, Any]:
    """Reads a file of problems, without checking them.

    Raises:
        WorkloadError: The file cannot be read, or is no TOML of a reasonable size.
    """
    try:
        return read_toml(file)
    except OSError as error:
        raise WorkloadError(file, "", f"cannot be read: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(file, "", f"is no TOML: {error}") from error
    except BoundsError as error:
        raise WorkloadError(file, "", str(error)) from error


def _part(file: Path, place: str, entry: _Entry) -> WorkloadPart:
    try:
        return WorkloadPart(entry.build(), entry.weight)
    except ProblemError as error:
        raise WorkloadError(file, place, str(error)) from error
