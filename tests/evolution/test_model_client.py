"""The client of a language model against a real server: failures, limits, budget, and the key that stays secret."""

from __future__ import annotations

import itertools
import logging
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from evoengine.device.workers.fork_server import ForkServer
from evoengine.errors import (
    ModelBudgetError,
    ModelConnectionError,
    ModelError,
    ModelReplyError,
    ModelStatusError,
    ModelTimeoutError,
    UsageError,
)
from evoengine.evolution.llm.budget import Budget, Limits, Price
from evoengine.evolution.llm.client import ChatClient
from evoengine.evolution.llm.endpoint import Endpoint, Key
from evoengine.evolution.llm.exchange import Message
from evoengine.leaderboard.store import Leaderboard
from tests.evolution.chat_server import Answering, Cassette, Served, chat_server, fails, says

KEY = "sk-secret-0123456789abcdef"
ASKED = (Message("system", "rules"), Message("user", "improve this"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and settings of other programs that must have no effect."""
    monkeypatch.setenv("EVOENGINE_LLM_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Leak: secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "organisation")


def client_of(served: Served, board: Leaderboard, limits: Limits | None = None, timeout_s: float = 5.0) -> ChatClient:
    endpoint = Endpoint(served.url, "stub", timeout_s=timeout_s, first_wait_s=0.001, most_wait_s=0.01)
    return ChatClient(endpoint, Budget(limits or Limits()), board.add_transcript)


def test_a_reply_is_returned_and_stored_with_its_tokens(tmp_path: Path) -> None:
    with Leaderboard(tmp_path / "board.db") as board, chat_server(says("an idea", usage=(40, 20))) as served:
        client = client_of(served, board, Limits(price=Price.parse("1,2")))
        answer = client.ask("patches", ASKED)
        stored = board.transcripts()[int(answer.origin)]
    assert answer.text == "an idea"
    assert (stored.status, stored.prompt_tokens, stored.reply_tokens, stored.tokens_reported) == ("ok", 40, 20, True)
    assert stored.price == pytest.approx(80e-6)
    assert b"improve this" in stored.request
    assert b"an idea" in stored.reply
    (headers,) = served.headers
    assert headers.keys() == {
        *("host", "accept", "accept-encoding", "content-type", "content-length", "user-agent", "authorization")
    }
    assert headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("cassette", "kind", "requests", "reason"),
    [
        (fails(401, "wrong key"), ModelStatusError, 1, "EVOENGINE_LLM_KEY"),
        (fails(404, "no such model"), ModelStatusError, 1, "--llm-model"),
        (fails(500, "boom"), ModelStatusError, 4, "boom"),
        (fails(429, "slow", Retry_After="86400"), ModelStatusError, 4, "rate"),
        (Cassette(302, headers={"Location": "http://127.0.0.1:1/"}), ModelStatusError, 1, "redirects"),
        (Cassette(drop=True), ModelConnectionError, 4, "no answer"),
        (says("half of", finish="length"), ModelReplyError, 1, "truncated"),
        (says(None, refusal="I cannot"), ModelReplyError, 1, "I cannot"),
        (says("  "), ModelReplyError, 1, "empty"),
        (says(["parts"]), ModelReplyError, 1, "not a text"),
        (Cassette(chunks=[b"<html>"]), ModelReplyError, 1, "not JSON"),
        (Cassette(chunks=[b"[" * 100_000]), ModelReplyError, 1, "nested"),
        (Cassette(chunks=[b"x" * 10_000_000]), ModelReplyError, 1, "longer than"),
        (Cassette(500, itertools.repeat(b"x" * 65536)), ModelReplyError, 1, "longer than"),
        (Cassette(chunks=[b"\x1f"], headers={"Content-Encoding": "gzip"}), ModelReplyError, 1, "compressed"),
    ],
    ids=str,
)
def test_each_failure_has_its_error_and_its_transcript(
    tmp_path: Path, cassette: Answering, kind: type[ModelError], requests: int, reason: str
) -> None:
    with Leaderboard(tmp_path / "board.db") as board, chat_server(cassette) as served:
        client = client_of(served, board)
        with pytest.raises(ModelError) as caught:
            client.ask("patches", ASKED)
        stored = board.transcripts()
    assert type(caught.value) is kind
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (len(served.requests), len(stored), client.budget.spent.calls) == (requests, requests, requests)
    assert all(one.status != "ok" and one.reason and len(one.reply) <= (1 << 20) + 1 for one in stored.values())


def test_a_slow_drip_ends_at_the_time_limit(tmp_path: Path) -> None:
    drip = Cassette(chunks=itertools.repeat(b" "), pause_s=0.02)
    with Leaderboard(tmp_path / "board.db") as board, chat_server(drip) as served:
        client = client_of(served, board, timeout_s=0.3)
        with pytest.raises(ModelTimeoutError):
            client.ask("patches", ASKED)
        assert [one.status for one in board.transcripts().values()] == ["timeout"]
    assert client.budget.spent.tokens > client.endpoint.most_tokens, "the model may have run"


def test_what_passes_is_asked_again(tmp_path: Path) -> None:
    script = (fails(503), fails(400, "use max_completion_tokens"), says("at last"))
    with Leaderboard(tmp_path / "board.db") as board, chat_server(*script) as served:
        assert client_of(served, board).ask("patches", ASKED).text == "at last"
    assert [next(name for name in body if name.startswith("max_")) for body in served.requests] == [
        *("max_tokens", "max_tokens", "max_completion_tokens")
    ]


@pytest.mark.parametrize("usage", [None, (0, 0), (-5, 20), (10**9, 1), (40, 10**9), {"prompt_tokens": "many"}, [1]])
def test_missing_and_impossible_usage_counts_as_reserved(tmp_path: Path, usage: object) -> None:
    with Leaderboard(tmp_path / "board.db") as board, chat_server(says("idea", usage=usage)) as served:
        client = client_of(served, board)
        client.ask("patches", ASKED)
        (stored,) = board.transcripts().values()
    assert stored.reply_tokens == client.endpoint.most_tokens
    assert not stored.tokens_reported
    assert client.budget.spent.tokens == stored.prompt_tokens + stored.reply_tokens


@pytest.mark.parametrize(
    "limits",
    [
        Limits(calls=3),
        Limits(tokens=10_000),
        Limits(money=0.01, price=Price(1.0, 1.0)),
        Limits(seconds=0.05),
    ],
)
def test_the_budget_is_never_exceeded(tmp_path: Path, limits: Limits) -> None:
    with Leaderboard(tmp_path / "board.db") as board, chat_server(says("idea", usage=None)) as served:
        client = client_of(served, board, limits)
        with pytest.raises((ModelBudgetError, ModelTimeoutError)):
            _ask_often(client)
        spent = client.budget.spent
    assert len(served.requests) <= spent.calls < 50
    assert spent.calls <= (limits.calls or 50)
    assert spent.tokens <= (limits.tokens or spent.tokens)
    assert spent.money <= (limits.money or spent.money)


def _ask_often(client: ChatClient) -> None:
    for _ in range(50):
        client.ask("patches", ASKED)


@pytest.mark.parametrize(
    "cassette",
    [says(f"your key is {KEY}"), fails(401, f"Incorrect API key provided: {KEY}"), Cassette(drop=True)],
    ids=["reply", "status", "lost"],
)
def test_the_key_is_nowhere(tmp_path: Path, cassette: Answering, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    told = ""
    with Leaderboard(tmp_path / "board.db") as board, chat_server(cassette) as served:
        try:
            told = client_of(served, board).ask("patches", (*ASKED, Message("user", f"my key: {KEY}"))).text
        except ModelError as error:
            told = "".join(traceback.format_exception(error)) + str(vars(error)) + repr(error.__context__)
        told += "".join(str(one) for one in board.transcripts().values())
    assert KEY in str(served.headers), "it was sent"
    assert KEY not in told
    assert KEY not in caplog.text
    assert all(KEY.encode() not in file.read_bytes() for file in tmp_path.iterdir())
    assert KEY not in repr(Key(KEY))


def test_a_worker_does_not_have_the_key(tmp_path: Path) -> None:
    server = ForkServer("test", (), 30.0, str(tmp_path))
    try:
        for _ in range(500):
            if started := Path(f"/proc/{server.pid}/environ").read_bytes():
                break  # it is empty until the new program is loaded
            time.sleep(0.01)
    finally:
        server.close()
    assert b"PATH=" in started
    assert KEY.encode() not in started
    assert os.environ["EVOENGINE_LLM_KEY"] == KEY


@pytest.mark.parametrize(
    "make",
    [
        lambda: Endpoint("ftp://host/v1", "m"),
        lambda: Endpoint("http://user:password@host/v1", "m"),
        lambda: Endpoint("http://host/v1?key=1", "m"),
        lambda: Endpoint("http://host:99999/v1", "m"),
        lambda: Endpoint("http://host/v1", " "),
        lambda: Key.for_endpoint(Endpoint("http://10.0.0.1/v1", "m")),
        lambda: Limits(money=1.0),
        lambda: Price.parse("1"),
        lambda: Price.parse("1_0,2"),
        lambda: Price.parse("\uff11,2"),
    ],
)
def test_unusable_settings_are_usage_errors(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert "password@" not in str(caught.value)
