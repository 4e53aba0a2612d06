"""A chat endpoint on 127.0.0.1 that plays cassettes: good replies, failures of every kind, and hostile ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Cassette:
    """One answer of the server."""

    status: int = 200
    chunks: Iterable[bytes] = ()
    """Parts of the body; may be endless."""
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    """Pause between parts."""
    drop: bool = False
    """Whether the connection ends without an answer."""


Answering = Cassette | Callable[[Mapping[str, Any]], Cassette]


def says(text: object, *, finish: str = "stop", usage: object = (40, 20), **message: object) -> Cassette:
    """A complete reply with a text."""
    body: dict[str, Any] = {
        "id": "cassette",
        "object": "chat.completion",
        "model": "stub",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
        ],
    }
    if isinstance(usage, tuple):
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    elif usage is not None:
        body["usage"] = usage
    return Cassette(chunks=[json.dumps(body).encode()], headers={"Content-Type": "application/json"})


def fails(status: int, message: str = "", **headers: str) -> Cassette:
    """An answer with an error status."""
    body = json.dumps({"error": {"message": message, "type": "stub"}}).encode()
    return Cassette(status, [body], {name.replace("_", "-"): value for name, value in headers.items()})


@dataclass
class Served:
    """Requests that a server received."""

    url: str
    requests: list[Mapping[str, Any]] = field(default_factory=list)
    """Bodies, as JSON."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    cut: int = 0
    """Answers whose connection the client closed before their end."""

    @property
    def prompts(self) -> list[str]:
        """Text of all messages, by request."""
        return ["\n".join(message["content"] for message in body["messages"]) for body in self.requests]


@contextmanager
def chat_server(*script: Answering) -> Iterator[Served]:
    """Runs a server that plays a script, one entry per request, and repeats the last one."""
    served = Served("")
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                entry = script[min(len(served.requests), len(script) - 1)]
                served.requests.append(body)
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
            cassette = entry if isinstance(entry, Cassette) else entry(body)
            self.close_connection = True
            if cassette.drop:
                return
            try:
                self._play(cassette)
            except OSError:
                with lock:
                    served.cut += 1

        def _play(self, cassette: Cassette) -> None:
            self.send_response(cassette.status)
            for name, value in cassette.headers.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in cassette.chunks:
                self.wfile.write(chunk)
                time.sleep(cassette.pause_s)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
