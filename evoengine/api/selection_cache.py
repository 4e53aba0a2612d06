"""Cache of kernel selections, shared by calls of similar sizes.

Lengths change from call to call, as in a decoder; reading the leaderboard and checking a kernel for each length would
take far longer than attention. Therefore the selection for a problem without its own row is made for sizes rounded to
half octaves. Rounding depends only on the problem, so all ranks of a job select the same kernel.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial

from evoengine.api.calls import plan_of, problem_of, unsupported
from evoengine.api.gpu import gpu_of
from evoengine.api.selection import NoSelection, Selection, Selector
from evoengine.api.sources import KernelSource
from evoengine.model import Problem
from evoengine.runtime.call import Call, CallStrides
from evoengine.runtime.first_use_check import check_kernel


class SelectionCache:
    """Rows of each source, and the selections made from them; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._selectors: dict[tuple[int, KernelSource], Selector] = {}
        self._chosen: dict[tuple[int, KernelSource, str, bool, bool, CallStrides], Selection | NoSelection] = {}

    def forget(self) -> None:
        with self._lock:
            self._selectors.clear()
            self._chosen.clear()

    def choose(
        self, call: Call, device: int, source: KernelSource | None, strides: CallStrides, *, even_if_slower: bool
    ) -> Selection | NoSelection:
        """Selects the kernel for a call that needs no gradient; kernels faster than torch come first in any case.

        Args:
            call: Attention call.
            device: Ordinal of the GPU; -1 for the CPU.
            source: Leaderboard or lockfile; None if there is none.
            strides: Strides of Q, K and V; each kind of strides has a selection of its own.
            even_if_slower: Whether to accept a kernel that was slower than torch.

        Raises:
            EvoEngineError: The source cannot be read, or a locked kernel cannot be built.
        """
        if device < 0:
            return NoSelection(("the tensors are not on a GPU",))
        reason = unsupported(call)
        if reason:
            return NoSelection((reason,))
        if source is None:
            return NoSelection(("there is no leaderboard: run a search, or set EVOENGINE_LEADERBOARD",))
        if even_if_slower:
            found = self.choose(call, device, source, strides, even_if_slower=False)
            if isinstance(found, Selection):
                return found
        problem, source = problem_of(call), replace(source, path=source.path.resolve())
        with self._lock:
            selector = self._selector(device, source)
            own = selector.knows(problem)
            like = problem if own else rounded(problem)
            key = device, source, like.key, own, even_if_slower, strides
            if key not in self._chosen:
                trial = partial(_first_use_check, call, device, strides)
                self._chosen[key] = selector.select(problem, even_if_slower=even_if_slower, like=like, trial=trial)
            return self._chosen[key]

    def _selector(self, device: int, source: KernelSource) -> Selector:
        if (device, source) not in self._selectors:
            gpu, target = gpu_of(device)
            self._selectors[device, source] = Selector(gpu, target, source.rows(gpu), locked=source.locked)
        return self._selectors[device, source]


def rounded(problem: Problem) -> Problem:
    """Rounds batch and lengths to half octaves; packed sequences all get the maximum length."""
    batch, seq_q, seq_kv = (_half_octave(size) for size in (problem.batch, problem.seq_q, problem.seq_kv))
    lengths = ((seq_q,) * batch, (seq_kv,) * batch) if problem.packed else ((), ())
    return replace(problem, batch=batch, seq_q=seq_q, seq_kv=seq_kv, lengths_q=lengths[0], lengths_kv=lengths[1])


def _half_octave(size: int) -> int:
    return round(2 ** (round(2 * math.log2(size)) / 2))


def _first_use_check(call: Call, device: int, strides: CallStrides, selection: Selection) -> str:
    return check_kernel(partial(plan_of, selection.kernel), call, device, strides=strides)
