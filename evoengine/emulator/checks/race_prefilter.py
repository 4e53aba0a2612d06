"""A quick look for races: says only that there may be one; :mod:`evoengine.emulator.checks.race_detector` then says which.

Accesses are noted and judged together when all warps of their CTA have met. What then counts as a race is every pair of
accesses to the same bytes by different warps, one of them a write, with no barrier that both warps passed in between.
That is what the vector clocks of the exact checker find, told by sets instead of clocks: each warp counts the barriers
that it has passed since the CTA last met as a whole (its *round*), and warps that meet without the others must always
be the same ones (a *team*). Then two accesses are unordered if their warps are of different teams, or their rounds are
equal. A kernel whose warps meet in any other way is not judged here: it may have a race.

Where all CTAs access the same words, one of them is judged for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.emulator.execution.cta_split import Rows, count, of_rows
from evoengine.emulator.memory.global_memory import SHIFT, select
from evoengine.emulator.semantics.floats import Array

_GRANULE: Final = 2
"""Bytes, as for the exact checker."""
_WORD: Final = {1: np.uint8, 2: np.uint8, 4: np.uint16, 8: np.uint32, 16: np.uint64}
"""By size of an access: one byte for each of its granules."""
_MOST_NOTED: Final = 2**23
"""Lanes whose accesses are remembered at a time."""


class MayRace(Exception):
    """There may be a race."""


@dataclass(frozen=True, eq=False)
class _Access:
    """One instruction's access to shared memory."""

    index: Array
    """Word per lane, ``[1 or ctas, 1 or threads]``."""
    size: int
    mask: Array | None
    writes: bool
    rounds: Array
    """Of the warps, ``[1 or ctas, warps]``."""

    def part(self, rows: Rows, ctas: int, rounds: Array) -> _Access:
        mask = None if self.mask is None else of_rows(self.mask, rows, ctas)
        return _Access(of_rows(self.index, rows, ctas), self.size, mask, self.writes, rounds)


@dataclass(frozen=True, eq=False)
class _Lanes:
    """Active lanes of an access, one after the other."""

    word: Array
    """Of the memory of all CTAs that are judged."""
    warp: Array
    """Likewise numbered through all CTAs."""
    size: int
    writes: bool


