"""Bias statistics: small errors that all rows share, which stay below the bounds of single elements.

The errors of a kernel with a slightly wrong softmax scale or normaliser are multiples of a known direction ``g``: the
derivative of O by the logarithm of the scale, or O itself. The multiple ``b`` is estimated from all elements by
weighted least squares. Rounding errors are independent and cancel in this sum, so that ``b`` is known far more
precisely than any element.

**Error.** The difference of the output and the *rounded* reference: the rounding of the result itself, which is the
same in every row where the reference is, then does not count as a bias.

**Noise.** With an error of standard deviation ``n`` before it is rounded in steps of ``u``, this difference has a
variance of at most ``2 n² + u²/4``: it is ``u`` with probability ``0.8 n / u``, and larger where ``n`` exceeds ``u``.
Errors of different elements are independent but for two causes. Rounded weights change all dims of a row by the same
factor, which adds ``2 (g·o)² r² Σp²`` with the relative rounding error ``r``. Where keys or rows have nearly equal
logits (equal keys, tiny Q), their weights are rounded alike: the intraclass correlation ``c`` of the positions between
two steps is estimated from a sample of weights and results, and increases the variance of n rows by ``1 + (n - 1) c``
(Kish's design effect). Heads with a correlation above 0.1 are left out, and those whose results may become zero because
f32 numbers below the normal ones do.

**Bound.** Six standard deviations, twice the estimate of same-precision SDPA, eps/32, and what correct kernels may
have systematically: an error of the hardware's ``tanh`` with a softcap, and weights that are rounded to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType, Problem
from evoengine.parity.float_bits import Real, epsilon, from_bits, round_to, rounding_rms, smallest
from evoengine.parity.reference.fp64_attention import TANH_ERROR, Truth, block_spans, block_tensors, softcapped
from evoengine.parity.reference.row_sample import Block, Sample

DEVIATIONS: Final = 6.0
"""Allowed deviations of an estimate."""
_SDPA_RATIO: Final = 2.0
"""Allowed multiple of same-precision SDPA's own estimate."""
_FLOOR_EPS: Final = 1 / 32
"""Allowed bias in units of the dtype's epsilon, however small the noise is."""
_MAX_CORRELATION: Final = 0.1
_ROWS: Final = 64
_KEYS: Final = 256
_SMALLEST_WEIGHT: Final = 2.0**-6
"""Smaller weights are left out of the correlation: they have little effect."""
_F32_ERROR: Final = 2.0**-20
"""Relative error of a weight computed in f32 per unit of its logit: ``ex2.approx`` and the rounding of its argument."""


@dataclass(frozen=True, eq=False)
class BiasTest:
    """One direction of errors with the weights that estimate its multiple."""

    name: str
    """Property of the kernel that is wrong if the estimate is large."""
    direction: NDArray[np.float32]
    """``[n, head_dim]``."""
    row_weights: Real
    """``[n]``: the estimate of a head is the sum of ``row_weights * (error · direction)`` over its rows."""
    precision: Real
    """Inverse variance of the estimate of each head; 0 for heads that are left out."""
    bounds: Real
    """Allowed magnitude of the estimate of each head, and last of all heads together."""

    def estimates(self, error: NDArray[np.float32], starts: np.ndarray) -> Real:
        """Returns the estimate of each head, and last of all heads together."""
        return _estimates(np.einsum("rd,rd->r", error, self.direction), self.row_weights, self.precision, starts)


@dataclass(frozen=True)
class Bias:
    """Estimate that comes closest to its bound, or exceeds it by most."""

    name: str
    head: int | None
    """Index of the head in the sample; None for all heads together."""
    estimate: float
    bound: float

    @property
    def share(self) -> float:
        """Ratio of the estimate to its bound."""
        return abs(self.estimate) / self.bound


