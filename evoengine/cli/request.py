"""What the user of ``search`` asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evoengine.model import Problem


@dataclass(frozen=True)
class SearchRequest:
    """The options of ``search``, parsed."""

    problem: Problem
    budget: int = 500
    strategy: str = "evolution"
    seed: int = 0
    inputs_seed: int | None = None
    """Of the inputs that candidates are checked on; None for a fresh one."""
    family: str = "auto"
    """A family, several with commas between, or ``auto`` for all that can serve the problem."""
    space_file: Path | None = None
    device: str = "auto"
    arch: str = ""
    """Empty for the device's own."""
    target: str = "l4"
    db: str = "leaderboard.db"
    starts: bool = True
    """Begin with the configs that the search-space files name."""
    accept: float = 0.03
    workers: int = 0
    """Compile processes; 0 for as many as fit the machine."""
    compile_limit_s: float = 120.0
    """Seconds that one compilation may take."""
    cold_l2: bool = False
    time_limit_s: float | None = None
