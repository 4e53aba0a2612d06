"""Who serves a call on this machine, remembered for all calls of about the same sizes.

Lengths change from call to call, as the keys of a decoder do; looking at the leaderboard and trying a kernel for every
one of them would take far longer than attention. So a problem that nobody searched for is served like the one with each
size rounded to half an octave. That depends on the problem alone: all ranks of a job round alike.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from functools import partial

from evoengine.api.gpu import gpu_of
from evoengine.api.plans import plan_of
from evoengine.api.problems import problem_of, unsupported
from evoengine.api.selection import NoSelection, Selection, Selector
from evoengine.api.sources import KernelSource
from evoengine.model import Problem
from evoengine.runtime.call import Call
from evoengine.runtime.first_use_check import try_kernel


class Chooser:
    """Remembers the rows of each source and what was chosen from them. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._selectors: dict[tuple[int, KernelSource], Selector] = {}
        self._chosen: dict[tuple[int, KernelSource, str, bool, bool], Selection | NoSelection] = {}

    def forget(self) -> None:
        """Drops everything."""
        with self._lock:
            self._selectors.clear()
            self._chosen.clear()

    def choose(
        self, call: Call, device: int, source: KernelSource | None, *, even_if_slower: bool
    ) -> Selection | NoSelection:
        """Who serves a call that asks for no gradient; a kernel that is not slower goes first however it is asked.

        Args:
            call: what is asked for.
            device: ordinal of the GPU; -1 for none.
            source: where kernels come from; None where there is nothing.
            even_if_slower: take a kernel although torch's own attention was faster beside it.

        Raises:
            EvoEngineError: the source cannot be read, or names what cannot be built.
        """
        if device < 0:
            return NoSelection(("the tensors are not on a GPU",))
        reason = unsupported(call)
        if reason:
            return NoSelection((reason,))
        if source is None:
            return NoSelection(("there is no leaderboard: run a search, or name one in EVOENGINE_LEADERBOARD",))
        if even_if_slower:
            found = self.choose(call, device, source, even_if_slower=False)
            if isinstance(found, Selection):
                return found
        problem, source = problem_of(call), replace(source, path=source.path.resolve())
        with self._lock:
            selector = self._selector(device, source)
            own = selector.knows(problem)
            like = problem if own else rounded(problem)
            key = device, source, like.key, own, even_if_slower
            if key not in self._chosen:
                trial = partial(_try, call, device)
                self._chosen[key] = selector.select(problem, even_if_slower=even_if_slower, like=like, trial=trial)
            return self._chosen[key]

    def _selector(self, device: int, source: KernelSource) -> Selector:
        if (device, source) not in self._selectors:
            gpu, target = gpu_of(device)
            self._selectors[device, source] = Selector(gpu, target, source.rows(gpu), locked=source.locked)
        return self._selectors[device, source]


def rounded(problem: Problem) -> Problem:
    """The problem with batch and lengths rounded to half octaves; of packed sequences, all of the longest length."""
    batch, seq_q, seq_kv = (_half_octave(size) for size in (problem.batch, problem.seq_q, problem.seq_kv))
    lengths = ((seq_q,) * batch, (seq_kv,) * batch) if problem.packed else ((), ())
    return replace(problem, batch=batch, seq_q=seq_q, seq_kv=seq_kv, lengths_q=lengths[0], lengths_kv=lengths[1])


def _half_octave(size: int) -> int:
    return round(2 ** (round(2 * math.log2(size)) / 2))


def _try(call: Call, device: int, selection: Selection) -> str:
    return try_kernel(partial(plan_of, selection.kernel), call, device)
