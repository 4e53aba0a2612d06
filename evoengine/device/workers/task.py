"""One call that waits for a worker, and how it ended: what comes back is looked at before it is believed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from evoengine.device.workers.wire import WireError, parse
from evoengine.device.workers.worker_main import Failure, MethodCall
from evoengine.errors import EvoEngineError

_ENVELOPE: Final = frozenset(("number", "tag", "healthy", "failure", "result"))

Judge = Callable[[Any], str]
"""Looks at an answer of the right type and says what about it cannot be; empty when nothing."""


@dataclass(frozen=True)
class Task:
    """One call that waits for a worker."""

    method: str
    args: tuple[object, ...]
    kind: Any
    """Type of the result."""
    judge: Judge | None
    tag: str
    timeout_s: float
    future: Future[Any] = field(default_factory=Future)
    deaths: tuple[str, ...] = ()
    """How workers died of it in a slot that was given up then: what has cost one device may cost one more, not all."""


@dataclass(frozen=True)
class TaskOutcome:
    """How one call ended."""

    result: Any = None
    error: EvoEngineError | None = None
    keep: bool = True
    """Whether the worker can go on."""
    died: str = ""
    """How it ended by itself, so that nobody knows whose fault it was."""


def believed(data: bytes, call: MethodCall, task: Task) -> TaskOutcome:
    """An answer that is what was asked for.

    Raises:
        WireError: it is not.
    """
    message = parse(data)
    tree = message.tree
    if not isinstance(tree, dict) or tree.keys() != _ENVELOPE:
        raise WireError("not an answer")
    if tree["number"] != call.number or tree["tag"] != call.tag:
        raise WireError(f"it is about call {tree['number']} '{tree['tag']}', not {call.number} '{call.tag}'")
    keep = message.build(bool, tree["healthy"], "healthy")
    if tree["failure"] is not None:
        failure = message.build(Failure, tree["failure"], "failure")
        return TaskOutcome(error=failure.error(), keep=keep)
    result = message.build(task.kind, tree["result"])
    objection = _objection(result, task.judge)
    if objection:
        raise WireError(objection)
    return TaskOutcome(result, keep=keep)


def _objection(result: Any, judge: Judge | None) -> str:
    """What the judge says, or why it could not: nothing may end the thread that waits for the answer."""
    try:
        return "" if judge is None else judge(result)
    except Exception as error:  # noqa: BLE001 - it looks at whatever came
        return f"it cannot be judged: {type(error).__name__}: {' '.join(str(error).split())}"


def settle(future: Future[Any], outcome: TaskOutcome) -> None:
    """Tells the caller."""
    if outcome.error is None:
        future.set_result(outcome.result)
    else:
        future.set_exception(outcome.error)
