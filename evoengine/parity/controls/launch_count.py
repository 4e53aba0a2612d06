"""The count of launches: what a device launched must be the entries that a call consists of, and nothing else."""

from __future__ import annotations

from itertools import zip_longest

from evoengine.kernel.records import LaunchSpec
from evoengine.model import Problem


def launch_objection(launched: tuple[str, ...], spec: LaunchSpec, problem: Problem, calls: int = 1) -> str:
    """Compares what a device counted with what was asked for.

    Args:
        launched: names of the entries, in order.
        spec: what a call consists of.
        problem: of the calls.
        calls: how many there were.

    Returns:
        What differs first; empty when nothing does.
    """
    wanted = tuple(step.entry for step in spec.steps(problem)) * calls
    for number, (found, expected) in enumerate(zip_longest(launched, wanted), start=1):
        if found != expected:
            what = f"launch {number} of {calls} calls is {found or 'missing'}, not {expected or 'the end'}"
            return f"{what}: {len(launched)} launches where {len(wanted)} are expected"
    return ""
