"""Interpretation of hand-made counters."""

from __future__ import annotations

import re

import pytest

from evoengine.device.tools.bottleneck import DIAGNOSIS_METRICS, diagnose, longest
from evoengine.device.tools.hardware_counters import COUNTERS
from evoengine.model import KernelCounters

PERCENT = "avg.pct_of_peak_sustained_elapsed"
QUIET = {
    f"dram__throughput.{PERCENT}": 3.0,
    f"lts__throughput.{PERCENT}": 31.0,
    f"sm__pipe_tensor_cycles_active.{PERCENT}": 24.0,
    f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{PERCENT}": 38.4,
    "smsp__issue_active.avg.pct_of_peak_sustained_active": 33.0,
}


def launch(**changes: float) -> KernelCounters:
    return KernelCounters("k", QUIET | changes, {})


def stall(reason: str) -> str:
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


@pytest.mark.parametrize(
    ("metric", "bound", "says"),
    [
        (f"dram__throughput.{PERCENT}", "memory-bound", "Memory-bound: DRAM at 71 %"),
        (f"lts__throughput.{PERCENT}", "memory-bound", "Memory-bound: L2 at 71 %"),
        (
            f"sm__pipe_tensor_cycles_active.{PERCENT}",
            "tensor-bound",
            "Tensor-bound: the tensor cores at 71 %",
        ),
        (
            f"l1tex__data_pipe_lsu_wavefronts_mem_shared.{PERCENT}",
            "shared-memory-bound",
            "Shared-memory-bound: shared memory at 71 %",
        ),
    ],
)
def test_the_busiest_unit_is_the_bottleneck(metric: str, bound: str, says: str) -> None:
    found = diagnose(launch(**{metric: 71.0}))
    assert found.bound == bound
    assert found.sentences[0].startswith(says)


def test_a_kernel_without_a_busy_unit_is_latency_bound() -> None:
    found = diagnose(launch())
    assert found.bound == "latency-bound"
    assert re.match("Latency-bound: .*60 %.*shared memory.*38 %", found.sentences[0])


def test_a_gpu_with_another_name_for_the_tensor_pipe() -> None:
    values = {f"sm__inst_executed_pipe_tensor.{PERCENT}": 80.0}
    assert diagnose(KernelCounters("k", values, {})).bound == "tensor-bound"


def test_stall_reasons_are_shares_of_the_warps_time() -> None:
    ratios = {"long_scoreboard": 5.0, "barrier": 2.0, "wait": 0.5, "selected": 1.0, "not_selected": 1.5}
    found = diagnose(launch(**{stall(reason): ratio for reason, ratio in ratios.items()}))
    assert list(found.waits.values()) == pytest.approx([0.5, 0.2, 0.05])
    assert any(re.search("global memory 50 %.*barrier 20 %", sentence) for sentence in found.sentences)


@pytest.mark.parametrize(
    ("conflicts", "arbitration", "share", "says"),
    [
        (300.0, 100.0, 0.25, "1.25"),
        (100.0, 100.0, 0.0, "negligible"),
    ],
)
def test_bank_conflicts(conflicts: float, arbitration: float, share: float, says: str) -> None:
    """800 accesses without a conflict; conflicts by arbitration do not depend on the addresses."""
    counts: dict[str, float] = {}
    for counter in COUNTERS:
        counts |= dict.fromkeys(counter.formulas[0], 0.0)
    counts = {metric.removeprefix("-"): value for metric, value in counts.items()}
    counts["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"] = conflicts
    counts["l1tex__data_bank_conflicts_type_arbitration.sum"] = arbitration
    counts["smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] = 800.0 + conflicts - arbitration
    found = diagnose(launch(**counts))
    assert found.conflict_share == pytest.approx(share)
    assert any(says in sentence for sentence in found.sentences)


def test_missing_metrics_give_no_bottleneck() -> None:
    found = diagnose(KernelCounters("k", {"smsp__inst_executed.sum": 1.0}, {}))
    assert (found.bound, found.conflict_share, found.registers, found.sentences) == ("", None, None, ())


def test_occupancy() -> None:
    values = {"launch__registers_per_thread": 200.0, "launch__waves_per_multiprocessor": 0.48}
    values["sm__warps_active.avg.pct_of_peak_sustained_active"] = 12.5
    assert set(values) <= set(DIAGNOSIS_METRICS)
    found = diagnose(launch(**values))
    assert all(fact in found.sentences[-1] for fact in ("12 %", "200 registers", "0.48 waves"))


def test_the_longest_launch_represents_the_call() -> None:
    short, long = (KernelCounters(name, {"gpu__time_duration.sum": ns}, {}) for name, ns in (("a", 5.0), ("b", 9.0)))
    assert longest((short, long)) is long
