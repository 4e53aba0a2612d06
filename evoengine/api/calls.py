"""Translation between runtime calls and the records of a search: call to problem, built kernel to launch plan."""

from __future__ import annotations

from evoengine.kernel.records import Kernel
from evoengine.model import DType, Problem
from evoengine.runtime.call import Call
from evoengine.runtime.launcher import KernelPlan, Launch
from evoengine.runtime.map_arguments import MapBox


def unsupported(call: Call) -> str:
    """Returns why no kernel can ever serve a call; empty if one could."""
    if call.dtype not in {dtype.value for dtype in DType}:
        return f"kernels are for {' and '.join(dtype.value for dtype in DType)}, not {call.dtype}"
    if 0 in (call.batch, call.heads, call.seq_q, call.seq_kv, call.rows_q, call.rows_kv, call.head_dim):
        return "there is nothing to compute"
    return ""


def problem_of(call: Call) -> Problem:
    """Returns the problem of a call for which :func:`unsupported` is empty.

    The lengths of packed sequences are on the GPU and change from call to call; only their number, their sum and their
    maximum are known. The problem has lengths that match these.

    Raises:
        ProblemError: No lengths match.
    """
    return Problem(
        batch=call.batch,
        heads=call.heads,
        seq_q=call.seq_q,
        head_dim=call.head_dim,
        kv_heads=call.kv_heads,
        seq_kv=call.seq_kv,
        dtype=DType(call.dtype),
        causal=call.causal,
        window_left=None if call.window_left < 0 else call.window_left,
        window_right=None if call.window_right < 0 else call.window_right,
        softcap=call.softcap,
        sink=call.sink,
        lse=call.lse,
        lengths_q=_lengths(call.batch, call.seq_q, call.rows_q) if call.packed else (),
        lengths_kv=_lengths(call.batch, call.seq_kv, call.rows_kv) if call.packed else (),
    )


def plan_of(kernel: Kernel, call: Call) -> KernelPlan:
    """Returns code and launch sizes of a kernel for a call."""
    problem, launch = problem_of(call), kernel.source.launch
    workspace = launch.workspace(problem)
    launches = tuple(Launch(step.entry, step.grid, step.threads, step.smem_bytes) for step in launch.steps(problem))
    maps = tuple(
        MapBox(item.tensor, item.box_rows, item.box_columns, item.swizzle_bytes, item.grouped) for item in launch.maps
    )
    return KernelPlan(kernel.binary.cubin, launches, workspace.bytes, workspace.counters, maps)


def _lengths(count: int, longest: int, total: int) -> tuple[int, ...]:
    """Returns one sequence of the longest length, and others as equal as possible."""
    if count == 1:
        return (longest,)
    share, more = divmod(max(0, total - longest), count - 1)
    return (longest, *(min(longest, share + (number < more)) for number in range(count - 1)))
