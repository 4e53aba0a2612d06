"""Address, model and limits of an endpoint, and the key that its requests carry."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from evoengine.errors import UsageError
from evoengine.system.secrets import LLM_KEYS, read_llm_key

_SHORTEST_SECRET: Final = 8
"""Shorter keys are placeholders of local servers, such as ``EMPTY``; replacing them would damage texts."""
_REDACTED: Final = "<key>"


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible endpoint and the limits of its calls.

    Raises:
        UsageError: The address is not a plain http or https URL, or a limit is out of range.
    """

    url: str
    """Address up to the version, such as ``http://127.0.0.1:8000/v1``."""
    model: str
    most_tokens: int = 4096
    """Maximum number of tokens of a reply; reserved before each call."""
    timeout_s: float = 180.0
    """Maximum time of a request, from the connection to the last byte."""
    attempts: int = 4
    """Maximum number of requests for one reply."""
    first_wait_s: float = 1.0
    """Wait before the second request; it doubles from request to request."""
    most_wait_s: float = 30.0
    """Maximum wait, also where the endpoint asks for a longer one."""
    most_bytes: int = 1 << 20
    """Maximum size of a reply; the rest of a longer one is not read."""

    def __post_init__(self) -> None:
        parts = _split(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("--llm-url: must be an address such as http://127.0.0.1:8000/v1 or https://HOST/v1")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"--llm-url: must not have a user, password, query or fragment: set {LLM_KEYS[0]} to the key"
            )
        if not self.model.strip() or not self.model.isprintable():
            raise UsageError("--llm-model: must name a model of the endpoint")
        if self.most_tokens < 1 or self.attempts < 1 or self.timeout_s <= 0 or self.most_bytes < 1:
            raise UsageError("limits of a call must be positive")

    @property
    def is_private(self) -> bool:
        """Whether requests cannot be read on a network: https, or a server on this machine."""
        parts = _split(self.url)
        return parts.scheme == "https" or _is_loopback(parts.hostname or "")


@dataclass(frozen=True, repr=False)
class Key:
    """Key of an endpoint; it is never part of a message, a log or a stored text."""

    text: str

    @classmethod
    def for_endpoint(cls, endpoint: Endpoint) -> Key:
        """Reads the key from the environment.

        Raises:
            UsageError: The key is malformed, or would travel in the clear to another machine.
        """
        text = read_llm_key()
        if not text.isascii() or any(not 32 < ord(character) < 127 for character in text):
            raise UsageError(f"{' or '.join(LLM_KEYS)}: must be printable ASCII without spaces")
        if text and not endpoint.is_private:
            raise UsageError(
                "--llm-url: the key would travel unencrypted: use an https address, or set "
                f"{LLM_KEYS[0]} to nothing for a server that needs no key"
            )
        return cls(text)

    def redact(self, text: str) -> str:
        """Returns text in which the key, also as JSON spells it, is replaced by a placeholder."""
        if len(self.text) < _SHORTEST_SECRET:
            return text
        return text.replace(self.text, _REDACTED).replace(json.dumps(self.text)[1:-1], _REDACTED)

    def redact_bytes(self, data: bytes) -> bytes:
        """Returns bytes in which the key is replaced by a placeholder."""
        if len(self.text) < _SHORTEST_SECRET:
            return data
        for spelling in (self.text, json.dumps(self.text)[1:-1]):
            data = data.replace(spelling.encode(), _REDACTED.encode())
        return data

    def __repr__(self) -> str:
        return "Key(…)"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port out of range
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    return parts if url.isprintable() and " " not in url else SplitResult("", "", "", "", "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
