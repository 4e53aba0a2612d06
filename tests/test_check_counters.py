"""scripts/check_counters.py without a GPU: which names it asks for, what it holds against what, its table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evoengine.device.ncu import KernelCounters

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "check_counters.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_counters", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_names_that_the_gpu_has(script: ModuleType) -> None:
    loads = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld"
    sass = "sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ld"
    assert script.names_to_ask({loads, sass, "dram__bytes"}) == [f"{sass}.sum", f"{loads}.sum"]
    assert f"{sass}m.sum" not in script.names_to_ask({loads, sass})
    assert len(script.names_to_ask(set())) > len(script.METRICS)
    # Of the first alternative one part is missing: the second counts.
    counters = KernelCounters("k", {f"{sass}.sum": 5.0, f"{loads}.sum": 7.0}, {})
    assert script.hardware_values(counters) == {"conflicts, loads": 7.0}
    counters = KernelCounters("k", {f"{sass}.sum": 5.0, f"{sass}sm.sum": 1.0, f"{loads}.sum": 7.0}, {})
    assert script.hardware_values(counters) == {"conflicts, loads": 6.0}


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


def test_the_table_and_its_verdict(script: ModuleType) -> None:
    ours = {metric.name: 1000.0 for metric in script.METRICS}
    ours |= {"conflicts, loads": 0.0, "shared loads": 1100.0}
    exact = dict.fromkeys(ours, 1000.0) | {"conflicts, loads": 0.0}
    counted = script.Counted("mma 0.0", "evo_attention", ours, {"shared loads": 1000.0})
    page, good = script.tables([(counted, exact)])
    assert good, page
    assert "| shared loads | 1 | +10.00% | +10.00% | +0.00% | 1 | yes |" in page
    conflicts = next(metric for metric in script.METRICS if metric.name == "conflicts, loads")
    # A few conflicts among many wavefronts are noise; as many as a fiftieth of them are not.
    assert script.agrees(conflicts, counted, exact | {"conflicts, loads": 0.3})
    assert not script.agrees(conflicts, counted, exact | {"conflicts, loads": 1.0})
    page, good = script.tables([(counted, exact | {"sectors, loads": 1030.0})])
    assert not good
    assert "| mma 0.0 evo_attention | sectors, loads | 1,000 |  | 1,030 |" in page
    page, good = script.tables([(counted, {"instructions": 900.0})])
    assert not good
    assert "| sectors, loads | 0 | not reported | | | | yes |" in page
