"""From a built kernel to the plan that launchers take."""

from __future__ import annotations

from evoengine.api.problems import problem_of
from evoengine.kernel.records import Kernel
from evoengine.runtime.call import Call
from evoengine.runtime.launcher import Launch, Plan


def plan_of(kernel: Kernel, call: Call) -> Plan:
    """Code and sizes of a kernel for a call."""
    problem, launch = problem_of(call), kernel.source.launch
    workspace = launch.workspace(problem)
    launches = tuple(Launch(step.entry, step.grid, step.threads, step.smem_bytes) for step in launch.steps(problem))
    return Plan(kernel.binary.cubin, launches, workspace.bytes, workspace.counters)
