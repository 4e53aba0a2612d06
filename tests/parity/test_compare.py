"""Comparison of outputs from NumPy: which pass, which fail, and with what reason."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from evoengine.errors import CandidateTimeoutError, LaunchError
from evoengine.kernel.call import LSE_POISON_BITS, AttentionInputs, AttentionOutput
from evoengine.kernel.memory_layout import POISON_BITS
from evoengine.model import DType, Problem
from evoengine.parity.compare import judge
from evoengine.parity.float_bits import Real, from_bits, to_bits
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase, make_case
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.parity.reference.bias import largest_bias
from evoengine.parity.reference.row_sample import Block, sample_of
from evoengine.parity.reference.sdpa_reference import attention_same_precision
from tests.parity.numpy_kernel import Mistake, NumPyKernel

PROBLEM = Problem(1, 2, 61, 32, seq_kv=130)
PACKED = Problem(3, 2, 40, 16, seq_kv=70, lengths_q=(9, 0, 40), lengths_kv=(70, 5, 33), causal=True, lse=True)
WITH_LSE = Problem(1, 2, 40, 32, seq_kv=70, lse=True)


def case_of(problem: Problem, profile: str = "normal") -> ParityCase:
    return make_case("case", make_inputs(problem, profile, 1), 1)


def truth(case: ParityCase) -> Real:
    """Returns the reference in memory order."""
    out = np.zeros(case.inputs.output_shape)
    out[case.sample.batch, case.sample.head, case.sample.row] = case.reference
    return out


def rounded(case: ParityCase, values: Real) -> AttentionOutput:
    lse = None
    if case.lse is not None:
        lse = np.zeros(case.inputs.lse_shape, np.float32)
        lse[case.sample.batch, case.sample.head, case.sample.row] = case.lse.values
    return AttentionOutput(to_bits(values, case.inputs.problem.dtype), lse)


@pytest.fixture(params=list(DType), ids=lambda dtype: dtype.value)
def case(request: pytest.FixtureRequest) -> ParityCase:
    return case_of(replace(PROBLEM, dtype=request.param))


def test_the_rounded_reference_and_sdpa_pass(case: ParityCase) -> None:
    assert judge(case, rounded(case, truth(case))).reason == ""
    sdpa = np.zeros(case.inputs.output_shape)
    sdpa[case.sample.batch, case.sample.head, case.sample.row] = attention_same_precision(case.inputs, case.sample)
    assert judge(case, rounded(case, sdpa)).reason == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda out: out * 1.02, "exceeds"),
        (lambda out: out + 0.03, "exceeds"),
        (lambda out: 0 * out, "exceeds"),
        (lambda out: 0 * out + out.mean(axis=2, keepdims=True), "exceeds"),
        (lambda out: np.roll(out, 1, axis=2), "exceeds"),
        (lambda out: out[:, ::-1], "exceeds"),
        (lambda out: np.where(np.arange(61)[:, None] == 60, np.nan, out), "not finite"),
        (lambda out: np.where(np.arange(61)[:, None] == 60, np.inf, out), "not finite"),
    ],
    ids=["scaled", "shifted", "zeros", "one-row-for-all", "rows-rolled", "heads-swapped", "nan", "inf"],
)
def test_wrong_outputs_fail_and_say_why(case: ParityCase, change: Callable[[Real], Real], reason: str) -> None:
    result = judge(case, rounded(case, change(truth(case))))
    assert reason in result.reason
    assert "\n" not in result.reason


def test_one_wrong_element_fails_with_its_place(case: ParityCase) -> None:
    wrong = truth(case)
    wrong[0, 1, 33, 7] += 0.1
    assert "batch 0, head 1, row 33, dim 7" in judge(case, rounded(case, wrong)).reason


def test_positions_in_packed_sequences_are_relative_to_the_sequence() -> None:
    case = case_of(PACKED)
    wrong = truth(case)
    wrong[0, 1, 9 + 21, 5] += 0.5
    assert "sequence 2, head 1, row 21, dim 5" in judge(case, rounded(case, wrong)).reason


def test_an_unwritten_element_fails_by_name(case: ParityCase) -> None:
    output = rounded(case, truth(case))
    output.o[0, 0, 5, 3] = POISON_BITS
    reason = judge(case, output).reason
    assert "1 of 3904 " in reason
    assert "row 5, dim 3" in reason


def test_small_errors_everywhere_fail_where_the_maximum_would_pass() -> None:
    case = case_of(PROBLEM)
    sign = np.where(np.random.default_rng(2).random(case.inputs.output_shape) < 0.5, -1, 1)
    result = judge(case, rounded(case, truth(case) + sign * 0.5 * case.bounds.max_error.min()))
    assert result.max_error <= result.tolerance
    assert "relative L2" in result.reason


@pytest.mark.parametrize(("dtype", "size"), [(DType.FP16, 0.0004), (DType.BF16, 0.003)])
def test_a_bias_fails_where_every_element_passes(dtype: DType, size: float) -> None:
    case = case_of(replace(PROBLEM, head_dim=64, dtype=dtype))
    rows = (case.sample.batch, case.sample.head, case.sample.row)
    for mistake, name, bias in (
        (Mistake(o=lambda out: out * (1 + size)), "the sum of the weights", size),
        (Mistake(scale=1 - size), "the softmax scale", -size),
    ):
        output = NumPyKernel(mistake).attention(case.inputs)
        assert judge(replace(case, bias=()), output).reason == ""
        assert "is off by" in judge(case, output).reason
        (test,) = (test for test in case.bias if test.name == name)
        error = from_bits(output.o[rows], dtype) - case.rounded
        assert test.estimates(error.astype(np.float32), case.sample.starts)[-1] == pytest.approx(bias, rel=0.2)


def test_the_bias_of_a_correct_kernel_is_far_within_its_bound() -> None:
    for case in draw_cases(PROBLEM, 3):
        rows = (case.sample.batch, case.sample.head, case.sample.row)
        error = from_bits(NumPyKernel().attention(case.inputs).o[rows], DType.FP16) - case.rounded
        worst = largest_bias(case.bias, error.astype(np.float32), case.sample.starts)
        assert worst.share < 0.5


def test_heads_whose_weights_are_all_rounded_alike_are_not_tested_for_a_bias() -> None:
    assert all(np.isinf(test.bounds).all() for test in case_of(PROBLEM, "constant").bias)
    assert all(np.isfinite(test.bounds).all() for test in case_of(PROBLEM, "normal").bias)


def test_a_head_of_small_values_is_judged_by_itself() -> None:
    """An error that is within the bounds of a head of large values fails in a head of small values."""
    case = make_case("case", make_inputs(PROBLEM, ("huge", "tiny"), 1), 1)
    assert judge(case, rounded(case, truth(case))).reason == ""
    assert case.bounds.max_error[0] > 1 > case.bounds.max_error[1]
    for error, reason in ((1.0, "head 1, row 9, dim 3"), (2e-5, "relative L2")):
        wrong = truth(case)
        wrong[0, 1, 9, 3] += error
        assert reason in judge(case, rounded(case, wrong)).reason
    wrong = truth(case)
    wrong[0, 0, 9, 3] += 1.0
    assert judge(case, rounded(case, wrong)).reason == ""


def test_rows_without_a_key_must_be_exactly_zero() -> None:
    case = case_of(Problem(1, 1, 40, 16, seq_kv=10, causal=True))
    assert case.keyless.sum() == 30
    output = rounded(case, truth(case))
    assert (output.o[:, :, :30] == 0).all()
    assert judge(case, output).reason == ""
    output.o[0, 0, 29, 3] = 1  # the smallest positive number
    assert "without a key" in judge(case, output).reason
    output.o[0, 0, 29, 3] = 0x8000  # minus zero
    assert judge(case, output).reason == ""


def test_rows_outside_the_sample_must_be_written_and_zero_without_keys() -> None:
    whole = case_of(replace(PROBLEM, seq_kv=40, causal=True))
    sample = sample_of(whole.inputs.problem, (Block(0, 0, np.array([30, 60])), Block(0, 1, np.array([30, 60]))))
    rows = np.isin(whole.sample.row, (30, 60))
    case = replace(whole, sample=sample, reference=whole.reference[rows], rounded=whole.rounded[rows], bias=())
    output = rounded(case, truth(whole))
    assert judge(case, output).reason == ""
    assert judge(case, rounded(case, truth(whole) + 0.1)).reason
    output.o[0, 0, 55] += 100
    assert judge(case, output).reason == ""
    output.o[0, 0, 5, 5] = 1
    assert "without a key" in judge(case, output).reason
    output.o[0, 0, 5, 5] = POISON_BITS
    assert "never written" in judge(case, output).reason


def test_a_correct_log_sum_exp_is_far_within_its_bound_and_a_wrong_one_fails() -> None:
    for profile in ("normal", "large", "outlier"):
        case = case_of(WITH_LSE, profile)
        assert case.lse is not None
        output = NumPyKernel().attention(case.inputs)
        assert judge(case, output).reason == ""
        assert output.lse is not None
        place = (case.sample.batch, case.sample.head, case.sample.row)
        assert (np.abs(output.lse[place] - case.lse.values) < case.lse.bounds / 3).all()
        for factor in (1.001, 0.999, 1 / np.log(2)):
            wrong = AttentionOutput(output.o, (output.lse * factor).astype(np.float32))
            assert "log-sum-exp off by" in judge(case, wrong).reason


def test_the_bound_of_a_log_sum_exp_allows_cancellation() -> None:
    """Scores that are small differences of large sums lose precision in any f32 accumulator."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, rows, 32)) for rows in (40, 70, 70))
    k[..., 1::2] = -k[..., ::2] + rng.standard_normal((1, 2, 70, 16)) / 64
    q[..., 1::2] = q[..., ::2]
    q_bits, k_bits, v_bits = (to_bits(tensor, DType.FP16) for tensor in (64 * q, 64 * k, v))
    case = make_case("case", AttentionInputs.of(WITH_LSE, q_bits, k_bits, v_bits), 1)
    output = NumPyKernel().attention(case.inputs)
    assert case.lse is not None
    assert output.lse is not None
    error = np.abs(output.lse[case.sample.batch, case.sample.head, case.sample.row] - case.lse.values)
    assert error.max() > 5e-5, "the case has too little cancellation"
    assert (error < case.lse.bounds / 3).all()


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "finite"), (np.inf, "finite"), (-np.inf, "finite")])
def test_a_log_sum_exp_is_finite_where_there_is_a_logit(value: float, reason: str) -> None:
    case = case_of(WITH_LSE)
    output = rounded(case, truth(case))
    assert output.lse is not None
    output.lse[0, 1, 7] = value
    reason = judge(case, output).reason
    assert reason in reason
    assert "head 1, row 7" in reason


