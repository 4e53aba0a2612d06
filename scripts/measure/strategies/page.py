"""The report as a page in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any, Final

from strategies.report import JUDGED
from strategies.tasks import KERNEL_TUNER, OURS, OWN_ORDER

_SHOWN: Final = 8
"""Peers that the table of a landscape shows."""
_LEVEL: Final = 0.05
_METHOD: Final = """\
An evaluation is one config, correct or not; none is evaluated twice. A failed config counts as an evaluation and has no
time. All strategies of one landscape search the same recorded configs, and receive recorded medians.

- **To 5 %, to 2 %**: evaluations until the best is at most 5 or 2 % above the least recorded median: median over the
  seeds, and quartiles in brackets.
- **AUC**: the optimum's time over the best time so far, averaged over all evaluations up to the budget; 1 is best. It
  is 0 until the first correct config.
- **p**: two-sided Mann–Whitney test of the AUCs of `evolution` and of the best peer, the one with the largest median
  AUC on that landscape at that lag. This peer is chosen after the fact from all strategies of all tuners in all
  orders, which favours the peers. *Better* is the probability that a run of `evolution` has the larger AUC than one of
  that peer.
- **Lag** N: a strategy makes N further proposals before the result of the first one returns, as in a search with
  several compilers. A search with 16 compilers has a lag of 46.
- **Half**: constants may be tuned on a landscape whose name has an even SHA-256, and are judged on the others.

`evolution`, `tpe`, `cmaes` and `random` are EvoEngine's. Optuna's samplers (TPE multivariate with a constant liar, GP,
CMA-ES; else defaults) and `gp-ei`, a plain Gaussian process with expected improvement over all configs, run through the
same ask, tell and repair: a proposal that is invalid or was made before becomes the nearest unseen valid config, and
the sampler is given the config that was evaluated.

Kernel Tuner (KT) runs in its own simulation with default settings, and repairs its proposals itself. It is told the
budget that it is judged at. Its strategies have no lag: they cannot be asked ahead. Configs are in its own order, in
which its solver builds the space, and in two shuffled ones. Python's and NumPy's generators and the Latin hypercube
are seeded (Kernel Tuner itself leaves the last one unseeded), so that every run follows from its seed."""


def page(report: dict[str, Any]) -> str:
    """Returns the page."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    landscapes = report["landscapes"]
    yield f"# Search strategies on {len(landscapes)} landscape{'s' * (len(landscapes) > 1)}"
    yield ""
    yield f"EvoEngine at commit {report['commit']}, {report['date']}. {report['budget']} evaluations, up to"
    yield f"{report['seeds']} seeds; rows with fewer name them. Command:"
    yield ""
    yield f"    {report['command']}"
    if report["left_out"]:
        yield ""
        yield f"Kernel Tuner's strategies are left out: {report['left_out']}."
    yield ""
    yield from _METHOD.splitlines()
    yield ""
    yield from _landscape_table(landscapes)
    for lag in report["lags"]:
        yield ""
        yield from _comparison_table(landscapes, lag, report["budget"], report["seeds"])
    yield ""
    yield from _mean_table(landscapes)
    if report["chart"]:
        yield ""
        yield f"![Median of the best so far over evaluations]({report['chart']})"
    for landscape in landscapes:
        yield ""
        yield from _details(landscape, report["budget"], report["seeds"])


