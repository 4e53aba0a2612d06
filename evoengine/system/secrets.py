"""Keys of language-model endpoints: read from the environment, and kept out of that of child processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LLM_KEYS: Final = ("EVOENGINE_LLM_KEY", "OPENAI_API_KEY")
"""Environment variables with the key of an endpoint. The first that is set counts; an empty one means no key."""

_LOCK: Final = threading.Lock()


def read_llm_key() -> str:
    """Returns the key of the language model's endpoint from the environment; empty for none."""
    with _LOCK:
        return next((os.environ[name].strip() for name in LLM_KEYS if name in os.environ), "")


@contextmanager
def keys_hidden() -> Iterator[None]:
    """Removes the keys from the environment for the block, in which a child process is started."""
    with _LOCK:
        taken = {name: os.environ.pop(name) for name in LLM_KEYS if name in os.environ}
        try:
            yield
        finally:
            os.environ.update(taken)


def environment_without_keys() -> dict[str, str]:
    """Returns a copy of the environment without the keys, for a child process."""
    return {name: value for name, value in os.environ.items() if name not in LLM_KEYS}
