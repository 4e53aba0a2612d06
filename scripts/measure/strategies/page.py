"""The report as a page in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, geometric_mean
from typing import Any, Final

from strategies.report import JUDGED, LEAST_SEEDS
from strategies.tasks import KERNEL_TUNER, OURS, OWN_ORDER, SEEN

_SHOWN: Final = 8
"""Peers that the table of a landscape shows."""
_LEVEL: Final = 0.05
_COMMAND_WIDTH: Final = 110
_METHOD: Final = """\
Landscapes `KERNEL-DEVICE` of other kernels are public results, `KERNEL/DEVICE.json.gz` below `cachefiles` or
`currently_unused/cachefiles` of AutoTuningAssociation/benchmark_hub (MIT) at commit 8eeb99e7, converted by
`evoengine landscape import`. The others are in `landscapes`, `failing` and `predicted` beside this page.

An evaluation is one config, correct or not; none is evaluated twice. A failed config counts as an evaluation and has no
time. All strategies of one landscape search the same recorded configs, and receive recorded times.

- **To 5 %, to 2 %**: evaluations until the best is at most 5 or 2 % above the least recorded time: median over the
  seeds, and quartiles in brackets.
- **AUC**: the optimum's time over the best time so far, averaged over all evaluations up to the budget; 1 is best. It
  is 0 until the first correct config. A strategy that stops early keeps its last value.
- **p**: two-sided Mann–Whitney test of the AUCs of `evolution` and of the best peer, the one with the largest median
  AUC on that landscape at that lag. This peer is chosen after the fact from all strategies of all tuners in all
  orders, and may have few seeds, which favours the peers. *Better* is the probability that a run of `evolution` has the
  larger AUC than one of that peer.
- **Lag** N: a strategy makes N further proposals before the result of the first one returns, as in a search with
  several compilers. On the emulator the lag of a search is twice the number of candidates in flight, 68 with 16 cores.
  On a GPU a proposal lacks about as many outcomes as candidates are in flight, 30 with 16 compilers.
- **Half**: constants may be tuned on a landscape if the first byte of its name's SHA-256 is even, and are judged on the
  others. *Seen*: earlier versions of `evolution` were tuned on it before the landscapes were halved, or, as for
  `hopper-failing-h200` and `mma-failing-h200`, on predicted times of nearly the same configs (of `mma`, for a smaller
  problem on an L4).

`evolution`, `tpe`, `cmaes` and `random` are EvoEngine's. Optuna's samplers (TPE multivariate with a constant liar, GP,
CMA-ES; else defaults) and `gp-ei`, a plain Gaussian process with expected improvement over all configs, run through the
same ask, tell and repair: a proposal that is invalid or was made before becomes the nearest unseen valid config, and
the sampler is given the config that was evaluated.

Kernel Tuner (KT) runs in its own simulation with default settings, and repairs its proposals itself. It is told the
budget that it is judged at. Its strategies have no lag: they cannot be asked ahead. Configs are in its own order, in
which its solver builds the space, and in two shuffled ones. Python's and NumPy's generators and the Latin hypercube
are seeded; Kernel Tuner itself leaves the last one unseeded. Every run then follows from its seed, except those of
`bayes_opt`, which after its first 20 configs chooses between equal predictions by rounding errors."""


def page(report: dict[str, Any]) -> str:
    """Returns the page."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    landscapes = report["landscapes"]
    yield f"# Search strategies on {len(landscapes)} landscape{'s' * (len(landscapes) > 1)}"
    yield ""
    yield f"{report['budget']} evaluations, up to {report['seeds']} seeds; rows with fewer seeds state them."
    yield f"Strategies with fewer than {LEAST_SEEDS} runs on a landscape are left out there."
    for judged in report["judged"]:
        yield ""
        yield f"EvoEngine at commit {judged['commit']}, {judged['date']}:"
        yield ""
        words = textwrap.wrap(judged["command"], _COMMAND_WIDTH, break_long_words=False, break_on_hyphens=False)
        yield " \\\n".join(f"    {line}" for line in words)
    if report["left_out"]:
        yield ""
        yield f"Kernel Tuner's strategies are left out: {report['left_out']}."
    yield ""
    yield from _METHOD.splitlines()
    yield ""
    yield from _landscape_table(landscapes)
    commits = [judged["commit"] for judged in report["judged"]]
    for half, held_out in (("Judging", True), ("Tuning", False)):
        part = [one for one in landscapes if one["held_out"] is held_out]
        if part:
            yield ""
            yield f"## {half} half"
            for lag in report["lags"]:
                yield ""
                yield from _comparison_table(part, commits, lag, report)
            yield ""
            yield from _mean_table(part, commits, report["budget"])
    if report["chart"]:
        yield ""
        yield f"![Median of the best so far over evaluations]({report['chart']})"
    for landscape in landscapes:
        yield ""
        yield from _details(landscape, commits, report)


