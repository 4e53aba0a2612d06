#!/usr/bin/env python3
"""Searches and compares the attention problems of public models; writes docs/results/models.md and .json.

    python scripts/measure/models.py --work build/models --time-limit 450      # again until all problems are measured
    python scripts/measure/models.py --work build/models --page docs/results/models

Each problem of models.toml gets a search by the public command, with a leaderboard of its own, then `compare` with all
installed peers. WORK/state.json keeps every finished step, so that the same command goes on where it stopped: at the
time limit, or when its machine was lost. Problems that the page has already are not measured again unless --only names
them, so that the suite can be measured in pieces on several machines. A search or comparison that fails becomes a row
with the reason. The exit code is 1 while problems are left.
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import common
import msgspec

from evoengine.documents import convert_document
from evoengine.engine.options.problem import ProblemOptions
from evoengine.errors import FileError, UsageError
from evoengine.model import Problem
from evoengine.system.files import write_file

SUITE: Final = Path(__file__).with_suffix(".toml")
GROUPS: Final = {"short": "up to 1,024 tokens", "long": "above 1,024 tokens", "decode": "decode"}
GOALS: Final = {"short": 0.80, "long": 0.92, "decode": 0.97}
"""Goals for the geometric mean of our time over that of the best peer, on an H200."""
STEPS: Final = ("search", "compare")
_SHORT: Final = 1024
_FIRST_ESTIMATE_S: Final = 45.0
"""Estimated time of a step before one is measured."""
_MOST_CUTS: Final = 2
"""Number of times that the time limit may end a step that had :data:`_FAIR_S` before the step counts as failed."""
_FAIR_S: Final = 200.0


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One problem of the suite."""

    name: str
    model: str
    source: str
    """Address of the model's configuration."""
    problem: str
    kv_heads: int | None = None
    seq_kv: int | None = None
    causal: bool = False
    dtype: str = "fp16"
    window: tuple[int, int] | None = None
    softcap: float = 0.0
    sink: bool = False
    lengths: tuple[int, ...] = ()
    note: str = ""

    @property
    def words(self) -> list[str]:
        """The problem as options of ``search`` and ``compare``."""
        values = {"kv-heads": self.kv_heads, "seq-kv": self.seq_kv, "softcap": self.softcap or None}
        lists = {"window": self.window, "lengths": self.lengths}
        words = ["--problem", self.problem, "--dtype", self.dtype]
        words += [word for name, value in values.items() if value is not None for word in (f"--{name}", str(value))]
        words += [word for name, list_ in lists.items() if list_ for word in (f"--{name}", ",".join(map(str, list_)))]
        return words + ["--causal"] * self.causal + ["--sink"] * self.sink

    def build(self) -> Problem:
        """Parses the problem as the command line does.

        Raises:
            ProblemError: It is no problem.
        """
        window = ",".join(map(str, self.window)) if self.window else None
        lengths = ",".join(map(str, self.lengths)) or None
        return ProblemOptions(
            self.problem, self.causal, self.dtype, self.kv_heads, self.seq_kv, window, self.softcap, self.sink,
            lengths=lengths,
        ).build()  # fmt: skip

    @property
    def group(self) -> str:
        """Name of its group in :data:`GROUPS`."""
        problem = self.build()
        if problem.seq_q == 1:
            return "decode"
        return "short" if max(problem.seq_q, problem.seq_kv) <= _SHORT else "long"


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    problems: tuple[Entry, ...]


