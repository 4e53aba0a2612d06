"""Cache of kernel selections, shared by calls of similar sizes.

Lengths change from call to call, as in a decoder; reading the leaderboard and checking a kernel for each length would
take far longer than attention. Therefore the selection for a problem without its own row is made for sizes rounded to
half octaves. Rounding depends only on the problem, so all ranks of a job select the same kernel.

A kernel of a search space that a leaderboard or lockfile stores is tried on every shape that it will serve, at full
size: its derived values, such as the size of shared memory, come from that file.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial
from typing import Final

from evoengine.api.calls import plan_of, problem_of, unsupported
from evoengine.api.gpu import gpu_of
from evoengine.api.selection import NoSelection, Selection, Selector
from evoengine.api.sources import KernelSource
from evoengine.model import Problem
from evoengine.runtime.call import Call, CallStrides
from evoengine.runtime.first_use_check import check_kernel, is_checked_whole

MAX_TRIED: Final = 4096
"""Maximum number of remembered trials."""


class SelectionCache:
    """Rows of each source, and the selections made from them; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._selectors: dict[tuple[int, KernelSource], Selector] = {}
        self._chosen: dict[tuple[int, KernelSource, str, bool, bool, CallStrides], Selection | NoSelection] = {}
        self._tried: dict[tuple[int, KernelSource, str, Call, CallStrides], str] = {}

    def forget(self) -> None:
        with self._lock:
            self._selectors.clear()
            self._chosen.clear()
            self._tried.clear()

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
                trial = partial(self._try, call, device, source, strides)
                self._chosen[key] = selector.select(problem, even_if_slower=even_if_slower, like=like, trial=trial)
            chosen = self._chosen[key]
            if isinstance(chosen, Selection) and chosen.row.space:
                wrong = self._try(call, device, source, strides, chosen)
                if wrong:
                    return NoSelection((*chosen.notes, f"row {chosen.row.row_id} is wrong for this call: {wrong}"))
            return chosen

    def _try(self, call: Call, device: int, source: KernelSource, strides: CallStrides, selection: Selection) -> str:
        """Checks a kernel before its first use for a call; returns what is wrong."""
        plan = partial(plan_of, selection.kernel)
        if not selection.row.space:
            return check_kernel(plan, call, device, strides=strides)
        tried = device, source, selection.kernel.binary.code_hash, call, strides
        if tried not in self._tried:
            if len(self._tried) >= MAX_TRIED:
                self._tried.clear()
            full = not is_checked_whole(call)
            self._tried[tried] = check_kernel(plan, call, device, strides=strides, full=full)
        return self._tried[tried]

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
