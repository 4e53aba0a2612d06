"""What the user of ``search`` asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.model import Problem, Workload


@dataclass(frozen=True)
class SearchOptions:
    """The options of ``search``, parsed."""

    problem: Problem
    """Of a workload the first one."""
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
    transfer: bool = True
    """Begin with what was fast for a near problem, or on another GPU."""
    starts: bool = True
    """Begin with the configs that the search-space files name."""
    forecast: bool = True
    """Begin with the configs that the latency model expects to be fastest."""
    skip: bool = True
    """Pass over configs that the latency model, as it fared in this study, expects to be far slower than the best."""
    accept: float = 0.03
    workers: int = 0
    """Compile processes; 0 for as many as fit the machine."""
    compile_limit_s: float = 120.0
    """Seconds that one compilation may take."""
    cold_l2: bool = False
    workload: Workload | None = None
    """Several problems in the place of the one."""
    eager: bool = False
    """Time call by call, launched from the host, instead of in a graph."""
    racing: bool = True
    """Drop hopeless candidates after a few samples."""
    spill_limit_bytes: int = SPILL_LIMIT_BYTES
    """Spilled bytes per thread above which a kernel is not run; 0 for no limit."""
    energy: bool = True
    """Measure the elites' energy per call at the end, where the GPU tells it."""
    sanitizer: bool = True
    """Run new champions under compute-sanitizer, where it is installed."""
    time_limit_s: float | None = None
