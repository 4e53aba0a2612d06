"""Tables of a study: champion history, lineage, ranking."""

from __future__ import annotations

from collections.abc import Sequence

from evoengine.leaderboard.lineage import changes
from evoengine.leaderboard.records import Challenge, Row
from evoengine.report.facts import StudyFacts, reigns
from evoengine.report.figure import Table, number


def history_table(facts: StudyFacts) -> Table:
    """Returns the champions of the scope, oldest first, numbered as in the plot."""
    rows = []
    for place, reign in enumerate(reigns(facts), 1):
        row = reign.row
        before = "–" if reign.before is None else f"row {reign.before.id}"
        evidence = _evidence(reign.challenge, predicted=facts.predicted)
        changed = "; ".join(reign.changed) or "–"
        rows.append((str(place), f"row {row.id}", number(row.median_us), before, evidence, changed))
    head = ("#", "champion", f"time, {facts.unit}", "replaced", "evidence", "changes")
    return Table(head, rows, frozenset({0, 2}))


def variants_table(facts: StudyFacts) -> Table:
    """Returns the trees of variants of the study's families, parents before their children."""
    rows = []
    for tree in facts.variants:
        for depth, node in tree.walk():
            made = " with ".join((node.operator, *node.other_parents)) or "–"
            row = "–" if node.row_id is None else str(node.row_id)
            rows.append(
                (
                    f"{'· ' * depth}{node.name}",
                    number(node.time_us),
                    row,
                    made,
                    node.summary or "–",
                    node.failure or "–",
                )
            )
    head = ("family or variant", f"best time, {facts.unit}", "row", "operator", "change", "rejected")
    return Table(head, rows, frozenset({1, 2}))


def _evidence(challenge: Challenge, *, predicted: bool) -> str:
    duel = challenge.duel
    led = "; led, but its inspection was not completed" if challenge.pending else ""
    if duel is None:
        return f"first correct kernel{led}"
    if predicted:
        return f"{duel.gain:.1%} less time (predicted){led}"
    pairs = len(duel.challenger_us)
    return f"{duel.gain:.1%} less time in {pairs} fresh pairs, at least {duel.low_gain:.1%} with 95 % confidence{led}"


def elites_table(facts: StudyFacts) -> Table:
    """Returns the ranking of the scope."""
    head = ("rank", "row", "family", f"time, {facts.unit}", "speed-up", "registers", "shared memory", "config")
    rows = [
        (
            f"{number(row.rank, 'd')}{' ★' if row.champion else ''}",
            str(row.id),
            row.family,
            number(row.median_us),
            "–" if row.speedup is None else f"{row.speedup:.2f}×",
            number(row.registers, "d"),
            "–" if row.smem_bytes is None else f"{row.smem_bytes / 1024:.0f} KiB",
            _config(row, facts.elites),
        )
        for row in facts.elites
    ]
    return Table(head, rows, frozenset({0, 1, 3, 4, 5, 6}))


def _config(row: Row, elites: Sequence[Row]) -> str:
    """Returns a config; only its differences from the first row of the family, if that is another one."""
    first = next(one for one in elites if one.family == row.family)
    if row.id != first.id:
        return f"as rank {first.rank}, but {', '.join(changes(first, row)) or 'built differently'}"
    return " ".join(f"{name}={value}" for name, value in row.config.items())


def lineage_table(facts: StudyFacts) -> Table:
    """Returns the champion and its ancestors; no rows if the search did not record them."""
    kin = () if facts.champion is None else facts.champion.lineage
    by_id = {one.id: one for one in kin}
    rows = [
        (
            f"row {one.id}",
            str(one.generation),
            number(one.median_us),
            one.origin,
            "; ".join(changes(by_id[one.parents[0]], one)) if one.parents else "–",
        )
        for one in kin
        if one.origin
    ]
    head = ("row", "generations back", f"time, {facts.unit}", "move", "changes")
    return Table(head, rows, frozenset({1, 2}))
