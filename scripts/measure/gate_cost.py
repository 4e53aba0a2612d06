#!/usr/bin/env python3
"""What the parity gate costs a good candidate: a table of the stages of a leaderboard's correct rows, study by study.

    .venv/bin/python scripts/measure/gate_cost.py leaderboard.db

``parity`` is the gate before a candidate is timed, ``recheck`` the one afterwards; both include copying the inputs and
judging the output on the host. The goal is 30 ms together for the problem ``mission`` on an H200.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from evoengine.leaderboard.store import Leaderboard  # noqa: E402
from evoengine.model import Evaluation  # noqa: E402

GATE: Final = ("parity", "recheck")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("leaderboard", type=Path)
    path: Path = parser.parse_args().leaderboard
    with Leaderboard(f"sqlite:///{path}", create=False) as board:
        for study in board.studies():
            good = [stored.evaluation for stored in board.evaluations(study) if stored.evaluation.ok]
            if good:
                print(f"{study.scope.problem} on {study.scope.device}, {len(good)} correct candidates timed in full\n")
                print(table(good))
    return 0


def table(good: Iterable[Evaluation]) -> str:
    """Milliseconds by stage, and of the gate as a whole, in Markdown."""
    seconds = [evaluation.stage_seconds for evaluation in good]
    lines = ["| stage | candidates | median ms | 95 % below, ms | most, ms |", "|---|---|---|---|---|"]
    for stage in ("load", "parity", "bench", "recheck"):
        lines += _line(stage, [1e3 * one[stage] for one in seconds if stage in one])
    whole = [1e3 * sum(one[stage] for stage in GATE) for one in seconds if all(stage in one for stage in GATE)]
    return "\n".join([*lines, *_line("**gate: parity + recheck**", whole), ""])


def _line(name: str, ms: Sequence[float]) -> list[str]:
    if not ms:
        return []
    ordered = sorted(ms)
    share = ordered[min(len(ms) - 1, int(0.95 * len(ms)))]
    return [f"| {name} | {len(ms)} | {statistics.median(ms):.1f} | {share:.1f} | {ordered[-1]:.1f} |"]


if __name__ == "__main__":
    raise SystemExit(main())
