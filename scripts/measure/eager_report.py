"""The page of ``eager_benchmark.py``'s figures, from the JSON file that it wrote.

``python scripts/measure/eager_report.py eager.json docs/results/part-5-python-api-h200.md``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def page(report: dict[str, Any]) -> str:
    """The Markdown page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Calls from Python on {report['gpu']}"
    yield ""
    versions = f"EvoEngine {report['evoengine']}, torch {report['torch']}, Python {report['python']}"
    yield f"{report['date']}, {versions}. Command:"
    yield ""
    yield f"    {report['command']}"
    yield ""
    yield "Host time is what the calling thread spends until a call returns; device time is that of a replayed CUDA"
    yield "graph, per call. Both are medians in µs, SDPA and EvoEngine in turns, under `torch.inference_mode()`;"
    yield "`share` is EvoEngine's time over SDPA's."
    yield ""
    yield "| problem | time | SDPA | EvoEngine | share |"
    yield "|---|---|---:|---:|---:|"
    for item in report["problems"]:
        host, device = item["host_us"], item["graph_device_us"]
        yield _row(item["problem"], "host, eager", host["sdpa"], host["evoengine"])
        yield _row("", "host, eager, through the custom op", host["sdpa"], host["evoengine, the op"])
        yield _row("", "host, `torch.compile`", host["sdpa, compiled"], host["evoengine, compiled"])
        yield _row("", "device, CUDA graph", device["sdpa"], device["evoengine"])
    for model in report["transformers"]:
        yield ""
        yield from _transformer(model)


def _transformer(model: dict[str, Any]) -> Iterator[str]:
    mask, largest = "causal" if model["causal"] else "full", model["largest_difference"]
    yield f"## A transformer of {model['layers']} layers, {model['tokens']} tokens, {mask} attention, fp16"
    yield ""
    reach = f"{model['largest_logit']:.3f}"
    yield f"When its attention is swapped, logits, which reach {reach}, differ by at most {largest:.1e}."
    yield "Wall time of a forward pass in µs, with a synchronisation after every 50; `×` is SDPA's over EvoEngine's"
    yield "time. Host time is what the host needs to enqueue a pass: where it is about the wall time, the GPU waits for"
    yield "the host, and all that can be gained is what the host saves."
    yield ""
    yield "| way | SDPA | EvoEngine | × | host, SDPA | host, EvoEngine |"
    yield "|---|---:|---:|---:|---:|---:|"
    for way, times in model["ways"].items():
        host = model["host"][way]
        gain = times["sdpa"] / times["evoengine"]
        yield (
            f"| {way} | {times['sdpa']:.1f} | {times['evoengine']:.1f} | {gain:.2f} "
            f"| {host['sdpa']:.1f} | {host['evoengine']:.1f} |"
        )
    yield ""
    yield "What served:"
    yield ""
    yield from (f"    {line}" for line in model["served_by"].splitlines())


def _row(problem: str, what: str, sdpa: float, ours: float) -> str:
    return f"| {problem} | {what} | {sdpa:.2f} | {ours:.2f} | {ours / sdpa:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="what eager_benchmark.py --json wrote")
    parser.add_argument("page", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    options.page.write_text(page(json.loads(options.report.read_text())))


if __name__ == "__main__":
    main()