def test_a_log_sum_exp_is_minus_infinity_exactly_where_there_is_none() -> None:
    problem = replace(WITH_LSE, seq_kv=30, causal=True)
    case = case_of(problem)
    output = rounded(case, truth(case))
    assert output.lse is not None
    assert judge(case, output).reason == ""
    assert np.isneginf(output.lse[:, :, :10]).all()
    output.lse[0, 0, 9] = -1e30
    assert "-inf" in judge(case, output).reason
    with_sink = case_of(replace(problem, sink=True))
    output = rounded(with_sink, truth(with_sink))
    assert output.lse is not None
    assert with_sink.inputs.sink is not None
    np.testing.assert_allclose(output.lse[0, :, 9], with_sink.inputs.sink, rtol=1e-6)
    assert judge(with_sink, output).reason == ""
    output.lse[0, 0, 9] = -np.inf
    assert "finite" in judge(with_sink, output).reason


def test_a_log_sum_exp_that_is_missing_or_unwritten_fails_by_name() -> None:
    case = case_of(WITH_LSE)
    output = rounded(case, truth(case))
    assert "missing" in judge(case, AttentionOutput(output.o)).reason
    assert output.lse is not None
    output.lse.view(np.uint32)[0, 1, 39] = LSE_POISON_BITS
    reason = judge(case, output).reason
    assert "1 of 80 log-sum-exps" in reason
    assert "head 1, row 39" in reason


