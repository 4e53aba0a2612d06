"""The page and the chart of ``strategy_benchmark.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH: Final = 900
_HEIGHT: Final = 420
_LEFT: Final = 60
_RIGHT: Final = 250
_TOP: Final = 40
_BOTTOM: Final = 40
_LOWEST: Final = 0.7
"""Shares of the optimum below this one are at the chart's edge."""
_COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")
_TUNED: Final[dict[bool | None, str]] = {
    None: "",
    False: " The settings of evolution were chosen with this landscape in view.",
    True: " Held out: nobody looked at this landscape when the settings of evolution were chosen.",
}
_LABELS: Final = {"evoengine": "", "kernel_tuner": "KT "}


def page(report: dict[str, Any]) -> str:
    """The Markdown page."""
    return "\n".join(_lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Strategies on {len(report['landscapes'])} landscape{'s' * (len(report['landscapes']) > 1)}"
    yield ""
    yield f"{report['seeds']} seeds a strategy. Command:"
    yield ""
    yield f"    {report['command']}"
    if report["lag"]:
        yield ""
        yield f"Each proposal of EvoEngine's was made without the latest {report['lag']} outcomes."
    if report["noise"] or report["drift"]:
        yield ""
        yield f"Strategies were told times with noise {report['noise']:g} and drift {report['drift']:g}."
    if report["kernel_tuner"]:
        yield ""
        yield f"Kernel Tuner's strategies (KT) were left out: {report['kernel_tuner']}."
    yield ""
    yield from _goals(report)
    if report["chart"]:
        yield ""
        yield f"![The median of the best so far over evaluations, for every strategy]({report['chart']})"
    for landscape in report["landscapes"]:
        yield ""
        yield from _table(landscape, report["budgets"], report["seeds"])


def _table(landscape: dict[str, Any], budgets: list[int], seeds: int) -> Iterator[str]:
    said = "predicted for" if landscape["predicted"] else "measured on"
    yield f"## {landscape['name']}"
    yield ""
    yield f"{landscape['problem'] or 'a foreign kernel'}, {said} {landscape['device']}, landscape {landscape['key']}:"
    yield f"{landscape['configs']:,} configs, optimum {landscape['optimum_us']:.4g} µs.{_TUNED[landscape['held_out']]}"
    yield ""
    yield "Best so far as a share of the optimum, median (lower quartile); evaluations until near it, median and share"
    yield "of the runs that came there at all:"
    yield ""
    heads = [f"after {budget}" for budget in budgets] + ["to within 5 %", "2 %", "0.5 %", "CPU ms an evaluation"]
    yield f"| strategy | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for strategy in landscape["strategies"]:
        shares = [strategy["shares"][str(budget)] for budget in budgets]
        cells = [f"{median:.3f} ({low:.3f})" for low, median, _ in shares]
        for near in ("0.05", "0.02", "0.005"):
            median, reached = strategy["evaluations"][near][1], strategy["reached"][near]
            cells.append(f"{'never' if median is None else median} ({reached:.0%})")
        cells.append(f"{1e3 * strategy['seconds_per_run'] / budgets[-1]:.1f}")
        yield f"| {_label(strategy)}{_fewer(strategy, seeds)} | {' | '.join(cells)} |"


def _goals(report: dict[str, Any]) -> Iterator[str]:
    """What is asked of the default strategy, and whether it holds."""
    yield "The optimum is the least recorded median, and recorded medians are what a strategy is told. BoundCall of"
    yield "evolution, in the median over the seeds: at most 2 % above the optimum after 100 evaluations; to within 5 %"
    yield "of it, at most half the evaluations of random search and no more than Kernel Tuner's best strategy (KT)."
    yield ""
    yield "| landscape | after 100 | evolution to 5 % | random to 5 % | ratio | best of KT to 5 % | held |"
    yield "|---|---|---|---|---|---|---|"
    for landscape in report["landscapes"]:
        by_name = {(one["tuner"], one["strategy"]): one for one in landscape["strategies"]}
        own, rival = by_name.get(("evoengine", "evolution")), by_name.get(("evoengine", "random"))
        if own is not None and rival is not None and 100 in report["budgets"]:
            foreign = [one for one in landscape["strategies"] if one["tuner"] == "kernel_tuner"]
            name = f"{landscape['name']}{', held out' if landscape['held_out'] else ''}"
            yield f"| {name} | {' | '.join(_goals_of(own, rival, foreign, report['seeds']))} |"


def _goals_of(own: dict[str, Any], rival: dict[str, Any], foreign: list[dict[str, Any]], seeds: int) -> Iterator[str]:
    above, needed, rivals = 1 / own["shares"]["100"][1] - 1, _needed(own), _needed(rival)
    best = min(foreign, key=_needed, default=None)
    held = [above <= 0.02, needed < float("inf") and needed <= rivals / 2]
    yield f"{above:.1%}"
    yield _count(needed)
    yield _count(rivals)
    yield "" if float("inf") in (needed, rivals) else f"{needed / rivals:.2f}"
    if best is None:
        yield "not run"
    else:
        held.append(needed < float("inf") and needed <= _needed(best))
        yield f"{_count(_needed(best))}, {best['strategy']}{_fewer(best, seeds)}"
    yield "yes" if all(held) else "no"


def _count(evaluations: float) -> str:
    return "never" if evaluations == float("inf") else f"{evaluations:g}"


def _needed(strategy: dict[str, Any]) -> float:
    median = strategy["evaluations"]["0.05"][1]
    return float("inf") if median is None else float(median)


def _fewer(strategy: dict[str, Any], seeds: int) -> str:
    return "" if strategy["seeds"] == seeds else f" ({strategy['seeds']} seeds)"


def _label(strategy: dict[str, Any]) -> str:
    return f"{_LABELS[strategy['tuner']]}{strategy['strategy']}"


def chart(report: dict[str, Any]) -> str:
    """An SVG with one chart per landscape: the median of the best so far, over evaluations."""
    landscapes = report["landscapes"]
    box = f"0 0 {_WIDTH} {_HEIGHT * len(landscapes)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, landscape in enumerate(landscapes):
        parts.append(f'<g transform="translate(0 {number * _HEIGHT})">')
        parts.extend(_panel(landscape, report["budgets"][-1]))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"])


def _panel(landscape: dict[str, Any], budget: int) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    title = f"{landscape['name']}: best so far as a share of the optimum, median over seeds"
    yield f'<text x="{_LEFT}" y="{_TOP - 15}" font-size="14">{escape(title)}</text>'
    for step in range(6):
        share = _LOWEST + (1 - _LOWEST) * step / 5
        y = _y(share)
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>'
        count = max(1, round(budget * step / 5))
        yield f'<text x="{_x(count, budget):.1f}" y="{bottom + 18}" text-anchor="middle">{count}</text>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{bottom + 34}" text-anchor="middle">evaluations</text>'
    for place, strategy in enumerate(landscape["strategies"]):
        colour = _COLOURS[place % len(_COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if strategy["tuner"] == "kernel_tuner" else ""
        line = f'stroke="{colour}" stroke-width="1.8"{dashes}'
        points = " ".join(f"{_x(n, budget):.1f},{_y(share):.1f}" for n, share in _corners(strategy["curve"]))
        yield f'<polyline points="{points}" fill="none" {line}/>'
        y = _TOP + 12 + 18 * place
        yield f'<line x1="{right + 15}" x2="{right + 45}" y1="{y}" y2="{y}" {line}/>'
        yield f'<text x="{right + 52}" y="{y + 4}">{escape(_label(strategy))}</text>'


def _corners(curve: list[float]) -> Iterator[tuple[int, float]]:
    """The points of a curve without those on a level line between two others."""
    for place, share in enumerate(curve):
        if not 0 < place < len(curve) - 1 or not curve[place - 1] == share == curve[place + 1]:
            yield place + 1, share


def _x(count: int, budget: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (count - 1) / max(1, budget - 1)


def _y(share: float) -> float:
    above = max(0.0, share - _LOWEST) / (1 - _LOWEST)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * above
