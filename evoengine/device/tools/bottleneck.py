"""Interprets hardware counters: a kernel's bottleneck, its stall reasons and its shared-memory bank conflicts.

A kernel is bound by a unit that is busy for 60 % of the time or more, and latency-bound if no unit is: the limits of
Nsight Compute's "speed of light" section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evoengine.device.tools.hardware_counters import COUNTERS, HardwareCounter
from evoengine.model import KernelCounters

LATENCY_BOUND: Final = "latency-bound"
BUSY_PERCENT: Final = 60.0
"""Utilisation from which a unit counts as the bottleneck."""
_LEAST_WAIT: Final = 0.1
"""Share of the warps' time from which a stall reason is named."""
_MOST_WAITS: Final = 3
_LEAST_CONFLICTS: Final = 0.01
"""Share of the accesses below which bank conflicts are negligible."""

_REGISTERS: Final = "launch__registers_per_thread"
_WAVES: Final = "launch__waves_per_multiprocessor"
_WARPS: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
_DURATION: Final = "gpu__time_duration.sum"
_PERCENT: Final = "avg.pct_of_peak_sustained_elapsed"
_BUSY: Final = (
    # unit, bottleneck, metrics; the first metric that the GPU has is used
    ("DRAM", "memory-bound", (f"dram__throughput.{_PERCENT}",)),
    ("L2", "memory-bound", (f"lts__throughput.{_PERCENT}",)),
    (
        "the tensor cores",
        "tensor-bound",
        (f"sm__pipe_tensor_cycles_active.{_PERCENT}", f"sm__inst_executed_pipe_tensor.{_PERCENT}"),
    ),
    ("shared memory", "shared-memory-bound", (f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{_PERCENT}",)),
    ("the issue of instructions", "instruction-bound", ("smsp__issue_active.avg.pct_of_peak_sustained_active",)),
)
_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_WAITS: Final = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory or a special function",
    "mio_throttle": "space in the queue to shared memory",
    "lg_throttle": "space in the queue to global memory",
    "tex_throttle": "space in the queue to texture units",
    "math_pipe_throttle": "a busy arithmetic or tensor pipe",
    "gmma": "the tensor cores' asynchronous products",
    "barrier": "other warps at a barrier",
    "membar": "a memory fence",
    "wait": "the fixed latency of an instruction",
    "no_instruction": "instructions to be fetched",
    "branch_resolving": "a branch",
    "dispatch_stall": "the dispatcher",
    "imc_miss": "a constant to be fetched",
    "sleeping": "a sleep to end",
    "drain": "stores at the end",
    "misc": "something else",
}
_ACTIVE: Final = ("selected", "not_selected")
"""States of a warp that is ready: it was issued, or another warp was."""
_CONFLICTS: Final = "conflicts less arbitration"
_WAVEFRONTS: Final = ("wavefronts, loads", "wavefronts, stores")

DIAGNOSIS_METRICS: Final = (
    f"sm__throughput.{_PERCENT}",
    *(metric for _, _, metrics in _BUSY for metric in metrics),
    _WARPS,
    _REGISTERS,
    _WAVES,
    *(_STALL.format(reason) for reason in (*_WAITS, *_ACTIVE)),
)
"""Required metrics, besides those of :data:`~evoengine.device.tools.hardware_counters.COUNTERS`."""


@dataclass(frozen=True)
class Diagnosis:
    """Interpretation of the counters of one launch."""

    bound: str
    """``memory-bound``, ``tensor-bound``, ``shared-memory-bound``, ``instruction-bound`` or ``latency-bound``; empty if
    metrics are missing."""
    busy_percent: Mapping[str, float]
    """Utilisation of each unit, in percent of its peak."""
    waits: Mapping[str, float]
    """Share of the warps' time for each stall reason, largest first."""
    conflict_share: float | None
    """Additional accesses to shared memory due to bank conflicts, per access; None if they were not counted."""
    registers: int | None
    """Per thread."""
    active_warps_percent: float | None
    """Active warps, in percent of those that an SM can hold."""
    waves: float | None
    """Number of CTAs divided by those that the GPU runs at once."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The interpretation as sentences."""
        return tuple(filter(None, (self._bound(), self._waits(), self._conflicts(), self._occupancy())))

    def _bound(self) -> str:
        if not self.busy_percent:
            return ""
        part, percent = max(self.busy_percent.items(), key=lambda item: item[1])
        if self.bound == LATENCY_BOUND:
            busiest = f"the busiest, {part}, is at {percent:.0f} %"
            return f"Latency-bound: no unit is at {BUSY_PERCENT:.0f} % of its peak; {busiest}."
        return f"{self.bound.capitalize()}: {part} at {percent:.0f} % of the peak."

    def _waits(self) -> str:
        named = [f"{cause} {100 * share:.0f} %" for cause, share in self.waits.items() if share >= _LEAST_WAIT][
            :_MOST_WAITS
        ]
        return f"Its warps wait for {', '.join(named)} of their time." if named else ""

    def _conflicts(self) -> str:
        if self.conflict_share is None:
            return ""
        if self.conflict_share < _LEAST_CONFLICTS:
            return "Bank conflicts are negligible."
        return f"Bank conflicts multiply the accesses to shared memory by {1 + self.conflict_share:.2f}."

    def _occupancy(self) -> str:
        facts = []
        if self.active_warps_percent is not None:
            facts.append(f"{self.active_warps_percent:.0f} % of an SM's warps in flight")
        if self.registers is not None:
            facts.append(f"{self.registers} registers per thread")
        if self.waves is not None:
            facts.append(f"{self.waves:.2f} waves of CTAs")
        return f"{', '.join(facts)}." if facts else ""


def diagnose(launch: KernelCounters) -> Diagnosis:
    """Interprets the counters of one launch."""
    values = launch.values
    busy, kinds = {}, {}
    for part, kind, metrics in _BUSY:
        found = next((values[metric] for metric in metrics if metric in values), None)
        if found is not None:
            busy[part], kinds[part] = found, kind
    most = max(busy, key=lambda part: busy[part], default="")
    bound = "" if not most else kinds[most] if busy[most] >= BUSY_PERCENT else LATENCY_BOUND
    registers = values.get(_REGISTERS)
    return Diagnosis(
        bound=bound,
        busy_percent=busy,
        waits=_shares(values),
        conflict_share=_conflict_share(values),
        registers=None if registers is None else int(registers),
        active_warps_percent=values.get(_WARPS),
        waves=values.get(_WAVES),
    )


def longest(launches: tuple[KernelCounters, ...]) -> KernelCounters:
    """Returns the launch that takes most of a call's time."""
    return max(launches, key=lambda launch: launch.values.get(_DURATION, 0.0))


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    spent = {reason: values.get(_STALL.format(reason), 0.0) for reason in (*_WAITS, *_ACTIVE)}
    whole = sum(spent.values())
    waits = {words: spent[reason] / whole for reason, words in _WAITS.items() if whole and spent[reason] > 0.0}
    return dict(sorted(waits.items(), key=lambda item: -item[1]))


def _conflict_share(values: Mapping[str, float]) -> float | None:
    conflicts, *wavefronts = (_counter(name).value(values) for name in (_CONFLICTS, *_WAVEFRONTS))
    if conflicts is None or None in wavefronts:
        return None
    accesses = sum(filter(None, wavefronts)) - conflicts
    return max(0.0, conflicts / accesses) if accesses > 0 else 0.0


def _counter(name: str) -> HardwareCounter:
    return next(counter for counter in COUNTERS if counter.name == name)
