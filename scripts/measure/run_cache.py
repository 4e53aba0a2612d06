"""Finished runs of ``strategy_benchmark.py``, kept one file each, so that a benchmark that was cut off goes on.

A run is found again by what it follows from: the landscape's content, the strategy, seed and settings, and the sources
that take part in it. Whoever changes one of these sources gets new runs; the old ones stay and are no longer asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.search.strategies.registry import STRATEGIES

_KEY_DIGITS: Final = 24
_OUR_MODULES: Final = tuple(f"evoengine.search.strategies.builtin.{name}" for name in STRATEGIES)
"""Strategies are imported when they are asked for; with these everything is there that proposals depend on."""
_OUR_PACKAGES: Final = ("evoengine.search.", "evoengine.space.", "evoengine.landscape.")
"""What else they import keeps records and fetches them."""


@dataclass(frozen=True)
class RunCache:
    """A folder of finished runs."""

    folder: Path
    sources: Mapping[str, str]
    """By tuner: a hash of the sources that its runs depend on."""

    def load(self, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        """The run that follows from these facts; None where there is none."""
        file = self._file(facts)
        if not file.exists():
            return None
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept

    def save(self, facts: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Keeps a run; whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(facts)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"facts": dict(facts), **run}))
        part.replace(file)

    def _file(self, facts: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
        return self.folder / f"{key}.json"


def our_sources() -> str:
    """Hash of the modules of strategies, spaces and landscapes that take part."""
    for name in _OUR_MODULES:
        importlib.import_module(name)
    files = (module.__file__ for name, module in sys.modules.items() if name.startswith(_OUR_PACKAGES))
    return _hash_of(sorted({file for file in files if file}))


def their_sources() -> str:
    """Kernel Tuner's version, and the hash of what stands between it and a landscape."""
    between = (Path(__file__).with_name("kernel_tuner_runs.py"), _file_of("evoengine.interop.kernel_tuner"))
    return f"{importlib.metadata.version('kernel_tuner')} {_hash_of(map(str, between))}"


def _file_of(module: str) -> Path:
    file = importlib.import_module(module).__file__
    assert file is not None, "a module of ours is a file"
    return Path(file)


def _hash_of(files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:_KEY_DIGITS]
