"""Runs of the benchmark, their results, and the strategies that take part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.landscape.file import SUFFIX

OURS: Final = "evoengine"
PEERS: Final = "peers"
KERNEL_TUNER: Final = "kernel_tuner"

PEER_CLASSES: Final[Mapping[str, str]] = {
    "optuna-tpe": "strategies.peers:MultivariateTpe",
    "optuna-gp": "strategies.peers:OptunaGp",
    "optuna-cmaes": "strategies.peers:OptunaCmaEs",
    "gp-ei": "strategies.peers:PlainGp",
}
"""Peers that run through the same ask, tell and repair as EvoEngine's strategies, and the class of each."""

OWN_ORDER: Final = "own"
ORDERS: Final = (OWN_ORDER, "shuffled-1", "shuffled-2")
"""Orders of the configs that Kernel Tuner is given."""

NEAR: Final = (0.05, 0.02)
"""Relative distances from the optimum within which a search is near it."""

SEEN: Final = ("long-causal-h200", "hopper-failing-h200", "mma-failing-h200")
"""Landscapes of the judging half that earlier versions of ``evolution`` were tuned on, or on a prediction of them."""

_SLOW: Final = ("optuna-gp",)


@dataclass(frozen=True)
class Task:
    """One run of one strategy."""

    landscape: str
    tuner: str
    strategy: str
    seed: int
    budget: int
    """Evaluations of the run; also what a tuner with a budget is told."""
    lag: int = 0
    """Further proposals that are made before the first result is returned."""
    order: str = ""
    """Order of the configs, for Kernel Tuner."""

    @property
    def slow(self) -> bool:
        """Whether it computes for a tenth of a second per evaluation."""
        return self.strategy in _SLOW

    @property
    def entry(self) -> tuple[str, str, str, int]:
        """Which runs belong together: those that differ only in the seed."""
        return (self.tuner, self.strategy, self.order, self.lag)


@dataclass(frozen=True)
class Run:
    """Result of a task."""

    task: Task
    shares: tuple[float, ...]
    """The optimum's time over the best time so far, after each evaluation; 0 before the first correct config."""
    seconds: float
    """CPU time."""


def is_held_out(landscape: str) -> bool:
    """Returns whether constants must not be tuned on a landscape.

    The first byte of the SHA-256 of the file's name without ``.landscape.xz``: landscapes with an even one are the
    tuning half, those with an odd one are judged.
    """
    stem = Path(landscape).name.removesuffix(SUFFIX)
    return hashlib.sha256(stem.encode()).digest()[0] % 2 == 1