def read_suite(path: Path) -> tuple[Entry, ...]:
    """Reads the problems of a file.

    Raises:
        FileError: The file is malformed.
        UsageError: It has no problem, or two of one name.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FileError(path, "", f"cannot be read: {error}") from error
    entries = convert_document(document, Suite, path, FileError).problems
    names = [entry.name for entry in entries]
    if len(set(names)) != len(names) or not names:
        raise UsageError(f"{path}: needs problems with distinct names")
    for entry in entries:
        entry.build()
    return entries


class State:
    """Results of finished steps, written to a file after each."""

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self._path = path
        self.document: dict[str, Any] = {"settings": dict(settings), "problems": {}}
        if path.is_file():
            self.document = json.loads(path.read_text(encoding="utf-8"))
        if self.document["settings"] != dict(settings):
            raise UsageError(f"{path} belongs to {self.document['settings']}: give the same options, or another --work")

    def of(self, name: str) -> dict[str, Any]:
        """Steps of a problem."""
        found: dict[str, Any] = self.document["problems"].setdefault(name, {})
        return found

    def done(self, name: str) -> bool:
        """Whether nothing is left to do: both steps have ended, or one failed."""
        steps = self.of(name)
        return any(step.get("why") for step in steps.values()) or all(name in steps for name in STEPS)

    def record(self, name: str, step: str, outcome: common.Outcome) -> None:
        """Stores a step; one that the time limit cut off is left for the next call, but not again and again."""
        cuts = self.of(name).get(f"{step} cut", {"times": 0})["times"] + (outcome.seconds >= _FAIR_S)
        if outcome.cut and cuts < _MOST_CUTS:
            self.of(name)[f"{step} cut"] = {"times": cuts}
        else:
            self.of(name)[step] = {"document": outcome.document, "why": outcome.why, "seconds": outcome.seconds}
            self.of(name)[step]["at"] = datetime.now(UTC).date().isoformat()
        self.save()

    def forget_failures(self) -> None:
        """Removes the steps of problems of which one failed, so that they run again."""
        for steps in self.document["problems"].values():
            if any(step.get("why") for step in steps.values()):
                steps.clear()
        self.save()

    def save(self) -> None:
        write_file(self._path, json.dumps(self.document, indent=1) + "\n")

    def estimate_s(self, step: str) -> float:
        """Median seconds of a step so far."""
        steps = (steps.get(step, {}) for steps in self.document["problems"].values())
        return statistics.median([found["seconds"] for found in steps if found.get("document")] or [_FIRST_ESTIMATE_S])


def commands(entry: Entry, options: argparse.Namespace) -> dict[str, list[str]]:
    """The command of each step."""
    db = ["--db", str(options.work / f"{entry.name}.db")]
    search = ["search", *entry.words, *db, "--device", options.device, "--quiet"]
    search += ["--budget", str(options.budget)] if options.budget else []
    search += ["--cluster", options.cluster] if options.cluster else []
    compare = ["compare", *entry.words, *db, *(["--peers", options.peers] if options.peers else [])]
    return {"search": search, "compare": compare}


def measure(entry: Entry, state: State, options: argparse.Namespace, deadline: common.Deadline) -> bool:
    """Runs the steps of a problem that are left; returns whether the time limit ends the call.

    A search whose leaderboard was lost with its machine runs again before its comparison.
    """
    if "compare" not in state.of(entry.name) and not (options.work / f"{entry.name}.db").is_file():
        state.of(entry.name).pop("search", None)
    for step, words in commands(entry, options).items():
        if step in state.of(entry.name):
            continue
        left_s = deadline.left_s
        if left_s < state.estimate_s(step):
            return True
        outcome = common.run_json(words, min(options.step_limit, left_s))
        if outcome.document is None and outcome.seconds >= left_s:
            outcome = common.Outcome(None, outcome.why, outcome.seconds, cut=True)
        state.record(entry.name, step, outcome)
        if outcome.cut:
            return True
        if outcome.why:
            break
    return False


def row_of(entry: Entry, steps: Mapping[str, Any]) -> dict[str, Any]:
    """One row of the page: times, the best peer and the ratio, or the reason why there is none."""
    why = next((f"{name}: {steps[name]['why']}" for name in STEPS if steps.get(name, {}).get("why")), "")
    search, compare = ((steps.get(name) or {}).get("document") or {} for name in STEPS)
    lines: list[dict[str, Any]] = compare.get("rows", [])
    peers = {line["name"]: line for line in lines if not line["ours"]}
    ours = next((line for line in lines if line["ours"]), {})
    ratio = compare.get("ours_over_best_peer")
    if compare and ours.get("median_us") is None:
        why = why or f"compare: {ours.get('note') or 'no correct kernel of ours'}"
    best = compare.get("best_peer")
    alone = "no peer here does this problem" if compare and not (ratio or why) else ""
    return {
        "name": entry.name,
        "group": entry.group,
        "model": entry.model,
        "source": entry.source,
        "problem": entry.build().key,
        "device": compare.get("device") or search.get("device", ""),
        "at": next((steps[name].get("at", "") for name in reversed(STEPS) if name in steps), ""),
        "predicted_us": (search.get("best") or {}).get("median_us") if search.get("predicted") else None,
        "ours_us": ours.get("median_us"),
        "best_peer": best,
        "best_peer_us": peers[best]["median_us"] if best else None,
        "ratio": ratio,
        "peers_us": {name: line["median_us"] for name, line in peers.items() if line["outcome"] == "ok"},
        "peers_without_time": {
            name: f"{line['outcome']}: {line['note']}" for name, line in peers.items() if line["outcome"] != "ok"
        },
        "config": compare.get("config", ""),
        "candidates": search.get("evaluated"),
        "search_s": (steps.get("search") or {}).get("seconds"),
        "compare_s": (steps.get("compare") or {}).get("seconds"),
        "prepare_s": {line["name"]: line["prepare_s"] for line in lines if "prepare_s" in line},
        "versions": compare.get("versions", {}),
        "note": "; ".join(filter(None, (entry.note, alone))),
        "why": why,
    }


def rows_of_page(path: Path, settings: Mapping[str, object], entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Rows with a time that a page has already, by name; without those of problems that have changed since.

    Raises:
        UsageError: The page was made with other settings.
    """
    if not path.is_file():
        return {}
    document = json.loads(path.read_text(encoding="utf-8"))
    if document["settings"] != dict(settings):
        raise UsageError(f"{path} was made with {document['settings']}: give the same options, or another --page")
    keys = {entry.name: entry.build().key for entry in entries}
    return {
        row["name"]: {"at": document["at"][:10]} | row
        for row in document["problems"]
        if row["ours_us"] is not None and keys.get(row["name"]) == row["problem"]
    }


