#!/usr/bin/env python3
"""Makes pages of docs/results from stored documents and leaderboards; measures nothing.

    evoengine verify --top 20 --json > default.json
    python scripts/measure/result_pages.py verify default.json long.json --out docs/results/verify-h200

    evoengine selftest --null --json > null.json                    # without a GPU: injected noise of 1 % and 2 %
    evoengine selftest --null --device cuda --json > null-gpu.json
    python scripts/measure/result_pages.py null null.json null-gpu.json --out docs/results/null-control

    evoengine tune-model docs/examples/models/vit.py --json > vit.json    # on a GPU
    python scripts/measure/result_pages.py tune-model vit.json llama_block.json --out docs/results/tune-model

    python scripts/measure/result_pages.py gate-cost leaderboard.db

``gate-cost`` prints the time of each stage over the correct candidates of every study. ``parity`` is the gate before
timing, ``recheck`` the one after it; both include copying the inputs and comparing the output on the host.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import common

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation

GATE: Final = ("parity", "recheck")


# --- predicted elites, measured ---------------------------------------------------------------------------------------


def verify_page(documents: list[dict[str, Any]]) -> str:
    """Predicted and measured times of elites, as Markdown."""
    lines = [
        "# Predicted elites, measured",
        "",
        "The kernels that a search on the emulator predicted to be fastest, compiled again, checked by the parity gate",
        "and timed on the GPU by `evoengine verify --top 20`. *Ratio* is measured over predicted time. All predictions",
        "are about equal, so the ranks carry little information. Selecting the best predictions makes measured times",
        "longer than predicted ones.",
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
    """Range of the elites' times."""
    times = [entry[name] for entry in document["elites"] if entry[name] is not None]
    return f"{min(times):.2f} to {max(times):.2f} µs" if times else "–"


def _section(document: dict[str, Any]) -> list[str]:
    return [
        f"## {document['problem']}",
        "",
        "| rank | predicted µs | measured µs | ratio | status | family | what sets it apart |",
        "|--:|--:|--:|--:|:--|:--|:--|",
        *(_elite_row(entry, _same(document["elites"])) for entry in document["elites"]),
    ]


def _elite_row(entry: dict[str, Any], same: dict[str, Any]) -> str:
    config = " ".join(f"{name}={value}" for name, value in entry["config"].items() if same.get(name) != value)
    status = entry["status"] or "not valid here"
    return (
        f"| {entry['rank']} | {_number(entry['predicted_us'], 2)} | {_number(entry['measured_us'], 2)} "
        f"| {_number(entry['ratio'], 3)} | {status} | {entry['family']} | {config} |"
    )


def _same(elites: list[dict[str, Any]]) -> dict[str, Any]:
    """Tunables with the same value in all elites."""
    first = elites[0]["config"]
    return {name: value for name, value in first.items() if all(one["config"].get(name) == value for one in elites)}


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


# --- the null control -------------------------------------------------------------------------------------------------