def bias_tests(inputs: AttentionInputs, truth: Truth, same_precision: Real, sample: Sample) -> tuple[BiasTest, ...]:
    """Returns the tests for a wrong softmax scale, exponential or normaliser, and too much weight on unlikely keys.

    The last direction is the mean of the visible values minus O: that of a softmax which is too flat, for example
    because small weights have a lower limit.

    Args:
        inputs: Inputs of the call.
        truth: Reference results.
        same_precision: Output of same-precision SDPA, ``[n, head_dim]``.
        sample: Compared rows.
    """
    problem = inputs.problem
    averaged = [_means(inputs, block) for block in sample.blocks]
    means, keys = (np.concatenate([pair[index] for pair in averaged]) for index in range(2))
    correlations = [_Correlation.of(inputs, block, part) for block, part in _parts(problem, sample, truth.o)]
    noise = _Noise(problem, truth, sample, correlations)
    sdpa = same_precision - round_to(truth.o, problem.dtype)
    some = (keys > 0)[:, None]
    lost = float(keys.max(initial=0.0)) * smallest(problem.dtype) / 2  # weights that are rounded to zero
    steep = 2 * TANH_ERROR if problem.softcap else 0.0
    return (
        noise.test("the softmax scale", truth.slope, sdpa, steep),
        noise.test("the exponential between powers of two", truth.octave, sdpa, lost),
        noise.test("the sum of the weights", truth.o, sdpa, lost),
        noise.test("the flatness of the softmax", np.where(some, means - truth.o, 0.0), sdpa, lost + steep),
    )


def largest_bias(tests: tuple[BiasTest, ...], error: NDArray[np.float32], starts: np.ndarray) -> Bias:
    """Returns the estimate with the largest share of its bound.

    Args:
        tests: Tests of the case, at least one.
        error: Difference of the compared output and the reference rounded to the problem's dtype, ``[n, head_dim]``.
        starts: First row of each head.
    """
    found = []
    for test in tests:
        estimates = test.estimates(error, starts)
        index = int(np.argmax(np.abs(estimates) / test.bounds))
        head = index if index < len(starts) else None
        found.append(Bias(test.name, head, float(estimates[index]), float(test.bounds[index])))
    return max(found, key=lambda bias: bias.share)


class _Noise:
    """Variance of the errors of one case."""

    def __init__(self, problem: Problem, truth: Truth, sample: Sample, correlations: list[_Correlation]) -> None:
        self._truth = truth
        self._starts = sample.starts
        self._dtype = problem.dtype
        group = problem.heads // problem.kv_heads
        lengths = np.repeat([group * len(block.rows) for block in sample.blocks], group)
        rows, keys = (np.repeat([getattr(one, name) for one in correlations], group) for name in ("rows", "keys"))
        self._effect = 1 + (lengths - 1) * rows
        squares = np.einsum("rd,rd->r", truth.o, truth.o)
        size = np.sqrt(squares / problem.head_dim)
        flushed, whole = (
            np.add.reduceat(part, sample.starts) for part in (problem.head_dim * truth.flushed**2, squares)
        )
        kept = flushed <= (_FLOOR_EPS * epsilon(problem.dtype)) ** 2 * whole
        self._usable = (rows <= _MAX_CORRELATION) & (keys <= _MAX_CORRELATION) & kept
        f32 = _F32_ERROR * (1 + truth.top) * size
        steps = _steps(truth.o, problem.dtype)
        self._variance = 2 * truth.noise**2 + steps**2 / 4 + f32[:, None] ** 2
        heads = np.diff([*sample.starts, len(truth.o)])
        self._common = 2 * rounding_rms(problem.dtype) ** 2 * (truth.squares + np.repeat(keys, heads))

    def test(self, name: str, direction: Real, sdpa: Real, systematic: float) -> BiasTest:
        """Returns the test of one direction.

        Args:
            name: Property of the kernel that is wrong if the estimate is large.
            direction: Direction ``[n, head_dim]``.
            sdpa: Error of same-precision SDPA ``[n, head_dim]``.
            systematic: Allowed bias of correct kernels that is no rounding noise.
        """
        truth, starts = self._truth, self._starts
        squares = np.einsum("rd,rd->r", direction, direction)
        variance = np.einsum("rd,rd->r", direction**2, self._variance)
        variance += self._common * np.einsum("rd,rd->r", direction, truth.o) ** 2
        some = (squares > 0) & (variance > 0)
        ratio = np.divide(squares, variance, out=np.zeros_like(squares), where=some)
        information = np.add.reduceat(ratio * squares, starts)
        precision = np.where(self._usable, information / self._effect, 0.0)
        each = np.repeat(information, np.diff([*starts, len(squares)]))
        weights = np.divide(ratio, each, out=np.zeros_like(ratio), where=each > 0)
        own = _estimates(np.einsum("rd,rd->r", sdpa, direction), weights, precision, starts)
        with np.errstate(divide="ignore"):
            deviation = 1 / np.sqrt(np.append(precision, precision.sum()))
        bounds = DEVIATIONS * deviation + _SDPA_RATIO * np.abs(own) + systematic + _FLOOR_EPS * epsilon(self._dtype)
        return BiasTest(name, direction.astype(np.float32), weights, precision, bounds)


