"""A FlashAttention-2 forward in Triton, tuned over a few dozen configurations when it is prepared.

All configurations are compiled first, on all cores. Each is then timed by graph replay, like everything else. Triton's
own tuner times eager launches, which for a kernel of a few microseconds measures the host rather than the kernel.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
"""Numbers of warps to try, by query rows per CTA."""
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

    kernel: Any = attention_forward[_grid(inputs.problem, config)]
    values, options = _arguments(inputs.problem, config)

    def run() -> PeerOutput:
        out = torch.empty_like(inputs.q)
        kernel(inputs.q, inputs.k, inputs.v, out, *values, **options)
        return PeerOutput(out)

    return run


def _grid(problem: Problem, config: TritonConfig) -> tuple[int, int]:
    return -(-problem.seq_q // config.block_m), problem.batch * problem.heads


def _arguments(problem: Problem, config: TritonConfig) -> tuple[tuple[float, ...], dict[str, int]]:
    """Returns the arguments of a call after its tensors, and the constants and options that are compiled in."""
    scale_log2 = problem.softmax_scale * math.log2(math.e)
    options = {
        "HEAD_DIM": problem.head_dim,
        "BLOCK_D": max(_MIN_DOT, _power_of_two(problem.head_dim)),
        "CAUSAL": problem.causal,
        "HAS_TAIL": problem.causal or problem.seq_kv % config.block_n != 0,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
    return (scale_log2, problem.heads, problem.heads // problem.kv_heads, problem.seq_q, problem.seq_kv), options


class TritonFlash:
    """The tuned kernel."""

    name: Final = "triton-fa2"

    def prepare(self, inputs: PeerInputs) -> PeerCall:
        """Compiles and times every configuration; the fastest few are timed again before one is chosen."""
        library = load("triton")
        inputs.supports_only()
        inputs.require_gpu()
        configs = configs_for(inputs.problem)
        compile_all(inputs, configs)
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


def compile_all(inputs: PeerInputs, configs: tuple[TritonConfig, ...]) -> None:
    """Compiles configurations at the same time; most of Triton's compiler runs without Python's lock.

    A configuration that does not compile is ignored: it fails again where it is timed.
    """
    import torch

    from evoengine.bench.peers._triton_kernel import attention_forward

    out = torch.empty_like(inputs.q)

    def compile_one(config: TritonConfig) -> None:
        values, options = _arguments(inputs.problem, config)
        grid = _grid(inputs.problem, config)
        with suppress(Exception):  # Triton raises many types
            attention_forward.warmup(inputs.q, inputs.k, inputs.v, out, *values, grid=grid, **options)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(compile_one, configs))


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
