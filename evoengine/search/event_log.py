"""The machine-readable log of a study: one JSON object per event and line, appended by every search on the study.

Every line has ``time`` (UTC, ISO 8601), ``run`` (identifier of the search) and ``event``; the other keys depend on the
event.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from evoengine import __version__
from evoengine.errors import UsageError
from evoengine.leaderboard.records import Study
from evoengine.model import Config, Duel, Evaluation
from evoengine.search.events import (
    ChallengeRejected,
    ChampionAccepted,
    Compiled,
    Event,
    Examined,
    Finished,
    Postponed,
    PromotionConfirmed,
    Proposed,
    Recorded,
    SlowFamily,
    Started,
    Stopping,
    WorkerLost,
)
from evoengine.system.files import refuse_database, refuse_special

NAMES: Final[Mapping[type, str]] = {
    Started: "started",
    Proposed: "proposed",
    Compiled: "compiled",
    Examined: "examined",
    Recorded: "recorded",
    ChampionAccepted: "crowned",
    PromotionConfirmed: "confirmed",
    ChallengeRejected: "refused",
    WorkerLost: "worker_lost",
    Postponed: "postponed",
    SlowFamily: "slow_family",
    Stopping: "stopping",
    Finished: "finished",
}
"""Name of each event in the log. The names are a stable interface; those of the classes may change."""

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class EventLog:
    """An observer that appends events to a file. After a write error it stops logging, and the search continues.

    Args:
        path: File to append to; its folder is created.
        study: Study of the search; the line of each start describes it.

    Raises:
        UsageError: The file cannot be opened, is no regular file, or is or belongs to a database.
    """

    def __init__(self, path: Path, study: Study) -> None:
        self.path = path
        self.fault = ""
        """Reason why logging stopped; empty while it works."""
        self._study = study
        self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
        refuse_special(path)
        refuse_database(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(
                f"{path}: the log cannot be written: {error.strerror}; choose another file with --log"
            ) from error

    def notify(self, event: Event) -> None:
        """Appends the line of an event."""
        if self._file is None:
            return
        head = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "run": self._run}
        line = {**head, "event": NAMES[type(event)], **dict(self._facts(event))}
        try:
            self._file.write(_json(line) + "\n")
        except OSError as error:
            self.fault = f"{self.path}: logging stopped: {error.strerror}"
            self.close()

    def close(self) -> None:
        """Closes the file; further calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.fault = self.fault or f"{self.path}: logging stopped: {error.strerror}"

    def _facts(self, event: Event) -> Iterator[tuple[str, Any]]:
        match event:
            case Started(progress=progress, requeued=requeued):
                yield from self._study_facts()
                yield from (("evaluated", progress.evaluated), ("budget", progress.budget), ("requeued", requeued))
            case Proposed(config=config, number=number):
                yield from (("trial", number), *_config(config), ("config", config.as_dict()))
            case Compiled(config=config, status=status) | Examined(config=config, status=status):
                yield from (*_config(config), ("status", status.value))
            case Recorded(row_id=row_id, evaluation=evaluation, progress=progress):
                yield from (("row", row_id), *_evaluation(evaluation))
                yield from (("evaluated", progress.evaluated), ("best_us", progress.best_us))
            case ChampionAccepted(row_id=row_id, median_us=median_us, duel=duel, pending=pending):
                yield from (("row", row_id), ("median_us", median_us), ("predicted", self._study.scope.predicted))
                yield from (("pending", pending), ("duel", _duel(duel)))
            case PromotionConfirmed(row_id=row_id, notes=notes):
                yield from (("row", row_id), ("notes", notes))
            case ChallengeRejected(row_id=row_id, duel=duel, reason=reason):
                yield from (("row", row_id), ("reason", reason), ("duel", _duel(duel)))
            case WorkerLost() | Postponed() | SlowFamily() | Stopping():
                yield from _trouble(event)
            case Finished(result=result):
                yield from (("stop", result.stop.value), ("evaluated", result.progress.evaluated))
                yield from (("new", result.progress.new), ("elapsed_s", result.progress.elapsed_s))
                yield "champion", None if result.champion is None else result.champion.id

    def _study_facts(self) -> Iterator[tuple[str, Any]]:
        key, scope = self._study.key, self._study.scope
        yield from (("version", __version__), ("study", self._study.id), ("study_name", self._study.name))
        yield from (("problem", scope.problem), ("family", key.family), ("strategy", key.strategy), ("seed", key.seed))
        yield from (("device_kind", scope.device_kind), ("device", scope.device), ("arch", scope.arch))
        yield from (("predicted", scope.predicted), ("method", scope.method))
        yield from (("driver", key.device.driver), ("nvrtc", key.device.nvrtc))


def _trouble(event: WorkerLost | Postponed | SlowFamily | Stopping) -> Iterator[tuple[str, Any]]:
    match event:
        case WorkerLost(reason=reason):
            yield "reason", reason
        case Postponed(config_key=config_key, reason=reason, pause_s=pause_s):
            yield from (("config_key", config_key), ("reason", reason), ("pause_s", pause_s))
        case SlowFamily(family=family, estimate=estimate):
            yield from (("family", family), ("seconds_per_candidate", estimate.seconds))
            yield "warp_instructions", estimate.warp_instructions
        case Stopping(reason=reason, in_flight=in_flight):
            yield from (("reason", reason), ("in_flight", in_flight))


def _config(config: Config) -> tuple[tuple[str, str], ...]:
    return ("family", config.family), ("config_key", config.key)


def _evaluation(evaluation: Evaluation) -> Iterator[tuple[str, Any]]:
    timing, verdict = evaluation.timing, evaluation.verdict
    yield from (*_config(evaluation.config), ("status", evaluation.status.value), ("reason", evaluation.reason))
    if timing is not None:
        yield from (("median_us", timing.median_us), ("predicted", timing.predicted), ("method", timing.method))
    if verdict is not None:
        yield from (("max_error", verdict.max_error), ("tolerance", verdict.tolerance), ("cases", verdict.cases))
    yield "stage_seconds", dict(evaluation.stage_seconds)


def _duel(duel: Duel | None) -> dict[str, Any] | None:
    if duel is None:
        return None
    facts = dataclasses.asdict(duel)
    return {name: facts[name] for name in ("gain", "low_gain", "threshold", "accepted")} | {
        "pairs": len(duel.challenger_us)
    }


def _json(line: dict[str, Any]) -> str:
    try:
        return _ENCODER.encode(line)
    except ValueError:  # non-finite numbers are rare, so lines are not checked for them beforehand
        return _ENCODER.encode(_finite(line))


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON cannot represent by null."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value
