#!/usr/bin/env python3
"""Makes a page of what ``selftest --null --json`` printed: is the best of many equals ever crowned?

python -m evoengine selftest --null --json > null.json                   # without a GPU: injected noise of 1 % and 2 %
python -m evoengine selftest --null --device cuda --json > null-gpu.json
.venv/bin/python scripts/measure/null_report.py null.json null-gpu.json --out docs/results/null-control
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="+", type=Path, help="what selftest --null --json printed")
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
        "# The null control",
        "",
        "`python -m evoengine selftest --null` searches spaces in which every candidate is the same kernel under",
        "another name. Whoever dethrones the champion there is a false acceptance. *Luckiest* is how much faster the",
        "fastest time was than the median of all: what a search without duels would have taken for a gain. *Refused*",
        "looked better by 3 % and did not stand a duel.",
        "",
        "| condition | strategy | searches | candidates | false acceptances | refused in duels | luckiest | failed |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_row(document, condition) for document in documents for condition in document["conditions"]]
    return "\n".join(lines)


def _row(document: dict[str, Any], condition: dict[str, Any]) -> str:
    runs = condition["runs"]
    refused = [run["refused"] for run in runs]
    cells = (
        condition["name"],
        document["strategy"],
        f"{len(runs)} of {document['budget']}",
        f"{sum(run['evaluated'] for run in runs):,}",
        str(condition["accepted"]),
        f"{sum(refused):,} (median {statistics.median(refused):g} a search)",
        f"{1 - min(run['luckiest'] for run in runs):.1%}",
        str(sum(run["failed"] for run in runs)),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
