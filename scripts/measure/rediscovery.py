#!/usr/bin/env python3
"""Removes recorded improvements from a family's templates and lets ``evolve`` find them again, beside random patches.

    python scripts/measure/rediscovery.py --out docs/results/rediscovery-emulator

Writes OUT.md and OUT.json. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.evolution.weakened import weakened  # noqa: E402

REMOVED: Final = ("softmax-one-reduction", "softmax-folded-scale", "mma-mask-crossing-tiles")
"""Improvements of family mma."""


def main() -> None:
    """Runs both evolutions and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="1x2x256x64")
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "weakened": evolve(arguments, Path(folder), weakened(Path(folder) / "data", "mma", REMOVED)),
            "shipped": evolve(arguments, Path(folder), None),
        }
    arguments.out.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(arguments, runs))


def evolve(arguments: argparse.Namespace, folder: Path, data: Path | None) -> dict[str, Any]:
    """Evolves family mma, with the templates of a folder laid over the shipped ones, or without."""
    words = [
        *("evolve", "--family", "mma", "--problem", arguments.problem, "--device", "emulator", "--json"),
        *("--operator", "recorded,crossover,swap"),
        *("--budget", str(arguments.budget), "--candidates", str(arguments.candidates), "--seed", str(arguments.seed)),
        *("--db", str(folder / f"{'shipped' if data is None else 'weakened'}.db")),
    ]
    environment = os.environ | ({} if data is None else {"EVOENGINE_DATA": str(data)})
    command = [sys.executable, "-m", "evoengine", *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page(arguments: argparse.Namespace, runs: dict[str, dict[str, Any]]) -> str:
    """Returns the page."""
    lines = [
        "# Recorded improvements, removed and found again",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, `scripts/measure/rediscovery.py`: family `mma`, problem `{arguments.problem}`,",
        f"predicted for an L4; {arguments.budget} proposals, {arguments.candidates} candidates for each variant.",
        f"The weakened templates lack {', '.join(REMOVED)}.",
        "",
    ]
    for name, run in runs.items():
        best = run["best"]
        lines += [
            f"## {name.capitalize()} templates",
            "",
            f"Unchanged: {run['base_us']:.3f} µs. Best: `{best['variant']}`, {best['best_us']:.3f} µs.",
            "",
            "| operator | proposals | correct | faster than parent | best gain | candidates | seconds |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {one['operator']}{' (control)' if one['control'] else ''} | {one['proposals']} | "
                f"{one['correct']} | {one['faster']} | {one['best_gain']:+.1%} | {one['candidates']} | "
                f"{one['seconds']:.0f} |"
                for one in run["operators"]
            ),
            "",
            "| proposal | parent | outcome | µs |",
            "|---|---|---|---|",
            *(
                f"| {one['summary']} | `{one['parent']}` | {one['stage']} | "
                f"{'–' if one['best_us'] is None else format(one['best_us'], '.3f')} |"
                for one in run["attempts"]
            ),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
