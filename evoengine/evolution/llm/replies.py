"""Turns replies into patches and configs; what cannot be used is rejected with a reason in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from evoengine.documents.bounds import BoundsError, parse_json
from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import UsageError, short_line
from evoengine.evolution.llm.blocks import MOST_CHARACTERS, BlockError, outside_blocks, parse_blocks
from evoengine.evolution.records import Context
from evoengine.model import NewTunable, Patch, Value
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import problem_scope

MOST_CONFIGS: Final = 16
_MOST_TUNABLES: Final = 4
_MOST_VALUES: Final = 16
_LONGEST_SUMMARY: Final = 200
_LONGEST_TEXT: Final = 300
_FENCED: Final = re.compile(r"^```[a-z]{0,8}[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{0,39}")


class ReplyError(ValueError):
    """A reply that is no proposal; the message is the reason, in one line."""


@dataclass
class ReadConfigs:
    """Configs of a reply."""

    accepted: list[Mapping[str, Value]] = field(default_factory=list)
    """Complete, valid configs."""
    rejected: list[str] = field(default_factory=list)
    """The other ones, each with its reason."""


def read_patch(reply: str) -> Patch:
    """Reads a patch.

    Raises:
        ReplyError: The reply has no usable blocks, or its JSON is malformed.
    """
    try:
        edits = parse_blocks(reply)
    except BlockError as error:
        raise ReplyError(str(error)) from None
    prose = outside_blocks(reply)
    head = next((one for one in _json_values(prose) if isinstance(one, dict)), None)
    if head is None:
        return Patch(edits, (), _summary(prose))
    tunables = head.get("tunables") or []
    if not isinstance(tunables, list) or len(tunables) > _MOST_TUNABLES:
        raise ReplyError(f"tunables must be a list of at most {_MOST_TUNABLES}")
    return Patch(edits, tuple(map(_tunable, tunables)), _summary(str(head.get("summary") or "")))


def read_configs(reply: str, context: Context) -> ReadConfigs:
    """Reads configs and keeps those that the search space allows and that are new.

    Raises:
        ReplyError: The reply has no JSON list of configs.
    """
    if len(reply) > MOST_CHARACTERS:
        raise ReplyError(f"the reply has more than {MOST_CHARACTERS} characters")
    for content in _json_values(reply):
        found = content.get("configs", [content]) if isinstance(content, dict) else content
        if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
            break
    else:
        raise ReplyError("the reply has no JSON list of configs")
    known = [dict(row.config) for row in (*context.best, *context.failed)]
    read = ReadConfigs()
    for sparse in found[:MOST_CONFIGS]:
        try:
            config = _completed(sparse, context)
            reason = "it was evaluated already" if config in known else ""
        except (ReplyError, UsageError) as error:
            config, reason = {}, str(error)
        if reason:
            read.rejected.append(short_line(f"{json.dumps(sparse)[:_LONGEST_TEXT]}: {reason}"))
        else:
            known.append(config)
            read.accepted.append(config)
    return read


def _completed(sparse: Mapping[str, Any], context: Context) -> dict[str, Value]:
    """Returns the whole config that a sparse one stands for.

    Raises:
        ReplyError: A name or value is unknown, or a constraint is violated.
        UsageError: A value is not one of its tunable's, or a rule cannot be evaluated.
    """
    space = context.space
    for name, value in sparse.items():
        if name not in space.by_name:
            raise ReplyError(f"unknown tunable {name}{did_you_mean(name, space.by_name)}")
        if type(value) not in (int, str, bool):
            raise ReplyError(f"{name} must be a number, text or truth value")
        space.by_name[name].encode(value)
    constants = {**problem_scope(context.problem), **context.target.scope()}
    config = Conditions(space, constants).normalised({**_base(context), **sparse})
    violated = space.check(config, context.problem, context.target)
    if violated:
        raise ReplyError("; ".join(f"violates {one.name}: {one.reason}" for one in violated[:3]))
    return dict(sorted(config.items()))


def _base(context: Context) -> dict[str, Value]:
    space = context.space
    first: dict[str, Value] = {one.name: one.values[0] for one in space.tunables}
    start = dict(space.starts[0].values) if space.starts else {}
    return {**first, **start, **(context.best[0].config if context.best else {})}


def _tunable(content: object) -> NewTunable:
    """Checks types and sizes; the search space checks the rest when it is built."""
    if not isinstance(content, dict):
        raise ReplyError("each entry of tunables must be an object")
    name, values = content.get("name"), content.get("values")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ReplyError("the name of a tunable must be in upper case")
    if not isinstance(values, list) or not 2 <= len(values) <= _MOST_VALUES:
        raise ReplyError(f"tunable {name} needs a list of 2 to {_MOST_VALUES} values")
    kinds = {type(value) for value in values}
    default: Any = content.get("default", values[0])
    if len(kinds) != 1 or not kinds <= {int, str, bool} or default not in values or type(default) not in kinds:
        raise ReplyError(
            f"tunable {name}: values must have one type, number, text or truth value, and hold the default"
        )
    texts = {key: content.get(key) or "" for key in ("doc", "constraint", "reason")}
    if any(not isinstance(text, str) or len(text) > _LONGEST_TEXT for text in texts.values()):
        raise ReplyError(
            f"tunable {name}: doc, constraint and reason must be texts of at most {_LONGEST_TEXT} characters"
        )
    plain = {key: " ".join(text.split()) for key, text in texts.items()}
    return NewTunable(name, tuple(values), default, plain["doc"], plain["constraint"], plain["reason"])


def _json_values(text: str) -> Iterator[Any]:
    """Yields what can be parsed: fenced blocks first, then the text from the first bracket to the last."""
    candidates = [match[1] for match in _FENCED.finditer(text)]
    for opening, closing in ("[]", "{}"):
        start, stop = text.find(opening), text.rfind(closing)
        if 0 <= start < stop:
            candidates.append(text[start : stop + 1])
    for candidate in candidates:
        try:
            yield parse_json(candidate)
        except BoundsError:
            continue


def _summary(text: str) -> str:
    line = next((line.strip(" #*-`") for line in text.splitlines() if re.search(r"\w", line)), "")
    return " ".join(line.split())[:_LONGEST_SUMMARY]
