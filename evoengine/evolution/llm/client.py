"""Asks a model: reserves the budget, sends, retries what may succeed later, and stores every request and answer."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.errors import ModelConnectionError, ModelError, ModelReplyError, ModelStatusError, ModelTimeoutError
from evoengine.evolution.llm.budget import Budget, Reservation, Usage
from evoengine.evolution.llm.completion import (
    Completion,
    is_transient,
    may_be_charged,
    parse_completion,
    status_error,
    wants_other_limit_name,
)
from evoengine.evolution.llm.endpoint import Endpoint, Key
from evoengine.evolution.llm.exchange import Message, Received, load_libraries, send
from evoengine.leaderboard.transcripts import Transcript

_LOG: Final = logging.getLogger(__name__)
_LIMIT_NAMES: Final = ("max_tokens", "max_completion_tokens")
_OK: Final = "ok"


@dataclass(frozen=True)
class Answer:
    """A complete reply of the model."""

    text: str
    origin: str
    """Identifier of its transcript."""


class ChatClient:
    """Client of one endpoint for one run.

    Args:
        endpoint: Endpoint, and the limits of its calls.
        budget: Budget of the run.
        store: Function that stores a transcript and returns its identifier.
    """

    def __init__(self, endpoint: Endpoint, budget: Budget, store: Callable[[Transcript], int]) -> None:
        self.endpoint = endpoint
        self.budget = budget
        self._store = store
        self._limit_name = _LIMIT_NAMES[0]
        self._jitter = random.Random()  # noqa: S311 - spreads retries in time

    def ask(self, purpose: str, messages: Sequence[Message]) -> Answer:
        """Sends messages and returns the reply.

        Args:
            purpose: Operator on whose behalf the model is asked; stored with the transcript.
            messages: Messages of the chat.

        Raises:
            ModelError: There is no usable reply; its type says why. After a status or connection error that may pass,
                the request was repeated.
            UsageError: The key must not be sent to this address.
            MissingDependencyError: The ``openai`` package is missing.
        """
        wait_s = self.endpoint.first_wait_s
        failure = ModelError("no request was made")
        for left in reversed(range(self.endpoint.attempts)):
            exchange = _Exchange(self, purpose, tuple(messages), self._limit_name)
            received = exchange.run()
            if exchange.failure is None:
                return Answer(exchange.text, exchange.origin)
            failure = exchange.failure
            if self._limit_name == _LIMIT_NAMES[0] and wants_other_limit_name(received.status, received.body):
                self._limit_name = _LIMIT_NAMES[1]
            elif not left or not _may_pass(failure):
                raise failure
            else:
                asked_s = _seconds(received.retry_after)
                wait_s = self._pause(failure, wait_s, asked_s)
        raise failure

    def store(self, transcript: Transcript) -> str:
        """Stores a transcript; returns its identifier."""
        return str(self._store(transcript))

    def _pause(self, failure: ModelError, wait_s: float, asked_s: float) -> float:
        """Waits before the next request; returns the wait before the one after it."""
        pause_s = min(max(wait_s * self._jitter.uniform(0.5, 1.0), asked_s), self.endpoint.most_wait_s)
        _LOG.info("%s; the request is repeated in %.1f s", failure, pause_s)
        time.sleep(self.budget.wait(pause_s))
        return 2 * wait_s


class _Exchange:
    """One request with its answer, its settlement and its transcript."""

    def __init__(self, client: ChatClient, purpose: str, messages: tuple[Message, ...], limit_name: str) -> None:
        self._client = client
        self._purpose = purpose
        self._key = Key.for_endpoint(client.endpoint)
        self._messages = tuple(Message(one.role, self._key.redact(one.text)) for one in messages)
        self._limit_name = limit_name
        self.failure: ModelError | None = None
        self.text = ""
        self.origin = ""

    def run(self) -> Received:
        """Reserves, sends, settles and stores; returns the answer."""
        endpoint, budget = self._client.endpoint, self._client.budget
        size = sum(len(message.text.encode("utf-8", "replace")) for message in self._messages)
        reservation = budget.reserve(size, len(self._messages), endpoint.most_tokens, endpoint.timeout_s)
        load_libraries()
        began = time.monotonic()
        received = Received(failure=ModelError("the call was interrupted"))
        try:
            received = send(endpoint, self._key, self._messages, reservation.seconds, self._limit_name)
        finally:  # also when Ctrl-C ends the call: the model may have run
            self._finish(received, reservation, time.monotonic() - began)
        return received

    def _finish(self, received: Received, reservation: Reservation, seconds: float) -> None:
        budget = self._client.budget
        completion, self.failure = self._judged(received)
        if not received.sent or (received.status and not may_be_charged(received.status)):
            counted = budget.settle_unused(reservation, seconds)
        else:
            counted = budget.settle(reservation, None if completion is None else completion.usage, seconds)
        if completion is not None:
            self.text = self._key.redact(completion.text)
        reported = completion is not None and completion.usage == counted
        self.origin = self._client.store(self._transcript(received, counted, reported, seconds))

    def _judged(self, received: Received) -> tuple[Completion | None, ModelError | None]:
        """Returns the content of an answer, and why it cannot be used; None if it can."""
        if received.failure is not None:
            return None, received.failure
        url = self._client.endpoint.url
        failure = status_error(url, received.status, self._key.redact_bytes(received.body))
        if failure is not None:
            return None, failure
        completion = None
        try:
            completion = parse_completion(self._key.redact_bytes(received.body))
            completion.require_complete()
        except ModelReplyError as error:
            return completion, ModelReplyError(f"{url}: {self._key.redact(str(error))}")
        return completion, None

    def _transcript(self, received: Received, counted: Usage, reported: bool, seconds: float) -> Transcript:
        endpoint = self._client.endpoint
        request = {
            "model": endpoint.model,
            "messages": [{"role": message.role, "content": message.text} for message in self._messages],
            self._limit_name: endpoint.most_tokens,
        }
        return Transcript(
            purpose=self._purpose,
            url=endpoint.url,
            model=endpoint.model,
            status=_OK if self.failure is None else _status_name(self.failure),
            reason="" if self.failure is None else self._key.redact(str(self.failure)),
            request=json.dumps(request, ensure_ascii=False).encode("utf-8", "replace"),
            reply=self._key.redact_bytes(received.body),
            prompt_tokens=counted.prompt_tokens,
            reply_tokens=counted.reply_tokens,
            tokens_reported=reported,
            price=self._client.budget.price_of(counted),
            seconds=seconds,
        )


def _may_pass(failure: ModelError) -> bool:
    if isinstance(failure, ModelStatusError):
        return is_transient(failure.status)
    return isinstance(failure, ModelConnectionError)


def _status_name(failure: ModelError) -> str:
    if isinstance(failure, ModelStatusError):
        return f"http_{failure.status}"
    names: dict[type[ModelError], str] = {
        ModelConnectionError: "no_connection",
        ModelTimeoutError: "timeout",
        ModelReplyError: "unusable",
    }
    return names.get(type(failure), "interrupted")


def _seconds(header: str) -> float:
    """Returns the seconds of a ``Retry-After`` header; 0 for a date or any other text."""
    return float(header) if header.isascii() and header.isdecimal() and len(header) < 10 else 0.0
