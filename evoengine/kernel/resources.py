"""Resources of a binary: ptxas' report, the resource gate of a target, and occupancy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from evoengine.kernel.records import Binary, LaunchPlan, LaunchSpec, StepSpec
from evoengine.model import Resources
from evoengine.target import Target

WARP: Final = 32
"""Threads per warp."""

_ENTRY_LINE: Final = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS: Final = re.compile(r"Used (\d+) registers")
_FRAME: Final = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_CUMULATIVE_STACK: Final = re.compile(r"(\d+) bytes cumulative stack size")
_STATIC_SMEM: Final = re.compile(r"(\d+) bytes smem")
_PERFORMANCE_LOSS: Final = re.compile(r"\((C75\d\d)\) Potential Performance Loss: (.*)")


def parse_resources(log: str, launch: LaunchSpec) -> dict[str, Resources]:
    """Reads the resources of each entry that the launch runs from ptxas' report (``--ptxas-options=-v``).

    Device functions that were not inlined have their own frames: spills are summed up, the stack size is cumulative.

    Returns:
        Resources by entry, without entries that the report lacks.
    """
    # The report has one section per entry, so the split yields [text before, name, text, name, text …].
    parts = _ENTRY_LINE.split(log)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {
        step.entry: _resources(sections[step.entry], step)
        for step in launch.launches
        if _REGISTERS.search(sections.get(step.entry, ""))
    }


def _resources(section: str, launch: StepSpec) -> Resources:
    frames = [tuple(map(int, found)) for found in _FRAME.findall(section)]
    return Resources(
        registers=_number(_REGISTERS, section),
        spill_bytes=sum(stores + loads for _, stores, loads in frames),
        stack_bytes=max([*(frame[0] for frame in frames), _number(_CUMULATIVE_STACK, section)]),
        static_smem_bytes=_number(_STATIC_SMEM, section),
        dynamic_smem_bytes=launch.smem_bytes,
        threads=launch.threads,
    )


@dataclass(frozen=True)
class Occupancy:
    """Number of CTAs of a kernel that are resident on one SM."""

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    """Resident warps divided by the maximum of the SM, 0 to 1."""
    limiter: str
    """Resource that prevents one more CTA: ``blocks``, ``warps``, ``registers`` or ``shared memory``; if
    no CTA fits, the reason."""


def occupancy(resources: Resources, target: Target) -> Occupancy:
    """Computes the resident CTAs by the rules of NVIDIA's occupancy calculator.

    Registers are allocated per warp in units of ``register_allocation_unit``, within each scheduler's share of the
    register file. Shared memory is allocated per CTA in units of ``smem_allocation_bytes``, plus the driver's reserve.
    """
    warps = _warps(resources)
    smem = _round_up(resources.smem_bytes + target.smem_reserved_per_block_bytes, target.smem_allocation_bytes)
    registers_per_share = target.regs_per_sm // target.schedulers_per_sm
    warps_by_registers = registers_per_share // _warp_registers(resources, target) * target.schedulers_per_sm
    limits = {
        "registers": warps_by_registers // warps,
        "shared memory": target.smem_per_sm_bytes // smem if smem else target.max_blocks_per_sm,
        "warps": min(target.max_warps_per_sm, target.max_threads_per_sm // WARP) // warps,
        "blocks": target.max_blocks_per_sm,
    }
    reason = resource_reason(resources, target)
    if reason is not None:
        return Occupancy(0, 0, 0.0, reason)
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    return Occupancy(blocks, blocks * warps, blocks * warps / target.max_warps_per_sm, limiter)


def resource_gate(binary: Binary, launch: LaunchSpec | LaunchPlan, target: Target) -> str | None:
    """Returns why a launch of a binary cannot run on a target; None if all its entries can."""
    main = replace(binary.resources, threads=launch.threads, dynamic_smem_bytes=launch.smem_bytes)
    reason = resource_reason(main, target)
    if reason is not None:
        return reason
    for entry, needs in binary.further:
        reason = resource_reason(needs, target)
        if reason is not None:
            return f"{entry}: {reason}"
    return None


def resource_reason(resources: Resources, target: Target) -> str | None:
    """Returns which limit of a target a kernel exceeds; None if it fits."""
    if not 1 <= resources.threads <= target.max_threads_per_block:
        return f"{resources.threads} threads per CTA; {target.name} allows 1 to {target.max_threads_per_block}"
    if resources.registers > target.max_regs_per_thread:
        return f"{resources.registers} registers per thread; {target.name} allows {target.max_regs_per_thread}"
    if resources.smem_bytes > target.smem_per_block_bytes:
        return f"{resources.smem_bytes} bytes of shared memory per CTA; {target.name} has {target.smem_per_block_bytes}"
    needed = _warp_registers(resources, target) * _round_up(_warps(resources), target.schedulers_per_sm)
    if needed > target.regs_per_sm:
        return (
            f"{resources.threads} threads x {resources.registers} registers take {needed} registers; "
            f"an SM of {target.name} has {target.regs_per_sm}"
        )
    return None


def performance_loss(binary: Binary) -> str | None:
    """Returns ptxas' first message about code that runs far slower than written; None if there is none.

    Such are warpgroup instructions that ptxas serialised (C7510, C7512) and ``setmaxnreg`` that it ignored (C7508).
    """
    found = _PERFORMANCE_LOSS.search(binary.log)
    return f"ptxas {found.group(1)}: {found.group(2).strip()}" if found else None


def _warps(resources: Resources) -> int:
    return max(1, -(-resources.threads // WARP))


def _warp_registers(resources: Resources, target: Target) -> int:
    return _round_up(max(1, resources.registers) * WARP, target.register_allocation_unit)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _number(pattern: re.Pattern[str], log: str) -> int:
    found = pattern.search(log)
    return int(found.group(1)) if found else 0
