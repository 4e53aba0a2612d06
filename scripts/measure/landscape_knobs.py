#!/usr/bin/env python3
"""What each value of each tunable costs at best, from a recorded landscape: no GPU, all measured in one recording.

    .venv/bin/python scripts/measure/landscape_knobs.py docs/results/landscapes/long-causal-h200.landscape.xz --out knobs.md

For every value of a tunable: how many recorded correct configs have it, and the fastest of them against the fastest of
all. A landscape holds a part of its space, so a value that few configs have may look worse than it is; scripts/measure/knobs.py
measures the neighbourhood of one config instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import RecordedFamily, median_us
from evoengine.model import Value


@dataclass(frozen=True)
class Line:
    """One value of one tunable."""

    knob: str
    value: Value
    configs: int
    """Correct ones with it."""
    best_us: float
    """Of them."""


def lines_of(family: RecordedFamily) -> list[Line]:
    """A line for each value that a correct config has, tunables with one such value left out."""
    correct = [(evaluation.config, median_us(evaluation)) for evaluation in family.evaluations if evaluation.ok]
    lines = []
    for tunable in family.space.tunables:
        times = {value: [us for config, us in correct if config[tunable.name] == value] for value in tunable.values}
        found = [Line(tunable.name, value, len(us), min(us)) for value, us in times.items() if us]
        lines += found if len(found) > 1 else []
    return lines


def table(lines: Sequence[Line], title: str) -> str:
    """Markdown: a row a value, its best time as a ratio to the best of all."""
    best_us = min(line.best_us for line in lines)
    head = [title, "", "| tunable | value | configs | best with it, µs | / best of all |", "|---|---|--:|--:|--:|"]
    rows = (
        f"| {line.knob} | {line.value} | {line.configs} | {line.best_us:.2f} | {line.best_us / best_us:.3f} |"
        for line in lines
    )
    return "\n".join([*head, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("landscape", type=Path)
    parser.add_argument("--out", type=Path, help="file to write the tables to")
    arguments = parser.parse_args()
    landscape = read_landscape(arguments.landscape)
    problem = landscape.problem.key if landscape.problem else "a foreign problem"
    parts = [
        table(lines, f"{problem} on {landscape.device.name}, family {family.name}, {len(family.evaluations)} configs")
        for family in landscape.families
        if (lines := lines_of(family))
    ]
    text = "\n\n".join(parts) + "\n"
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
