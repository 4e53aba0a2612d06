"""The file that makes a self-test resumable: JSON Lines, one line per tested kernel.

The first line names device and templates, each further line the outcome of one kernel. An incomplete last line, which a
killed process may leave, is ignored and its kernel is tested again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evoengine.documents.bounds import BoundsError, decode_text, parse_json, read_bounded
from evoengine.errors import UsageError
from evoengine.model import Status
from evoengine.search.selftest.selftest import SelftestResult, SelftestTrial, SelftestVerdict
from evoengine.system.files import refuse_special

FORMAT: Final = "evoengine-selftest"
_MAX_BYTES: Final = 1 << 28
"""Maximum size of a record; a line takes some 300 bytes."""
_DIGITS: Final = 16


class SelftestRecord:
    """Outcomes by trial. Use it in a ``with`` block.

    Args:
        path: File; None to store nothing.
        about: Facts that all outcomes depend on besides their trials: device, templates.

    Raises:
        UsageError: The file belongs to another device or version, is not a self-test record, or cannot be written.
    """

    def __init__(self, path: Path | None, about: Mapping[str, str]) -> None:
        self._path = path
        self._head = {"format": FORMAT, **about}
        self._lines: dict[str, dict[str, Any]] = {}
        if path is None:
            return
        refuse_special(path)
        try:
            content = read_bounded(path, _MAX_BYTES) if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]  # bytes: the length is that in the file for all line ends
            self._read(whole)
            if not whole and not _line_of(self._head).startswith(content):  # other content is not overwritten
                raise self._foreign()
            self._file = path.open("r+b" if path.exists() else "xb")
            self._file.seek(len(whole))
            self._file.truncate()
            if not whole:
                self._write(self._head)
        except (OSError, BoundsError) as error:
            raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    def outcome_of(self, trial: SelftestTrial) -> SelftestResult | None:
        """The stored outcome of a trial; None if it was not run."""
        line = self._lines.get(_key(trial))
        return (
            None
            if line is None
            else SelftestResult(trial, SelftestVerdict(line["fate"]), Status(line["status"]), line["reason"])
        )

    def add(self, outcome: SelftestResult) -> None:
        """Appends an outcome and flushes the file."""
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

    def _read(self, whole: bytes) -> None:
        if not whole:
            return
        try:
            head, *rest = (parse_json(line) for line in decode_text(whole).removesuffix("\n").split("\n"))
            for line in rest:
                self._lines[line["trial"]] = line
                SelftestVerdict(line["fate"]), Status(line["status"]), len(line["reason"])
            sound = head["format"] == FORMAT
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound:
            raise self._foreign()
        for name, value in self._head.items():
            if head.get(name) != value:
                raise UsageError(f"{self._path} is a record for {name} {head.get(name)}, not {value}: name a new file")

    def _foreign(self) -> UsageError:
        return UsageError(f"{self._path} is not a self-test record: name a new file")

    def _write(self, line: Mapping[str, str]) -> None:
        self._file.write(_line_of(line))
        self._file.flush()


def _line_of(line: Mapping[str, str]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _key(trial: SelftestTrial) -> str:
    facts = [trial.name, trial.problem.key, trial.config.key, trial.seed, [[e.old, e.new] for e in trial.edits]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:_DIGITS]