def null_page(documents: list[dict[str, Any]]) -> str:
    """False acceptances of searches among identical kernels, as Markdown."""
    lines = [
        "# The null control",
        "",
        "`evoengine selftest --null` searches spaces in which every candidate is the same kernel under another name.",
        "Every replacement of the champion is a false acceptance. *Luckiest* is the gain of the fastest time over the",
        "median of all: a search without duels would report it as a speed-up. *Refused* are candidates that looked",
        "better by 3 % and lost the duel.",
        "",
        "| condition | strategy | searches | candidates | false acceptances | refused in duels | luckiest | failed |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_condition_row(document, condition) for document in documents for condition in document["conditions"]]
    return "\n".join(lines)


def _condition_row(document: dict[str, Any], condition: dict[str, Any]) -> str:
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


# --- the cost of the parity gate --------------------------------------------------------------------------------------


def gate_cost_table(good: Iterable[Evaluation]) -> str:
    """Milliseconds by stage, and of the whole gate, as Markdown."""
    seconds = [evaluation.stage_seconds for evaluation in good]
    lines = ["| stage | candidates | median ms | 95 % below, ms | most, ms |", "|---|---|---|---|---|"]
    for stage in ("load", "parity", "bench", "recheck"):
        lines += _stage_line(stage, [1e3 * one[stage] for one in seconds if stage in one])
    whole = [1e3 * sum(one[stage] for stage in GATE) for one in seconds if all(stage in one for stage in GATE)]
    return "\n".join([*lines, *_stage_line("**gate: parity + recheck**", whole), ""])


def _stage_line(name: str, ms: Sequence[float]) -> list[str]:
    if not ms:
        return []
    ordered = sorted(ms)
    share = ordered[min(len(ms) - 1, int(0.95 * len(ms)))]
    return [f"| {name} | {len(ms)} | {statistics.median(ms):.1f} | {share:.1f} | {ordered[-1]:.1f} |"]


# --- models -----------------------------------------------------------------------------------------------------------


def models_page(documents: list[dict[str, Any]]) -> str:
    """End-to-end times of tuned models and the kernels of their problems, as Markdown."""
    lines = [
        "# Models tuned by `evoengine tune-model`",
        "",
        "Times of a pass in µs with torch's attention and with that of the lockfile; gain is their ratio.",
        "",
        "| model | way | torch's attention | EvoEngine's | gain | largest difference | note |",
        "|:--|:--|--:|--:|--:|--:|:--|",
        *(_model_line(document, times) for document in documents for times in document["times"]),
        "",
        "| model | problem | calls | share | kernel | SDPA | speed-up | candidates | kernel of |",
        "|:--|:--|--:|--:|--:|--:|--:|--:|:--|",
        *(_problem_line(document, item) for document in documents for item in document["problems"]),
    ]
    refused = [(document["model"], call) for document in documents for call in document["refused"]]
    lines += [""] * bool(refused)
    lines += [
        f"- {model}: torch computes {call['count']} of {call['call']}: {call['reason']}" for model, call in refused
    ]
    return "\n".join(lines)


def _model_line(document: dict[str, Any], times: dict[str, Any]) -> str:
    gain = "–" if times["gain"] is None else f"**{times['gain']:.2f}**"
    difference = "–" if times["largest_difference"] is None else f"{times['largest_difference']:.1e}"
    cells = (_us(times["torch_us"]), _us(times["evoengine_us"]), gain, difference, times["reason"])
    return f"| {document['model']} | {times['way']} | {' | '.join(cells)} |"


def _problem_line(document: dict[str, Any], item: dict[str, Any]) -> str:
    kernel, sdpa = item["median_us"], item["sdpa_us"]
    gain = f"{sdpa / kernel:.2f}" if kernel and sdpa else "–"
    shared = item["shared_with"] and f"`{item['shared_with']}`, {item['sharing_cost']:.1%} slower than its own"
    cells = (f"{item['share']:.1%}", _us(kernel), _us(sdpa), gain, str(item["candidates"]), shared or item["reason"])
    return f"| {document['model']} | `{item['call']}` | {item['count']} | {' | '.join(cells)} |"


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def write_gate_cost(arguments: argparse.Namespace) -> None:
    """Prints one table per study that has correct candidates."""
    with Leaderboard(f"sqlite:///{arguments.leaderboard}", create=False) as board:
        for study in board.studies():
            good = [stored.evaluation for stored in board.evaluations(study) if stored.evaluation.ok]
            if good:
                print(f"{study.scope.problem} on {study.scope.device}, {len(good)} correct candidates timed in full\n")
                print(gate_cost_table(good))


def write_page(arguments: argparse.Namespace) -> None:
    """Prints and writes the page of some JSON documents."""
    documents = [{"model": path.stem} | json.loads(path.read_text()) for path in arguments.documents]
    common.write_results(arguments.out, documents, arguments.page(documents))


def main() -> int:
    parser = common.parser(__doc__)
    modes = parser.add_subparsers(required=True)
    for name, page in (("verify", verify_page), ("null", null_page), ("tune-model", models_page)):
        command = "selftest --null" if name == "null" else name
        mode = modes.add_parser(name, help=f"Page of 'evoengine {command} --json'.")
        mode.add_argument("documents", nargs="+", type=Path, help="Files with the printed JSON.")
        mode.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
        mode.set_defaults(act=write_page, page=page)
    gate_cost = modes.add_parser("gate-cost", help="Tables of a leaderboard's stage times.")
    gate_cost.add_argument("leaderboard", type=Path, help="Leaderboard file.")
    gate_cost.set_defaults(act=write_gate_cost)
    arguments = parser.parse_args()
    arguments.act(arguments)
    return 0


if __name__ == "__main__":
    common.run(main)
