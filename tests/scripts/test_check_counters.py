"""``check_counters.py`` without a GPU: collected metrics, comparison and table."""

from __future__ import annotations

from types import ModuleType

import pytest

from evoengine.model import KernelCounters
from tests.scripts.running import load


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("check_counters")


def test_only_metrics_of_the_gpu_are_collected(script: ModuleType) -> None:
    loads = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld"
    arbitration = "l1tex__data_bank_conflicts_type_arbitration"
    tensor = "smsp__inst_executed_pipe_tensor_op_hmma"
    # Conflicts and arbitration have their own run.
    assert script.names_to_ask({loads, tensor, arbitration, "dram__bytes"}) == [
        [f"{tensor}.sum"],
        [f"{loads}.sum", f"{arbitration}.sum"],
    ]
    assert sum(map(len, script.names_to_ask(set()))) > len(script.METRICS)
    runs = [KernelCounters("k", {f"{tensor}.sum": 5.0}, {}), KernelCounters("k", {f"{loads}.sum": 7.0}, {})]
    assert script.hardware_values(runs) == {"tensor instructions": 5.0, "conflicts, loads": 7.0}


@pytest.mark.parametrize(
    ("opcode", "shared", "becomes"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", False, ("tensor instructions", 1)),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", False, ("tensor instructions", 1)),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", False, ("tensor instructions", 2)),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", True, ("ldmatrix", 1)),
        ("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32", True, ("shared stores", 4)),
        ("ld.shared.v4.f32", True, ("shared loads", 1)),
        ("ld.global.v4.f32", False, ("", 0)),
        ("add.f32", False, ("", 0)),
    ],
)
def test_machine_instructions(script: ModuleType, opcode: str, shared: bool, becomes: tuple[str, int]) -> None:
    assert script.machine_instructions(opcode, shared) == becomes


def test_table_and_verdict(script: ModuleType) -> None:
    ours = {metric.name: 1000.0 for metric in script.METRICS}
    ours |= {"shared loads": 1100.0}
    exact = dict.fromkeys(ours, 1000.0)
    counted = script.Counted("mma 0.0", "evo_attention", ours, {"shared loads": 1000.0})
    page, good = script.tables([(counted, exact)])
    assert good, page
    assert "| shared loads | 1 | +10.00% | +10.00% | +0.00% | 1 | yes |" in page
    page, good = script.tables([(counted, exact | {"sectors, loads": 1030.0})])
    assert not good
    assert "| mma 0.0 evo_attention | sectors, loads | 1,000 |  | 1,030 |" in page
    page, good = script.tables([(counted, {"instructions": 900.0})])
    assert not good
    assert "| sectors, loads | 0 | not reported | | | | yes |" in page


def test_arbitration_may_add_to_conflicts(script: ModuleType) -> None:
    def off(name: str, ours: float, **theirs: float) -> float:
        names = {"arbitration": "conflicts by arbitration", "conflicts": "conflicts, loads", "wavefronts": name}
        return float(script.difference(name, {name: ours}, {names[key]: value for key, value in theirs.items()}))

    assert off("conflicts, loads", 1000, conflicts=1000) == 0
    assert off("conflicts, loads", 1000, conflicts=1500, arbitration=600) == 0
    assert off("conflicts, loads", 800, conflicts=1500, arbitration=500) == pytest.approx(-0.2)
    assert off("conflicts, loads", 1600, conflicts=1500, arbitration=600) == pytest.approx(0.1 / 1.5)
    assert off("conflicts, loads", 0, conflicts=40) == -1
    assert off("wavefronts, loads", 800, wavefronts=1000, arbitration=500) == pytest.approx(-0.2)


def test_executions_follow_what_ptxas_kept(script: ModuleType) -> None:
    ran = {(5, 40): [100, 100], (5, 60): [10, 30], (7,): [8]}
    assert script.executed_as_kept(ran, {(5, 40): 2, (5, 60): 2, (7,): 1}) == 248
    assert script.executed_as_kept(ran, {(5, 40): 1, (5, 60): 2, (7,): 0}) == 140  # merged, and dropped
    # One instruction moved to a site without PTX: by line, three of four remain.
    assert script.executed_as_kept(ran, {(5, 40): 2, (5, 99): 1, (7,): 1}) == 0.75 * 240 + 8
