"""What serves a call, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Server = Literal["champion", "elite", "sdpa", "plain"]
"""The problem's own champion or elite, checked by its search; a kernel of another problem; torch's SDPA; torch step by
step, where SDPA lacks a feature."""


@dataclass(frozen=True)
class Explanation:
    """Says which kernel serves a call; ``str()`` of it is for people."""

    server: Server
    problem: str
    """Key of the call's problem, as in the leaderboard; empty where no kernel could serve it."""
    device: str
    """The GPU's name, or torch's name of another device."""
    reasons: tuple[str, ...]
    """Why not something better, best first."""
    source: str = ""
    """The leaderboard or the lockfile that was looked at."""
    searched_problem: str = ""
    """Problem that the kernel was searched for."""
    row_id: int | None = None
    family: str = ""
    config: str = ""
    median_us: float | None = None
    """Measured device time on the problem that it was searched for."""
    speedup: float | None = None
    """Against the fastest of SDPA's backends, there."""
    source_hash: str = ""
    code_hash: str = ""

    @property
    def ours(self) -> bool:
        """Whether one of EvoEngine's kernels serves."""
        return self.server in ("champion", "elite")

    def __str__(self) -> str:
        what = self.problem or "this call"
        if not self.ours:
            name = "torch's SDPA" if self.server == "sdpa" else "plain torch operations"
            lines = [f"{what} on {self.device}: {name}"]
        else:
            lines = [f"{what} on {self.device}: {self.server} {self.row_id} of {self.source}, family {self.family}"]
            time = "" if self.median_us is None else f"{self.median_us:.2f} us"
            gain = "" if self.speedup is None else f", {self.speedup:.2f}x SDPA"
            lines.append(f"  searched for {self.searched_problem}: {time}{gain}")
            lines.append(f"  config {self.config}")
            lines.append(f"  source {self.source_hash}, machine code {self.code_hash}")
        return "\n".join((*lines, *(f"  because {reason}" for reason in self.reasons)))
