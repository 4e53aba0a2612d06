"""Table of the elites' hardware counters: limiting unit, utilisation, stall causes."""

from __future__ import annotations

from evoengine.device.tools.bottleneck import Diagnosis, diagnose, longest
from evoengine.report.facts import StudyFacts
from evoengine.report.figure import Table

_PARTS = ("DRAM", "L2", "the tensor cores", "shared memory")
_HEAD = (
    "rank",
    "row",
    "bound",
    "DRAM",
    "L2",
    "tensor cores",
    "shared memory",
    "in flight",
    "conflicts",
    "warps wait for",
)
_WAITS = 2


def counters_table(facts: StudyFacts) -> Table:
    """Returns one line per profiled elite; of several launches in a call, the longest one."""
    rows = []
    for row in facts.elites:
        if row.id in facts.profiles:
            found = diagnose(longest(facts.profiles[row.id].launches))
            busy = (_percent(found.busy_percent.get(part)) for part in _PARTS)
            waits = ", ".join(f"{cause} {100 * share:.0f} %" for cause, share in list(found.waits.items())[:_WAITS])
            rest = (_percent(found.active_warps_percent), _conflicts(found), waits or "–")
            rows.append((str(row.rank), str(row.id), found.bound or "–", *busy, *rest))
    return Table(_HEAD, rows, frozenset({0, 1, 3, 4, 5, 6, 7, 8}))


def counters_note(facts: StudyFacts) -> str:
    """Returns the profiling tools and GPUs; empty without profiles."""
    tools = dict.fromkeys(f"{profile.tool} on {profile.gpu}" for profile in facts.profiles.values())
    return "; ".join(tools)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _conflicts(found: Diagnosis) -> str:
    return _percent(None if found.conflict_share is None else 100 * found.conflict_share)
