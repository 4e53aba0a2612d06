"""A FlashAttention-2 forward in Triton, tuned over a few dozen configurations when it is prepared.

Each configuration is timed by graph replay, like everything else. Triton's own tuner times eager launches, which for a
kernel of a few microseconds measures the host rather than the kernel.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, PeerUnavailableError, first_line, load
from evoengine.bench.peer_stopwatch import TorchStopwatch
from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.model import Problem
from evoengine.statistics import median_interval

_FIRST_SAMPLES: Final = 7
_FINALISTS: Final = 4
_FINAL_SAMPLES: Final = 20
_WARPS: Final = {16: (2, 4), 32: (2, 4), 64: (4, 8), 128: (4, 8)}
"""Sensible numbers of warps for a number of query rows."""
_BLOCKS_N: Final = (32, 64, 128)
_STAGES: Final = (2, 3)
_MIN_DOT: Final = 16
"""Smallest axis of ``tl.dot``."""


@dataclass(frozen=True)
class TritonConfig:
    """One configuration of the kernel."""

    block_m: int
    """Query rows per CTA."""
    block_n: int
    """Keys per step."""
    warps: int
    stages: int
    """Depth of the pipeline of K and V."""

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}, {self.warps} warps, {self.stages} stages"


def configs_for(problem: Problem) -> tuple[TritonConfig, ...]:
    """Returns a few dozen configurations: those that are not too large for the problem."""
    blocks_m = [size for size in _WARPS if size <= max(_MIN_DOT, _power_of_two(problem.seq_q))]
    blocks_n = [size for size in _BLOCKS_N if size <= max(_BLOCKS_N[0], _power_of_two(problem.seq_kv))]
    return tuple(
        TritonConfig(block_m, block_n, warps, stages)
        for block_m, block_n, stages in itertools.product(blocks_m, blocks_n, _STAGES)
        for warps in _WARPS[block_m]
    )


def launcher(inputs: PeerInputs, config: TritonConfig) -> Callable[[], PeerOutput]:
    """Returns a call of the kernel in one configuration."""
    import torch

    from evoengine.bench.peers._triton_kernel import attention_forward

    problem = inputs.problem
    grid = (-(-problem.seq_q // config.block_m), problem.batch * problem.heads)
    kernel: Any = attention_forward[grid]
    scale_log2 = problem.softmax_scale * math.log2(math.e)
    group = problem.heads // problem.kv_heads
    has_tail = problem.causal or problem.seq_kv % config.block_n != 0
    block_d = max(_MIN_DOT, _power_of_two(problem.head_dim))

    def run() -> PeerOutput:
        out = torch.empty_like(inputs.q)
        kernel(
            inputs.q, inputs.k, inputs.v, out, scale_log2, problem.heads, group, problem.seq_q, problem.seq_kv,
            HEAD_DIM=problem.head_dim, BLOCK_D=block_d, CAUSAL=problem.causal, HAS_TAIL=has_tail,
            BLOCK_M=config.block_m, BLOCK_N=config.block_n, num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
        return PeerOutput(out)

    return run


class TritonFlash:
    """The tuned kernel."""

    name: Final = "triton-fa2"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Compiles and times every configuration; the fastest few are timed again before one is chosen."""
        library = load("triton")
        inputs.supports_only()
        inputs.require_gpu()
        configs = configs_for(inputs.problem)
        first, refusal = _first_round(inputs, configs)
        if not first:
            raise PeerUnavailableError(f"no configuration runs: {refusal}")
        finalists = sorted(first, key=lambda config: first[config])[:_FINALISTS]
        winner = _final_round(inputs, finalists)
        note = f"{library.__version__}: {winner}; best of {len(first)} configurations"
        return PeerCall(launcher(inputs, winner), note, tuned=json.dumps(astuple(winner)))

    def prepare_tuned(self, inputs: PeerInputs, tuned: str) -> PeerCall:
        """Builds the call of the configuration that was chosen before."""
        return PeerCall(launcher(inputs, TritonConfig(*json.loads(tuned))), tuned=tuned)


def _first_round(inputs: PeerInputs, configs: tuple[TritonConfig, ...]) -> tuple[dict[TritonConfig, float], str]:
    """Returns the median time of every configuration that runs, and the error of the last one that does not."""
    options = plan_for(inputs.problem).stopwatch
    medians: dict[TritonConfig, float] = {}
    refusal = ""
    for config in configs:
        try:
            watch = TorchStopwatch(PeerCall(launcher(inputs, config)), options)
        except Exception as error:  # noqa: BLE001 - Triton raises many types for a configuration that does not fit
            refusal = first_line(error)
            continue
        (samples,) = sample_interleaved([watch], _FIRST_SAMPLES, 1)
        medians[config] = median_interval(samples).median
        watch.close()
    return medians, refusal


def _final_round(inputs: PeerInputs, finalists: list[TritonConfig]) -> TritonConfig:
    options = plan_for(inputs.problem).stopwatch
    watches = [TorchStopwatch(PeerCall(launcher(inputs, config)), options) for config in finalists]
    sampled = sample_interleaved(watches, _FINAL_SAMPLES, 2)
    for watch in watches:
        watch.close()
    times = {config: median_interval(samples).median for config, samples in zip(finalists, sampled, strict=True)}
    return min(times, key=lambda config: times[config])


def _power_of_two(number: int) -> int:
    """Returns the smallest power of two that is not below ``number``."""
    return 1 << (number - 1).bit_length()


ORDER: Final = 3
PEERS: Final = (TritonFlash(),)
