"""mma family on a GPU: sampled configs pass the gate, and emulator and hardware agree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.kernel.records import Kernel
from evoengine.model import Problem, parse_problem
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import draw_cases
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target

pytestmark = pytest.mark.gpu

Build = Callable[..., Kernel]


PROBLEMS = [
    parse_problem("1x2x200x64"),
    parse_problem("1x2x200x64", causal=True),
    parse_problem(
        "1x4x5x72", kv_heads=2, seq_kv=300, causal=True, window=(120, None), softcap=9.0, sink=True, lse=True
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=[problem.key for problem in PROBLEMS])
def test_sampled_configs_pass_the_gate_and_agree_with_the_emulator(
    build: Build, mma_space: SearchSpace, problem: Problem
) -> None:
    from evoengine.device.cuda.device import CudaDevice

    cases = draw_cases(problem, 3)
    valid = mma_space.build(problem, get_target("l4"))
    rng = np.random.default_rng(4)
    emulator = EmulatorDevice(get_target("l4"))
    with closing(CudaDevice("sm_89")) as gpu:  # the same PTX that the emulator runs, compiled by the driver
        for config in (valid.sample(rng) for _ in range(20)):
            kernel = build(config.as_dict(), problem)
            with closing(gpu.load(kernel)) as there, closing(emulator.load(kernel)) as here:
                verdict = run_gate(there, cases)
                assert verdict.passed, f"{config}: {verdict.reason}"
                for case in cases:
                    measured, emulated = (
                        loaded.attention(case.inputs).o.view(np.float16).astype(np.float64) for loaded in (there, here)
                    )
                    # The summation order differs: results differ by one rounding step of the output, rarely by two.
                    np.testing.assert_allclose(emulated, measured, rtol=2**-9, atol=case.max_error, err_msg=str(config))
