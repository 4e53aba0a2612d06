"""Cheats: kernels that would be accepted as faster than they are, or that reach out of their call.

Each is one idea in a kernel of a family: text that is inserted at named places, or replacements. It compiles, and it
names the defences of which one must reject it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from evoengine.kernel.records import Source
from evoengine.parity.mutants import SETUPS
from evoengine.parity.mutants.mutant import MutantEdit, mutate

FOLDER: Final = Path(__file__).resolve().parent
HOPPER_FAMILIES: Final = ("hopper", "wgmma")
DEFAULT_SETUP: Final = "scalar plain"
_GLOBALS: Final = "struct AttentionParams {"
_START: Final = "extern __shared__ __align__({}) unsigned char smem[];"


@dataclass(frozen=True)
class Cheat:
    """One cheat."""

    name: str
    idea: str
    rejected_by: frozenset[str]
    """Defences of which one rejects it: ``source RULE``, ``ptx RULE`` or ``emulator``."""
    setup: str
    """Name of the setup of a mutant whose kernel is changed."""
    edits: tuple[MutantEdit, ...]

    def applied(self, source: Source) -> Source:
        """Returns the untrusted source with the cheat in it."""
        return replace(mutate(source, self.edits), untrusted=True)


def cheats() -> tuple[Cheat, ...]:
    """Reads all cheats, in the order of files and names."""
    return tuple(
        _cheat(item) for path in sorted(FOLDER.glob("*.toml")) for item in tomllib.loads(path.read_text())["cheats"]
    )


def _cheat(item: dict[str, object]) -> Cheat:
    edits = []
    if "globals" in item:
        edits.append(MutantEdit(_GLOBALS, f"{str(item['globals']).strip()}\n{_GLOBALS}"))
    pairs = item.get("replace", [])
    assert isinstance(pairs, list)
    edits += [MutantEdit(str(old), str(new)) for old, new in pairs]
    setup = str(item.get("setup", DEFAULT_SETUP))
    if "start" in item:
        start = _START.format(1024 if SETUPS[setup].family in HOPPER_FAMILIES else 128)
        edits.append(MutantEdit(start, f"{start}\n{str(item['start']).strip()}\n"))
    defences = frozenset(name.strip() for name in str(item["rejected_by"]).split(","))
    return Cheat(str(item["name"]), str(item["idea"]), defences, setup, tuple(edits))
