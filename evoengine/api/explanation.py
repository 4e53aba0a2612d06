"""Explanation of what computes a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evoengine.documents.escaping import printable

Server = Literal["champion", "elite", "sdpa", "plain"]
"""``champion``: the problem's own champion; ``elite``: another kernel of the leaderboard; ``sdpa``: torch's SDPA;
``plain``: plain torch operations, for features that SDPA lacks."""


@dataclass(frozen=True)
class Explanation:
    """Which kernel computes a call; ``str()`` formats it for reading."""

    server: Server
    problem: str
    """Key of the call's problem, as in the leaderboard; empty if no kernel can support it."""
    device: str
    """Name of the GPU, or torch's name of another device."""
    reasons: tuple[str, ...]
    """Why kernels with a higher preference were rejected, in order of preference."""
    source: str = ""
    """Path of the leaderboard or lockfile that was read."""
    searched_problem: str = ""
    """Problem for which the kernel was searched."""
    row_id: int | None = None
    family: str = ""
    config: str = ""
    median_us: float | None = None
    """Measured device time for the searched problem; None if the config was changed for this one."""
    speedup: float | None = None
    """Speed-up over the fastest SDPA backend for the searched problem."""
    source_hash: str = ""
    code_hash: str = ""

    @property
    def ours(self) -> bool:
        """Whether a kernel of EvoEngine computes the call."""
        return self.server in ("champion", "elite")

    def __str__(self) -> str:
        what = self.problem or "this call"
        if not self.ours:
            name = "torch's SDPA" if self.server == "sdpa" else "plain torch operations"
            lines = [f"{what} on {self.device}: {name}"]
        else:
            lines = [f"{what} on {self.device}: {self.server} {self.row_id} of {self.source}, family {self.family}"]
            time = "not timed with this config" if self.median_us is None else f"{self.median_us:.2f} us"
            gain = "" if self.speedup is None else f", {self.speedup:.2f}x SDPA"
            lines.append(f"  searched for {self.searched_problem}: {time}{gain}")
            lines.append(f"  config {self.config}")
            lines.append(f"  source {self.source_hash}, machine code {self.code_hash}")
        return "\n".join(map(printable, (*lines, *(f"  because {reason}" for reason in self.reasons))))
