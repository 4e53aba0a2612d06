"""A call of the command line in a process of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TINY_SEARCH = ("search", "--problem", "1x1x16x32", "--device", "emulator", "--strategy", "random")
"""A search of three families, with the smallest head dim that all of them support."""
SMALL_SEARCH = ("search", "--problem", "1x1x16x16", "--device", "emulator", "--strategy", "random")
"""The cheapest search: of all families only mma supports this head dim, and the emulator needs the fewest steps."""


@dataclass(frozen=True)
class Done:
    """A finished call."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


Evo = Callable[..., Done]


def environment(cache: Path) -> dict[str, str]:
    """The environment of a call: this checkout, a cache of its own."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)}
