"""End-to-end time of a model with torch's attention and with EvoEngine's, on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

import torch

from evoengine.api.sdpa_replacement import replace_sdpa

Way = Literal["eager", "graph", "compiled", "compiled graph"]
"""``compiled`` is by torch.compile; ``graph`` is a CUDA graph of the eager program, or of the compiled one."""
_COMPILED: Final = ("compiled", "compiled graph")
WAYS: Final[tuple[Way, ...]] = get_args(Way)
_PASS = Callable[[], Any]
_WARM_UPS: Final = 3
_ROUNDS: Final = 15
_ROUND_S: Final = 0.03
"""Time of one round."""
_MOST_PASSES: Final = 200


@dataclass(frozen=True)
class ModelTime:
    """Times of a model run in one way."""

    way: Way
    torch_us: float | None
    """Median time of a pass with torch's attention; None if it could not be run this way."""
    evoengine_us: float | None
    """Median time of a pass with EvoEngine's attention; None if it could not be run this way."""
    largest_difference: float | None
    """Largest absolute difference between the outputs of both."""
    reason: str = ""
    """Why a time is missing."""

    @property
    def gain(self) -> float | None:
        """Torch's time over EvoEngine's; above 1 EvoEngine is faster."""
        return None if not self.torch_us or not self.evoengine_us else self.torch_us / self.evoengine_us


def time_model(model: Callable[..., Any], inputs: Sequence[Any], leaderboard: str) -> tuple[ModelTime, ...]:
    """Times a model in every way with both attentions; a way that fails gives a reason instead of a time.

    Passes of both are interleaved, except for compiled ones: a program that is compiled for one attention could be used
    for the other, so each is compiled and timed alone.

    Args:
        model: Function of the inputs, on a GPU.
        inputs: Arguments of a pass.
        leaderboard: Path of the leaderboard or lockfile.
    """
    return tuple(_time_way(way, model, inputs, leaderboard) for way in WAYS)


def _time_way(way: Way, model: Callable[..., Any], inputs: Sequence[Any], leaderboard: str) -> ModelTime:
    contexts: Mapping[str, Callable[[], Any]] = {
        "torch": nullcontext,
        "evoengine": lambda: replace_sdpa(leaderboard),
    }
    try:
        medians, outputs = (
            _alone(way, contexts, model, inputs) if way in _COMPILED else _together(way, contexts, model, inputs)
        )
    except Exception as error:  # noqa: BLE001 - a model that cannot be compiled or captured has no such time
        with suppress(RuntimeError):  # reported by the next way, if it lasts
            torch.cuda.synchronize()
        return ModelTime(way, None, None, None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return ModelTime(way, medians["torch"], medians["evoengine"], _difference(outputs["torch"], outputs["evoengine"]))


def _together(
    way: Way, contexts: Mapping[str, Callable[[], Any]], model: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Times both attentions, round by round in turn."""
    passes: dict[str, _PASS] = {}
    outputs: dict[str, Any] = {}
    for name, context in contexts.items():
        with context():
            passes[name] = _captured(model, inputs) if way == "graph" else partial(model, *inputs)
            outputs[name] = _copied(passes[name]())
    count = _passes_per_round(passes["torch"])
    samples: dict[str, list[float]] = {name: [] for name in contexts}
    for number in range(_WARM_UPS + _ROUNDS):
        for name, context in contexts.items():
            with context():
                us = _round_us(passes[name], count)
            if number >= _WARM_UPS:
                samples[name].append(us)
    return {name: statistics.median(values) for name, values in samples.items()}, outputs


def _alone(
    way: Way, contexts: Mapping[str, Callable[[], Any]], model: Callable[..., Any], inputs: Sequence[Any]
) -> tuple[dict[str, float], dict[str, Any]]:
    """Compiles and times the model for one attention after the other."""
    medians, outputs = {}, {}
    for name, context in contexts.items():
        torch.compiler.reset()
        with context():
            compiled = torch.compile(model)
            program = _captured(compiled, inputs) if way == "compiled graph" else partial(compiled, *inputs)
            outputs[name] = _copied(program())
            count = _passes_per_round(program)
            rounds = [_round_us(program, count) for _ in range(_WARM_UPS + _ROUNDS)]
        medians[name] = statistics.median(rounds[_WARM_UPS:])
    torch.compiler.reset()
    return medians, outputs


def _captured(model: Callable[..., Any], inputs: Sequence[Any]) -> _PASS:
    """Returns the replay of a CUDA graph of one pass."""
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            model(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(*inputs)

    def replay() -> Any:
        graph.replay()
        return output

    return replay


def _passes_per_round(run: _PASS) -> int:
    _round_us(run, _WARM_UPS)
    return max(1, min(_MOST_PASSES, int(1e6 * _ROUND_S / _round_us(run, _WARM_UPS))))


def _round_us(run: _PASS, count: int) -> float:
    """Wall time of a pass, the final synchronisation included."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - began) / count


def _copied(output: Any) -> Any:
    """Copies the first tensor of an output, which a later pass may overwrite; None if it has none."""
    if isinstance(output, torch.Tensor):
        return output.detach().float().clone()
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, (tuple, list)) else ()
    return next((copy for copy in map(_copied, parts) if copy is not None), None)


def _difference(first: torch.Tensor | None, second: torch.Tensor | None) -> float | None:
    return None if first is None or second is None else float((first - second).abs().max())