def test_a_kernel_that_does_not_end_names_its_case() -> None:
    class Slow(NumPyKernel):
        def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
            raise CandidateTimeoutError("not done")

    with pytest.raises(CandidateTimeoutError, match=r"^single/\w+: not done$"):
        run_gate(Slow(), draw_cases(PROBLEM, 0))


def test_the_gate_stops_at_the_first_failure() -> None:
    cases = draw_cases(PROBLEM, 0)
    kernel = NumPyKernel(Mistake(o=lambda out: out * (1 + 0.05 * (out.shape[2] > 1))))
    verdict = run_gate(kernel, cases, 77)
    assert not verdict.passed
    assert verdict.cases == len(kernel.ran) == 2
    assert verdict.worst_case == cases[1].name
    assert verdict.reason.startswith(f"{cases[1].name}: ")
    assert verdict.inputs_seed == 77


def test_a_fault_names_its_case() -> None:
    cases = draw_cases(PROBLEM, 0)
    with pytest.raises(LaunchError, match=r"^ragged/\w+: illegal address$"):
        run_gate(NumPyKernel(fault_at=lambda inputs: inputs.problem.batch == 3 and inputs.problem.seq_kv > 1), cases)


def test_a_pickled_case_keeps_its_layout() -> None:
    case = next(case for case in draw_cases(PROBLEM, 0) if not case.inputs.layout.v.dense)
    copy = pickle.loads(pickle.dumps(case))
    assert copy.inputs.layout == case.inputs.layout
    assert np.array_equal(copy.inputs.k_memory, case.inputs.k_memory)
    assert np.array_equal(copy.inputs.k, case.inputs.k)
    assert copy.inputs.k.strides == case.inputs.k.strides
    assert np.array_equal(from_bits(copy.inputs.k, DType.FP16), from_bits(case.inputs.k, DType.FP16))
