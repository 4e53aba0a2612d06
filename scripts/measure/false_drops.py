#!/usr/bin/env python3
"""How often racing drops a candidate, by how much slower it is than the best, under simulated noise of many kinds.

    .venv/bin/python scripts/measure/false_drops.py > table.md

No GPU is needed. The promise is that of candidates within the margin at most one in a hundred is dropped; where samples
are not independent it is kept by the part of the margin that noise does not eat.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from evoengine.bench.racing import RaceRule  # noqa: E402
from tests.bench.noise import MODELS, ROUNDS, drops  # noqa: E402

SLOWER: Final = (0.0, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.30, 0.50, 1.00)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=4000, help="measurements per cell [4000]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rule = RaceRule()
    print(f"Share of {arguments.runs} measurements that were dropped (margin {rule.margin:.0%}, {rule.confidence:.0%}")
    print(f"confidence, at most {ROUNDS} samples), and below it the mean number of samples of all of them.\n")
    print("| noise | " + " | ".join(f"+{slower:.0%}" for slower in SLOWER) + " |")
    print("|---" * (1 + len(SLOWER)) + "|")
    for name, model in MODELS.items():
        cells = [drops(model, slower, arguments.runs, arguments.seed) for slower in SLOWER]
        shares = [f"{sum(map(bool, cell)) / len(cell):.2%}" for cell in cells]
        means = [f"{statistics.fmean(count or ROUNDS for count in cell):.1f}" for cell in cells]
        texts = [f"{share}<br>{mean}" for share, mean in zip(shares, means, strict=True)]
        print(f"| {name}: {model.doc} | " + " | ".join(texts) + " |", flush=True)


if __name__ == "__main__":
    main()
