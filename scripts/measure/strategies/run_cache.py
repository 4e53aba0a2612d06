"""Cache of finished runs of ``strategy_benchmark.py``, one file each, from which an interrupted benchmark resumes.

The key of a run is a hash of the landscape's content, the strategy, seed and settings, and the sources that take part
in it. A change of these sources leads to new runs; the old files remain unused.
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
"""Strategies are imported on demand; proposals depend on these modules and their imports."""
_OUR_PACKAGES: Final = ("evoengine.search.", "evoengine.space.", "evoengine.landscape.")
"""Packages whose modules count as sources; other imports only store and load records."""
_PEER_LIBRARIES: Final = ("optuna", "cmaes", "torch", "scipy", "numpy")
_PEER_MODULES: Final = (
    "evoengine.search.strategies.optuna_adapter",
    "evoengine.search.strategies.distributions",
    "evoengine.search.strategies.strategy",
    "evoengine.search.strategies.seen_configs",
    "evoengine.space.explicit_space",
)


@dataclass(frozen=True)
class RunCache:
    """A folder of finished runs."""

    folder: Path
    sources: Mapping[str, str]
    """Hash of the sources that the runs of each tuner depend on."""

    def load(self, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        """The stored run with these facts, or None."""
        file = self._file(facts)
        if not file.exists():
            return None
        run: dict[str, Any] = json.loads(file.read_text())
        return run

    def save(self, facts: Mapping[str, Any], run: Mapping[str, Any]) -> None:
        """Stores a run atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self._file(facts)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"facts": dict(facts), **run}))
        part.replace(file)

    def _file(self, facts: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
        return self.folder / f"{key}.json"


def our_sources() -> str:
    """Hash of the modules of strategies, spaces and landscapes in use."""
    for name in _OUR_MODULES:
        importlib.import_module(name)
    files = (module.__file__ for name, module in sys.modules.items() if name.startswith(_OUR_PACKAGES))
    return _hash_of(sorted({file for file in files if file}))


def peer_sources() -> str:
    """Hash of the peers, of what proposals pass through, and the versions of the libraries."""
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in _PEER_LIBRARIES)
    return f"{versions} {_hash_of(map(str, (Path(__file__).with_name('peers.py'), *map(_file_of, _PEER_MODULES))))}"


def kernel_tuner_sources() -> str:
    """Kernel Tuner's version, and a hash of the adapter between it and a landscape."""
    adapter = (Path(__file__).with_name("kernel_tuner_runs.py"), _file_of("evoengine.interop.kernel_tuner"))
    return f"{importlib.metadata.version('kernel_tuner')} {_hash_of(map(str, adapter))}"


def _file_of(module: str) -> Path:
    file = importlib.import_module(module).__file__
    assert file is not None, "modules of EvoEngine are files"
    return Path(file)


def _hash_of(files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()[:_KEY_DIGITS]
