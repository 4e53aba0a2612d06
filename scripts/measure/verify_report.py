#!/usr/bin/env python3
"""Makes a page of what ``verify --json`` printed: how predicted elites fared on a GPU.

python -m evoengine verify --top 20 --json > mission.json
.venv/bin/python scripts/measure/verify_report.py mission.json long.json --out docs/results/verify-h200
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path, help="what verify --json printed")
    parser.add_argument("--out", type=Path, help="where to write, without a suffix")
    arguments = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in arguments.documents]
    text = page(documents)
    print(text)
    if arguments.out is not None:
        for suffix, content in ((".json", json.dumps(documents, indent=1)), (".md", text)):
            arguments.out.with_suffix(suffix).write_text(content + "\n")
    return 0


def page(documents: list[dict[str, Any]]) -> str:
    """The documents as Markdown."""
    lines = [
        "# Predicted elites, measured",
        "",
        "The kernels that a search on the emulator predicted to be fastest, compiled again, checked by the parity gate",
        "and timed on the GPU by `python -m evoengine verify --top 20`. *Ratio* is measured over predicted time.",
        "All of these are predicted to be about equally fast, so their ranks say little; that they were chosen as the",
        "best predictions makes measured times longer than predicted ones.",
        "",
        "| problem | predicted for | measured on | elites | predicted | measured | Spearman | ratio | best measured |",
        "|:--|:--|:--|--:|--:|--:|--:|--:|--:|",
        *(_summary(document) for document in documents),
    ]
    for document in documents:
        lines += ["", *_section(document)]
    return "\n".join(lines)


def _summary(document: dict[str, Any]) -> str:
    cells = [
        document["problem"],
        f"{document['predicted_for']} ({document['model']})",
        document["device"],
        str(document["compared"]),
        _span(document, "predicted_us"),
        _span(document, "measured_us"),
        _number(document["spearman"], 2),
        _number(document["median_ratio"], 3),
        "–" if document["best_rank"] is None else f"number {document['best_rank']} predicted",
    ]
    return f"| {' | '.join(cells)} |"


def _span(document: dict[str, Any], name: str) -> str:
    """The fastest and the slowest of the elites' times."""
    times = [entry[name] for entry in document["elites"] if entry[name] is not None]
    return f"{min(times):.2f} to {max(times):.2f} µs" if times else "–"


def _section(document: dict[str, Any]) -> list[str]:
    return [
        f"## {document['problem']}",
        "",
        "| rank | predicted µs | measured µs | ratio | status | family | what sets it apart |",
        "|--:|--:|--:|--:|:--|:--|:--|",
        *(_row(entry, _same(document["elites"])) for entry in document["elites"]),
    ]


def _row(entry: dict[str, Any], same: dict[str, Any]) -> str:
    config = " ".join(f"{name}={value}" for name, value in entry["config"].items() if same.get(name) != value)
    status = entry["status"] or "not valid here"
    return (
        f"| {entry['rank']} | {_number(entry['predicted_us'], 2)} | {_number(entry['measured_us'], 2)} "
        f"| {_number(entry['ratio'], 3)} | {status} | {entry['family']} | {config} |"
    )


def _same(elites: list[dict[str, Any]]) -> dict[str, Any]:
    """Tunables in which all elites agree."""
    first = elites[0]["config"]
    return {name: value for name, value in first.items() if all(one["config"].get(name) == value for one in elites)}


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
