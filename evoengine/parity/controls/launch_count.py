"""Launch-count control: a device must launch exactly the entries that a call consists of."""

from __future__ import annotations

from itertools import zip_longest

from evoengine.kernel.records import LaunchSpec
from evoengine.model import Problem


def launch_objection(launched: tuple[str, ...], spec: LaunchSpec, problem: Problem, calls: int = 1) -> str:
    """Compares the launches that a device counted with the expected ones.

    Args:
        launched: Names of the launched entries, in order.
        spec: Launches of one call.
        problem: Problem of the calls.
        calls: Number of calls.

    Returns:
        A description of the first difference; empty if there is none.
    """
    wanted = tuple(step.entry for step in spec.steps(problem)) * calls
    for number, (found, expected) in enumerate(zip_longest(launched, wanted), start=1):
        if found != expected:
            what = f"launch {number} of {calls} calls is {found or 'missing'}, not {expected or 'the end'}"
            return f"{what}: {len(launched)} launches where {len(wanted)} are expected"
    return ""
