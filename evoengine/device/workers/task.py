"""One call that waits for a worker, its outcome, and the validation of the worker's answer."""

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
"""Validates an answer of the right type; returns the reason why it is impossible, or an empty text."""


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
    short: bool = False
    """Whether the call is brief, so that the worker may be sent the next one while it works on this one."""
    deaths: tuple[str, ...] = ()
    """Causes of death of workers during this call in slots that were then given up. They count towards the call's limit
    of deaths, so that it cannot end every slot."""


@dataclass(frozen=True)
class TaskOutcome:
    """Outcome of one call."""

    result: Any = None
    error: EvoEngineError | None = None
    keep: bool = True
    """Whether the worker can continue."""
    died: str = ""
    """How the worker ended by itself, which may or may not be the call's fault."""


def validated(data: bytes, call: MethodCall, task: Task) -> TaskOutcome:
    """Decodes and validates an answer.

    Raises:
        WireError: The answer does not belong to the call, or is malformed or impossible.
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
    """Returns the validator's reason. An error of the validator is one too: it must not end the waiting thread."""
    try:
        return "" if judge is None else judge(result)
    except Exception as error:  # noqa: BLE001 - a malformed answer may raise any error
        return f"it cannot be validated: {type(error).__name__}: {' '.join(str(error).split())}"


def complete(future: Future[Any], outcome: TaskOutcome) -> None:
    """Sets the future's result or error."""
    if outcome.error is None:
        future.set_result(outcome.result)
    else:
        future.set_exception(outcome.error)
