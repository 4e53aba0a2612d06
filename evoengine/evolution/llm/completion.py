"""Reads the body of a chat endpoint's answer; every field is checked, because the endpoint may be any program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from evoengine.documents.bounds import BoundsError, parse_json
from evoengine.errors import ModelReplyError, ModelStatusError
from evoengine.evolution.llm.budget import Usage
from evoengine.evolution.llm.plain_text import plain_text

_SHOWN: Final = 160
"""Characters of an endpoint's own message that an error repeats."""
_OK: Final = 200
_REMEDIES: Final[Mapping[int, str]] = {
    301: "it redirects: name the final address with --llm-url",
    302: "it redirects: name the final address with --llm-url",
    307: "it redirects: name the final address with --llm-url",
    308: "it redirects: name the final address with --llm-url",
    401: "it does not accept the key: set EVOENGINE_LLM_KEY",
    403: "it does not accept the key: set EVOENGINE_LLM_KEY",
    404: "it knows no such path or model: check --llm-url, which usually ends in /v1, and --llm-model",
    429: "it limits the rate, or the account has no credit",
}
_TRANSIENT: Final = frozenset({408, 409, 425, 429})
_MODEL_MAY_HAVE_RUN: Final = frozenset({_OK, 500, 502, 504})


@dataclass(frozen=True)
class Completion:
    """Content of a reply."""

    text: str
    finish_reason: str
    refusal: str
    """The model's own words when it refuses; empty otherwise."""
    usage: Usage | None
    """Tokens that the endpoint reports; None if it reports none that can be read."""

    def require_complete(self) -> None:
        """Checks that the reply can be used.

        Raises:
            ModelReplyError: It is truncated, refused or empty.
        """
        if self.refusal or self.finish_reason == "content_filter":
            raise ModelReplyError(f"the model refused: {_shown(self.refusal) or 'content filter'}")
        if self.finish_reason == "length":
            raise ModelReplyError("the reply is truncated: it reached --llm-reply-tokens")
        if not self.text.strip():
            raise ModelReplyError("the reply is empty")


def parse_completion(body: bytes) -> Completion:
    """Parses the body of an answer with status 200.

    Raises:
        ModelReplyError: It is no JSON object with a message.
    """
    try:
        content = parse_json(body, finite=False, any_text=True)
    except BoundsError as error:
        raise ModelReplyError(f"the answer {error}") from None
    try:
        choice = content["choices"][0]
        message = choice["message"]
        text = message["content"] or ""
        refusal, finish = message.get("refusal") or "", choice.get("finish_reason") or ""
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ModelReplyError("the answer has no choices[0].message.content") from None
    if not all(isinstance(one, str) for one in (text, refusal, finish)):
        raise ModelReplyError("choices[0].message.content is not a text")
    return Completion(plain_text(text), finish, plain_text(refusal), _usage(content.get("usage")))


def status_error(url: str, status: int, body: bytes) -> ModelStatusError | None:
    """Returns the error of an HTTP status; None for 200."""
    if status == _OK:
        return None
    said = _shown(_own_message(body))
    remedy = _REMEDIES.get(status, "")
    reason = "; ".join(filter(None, (remedy, f"it says: {said}" if said else "")))
    return ModelStatusError(f"{url}: HTTP status {status}{': ' if reason else ''}{reason}", status)


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in _TRANSIENT or status >= 500


def may_be_charged(status: int) -> bool:
    """Whether the model may have run before the endpoint reported this status."""
    return status in _MODEL_MAY_HAVE_RUN


def wants_other_limit_name(status: int, body: bytes) -> bool:
    """Whether the endpoint asks for ``max_completion_tokens`` in the place of ``max_tokens``."""
    return status == 400 and b"max_completion_tokens" in body


def _own_message(body: bytes) -> str:
    try:
        content = parse_json(body, finite=False, any_text=True)
    except BoundsError:
        return ""
    error = content.get("error", content) if isinstance(content, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else ""


def _usage(content: Any) -> Usage | None:
    if not isinstance(content, dict):
        return None
    prompt, reply = content.get("prompt_tokens"), content.get("completion_tokens")
    return Usage(prompt, reply) if type(prompt) is int and type(reply) is int else None


def _shown(text: str) -> str:
    line = " ".join(plain_text(text).split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
