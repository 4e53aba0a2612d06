"""The report as a chart: the median of the best so far over evaluations, one panel per landscape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from strategies.tasks import KERNEL_TUNER, OURS

_WIDTH: Final = 330
_HEIGHT: Final = 230
_COLUMNS: Final = 3
_LEFT: Final = 38
_RIGHT: Final = 8
_TOP: Final = 24
_BOTTOM: Final = 62
_LOWEST: Final = 0.5
"""Lower end of the axis, as a share of the optimum."""
_COLOURS: Final = ("#d62728", "#7f7f7f", "#1f77b4", "#2ca02c", "#9467bd")


def chart(report: dict[str, Any]) -> str:
    """Returns SVG with evolution, random, and the best strategy of Kernel Tuner and of the other peers, at lag 0."""
    landscapes = report["landscapes"]
    lines = -(-len(landscapes) // _COLUMNS)
    box = f"0 0 {_WIDTH * min(_COLUMNS, len(landscapes))} {_HEIGHT * lines}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, landscape in enumerate(landscapes):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts.extend(_panel(landscape, report["budget"], several=len(report["judged"]) > 1))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"])


def charted(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the entries of a landscape that its panel shows."""
    now = [entry for entry in entries if entry["lag"] == 0]
    ours = [e for e in now if e["tuner"] == OURS and e["strategy"] in ("evolution", "random")]
    kinds = ([e for e in now if (e["tuner"] == KERNEL_TUNER) is kt and e["tuner"] != OURS] for kt in (True, False))
    return ours + [max(kind, key=lambda entry: float(entry["auc"][1])) for kind in kinds if kind]


def _panel(landscape: dict[str, Any], budget: int, *, several: bool) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    yield f'<text x="{_LEFT}" y="{_TOP - 8}" font-size="11">{escape(landscape["name"])}</text>'
    for step in range(6):
        share = _LOWEST + (1 - _LOWEST) * step / 5
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 4}" y="{_y(share) + 3:.1f}" text-anchor="end">{share:.1f}</text>'
        count = max(1, round(budget * step / 5))
        yield f'<text x="{_x(count, budget):.1f}" y="{bottom + 13}" text-anchor="middle">{count}</text>'
    for place, entry in enumerate(charted(landscape["entries"])):
        colour = _COLOURS[place % len(_COLOURS)]
        points = " ".join(f"{_x(n, budget):.0f},{_y(share):.1f}" for n, share in _corners(entry["curve"]))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        name = f"{'KT ' if entry['tuner'] == KERNEL_TUNER else ''}{entry['strategy']} {entry['order']}".strip()
        name += f" {entry['commit']}" if several and entry["commit"] else ""
        x, y = _LEFT + place % 2 * (_WIDTH - _LEFT) / 2, bottom + 30 + place // 2 * 14
        yield f'<line x1="{x}" x2="{x + 14}" y1="{y - 3}" y2="{y - 3}" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x + 18}" y="{y}" font-size="9">{escape(name)}</text>'


def _corners(curve: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yields the points of a curve, without the inner points of constant stretches."""
    for place, share in enumerate(curve):
        if not 0 < place < len(curve) - 1 or not curve[place - 1] == share == curve[place + 1]:
            yield place + 1, share


def _x(count: int, budget: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (count - 1) / max(1, budget - 1)


def _y(share: float) -> float:
    above = max(0.0, share - _LOWEST) / (1 - _LOWEST)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * above
