"""``evoengine.record_attention``: the attention calls that a program makes, with their number and time.

Calls of SDPA are intercepted, and calls of ``evoengine.attention`` are seen by their launchers. Compiled programs run
as plain Python meanwhile, and torch's fused encoder layers as separate operations: neither calls SDPA otherwise.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from evoengine.api.sdpa_replacement import sdpa_replaced
from evoengine.api.serving import BoundCall, bind, wrapping_launchers
from evoengine.api.tuning import asked_problem
from evoengine.errors import EvoEngineError
from evoengine.model import Problem
from evoengine.runtime.call import Options
from evoengine.runtime.lookup import Launcher, Tensors
from evoengine.runtime.ops import wants_gradient
from evoengine.runtime.torch_fallback import SDPA

_PARAMETERS: Final = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Parameters of SDPA after Q, K and V, in its order."""
_US_PER_MS: Final = 1000.0
_Clock = Callable[[], float]
"""Returns the µs of a call when it has ended."""
_Kind = tuple[str, Problem | None, str, int]
"""First fields of :class:`RecordedCall`."""


@dataclass(frozen=True)
class RecordedCall:
    """All recorded calls of one kind."""

    what: str
    """Key of the problem; for a call that no kernel can serve, the shape of Q."""
    problem: Problem | None
    """None if no kernel can serve the call."""
    reason: str
    """Why no kernel can serve the call; empty if one can."""
    device: int
    """Ordinal of the GPU; -1 for the CPU."""
    count: int
    median_us: float | None
    """Median time of a call in this run; None if all were captured in a CUDA graph."""

    @property
    def total_us(self) -> float:
        """Number of calls times their median time: the first one often includes work that is done once."""
        return self.count * (self.median_us or 0.0)


class RecordedCalls:
    """Attention calls recorded by :func:`record_attention`; complete when its block has ended.

    Args:
        read: Returns the calls recorded so far.
    """

    def __init__(self, read: Callable[[], tuple[RecordedCall, ...]]) -> None:
        self._read = read

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """The calls of each kind, those that take the most time first."""
        return self._read()


@contextmanager
def record_attention() -> Iterator[RecordedCalls]:
    """Records the attention calls that are made inside of a ``with`` block.

    It sees calls of ``scaled_dot_product_attention`` and ``evoengine.attention``, in eager and in compiled programs,
    which run uncompiled meanwhile. It does not see replays of CUDA graphs and other libraries' attention.

    Yields:
        The calls recorded so far.
    """
    recorder = _Recorder()
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(wrapping_launchers(recorder.wrap))
        stack.enter_context(sdpa_replaced(recorder.sdpa, of_program=False))
        stack.enter_context(_OtherCalls(recorder.sdpa))
        yield RecordedCalls(recorder.recorded)


class _Recorder:
    """Records calls; a call that is made by another attention call is not recorded again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clocks: dict[_Kind, list[_Clock | None]] = {}
        self._inside = threading.local()

    def recorded(self) -> tuple[RecordedCall, ...]:
        """Returns the calls of each kind, those that take the most time first."""
        made = []
        with self._lock:
            for kind, clocks in self._clocks.items():
                times = [clock() for clock in clocks if clock is not None]
                made.append(RecordedCall(*kind, len(clocks), statistics.median(times) if times else None))
        return tuple(sorted(made, key=lambda call: (-call.total_us, -call.count, call.what)))

    def sdpa(self, *arguments: Any, **named: Any) -> Any:
        """Records and makes a call of SDPA."""
        given = dict(zip(("query", "key", "value", *_PARAMETERS), arguments, strict=False)) | dict(named)
        tensors: list[Any] = [given.get(name) for name in ("query", "key", "value")]
        if not all(isinstance(one, torch.Tensor) for one in tensors):
            return SDPA(*arguments, **named)
        options: dict[str, Any] = {name: given[name] for name in _PARAMETERS if name in given}
        kind = _kind(tensors[0], lambda: bind(tensors[0], tensors[1], tensors[2], options))
        return self._timed(kind, lambda: SDPA(*arguments, **named))

    def wrap(self, tensors: Tensors, options: Options, launcher: Launcher) -> Launcher:
        """Returns a launcher that records calls of ``evoengine.attention``."""
        kind = _kind(tensors[0], lambda: BoundCall(tensors, options, fallback=True, leaderboard=""))

        def recorded(*arguments: torch.Tensor | None) -> Any:
            return self._timed(kind, lambda: launcher(*arguments))

        return recorded

    def _timed(self, kind: _Kind, run: Callable[[], Any]) -> Any:
        if getattr(self._inside, "call", False):
            return run()
        self._inside.call = True
        try:
            result, clock = _clocked(kind[-1], run)
        finally:
            self._inside.call = False
        with self._lock:
            self._clocks.setdefault(kind, []).append(clock)
        return result


class _OtherCalls(TorchFunctionMode):
    """Passes calls of SDPA by other references than names of modules to a function, during which the mode is off."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._function if func is SDPA else func)(*args, **(kwargs or {}))


def _kind(q: torch.Tensor, bound: Callable[[], BoundCall]) -> _Kind:
    """Returns what identifies a call: name, problem, why no kernel can serve it, and device."""
    device = q.get_device() if q.is_cuda else -1
    name = f"{'x'.join(map(str, q.shape))} {str(q.dtype).removeprefix('torch.')}"
    try:
        asked = bound()
        if torch.is_grad_enabled() and wants_gradient(*asked.tensors[:4]):
            return name, None, "the call needs a gradient, which kernels do not compute", device
        problem = asked_problem(asked)
    except (EvoEngineError, TypeError, ValueError) as error:
        return name, None, str(error).removeprefix("no kernel can be searched for: "), device
    return problem.key, problem, "", device


def _clocked(device: int, run: Callable[[], Any]) -> tuple[Any, _Clock | None]:
    """Runs a call; returns its result, and a function that returns its µs, None during the capture of a CUDA graph."""
    if device < 0:
        began = time.perf_counter()
        result = run()
        elapsed_us = 1e6 * (time.perf_counter() - began)
        return result, lambda: elapsed_us
    if torch.cuda.is_current_stream_capturing():
        return run(), None
    made: Any = torch.cuda.Event
    first, last = made(enable_timing=True), made(enable_timing=True)
    with torch.cuda.device(device):
        first.record()
        result = run()
        last.record()

    def elapsed() -> float:
        last.synchronize()
        return _US_PER_MS * float(first.elapsed_time(last))

    return result, elapsed
