"""The gate's judgement on outputs made in NumPy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from evoengine.errors import LaunchError
from evoengine.kernel.call import POISON_BITS, AttentionInputs, Bits
from evoengine.model import DType, Problem
from evoengine.parity.bits import Real, from_bits, to_bits
from evoengine.parity.cases import build_cases, limited, problem_case, small_cases
from evoengine.parity.gate import ParityCase, judge, make_case, run_gate
from evoengine.parity.inputs import make_inputs
from evoengine.parity.reference import attention_fp64, attention_same_precision

PROBLEM = Problem(1, 2, 61, 32, seq_kv=130)


def _truth(case: ParityCase) -> Real:
    return attention_fp64(case.inputs, np.arange(case.inputs.problem.seq_q))


def _rounded(case: ParityCase, values: Real) -> Bits:
    return to_bits(values.astype(np.float32), case.inputs.problem.dtype)


class NumPyKernel:
    """A kernel that computes its output on the host, wrong on demand."""

    def __init__(self, change: Callable[[Real], Real] = lambda out: out, fault_at: str = "") -> None:
        self._change = change
        self._fault_at = fault_at
        self.ran: list[Problem] = []

    def attention(self, inputs: AttentionInputs) -> Bits:
        self.ran.append(inputs.problem)
        if self._fault_at and inputs.layout == self._fault_at:
            raise LaunchError("illegal address")
        out = self._change(attention_fp64(inputs, np.arange(inputs.problem.seq_q)))
        return to_bits(out.astype(np.float32), inputs.problem.dtype)

    def close(self) -> None:
        pass


@pytest.fixture(params=list(DType), ids=lambda dtype: dtype.value)
def case(request: pytest.FixtureRequest) -> ParityCase:
    problem = replace(PROBLEM, dtype=request.param)
    return make_case("case", make_inputs(problem, "normal", 1), 1)


def test_the_rounded_truth_and_sdpa_itself_pass(case: ParityCase) -> None:
    assert judge(case, _rounded(case, _truth(case))).reason == ""
    rows = np.arange(case.inputs.problem.seq_q)
    assert judge(case, _rounded(case, attention_same_precision(case.inputs, rows))).reason == ""


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda out: out * 1.02, "exceeds"),
        (lambda out: out + 0.03, "exceeds"),
        (lambda out: np.roll(out, 1, axis=2), "exceeds"),
        (lambda out: out[:, ::-1], "exceeds"),
        (lambda out: np.where(np.arange(61)[:, None] == 60, np.nan, out), "not finite"),
        (lambda out: np.where(np.arange(61)[:, None] == 60, np.inf, out), "not finite"),
    ],
    ids=["scaled", "shifted", "rows-rolled", "heads-swapped", "nan", "inf"],
)
def test_wrong_outputs_fail_and_say_why(case: ParityCase, change: Callable[[Real], Real], told: str) -> None:
    result = judge(case, _rounded(case, change(_truth(case))))
    assert told in result.reason
    assert "\n" not in result.reason


def test_one_wrong_element_fails_with_its_place(case: ParityCase) -> None:
    wrong = _truth(case)
    wrong[0, 1, 33, 7] += 0.1
    assert "batch 0, head 1, row 33, dim 7" in judge(case, _rounded(case, wrong)).reason


def test_an_unwritten_element_fails_by_name(case: ParityCase) -> None:
    output = _rounded(case, _truth(case))
    output[0, 0, 5, 3] = POISON_BITS
    reason = judge(case, output).reason
    assert "1 of 3904 elements were never written" in reason
    assert "row 5, dim 3" in reason


def test_small_errors_everywhere_fail_where_the_maximum_would_pass() -> None:
    case = make_case("case", make_inputs(PROBLEM, "normal", 1), 1)
    sign = np.where(np.random.default_rng(2).random(_truth(case).shape) < 0.5, -1, 1)
    output = _rounded(case, _truth(case) + sign * 0.5 * case.max_error)
    result = judge(case, output)
    assert result.max_error <= case.max_error
    assert "relative L2" in result.reason


def test_rows_without_a_key_must_be_zero() -> None:
    problem = Problem(1, 1, 40, 16, seq_kv=10, causal=True)
    case = make_case("case", make_inputs(problem, "normal", 1), 1)
    truth = _truth(case)
    assert (truth[:, :, :30] == 0).all()
    assert judge(case, _rounded(case, truth)).reason == ""
    truth[:, :, :30] = 0.25
    assert judge(case, _rounded(case, truth)).reason


def test_rows_outside_the_sample_must_still_be_written() -> None:
    whole = make_case("case", make_inputs(PROBLEM, "normal", 1), 1)
    case = replace(whole, rows=whole.rows[:4], reference=whole.reference[:, :, :4])
    output = _rounded(case, _truth(case))
    assert judge(case, output).reason == ""
    output[0, 0, 60] = POISON_BITS
    assert "never written" in judge(case, output).reason


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DType)
def test_cases_cover_what_they_promise(dtype: DType, causal: bool) -> None:
    problem = Problem(1, 4, 256, 32, dtype=dtype, causal=causal)
    cases = build_cases(problem, (0,))
    shapes = [case.inputs.problem for case in cases]
    assert all((p.head_dim, p.dtype, p.causal) == (32, dtype, causal) for p in shapes)
    assert shapes[-1] == problem
    assert any(p.seq_q == p.seq_kv == 1 for p in shapes)
    assert any(p.seq_q % 16 and p.seq_kv % 16 and p.seq_q != p.seq_kv for p in shapes)
    assert any(p.heads != p.kv_heads and p.batch > 1 for p in shapes)
    assert any(case.inputs.layout == "bshd" for case in cases)
    assert any(p.seq_kv > 3 * 128 and p.seq_kv % 128 for p in shapes)
    assert any(p.seq_q > p.seq_kv for p in shapes)
    assert [case.name for case in pickle.loads(pickle.dumps(cases))] == [case.name for case in cases]
    verdict = run_gate(NumPyKernel(), cases)
    assert verdict.passed
    assert verdict.cases == len(cases)
    assert verdict.max_error > 0
    assert verdict.worst_case in {case.name for case in cases}


def test_the_gate_stops_at_the_first_failure() -> None:
    cases = small_cases(PROBLEM, 0)
    kernel = NumPyKernel(lambda out: out * (1 + 0.05 * (out.shape[2] > 1)))
    verdict = run_gate(kernel, cases)
    assert not verdict.passed
    assert verdict.cases == len(kernel.ran) == 2
    assert verdict.worst_case == cases[1].name
    assert verdict.reason.startswith(cases[1].name)


def test_a_fault_names_its_case() -> None:
    cases = small_cases(PROBLEM, 0)
    with pytest.raises(LaunchError, match=r"^ragged: illegal address$"):
        run_gate(NumPyKernel(fault_at="bshd"), cases)


def test_a_pickled_case_keeps_its_layout() -> None:
    case = next(case for case in small_cases(PROBLEM, 0) if case.inputs.layout == "bshd")
    copy = pickle.loads(pickle.dumps(case))
    assert np.array_equal(copy.inputs.k, case.inputs.k)
    assert copy.inputs.k.strides == case.inputs.k.strides
    assert np.array_equal(from_bits(copy.inputs.k, DType.FP16), from_bits(case.inputs.k, DType.FP16))


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 8, 4096, 64, causal=True),
        Problem(16, 32, 512, 64, kv_heads=8),
        Problem(4, 16, 16384, 128),
        Problem(1, 32, 1, 128, kv_heads=4, seq_kv=100_000),
    ],
    ids=lambda problem: problem.key,
)
def test_large_problems_are_cut_to_a_slice(problem: Problem) -> None:
    cut = limited(problem, 10**8)
    work = 4 * cut.batch * cut.heads * cut.seq_q * cut.seq_kv * cut.head_dim
    assert work <= 10**8 or cut.seq_q == cut.heads == 1
    assert work >= 10**7
    assert (cut.seq_kv, cut.head_dim, cut.causal, cut.dtype) == (
        problem.seq_kv,
        problem.head_dim,
        problem.causal,
        problem.dtype,
    )
    assert limited(PROBLEM, 10**9) is PROBLEM


def test_a_slice_says_so() -> None:
    assert problem_case(PROBLEM, 0).name == "problem"
    assert problem_case(PROBLEM, 0, 10**5).name == "problem-slice"