def geometric_means(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric mean of the ratios of each group that has some."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["ratio"] is not None:
            ratios.setdefault(row["group"], []).append(row["ratio"])
    return {group: statistics.geometric_mean(ratios[group]) for group in GROUPS if group in ratios}


def page(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    means, measured = geometric_means(rows), [row for row in rows if row["ratio"] is not None]
    spent = [sum(row[f"{step}_s"] or 0.0 for step in STEPS) for row in rows]
    timed = sum(seconds > 0 for seconds in spent)
    devices = ", ".join(sorted({row["device"] for row in rows if row["device"]})) or "no device"
    versions = next((row["versions"] for row in rows if row["versions"]), {})
    peers = f"the peers {', '.join(facts['peers'])}" if facts.get("peers") else "all installed peers"
    about = (
        "Each problem was searched by `evoengine search` with its options and a leaderboard of its own, then timed by "
        f"`evoengine compare` beside {peers}. The ratio is our time over that of the fastest correct peer; below 1 "
        f"ours is faster. The configurations are in {facts['suite']}. "
        f"{len(measured)} of {len(rows)} problems have a ratio; "
        f"the steps of {timed} took {sum(spent) / 60:.0f} minutes."
    )
    if facts.get("left"):
        about += f" Not measured yet: {', '.join(facts['left'])}."
    about = textwrap.fill(about, _PAGE_WIDTH, break_on_hyphens=False)
    stated = ", ".join(f"{name} {value}" for name, value in versions.items() if value)
    lines = [
        f"# Attention problems of public models on {devices}",
        "",
        f"{', '.join(filter(None, (facts['at'], stated)))}; `{facts['command']}`.",
        "",
        about,
        "",
        "| group | problems | geometric mean | goal on an H200 | highest ratio | ratios above 1 |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for group, title in GROUPS.items():
        ratios = [row["ratio"] for row in measured if row["group"] == group]
        cells = (
            (f"{means[group]:.3f}", f"{max(ratios):.3f}", str(sum(one > 1 for one in ratios))) if ratios else ("–",) * 3
        )
        lines.append(f"| {title} | {len(ratios)} | {cells[0]} | {GOALS[group]:.2f} | {cells[1]} | {cells[2]} |")
    for group, title in GROUPS.items():
        members = [row for row in rows if row["group"] == group]
        if not members:
            continue
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", _HEAD, "|---|---|---|---:|---|---:|---:|---:|---|"]
        lines += (_line(row, facts["at"][:10]) for row in members)
    return "\n".join(lines) + "\n"


def link_of(suite: Path) -> str:
    """The file as a page of docs/results names it."""
    name = suite.name
    return f"[{name}](../../scripts/measure/{name})" if suite.absolute().parent == SUITE.parent else f"`{name}`"


_PAGE_WIDTH: Final = 125
_HEAD: Final = "| model | problem | GPU | ours, µs | best peer | its µs | ratio | search, s | note |"


def _line(row: Mapping[str, Any], today: str) -> str:
    """One line of the page, with the date if it is not that of the page."""

    def number(value: float | None, form: str = ".2f") -> str:
        return "–" if value is None else format(value, form)

    ours = number(row["ours_us"])
    if row["ours_us"] is None and row["predicted_us"] is not None:
        ours = f"{row['predicted_us']:.2f} predicted"
    others = row["peers_without_time"].items()
    failed = [f"{name} {note}" for name, note in others if not note.startswith("unavailable")]
    earlier = f"of {row['at']}" if row["at"] not in ("", today) else ""
    note = "; ".join(filter(None, (row["why"], row["note"], earlier, *failed))).replace("|", "\\|")
    ratio = number(row["ratio"], ".3f")
    cells = (
        f"[{row['model']}]({row['source']})" if row["source"] else row["model"],
        f"`{row['problem']}`",
        row["device"].removeprefix("NVIDIA ").partition(" ")[0] or "–",
        ours,
        row["best_peer"] or "–",
        number(row["best_peer_us"]),
        f"**{ratio}**" if (row["ratio"] or 2) <= 1 else ratio,
        number(row["search_s"], ".0f"),
        note,
    )
    return f"| {' | '.join(cells)} |"


def chosen(entries: Sequence[Entry], options: argparse.Namespace) -> list[Entry]:
    """The problems of ``--only`` and ``--group``."""
    known = {entry.name for entry in entries}
    unknown = [name for name in options.only or () if name not in known]
    if unknown:
        raise UsageError(f"unknown problem '{unknown[0]}': choose from {', '.join(sorted(known))}")
    return [entry for entry in entries if entry.name in (options.only or known) and options.group in ("", entry.group)]


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--work", type=Path, required=True, help="Folder of the state and the leaderboards.")
    parser.add_argument("--suite", type=Path, default=SUITE, help="File of problems.")
    parser.add_argument("--only", type=common.comma_list, help="Names of problems, with commas between.")
    parser.add_argument("--group", choices=("", *GROUPS), default="", help="Only this group.")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="Seconds for this call.")
    parser.add_argument("--step-limit", type=float, default=400.0, help="Seconds for one search or comparison.")
    parser.add_argument("--device", default="auto", help="Device, as for 'search'.")
    parser.add_argument("--cluster", default="", help="Ray cluster that each search uses, as for 'search'.")
    parser.add_argument("--budget", type=int, help="Candidates per search. [default: that of 'search']")
    parser.add_argument("--peers", default="", help="Peers, as for 'compare'. [default: all]")
    parser.add_argument(
        "--retry", action="store_true", help="Measure problems again whose search or comparison failed."
    )
    parser.add_argument("--page", type=Path, help="Write the page and its data to this path, without a suffix.")
    return parser.parse_args()


def main() -> int:
    options = parse()
    deadline = common.Deadline(options.time_limit)
    entries = read_suite(options.suite)
    options.work.mkdir(parents=True, exist_ok=True)
    settings = {"device": options.device, "budget": options.budget, "peers": options.peers}
    state = State(options.work / "state.json", settings)
    if options.retry:
        state.forget_failures()
    earlier = rows_of_page(options.page.with_suffix(".json"), settings, entries) if options.page else {}
    wanted = chosen(entries, options)
    for entry in wanted:
        if state.done(entry.name) or (entry.name in earlier and entry.name not in (options.only or ())):
            continue
        if measure(entry, state, options, deadline):
            break
        row = row_of(entry, state.of(entry.name))
        beside = f"{row['best_peer']} {row['best_peer_us']:.2f} us: {row['ratio']:.3f}" if row["ratio"] else row["note"]
        said = row["why"] or f"{row['ours_us']:.2f} us, {beside}"
        print(f"{entry.name}: {said}", flush=True)
    measured = earlier | {
        entry.name: row_of(entry, state.of(entry.name)) for entry in entries if state.done(entry.name)
    }
    rows = [measured[entry.name] for entry in entries if entry.name in measured]
    left = [entry.name for entry in entries if entry.name not in measured]
    if options.page is not None:
        facts: dict[str, Any] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "scripts/measure/models.py",
        }
        facts |= {"settings": settings, "peers": options.peers.split(",") if options.peers else []}
        facts |= {"suite": link_of(options.suite), "left": left, "means": geometric_means(rows)}
        options.page.parent.mkdir(parents=True, exist_ok=True)
        write_file(options.page.with_suffix(".json"), json.dumps(facts | {"problems": rows}, indent=1) + "\n")
        write_file(options.page.with_suffix(".md"), page(rows, facts))
    print(f"{len(rows)} of {len(entries)} problems are measured" + (f", left: {', '.join(left)}" if left else ""))
    return int(any(entry.name in left for entry in wanted))


if __name__ == "__main__":
    common.run(main)
