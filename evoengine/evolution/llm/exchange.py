"""One HTTP request to a chat endpoint by the ``openai`` package, with limits on time and size.

The transport below sends only the headers that the API needs, adds the key, and stops reading a body at its limit,
also one that comes with an error status. No proxy, certificate or header is taken from the environment, and no
redirection is followed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from evoengine.errors import (
    MissingDependencyError,
    ModelConnectionError,
    ModelError,
    ModelReplyError,
    ModelTimeoutError,
)
from evoengine.evolution.llm.endpoint import Endpoint, Key

Role = Literal["system", "user"]
_SENT_HEADERS: Final = frozenset({b"host", b"accept", b"content-type", b"content-length", b"transfer-encoding"})
_NO_KEY: Final = "none"
"""Placeholder for the ``openai`` package, which asks for a key; the transport sends the real one."""


@dataclass(frozen=True)
class Message:
    """One message of a chat."""

    role: Role
    text: str


@dataclass(frozen=True)
class Received:
    """Answer of an endpoint: an HTTP status with a body, or the failure that prevented it."""

    status: int = 0
    """HTTP status; 0 if there was none."""
    body: bytes = b""
    """Body as far as it was read."""
    retry_after: str = ""
    """Header of this name."""
    failure: ModelError | None = None
    sent: bool = True
    """Whether the request may have reached the model."""


def send(
    endpoint: Endpoint, key: Key, messages: Sequence[Message], timeout_s: float, limit_name: str = "max_tokens"
) -> Received:
    """Sends one chat request and reads its answer within the limits.

    Args:
        endpoint: Endpoint.
        key: Key to send; empty for none.
        messages: Messages of the chat.
        timeout_s: Maximum time of everything: connection, request and answer.
        limit_name: Name of the parameter with the maximum number of tokens.

    Raises:
        MissingDependencyError: The ``openai`` package is missing.
    """
    load_libraries()  # takes most of a second the first time, which is no part of the call
    call = _Call(endpoint, key, tuple(messages), limit_name)
    return asyncio.run(call.within(timeout_s))


class _TooLongError(Exception):
    """A body that is longer than the limit, or compressed, so that its size is unknown."""


@dataclass(frozen=True, repr=False)
class _Call:
    endpoint: Endpoint
    key: Key
    messages: tuple[Message, ...]
    limit_name: str

    async def within(self, timeout_s: float) -> Received:
        """Returns the answer, or a failure when the time is over."""
        read = bytearray()
        failure: ModelError
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(timeout_s, read)
        except TimeoutError:
            failure = ModelTimeoutError(f"{self.endpoint.url}: no complete reply within {timeout_s:.3g} s")
        return Received(body=bytes(read), failure=failure)

    async def _exchange(self, timeout_s: float, read: bytearray) -> Received:
        openai, httpx = load_libraries()
        options: dict[str, Any] = {self.limit_name: self.endpoint.most_tokens}
        received = Received()
        transport = _transport(httpx, self.key, self.endpoint.most_bytes, read)
        async with httpx.AsyncClient(transport=transport, trust_env=False, follow_redirects=False) as connection:
            client = openai.AsyncOpenAI(
                api_key=_NO_KEY,
                base_url=self.endpoint.url,
                max_retries=0,
                timeout=timeout_s,
                http_client=connection,
            )
            try:
                raw = await client.chat.completions.with_raw_response.create(
                    model=self.endpoint.model,
                    messages=[{"role": message.role, "content": message.text} for message in self.messages],
                    stream=False,
                    **options,
                )
                received = _received(raw.http_response)
            except openai.APIStatusError as error:
                received = _received(error.response)
            except openai.APITimeoutError:
                received = self._failed(ModelTimeoutError, f"no answer within {timeout_s:.3g} s", read)
            except openai.APIConnectionError as error:
                unsent = isinstance(error.__cause__, httpx.ConnectError)
                received = self._failed(ModelConnectionError, f"no answer: {_cause(error)}", read, sent=not unsent)
            except httpx.HTTPError as error:  # while the body is read
                received = self._failed(ModelConnectionError, f"the connection was lost: {_cause(error)}", read)
            except _TooLongError as error:
                received = self._failed(ModelReplyError, f"the reply {error}", read)
        return received

    def _failed(self, kind: type[ModelError], reason: str, read: bytearray, *, sent: bool = True) -> Received:
        failure = kind(self.key.redact(f"{self.endpoint.url}: {reason}"))
        return Received(body=bytes(read), failure=failure, sent=sent)


def load_libraries() -> tuple[Any, Any]:
    """Imports ``openai`` and ``httpx2``.

    Raises:
        MissingDependencyError: One is missing.
    """
    try:
        import httpx2
        import openai
    except ImportError:
        raise MissingDependencyError(
            "--llm-url needs the openai package: python -m pip install 'evoengine[llm]'"
        ) from None
    return openai, httpx2


def _received(response: Any) -> Received:
    return Received(response.status_code, bytes(response.content), response.headers.get("retry-after", ""))


def _cause(error: BaseException) -> str:
    """Returns the innermost cause, in words; the ``openai`` package itself says only that the connection failed."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _transport(httpx: Any, key: Key, most_bytes: int, read: bytearray) -> Any:
    """Returns a transport that limits what is sent and what is read; ``read`` collects the body."""
    inner = httpx.AsyncHTTPTransport(trust_env=False, retries=0, limits=httpx.Limits(max_keepalive_connections=0))

    class BoundedStream(httpx.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in self._stream:
                read.extend(chunk[: most_bytes - len(read) + 1])
                if len(read) > most_bytes:
                    raise _TooLongError(f"is longer than {most_bytes} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    class BoundedTransport(httpx.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            """Sends a request with the allowed headers and the key."""
            headers = [(name, value) for name, value in request.headers.raw if name.lower() in _SENT_HEADERS]
            headers += [(b"accept-encoding", b"identity"), (b"user-agent", b"evoengine")]
            if key.text:
                headers.append((b"authorization", b"Bearer " + key.text.encode()))
            own = httpx.Request(
                request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
            )
            answer = await inner.handle_async_request(own)
            if answer.headers.get("content-encoding", "identity") != "identity":
                await answer.aclose()
                raise _TooLongError("is compressed, though that was not asked for")
            return httpx.Response(answer.status_code, headers=answer.headers, stream=BoundedStream(answer.stream))

        async def aclose(self) -> None:
            await inner.aclose()

    return BoundedTransport()