class RacePrefilter:
    """The accesses of one batch since its CTAs last met; see :class:`~evoengine.emulator.checks.race_detector.RaceWatch`.

    All methods but ``read`` may raise :class:`MayRace`.
    """

    def __init__(self, ctas: int, threads: int, smem_bytes: int) -> None:
        self._ctas, self._threads, self._warps = ctas, threads, threads // 32
        self._warp_of = np.arange(threads)[None, :] // 32
        self._padded = max(16, (smem_bytes + 15) // 16 * 16)
        self._start: Array = np.zeros((1, self._warps), np.int64)
        self._rounds = self._start
        self._teams: Array = np.zeros((1, self._warps), np.int64)
        """Of each warp the lowest of its team, plus 1; 0 where it has met nobody without the others."""
        self._noted: list[_Access] = []
        self._lanes = 0

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Notes a read."""
        self._note(_Access(index, size, mask, False, self._rounds))

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Notes a write, or the start of one."""
        self._note(_Access(index, size, mask, True, self._rounds))

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Notes the end of a cp.async: it writes until then."""
        self._note(_Access(index, size, mask, True, self._rounds))

    def keep(self, rows: Rows) -> None:
        """Goes on with some of the CTAs only."""
        every = (self._rounds, *(access.rounds for access in self._noted))
        kept = {id(rounds): of_rows(rounds, rows, self._ctas) for rounds in every}
        self._noted = [access.part(rows, self._ctas, kept[id(access.rounds)]) for access in self._noted]
        self._lanes = sum(access.index.size for access in self._noted)
        self._rounds = kept[id(self._rounds)]
        self._teams = of_rows(self._teams, rows, self._ctas)
        self._ctas = count(rows)

    def _note(self, access: _Access) -> None:
        self._noted.append(access)
        self._lanes += access.index.size
        if self._lanes > _MOST_NOTED:
            raise MayRace

    def finish(self) -> None:
        """Judges what came after the last barrier."""
        self._judge(self._noted)

    def barrier(self, lanes: Array | None) -> None:
        """Warps have met: of CTAs that met as a whole the accesses are judged and forgotten."""
        if lanes is None or lanes.all():
            self._judge(self._noted)
            self._forget([])
            return
        by_warp = np.asarray(lanes.reshape(len(lanes), -1, min(32, lanes.shape[1])).any(axis=2))
        here: Array = np.broadcast_to(by_warp, (len(lanes), self._warps))
        if (here == here[:1]).all():
            here = here[:1]
        whole: Array = np.asarray(here.all(axis=1, keepdims=True))
        if whole.any():
            self._judge(list(_of_ctas(self._noted, whole)))
            self._forget(list(_of_ctas(self._noted, ~whole)))
        self._join(here & ~whole)
        self._rounds = np.where(whole, 0, self._rounds + here)

    def _forget(self, left: list[_Access]) -> None:
        self._noted = left
        self._lanes = sum(access.index.size for access in left)
        if not left:
            self._rounds = self._start

    def _join(self, here: Array) -> None:
        """These warps have met without the others of their CTA."""
        teams = np.broadcast_to(self._teams, np.broadcast_shapes(self._teams.shape, here.shape)).copy()
        lowest = np.broadcast_to(here.argmax(axis=1, keepdims=True) + 1, teams.shape)
        same = (np.where(here, teams, lowest) == lowest) & (here == (teams == lowest))
        fresh = np.where(here, teams, 0).max(axis=1, keepdims=True) == 0
        if not (same.all(axis=1, keepdims=True) | fresh | ~here.any(axis=1, keepdims=True)).all():
            raise MayRace
        self._teams = np.where(here, lowest, teams)

    # --- judging ------------------------------------------------------------------------------------------------

    def _judge(self, noted: list[_Access]) -> None:
        if not any(access.writes for access in noted):
            return
        rows = 1 if all(map(_is_common, noted)) and len(self._teams) == 1 else self._ctas
        found = [self._spread(access, rows) for access in noted]
        for together in self._by_round(noted, found, rows):
            self._clash(together, rows, np.tile(np.arange(self._warps) + 1, rows))
        if self._teams.any():
            alone = np.arange(self._warps) + self._warps + 1
            teams = np.where(self._teams == 0, alone, self._teams)
            self._clash(found, rows, np.broadcast_to(teams, (rows, self._warps)).reshape(-1))

    def _spread(self, access: _Access, rows: int) -> _Lanes:
        word = access.index >> 1 if access.size == 1 else access.index
        warp = self._warp_of
        if rows > 1:
            row = np.arange(rows)[:, None]
            word = word + row * (self._padded >> SHIFT[max(access.size, _GRANULE)])
            warp = row * self._warps + warp
        word, warp = select(word, warp, access.mask)
        return _Lanes(word.reshape(-1), warp.reshape(-1), access.size, access.writes)

    def _by_round(self, noted: list[_Access], found: list[_Lanes], rows: int) -> Iterator[list[_Lanes]]:
        """The accesses, those of each round together."""
        if all(access.rounds is noted[0].rounds for access in noted) and not noted[0].rounds.any():
            yield found
            return
        together: dict[int, list[_Lanes]] = {}
        for access, lanes in zip(noted, found, strict=True):
            rounds = np.broadcast_to(access.rounds, (rows, self._warps)).reshape(-1)
            if (rounds == rounds[0]).all():
                together.setdefault(int(rounds[0]), []).append(lanes)
                continue
            own = rounds[lanes.warp]
            for number in set(rounds.tolist()):
                keep = own == number
                if keep.any():
                    part = replace(lanes, word=lanes.word[keep], warp=lanes.warp[keep])
                    together.setdefault(number, []).append(part)
        yield from together.values()

    def _clash(self, accesses: list[_Lanes], rows: int, names: Array) -> None:
        """Raises where accesses of warps with different names meet, one of them a write."""
        holder = np.zeros(rows * self._padded // _GRANULE, np.uint8)
        groups: dict[tuple[int, bool], list[_Lanes]] = {}
        for one in accesses:
            groups.setdefault((one.size, one.writes), []).append(one)
        marked = []
        for (size, writes), group in groups.items():
            word = np.concatenate([one.word for one in group])
            mark = _REPEATED[size].take(names).take(np.concatenate([one.warp for one in group]))
            marked.append((holder.view(_WORD[size]), word, mark, writes))
            if writes:
                marked[-1][0][word] = mark
        for words, word, mark, writes in marked:
            there = words.take(word)
            bad = there != mark
            if not writes:
                bad &= there != 0
            if bad.any() and (writes or _differs(there[bad], mark[bad])):
                raise MayRace


_REPEATED: Final = {
    size: (np.arange(256, dtype=np.uint64) * np.uint64(0x0101010101010101)).astype(word) for size, word in _WORD.items()
}
"""A name in each byte of a word."""


def _differs(there: Array, mark: Array) -> bool:
    """Whether some byte is neither free nor one's own."""
    bytes_there, bytes_mark = there.view(np.uint8), mark.view(np.uint8)
    return bool(((bytes_there != 0) & (bytes_there != bytes_mark)).any())


def _is_common(access: _Access) -> bool:
    """Whether all CTAs do the same."""
    return access.index.shape[0] == 1 and len(access.rounds) == 1 and (access.mask is None or len(access.mask) == 1)


def _of_ctas(accesses: Iterable[_Access], ctas: Array) -> Iterator[_Access]:
    """What these CTAs, ``[1 or ctas, 1]``, have to do with it."""
    for access in accesses:
        mask = ctas if access.mask is None else access.mask & ctas
        if mask.any():
            yield replace(access, mask=mask)
