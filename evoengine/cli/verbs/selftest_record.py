"""The file of a self-test that may be interrupted: a line of JSON for each kernel that was tried.

The first line says what was tried where, the others what became of each kernel. A self-test with the same file goes on
where the one before ended. Half a line, which a killed process may leave at the end, is tried again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evoengine.errors import UsageError
from evoengine.model import Status
from evoengine.search.selftest.selftest import SelftestResult, SelftestTrial, SelftestVerdict

FORMAT: Final = "evoengine-selftest"
_DIGITS: Final = 16


class SelftestRecord:
    """Outcomes by trial; use it in a ``with`` block.

    Args:
        path: of the file; None keeps nothing.
        about: on what all outcomes depend besides their trials: device, templates.

    Raises:
        UsageError: the file is about something else, is none of a self-test, or cannot be written.
    """

    def __init__(self, path: Path | None, about: Mapping[str, str]) -> None:
        self._path = path
        self._head = {"format": FORMAT, **about}
        self._lines: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        try:
            text = path.read_text() if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            self._read(whole.splitlines())
            self._file = path.open("r+" if path.exists() else "x")
            self._file.seek(len(whole.encode()))
            self._file.truncate()
            if not whole:
                self._write(self._head)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    def outcome_of(self, trial: SelftestTrial) -> SelftestResult | None:
        """What became of a trial before; None where it was not tried."""
        line = self._lines.get(_key(trial))
        return (
            None
            if line is None
            else SelftestResult(trial, SelftestVerdict(line["fate"]), Status(line["status"]), line["reason"])
        )

    def add(self, outcome: SelftestResult) -> None:
        """Writes an outcome down, at once."""
        if self._path is not None:
            fate, status = outcome.verdict.value, outcome.status.value
            key, name = _key(outcome.trial), outcome.trial.name
            self._write({"trial": key, "name": name, "fate": fate, "status": status, "reason": outcome.reason})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None:
            self._file.close()

    def _read(self, lines: list[str]) -> None:
        if not lines:
            return
        try:
            head, *rest = (json.loads(line) for line in lines)
            for line in rest:
                self._lines[line["trial"]] = line
                SelftestVerdict(line["fate"]), Status(line["status"]), len(line["reason"])
            sound = head["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise UsageError(f"{self._path} is no record of a self-test: name a file that does not exist")
        for name, value in self._head.items():
            if head.get(name) != value:
                told = f"{self._path} is about {name} {head.get(name)}, not {value}"
                raise UsageError(f"{told}: name another file")

    def _write(self, line: Mapping[str, str]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _key(trial: SelftestTrial) -> str:
    facts = [trial.name, trial.problem.key, trial.config.key, trial.seed, [[e.old, e.new] for e in trial.edits]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:_DIGITS]