def _landscape_table(landscapes: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Landscapes"
    yield ""
    yield "| landscape | half | configs | failing | optimum, µs | device |"
    yield "|---|---|---|---|---|---|"
    for one in landscapes:
        half = "judging" if one["held_out"] else "tuning"
        device = f"{one['device'] or 'not stated'}{', predicted' if one['predicted'] else ''}"
        cells = [one["name"], half, f"{one['configs']:,}", f"{one['failed']:.1%}", f"{one['optimum_us']:.4g}", device]
        yield f"| {' | '.join(cells)} |"


def _comparison_table(landscapes: Sequence[dict[str, Any]], lag: int, budget: int, seeds: int) -> Iterator[str]:
    yield f"## evolution and its best peer, lag {lag}"
    yield ""
    yield "| landscape | half | evolution to 5 % | AUC | best peer | to 5 % | AUC | better | p |"
    yield "|---|---|---|---|---|---|---|---|---|"
    verdicts: dict[str, list[str]] = {"tuning": [], "judging": []}
    for one in landscapes:
        for compared in one["comparisons"]:
            if compared["lag"] != lag:
                continue
            own = _find(one, OURS, JUDGED, "", lag)
            tuner, strategy, order = compared["peer"]
            peer = _find(one, tuner, strategy, order, lag)
            half = "judging" if one["held_out"] else "tuning"
            verdicts[half].append(_verdict(compared))
            cells = [one["name"], half, _count(own, budget), f"{own['auc'][1]:.3f}", _label(peer, seeds)]
            cells += [_count(peer, budget), f"{peer['auc'][1]:.3f}", f"{compared['better']:.2f}", f"{compared['p']:g}"]
            yield f"| {' | '.join(cells)} |"
    yield ""
    for half, found in verdicts.items():
        if found:
            counts = ", ".join(f"{name} on {found.count(name)}" for name in ("ahead", "not different", "behind"))
            yield f"- {half} half: `{JUDGED}` is {counts} (p < {_LEVEL})."


def _verdict(compared: dict[str, Any]) -> str:
    if compared["p"] >= _LEVEL:
        return "not different"
    return "ahead" if compared["better"] > 0.5 else "behind"


def _mean_table(landscapes: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields one line per strategy and lag: its median AUC, averaged over the landscapes of each half."""
    yield "## All strategies"
    yield ""
    yield "Median AUC of a landscape, averaged over the landscapes of the half, the share of runs within 2 % of the"
    yield "optimum at the end, averaged over all, and CPU time per evaluation. Sorted by the judging half."
    yield ""
    yield "| strategy | lag | AUC, judging | AUC, tuning | within 2 % | CPU ms per evaluation |"
    yield "|---|---|---|---|---|---|"
    keys = dict.fromkeys(_key(entry) for one in landscapes for entry in one["entries"])
    rows = []
    for key in keys:
        found = [(one["held_out"], entry) for one in landscapes for entry in one["entries"] if _key(entry) == key]
        judged = [entry["auc"][1] for held_out, entry in found if held_out]
        tuned = [entry["auc"][1] for held_out, entry in found if not held_out]
        within = fmean(entry["within_2_percent"] for _, entry in found)
        cpu = fmean(entry["cpu_ms_per_evaluation"] for _, entry in found)
        whole = len(found) == len(landscapes)
        name = _label(found[0][1], found[0][1]["seeds"]) + ("" if whole else f" ({len(found)} landscapes)")
        rows.append(
            (_mean(judged), f"| {name} | {key[3]} | {_text(judged)} | {_text(tuned)} | {within:.0%} | {cpu:.1f} |")
        )
    yield from (line for _, line in sorted(rows, key=lambda row: -row[0]))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _text(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" if values else ""


def _details(landscape: dict[str, Any], budget: int, seeds: int) -> Iterator[str]:
    yield f"## {landscape['name']}"
    yield ""
    yield f"EvoEngine's strategies and the {_SHOWN} best peers at lag 0; the JSON file has all."
    yield ""
    yield "| strategy | to 5 % | to 2 % | AUC [quartiles] | within 2 % | CPU ms per evaluation |"
    yield "|---|---|---|---|---|---|"
    entries = [entry for entry in landscape["entries"] if entry["lag"] == 0]
    ours = [entry for entry in entries if entry["tuner"] == OURS]
    peers = sorted((e for e in entries if e["tuner"] != OURS), key=lambda e: -float(e["auc"][1]))[:_SHOWN]
    for entry in (*ours, *peers):
        low, median, high = entry["auc"]
        cells = [_label(entry, seeds), _count(entry, budget), _count(entry, budget, "0.02")]
        cells += [f"{median:.3f} [{low:.3f}–{high:.3f}]", f"{entry['within_2_percent']:.0%}"]
        yield f"| {' | '.join(cells)} | {entry['cpu_ms_per_evaluation']:.1f} |"


def _find(landscape: dict[str, Any], tuner: str, strategy: str, order: str, lag: int) -> dict[str, Any]:
    key = (tuner, strategy, order, lag)
    return next(entry for entry in landscape["entries"] if _key(entry) == key)


def _key(entry: dict[str, Any]) -> tuple[str, str, str, int]:
    return entry["tuner"], entry["strategy"], entry["order"], entry["lag"]


def _label(entry: dict[str, Any], seeds: int) -> str:
    tuner = "KT " if entry["tuner"] == KERNEL_TUNER else ""
    order = f", {entry['order']}" if entry["order"] not in ("", OWN_ORDER) else ""
    fewer = "" if entry["seeds"] == seeds else f" ({entry['seeds']} seeds)"
    return f"{tuner}{entry['strategy']}{order}{fewer}"


def _count(entry: dict[str, Any], budget: int, near: str = "0.05") -> str:
    low, median, high = (_number(value, budget) for value in entry["evaluations"][near])
    return f"{median} [{low}–{high}]"


def _number(value: float | None, budget: int) -> str:
    return f">{budget}" if value is None else f"{value:g}"


def command_line(words: Iterable[str]) -> Iterator[str]:
    """Yields the words of the command without folders of this machine, or options that do not change the results."""
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--cache", "--jobs"):
            skip = True
        elif not word.startswith(("--cache=", "--jobs=", "--cached-only")):
            yield word.rsplit("/", 1)[-1] if word.endswith(".landscape.xz") else word