def _landscape_table(landscapes: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "## Landscapes"
    yield ""
    yield "| landscape | half | configs | failing | optimum, µs | device |"
    yield "|---|---|---|---|---|---|"
    for one in landscapes:
        half = ("judging" if one["held_out"] else "tuning") + (", seen" if one["name"] in SEEN else "")
        device = f"{one['device'] or 'not stated'}{', predicted' if one['predicted'] else ''}"
        cells = [one["name"], half, f"{one['configs']:,}", f"{one['failed']:.1%}", f"{one['optimum_us']:,.5g}", device]
        yield f"| {' | '.join(cells)} |"


def _comparison_table(
    landscapes: Sequence[dict[str, Any]], commits: Sequence[str], lag: int, report: dict[str, Any]
) -> Iterator[str]:
    budget, seeds = report["budget"], report["seeds"]
    yield f"### Lag {lag}"
    yield ""
    names = [JUDGED if len(commits) == 1 else f"{JUDGED} {commit}" for commit in commits]
    yield f"| landscape | best peer | to 5 % | AUC | {' | '.join(f'{n} to 5 % | AUC | better | p' for n in names)} |"
    yield f"|{'---|' * (4 + 4 * len(commits))}"
    shown = [(one, compared) for one in landscapes for compared in one["comparisons"] if compared["lag"] == lag]
    for one, compared in shown:
        tuner, strategy, order = compared["peer"]
        peer = _find(one, tuner, strategy, order, lag)
        cells = [one["name"], _label(peer, seeds), _count(peer, budget), f"{peer['auc'][1]:.3f}"]
        tested = {judged["commit"]: judged for judged in compared["judged"]}
        for commit in commits:
            if commit in tested:
                own, test = _find(one, OURS, JUDGED, "", lag, commit), tested[commit]
                cells += [_count(own, budget) + _fewer(own, seeds), f"{own['auc'][1]:.3f}"]
                cells += [f"{test['better']:.2f}", f"{test['p']:g}"]
            else:
                cells += [""] * 4
        yield f"| {' | '.join(cells)} |"
    for commit, name in zip(commits, names, strict=True):
        if lines := list(_summary(shown, commit, name, lag, budget)):
            yield ""
            yield from lines


def _summary(shown: Sequence[tuple[Any, Any]], commit: str, name: str, lag: int, budget: int) -> Iterator[str]:
    """Yields how the judged strategy of a commit compares with the peers on the landscapes of a table."""
    tests = [(one, compared, judged) for one, compared in shown for judged in compared["judged"]]
    found = [(one, compared, judged) for one, compared, judged in tests if judged["commit"] == commit]
    if not found:
        return
    verdicts = [_verdict(judged) for _, _, judged in found]
    counts = ", ".join(f"{verdict} on {verdicts.count(verdict)}" for verdict in ("ahead", "not different", "behind"))
    yield f"- {name} against the best peer by AUC: {counts} (p < {_LEVEL})."
    own = [(_find(one, OURS, JUDGED, "", lag, commit), compared) for one, compared, _ in found]
    pairs = [(entry["evaluations"]["0.05"][1], compared["fewest"]) for entry, compared in own]
    fewer = sum(ours is not None and (theirs is None or ours < theirs) for ours, theirs in pairs)
    ratios = [((ours or budget + 1) / theirs, ours is None) for ours, theirs in pairs if theirs is not None]
    worst = ""
    if ratios:
        ratio, never = max(ratios)
        worst = f"; at worst {'more than ' * never}{ratio:.2g} times the fewest of any peer"
    yield f"- Fewer evaluations to 5 % than every peer: on {fewer} of {len(pairs)} landscapes{worst}."
    within = fmean(entry["within_2_percent"] for entry, _ in own)
    yield f"- Within 2 % at the end: {within:.0%} of the runs."


def _verdict(compared: dict[str, Any]) -> str:
    if compared["p"] >= _LEVEL:
        return "not different"
    return "ahead" if compared["better"] > 0.5 else "behind"


def _mean_table(landscapes: Sequence[dict[str, Any]], commits: Sequence[str], budget: int) -> Iterator[str]:
    """Yields one line per strategy and lag: its averages over landscapes."""
    yield "### All strategies"
    yield ""
    yield "Averages over the landscapes: median AUC, median evaluations to 5 % (geometric mean; one above the budget"
    yield f"counts as {2 * budget}), share of the runs within 2 % of the optimum at the end, CPU time."
    yield ""
    yield "| strategy | lag | seeds | AUC | to 5 % | within 2 % | CPU ms per evaluation |"
    yield "|---|---|---|---|---|---|---|"
    keys = dict.fromkeys(_key(entry) for one in landscapes for entry in one["entries"])
    rows = []
    for key in keys:
        found = [entry for one in landscapes for entry in one["entries"] if _key(entry) == key]
        area = fmean(entry["auc"][1] for entry in found)
        within = fmean(entry["within_2_percent"] for entry in found)
        cpu = fmean(entry["cpu_ms_per_evaluation"] for entry in found)
        needed = geometric_mean(entry["evaluations"]["0.05"][1] or 2 * budget for entry in found)
        name = _name(found[0], commits)
        name += "" if len(found) == len(landscapes) else f" ({len(found)} landscapes)"
        runs = {min(entry["seeds"] for entry in found), max(entry["seeds"] for entry in found)}
        count = "–".join(map(str, sorted(runs)))
        rows.append((area, f"| {name} | {key[3]} | {count} | {area:.3f} | {needed:.0f} | {within:.0%} | {cpu:.1f} |"))
    yield from (line for _, line in sorted(rows, key=lambda row: -row[0]))


def _details(landscape: dict[str, Any], commits: Sequence[str], report: dict[str, Any]) -> Iterator[str]:
    budget, seeds = report["budget"], report["seeds"]
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
        cells = [_label(entry, seeds, commits), _count(entry, budget), _count(entry, budget, "0.02")]
        cells += [f"{median:.3f} [{low:.3f}–{high:.3f}]", f"{entry['within_2_percent']:.0%}"]
        yield f"| {' | '.join(cells)} | {entry['cpu_ms_per_evaluation']:.1f} |"


def _find(
    landscape: dict[str, Any], tuner: str, strategy: str, order: str, lag: int, commit: str = ""
) -> dict[str, Any]:
    key = (tuner, strategy, order, lag, commit)
    return next(entry for entry in landscape["entries"] if _key(entry) == key)


def _key(entry: dict[str, Any]) -> tuple[str, str, str, int, str]:
    return entry["tuner"], entry["strategy"], entry["order"], entry["lag"], entry["commit"]


def _name(entry: dict[str, Any], commits: Sequence[str] = ()) -> str:
    tuner = "KT " if entry["tuner"] == KERNEL_TUNER else ""
    order = f", {entry['order']}" if entry["order"] not in ("", OWN_ORDER) else ""
    commit = f" {entry['commit']}" if len(commits) > 1 and entry["commit"] else ""
    return f"{tuner}{entry['strategy']}{order}{commit}"


def _label(entry: dict[str, Any], seeds: int, commits: Sequence[str] = ()) -> str:
    return _name(entry, commits) + _fewer(entry, seeds)


def _fewer(entry: dict[str, Any], seeds: int) -> str:
    return "" if entry["seeds"] == seeds else f" ({entry['seeds']} seeds)"


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
