"""Generated kernels before a GPU runs them: patches are screened where they are built; inputs are varied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.contract import random_inputs
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.variation import difference, draw_variation
from evoengine.model import DType, Edit, Patch, Problem, Status, Variant
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.mutants.scalar import BASE
from evoengine.search.candidate.admission import Admitter, draw_admission
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.examination_recorder import ExaminationRecorder
from evoengine.search.candidate.results import Compilation
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.device.makers import make

ROOT = Path(__file__).resolve().parents[2]
FILE = "scalar/kernel.cu.jinja"
LINE = "    float score[Cfg::KEYS_PER_STEP];\n"
PROBLEM = Problem(1, 2, 40, 32)


def built(inserted: str) -> Compilation:
    """Builds a variant of the scalar family with text inserted into the loop over keys."""
    variant = Variant("scalar", Patch((Edit(FILE, LINE, inserted + LINE),)))
    space = find_space(variant.name, (variant,))
    setup = BuildSetup((PROBLEM,), get_target("l4"), "sm_89", (space,), (ROOT / "templates",), None, (variant,))
    return Builder(setup).build(space.config(BASE))


@pytest.mark.parametrize(
    ("rule", "inserted"),
    [
        ("register: PTX line", "    if (clock() == 7) return;\n"),
        ("variable: PTX line", "    static unsigned calls;\n    if (++calls > 1000) return;\n"),
        ("pointer: PTX line", "    if (reinterpret_cast<unsigned long long>(k_rows.g_tensor) & 4096) return;\n"),
        ("identifier: line", "    if (__TIME__[7] == '3') return;\n"),
    ],
)
def test_a_patch_is_screened_before_anything_runs(rule: str, inserted: str) -> None:
    compilation = built(inserted)
    assert compilation.status is Status.COMPILE_FAILED
    assert f": {rule}" in compilation.reason
    assert compilation.candidate is None


def test_a_harmless_patch_is_built_as_untrusted() -> None:
    compilation = built("    // the same\n")
    assert compilation.status is Status.OK, compilation.reason
    assert compilation.kernel is not None
    assert compilation.kernel.source.untrusted
    assert not compilation.kernel.admitted


@pytest.mark.parametrize("synchronised", ["true", "visible < 300"])
def test_lanes_are_checked_in_all_cases_of_a_generated_kernel(synchronised: str) -> None:
    """Only later cases of a draw have so many keys that a barrier of the warp is missing: here the last small one."""
    compilation = built(f"""    __shared__ int seen[1024];
    seen[threadIdx.x] = visible;
    if ({synchronised}) __syncwarp();
    if (seen[threadIdx.x ^ 1] < 0) return;
    __syncwarp();
""")
    assert compilation.candidate is not None, compilation.reason
    drawn = draw_admission((PROBLEM,), 3)
    first, last = drawn.cases[0][0], drawn.cases[0][-2]
    assert (first.name.split("/")[0], last.name.split("/")[0]) == ("single", "decode")
    some = replace(drawn, cases=((first, last),))
    admission = Admitter(some, get_target("l4")).admit(compilation.candidate)
    if synchronised == "true":
        assert admission.status is Status.OK, admission.reason
    else:
        assert "data_race: " in admission.reason


@pytest.mark.parametrize(
    "problem",
    [
        replace(PROBLEM, batch=2, heads=6, kv_heads=3, head_dim=16, causal=True, lse=True, sink=True),
        Problem(3, 4, 20, 16, kv_heads=2, seq_kv=30, dtype=DType.BF16, lengths_q=(20, 0, 7), lengths_kv=(30, 9, 12)),
    ],
    ids=["dense", "packed"],
)
def test_outputs_of_varied_inputs_follow_from_those_of_the_base(problem: Problem) -> None:
    base = random_inputs(problem, 1, "bshd" if not problem.packed else "bhsd")
    loaded = EmulatorDevice(get_target("l4")).load(make(problem, None))
    expected = loaded.attention(base)
    variation = draw_variation(base, np.random.default_rng(10))
    moved = (
        (variation.heads, variation.groups)
        if problem.packed
        else (variation.batches, variation.heads, variation.groups)
    )
    assert all((places != np.arange(len(places))).any() for places in moved)
    varied = variation.inputs(base)
    assert varied.layout == base.layout
    assert not any((getattr(varied, name) == getattr(base, name)).all() for name in ("q", "k", "v"))
    found = loaded.attention(varied)
    assert difference(found, variation.output(expected), problem.dtype) == ""
    assert difference(found, expected, problem.dtype) != ""


@dataclass(frozen=True)
class Judged:
    """A stopwatch after its samples."""

    expected: AttentionOutput
    launched: tuple[str, ...] = ()
    calls: int = 1

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        return self.expected

    def sample_us(self) -> float:
        raise NotImplementedError

    def spin(self, replays: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Holds nothing."""


def test_timed_calls_are_judged_by_the_output_that_passed_the_gate() -> None:
    *_, case = draw_cases(PROBLEM, 1, PROBLEM.flops)
    output = EmulatorDevice(get_target("l4")).load(make(PROBLEM, None)).attention(case.inputs)
    for expected, wrong in ((output, False), (replace(output, o=np.zeros_like(output.o)), True)):
        recorder = ExaminationRecorder(case, case.inputs)
        recorder.saw(case, output)
        recorder.timed(Judged(expected))
        assert bool(recorder.output_objection()) == wrong


def test_differences_that_are_more_than_rounding_are_described() -> None:
    o = np.full((1, 2, 3, 4), 0x3C00, np.uint16)
    one = AttentionOutput(o, np.zeros((1, 2, 3), np.float32))
    assert difference(one, one, DType.FP16) == ""
    unwritten, other = o.copy(), o.copy()
    unwritten[0, 1, 2, 3], other[0, 0, 0, 0] = 0x7FED, 0x3E00
    assert "elements of O" in difference(replace(one, o=unwritten), one, DType.FP16)
    assert "L2 norm" in difference(replace(one, o=other), one, DType.FP16)
    assert "LSE" in difference(replace(one, lse=np.ones((1, 2, 3), np.float32)), one, DType.FP16)