def _estimates(projections: Real, weights: Real, precision: Real, starts: np.ndarray) -> Real:
    """Returns the estimate of each head, and their mean weighted by precision; heads without precision give 0."""
    heads = np.where(precision > 0, np.add.reduceat(projections * weights, starts), 0.0)
    total = precision.sum()
    return np.append(heads, heads @ precision / total if total > 0 else 0.0)


@dataclass(frozen=True)
class _Correlation:
    """Intraclass correlations of the rounding errors of one block."""

    rows: float
    """Between rows: largest of the weights of one key and of the results of one dim."""
    keys: float
    """Between the weights of one row."""

    @classmethod
    def of(cls, inputs: AttentionInputs, block: Block, o: Real) -> _Correlation:
        """Estimates the correlations of a block with the reference output ``o`` ``[group * rows, head_dim]``."""
        problem = inputs.problem
        some = np.unique(np.linspace(0, len(o) - 1, _ROWS).astype(np.int64))
        weights = _phases(_weights(inputs, block, some), problem.dtype)
        outputs = _phases(np.abs(o[some]), problem.dtype)
        return cls(max(_between(weights), _between(outputs)), _between(weights.T))


def _between(phases: NDArray[np.complex128]) -> float:
    """Returns the mean of ``cos`` of the phase differences of all pairs in a column; missing entries are 0."""
    count = (phases != 0).sum(axis=0)
    pairs = float((count * (count - 1)).sum())
    total = float((np.abs(phases.sum(axis=0)) ** 2 - count).sum())
    return max(0.0, total / pairs) if pairs else 0.0


def _phases(values: Real, dtype: DType) -> NDArray[np.complex128]:
    """Returns each value's position between two steps of the dtype as a phase; 0 for values of zero."""
    position = values / _steps(values, dtype)
    phases: NDArray[np.complex128] = np.where(values > 0, np.exp(2j * np.pi * position), 0.0)
    return phases


def _weights(inputs: AttentionInputs, block: Block, rows: np.ndarray) -> Real:
    """Returns a sample of the block's weights relative to the row's largest ``[rows, keys]``; 0 for those not used."""
    problem = inputs.problem
    first, end = (ends[rows] for ends in block_spans(problem, block))
    q_bits, k_bits, _ = block_tensors(inputs, block)
    last = int(end.max(where=end > first, initial=0))
    if last == 0:
        return np.zeros((len(rows), 1))
    keys = np.unique(np.linspace(int(first.min()), last - 1, _KEYS).astype(np.int64))
    q, k = from_bits(q_bits[rows], problem.dtype), from_bits(k_bits[keys], problem.dtype)
    logits, _ = softcapped(problem, np.einsum("rd,kd->rk", q * inputs.softmax_scale, k))
    seen = (keys >= first[:, None]) & (keys < end[:, None])
    top = logits.max(axis=1, where=seen, initial=-np.inf)
    weights = np.exp(np.where(seen, logits - np.where(np.isfinite(top), top, 0.0)[:, None], -np.inf))
    used: Real = np.where((weights >= _SMALLEST_WEIGHT) & (weights < 1), weights, 0.0)
    return used


def _means(inputs: AttentionInputs, block: Block) -> tuple[Real, Real]:
    """Returns the mean of the visible values of each row ``[rows, head_dim]``, and the number of visible keys."""
    first, end = block_spans(inputs.problem, block)
    values = from_bits(block_tensors(inputs, block)[2], inputs.problem.dtype)
    sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    keys = (end - first).astype(np.float64)
    return (sums[end] - sums[first]) / np.maximum(keys, 1)[:, None], keys


def _parts(problem: Problem, sample: Sample, o: Real) -> list[tuple[Block, Real]]:
    """Pairs each block with its rows of O."""
    group = problem.heads // problem.kv_heads
    ends = np.cumsum([group * len(block.rows) for block in sample.blocks])[:-1]
    return list(zip(sample.blocks, np.split(o, ends), strict=True))


def _steps(values: Real, dtype: DType) -> Real:
    """Returns the distance of neighbouring numbers of the dtype at each value."""
    size = np.maximum(np.abs(values), smallest(dtype))
    steps: Real = np.maximum(epsilon(dtype) * 2.0 ** np.floor(np.log2(size)), smallest(dtype))
    return steps
