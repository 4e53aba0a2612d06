"""Reads ``--workload FILE``: TOML with a name and weighted problems, in the words of the command line.

The schema::

    name = "prefill"            # part of a row's identity, together with a hash of what follows

    [[problems]]
    problem = "4x16x2048x64"    # a shape BxHxSxD, or a name such as mission
    weight = 3                  # calls, relative to the other problems'; 1 if left out
    causal = true               # and as the options of search: dtype, kv_heads, seq_kv, window, softcap, sink, lse,
                                # lengths, lengths_kv

``window`` is a list of two, each a number of keys or "inf"; lengths are lists of numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from evoengine.errors import ProblemError, UsageError, WorkloadError
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, DType, Problem, Workload, WorkloadPart, parse_problem

_MOST_BYTES: Final = 1 << 20


def chosen_workload(file: Path | None, problem: Problem) -> tuple[Workload | None, Problem]:
    """The workload of a file, if one is given, and the problem to begin with.

    Args:
        file: of ``--workload``.
        problem: what the other options name.

    Raises:
        UsageError: both are given.
        WorkloadError: the file is malformed.
    """
    if file is None:
        return None, problem
    if problem != NAMED_PROBLEMS[DEFAULT_PROBLEM]:
        raise UsageError(f"{file} names the problems: leave --problem and the options that describe one out")
    workload = read_workload(file)
    return workload, workload.problems[0]


def read_workload(file: Path) -> Workload:
    """Reads and checks a workload.

    Raises:
        WorkloadError: the file cannot be read or says something that cannot be; file, key and reason.
    """
    document = _document(file)
    unknown = sorted(document.keys() - {"name", "problems"})
    if unknown:
        raise WorkloadError(file, unknown[0], "is no key of a workload: it has name and problems")
    name, entries = document.get("name"), document.get("problems")
    if not isinstance(name, str):
        raise WorkloadError(file, "name", "must be a text")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise WorkloadError(file, "problems", "must be tables, each begun by [[problems]]")
    parts = tuple(_part(file, f"problems[{index}]", entry) for index, entry in enumerate(entries))
    try:
        return Workload(name, parts)
    except ProblemError as error:
        raise WorkloadError(file, "", str(error)) from error


def _document(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise WorkloadError(file, "", "is too large for a workload")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(file, "", f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(file, "", f"is no TOML: {error}") from error


def _part(file: Path, place: str, entry: Mapping[str, Any]) -> WorkloadPart:
    values: dict[str, Any] = {}
    for key, value in entry.items():
        reader = _READERS.get(key)
        if reader is None:
            known = ", ".join(_READERS)
            raise WorkloadError(file, f"{place}.{key}", f"is no key of a problem: it has {known}")
        try:
            values[key] = reader(value)
        except (ValueError, TypeError) as error:
            raise WorkloadError(file, f"{place}.{key}", f"{value!r} {error}") from error
    weight = values.pop("weight", 1.0)
    if "problem" not in values:
        raise WorkloadError(file, f"{place}.problem", "is missing: a shape such as 1x8x512x64, or a name")
    return WorkloadPart(_problem(file, place, values), weight)


def _problem(file: Path, place: str, values: dict[str, Any]) -> Problem:
    try:
        lengths = {"lengths_q": values.pop("lengths", ()), "lengths_kv": values.pop("lengths_kv", ())}
        return parse_problem(values.pop("problem"), **values, **lengths)
    except ProblemError as error:
        raise WorkloadError(file, place, str(error)) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("is no whole number of 0 or more")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("is no number")
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("is neither true nor false")
    return value


def _dtype(value: object) -> DType:
    try:
        return DType(value)
    except ValueError:
        raise ValueError(f"is none of {', '.join(kind.value for kind in DType)}") from None


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError("is no list")
    return value


def _window(value: object) -> tuple[int | None, int | None]:
    sides = [None if side == "inf" else _whole(side) for side in _list(value)]
    if len(sides) != 2:
        raise ValueError("does not have two sides, as in [128, 0]")
    return sides[0], sides[1]


def _lengths(value: object) -> tuple[int, ...]:
    return tuple(_whole(length) for length in _list(value))


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "problem": _text,
    "weight": _number,
    "causal": _flag,
    "dtype": _dtype,
    "kv_heads": _whole,
    "seq_kv": _whole,
    "window": _window,
    "softcap": _number,
    "sink": _flag,
    "lse": _flag,
    "lengths": _lengths,
    "lengths_kv": _lengths,
}
