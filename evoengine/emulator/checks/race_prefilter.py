"""Fast pre-filter for data races in shared memory.

It only decides whether a race is possible. :mod:`evoengine.emulator.checks.race_detector` then finds the accesses.

Accesses are recorded until the next barrier of the whole CTA and then checked together. Two accesses to the same bytes
by different warps, one of them a write, conflict unless a barrier orders them. Instead of vector clocks the pre-filter
uses two numbers for each warp:

- its *round*: the barriers that it has passed since the last barrier of the whole CTA;
- its *group*: the warps with which it shares barriers other than those of the whole CTA.

Groups must be disjoint and stay the same for the whole launch. Two accesses are then unordered if their warps belong to
different groups, or if their rounds are equal. Any other barrier pattern is reported as a possible race.

If all CTAs access the same words, only one of them is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count, select_rows
from evoengine.emulator.checks.proxy_fences import FencedChunks
from evoengine.emulator.checks.race_observer import GRANULE, StoredWords
from evoengine.emulator.memory.transfers import BulkAccess
from evoengine.emulator.memory.words import SHIFT, select

_WORD: Final = {1: np.uint8, 2: np.uint8, 4: np.uint16, 8: np.uint32, 16: np.uint64}
"""Type with one byte per granule, by access size in bytes."""
_MAX_RECORDED_LANES: Final = 2**23
"""Limit on the recorded accesses, counted in lanes."""


class PossibleRace(Exception):
    """A race is possible, or the barrier pattern is outside the pre-filter's model."""


@dataclass(frozen=True, eq=False)
class _Access:
    """Access of one instruction to shared memory."""

    index: Array
    """Word index per lane, ``[1 or ctas, 1 or threads]``."""
    size: int
    mask: Array | None
    writes: bool
    rounds: Array
    """Round of each warp, ``[1 or ctas, warps]``."""
    atomic: bool = False

    def restricted(self, rows: CtaRows, ctas: int, rounds: Array) -> _Access:
        mask = None if self.mask is None else select_rows(self.mask, rows, ctas)
        return replace(self, index=select_rows(self.index, rows, ctas), mask=mask, rounds=rounds)


@dataclass(frozen=True, eq=False)
class _Lanes:
    """Active lanes of an access, flattened."""

    word: Array
    """Word index in the concatenated shared memory of all checked CTAs."""
    warp: Array
    """Warp number, counted through all checked CTAs."""
    size: int
    writes: bool


class RacePrefilter:
    """Accesses of one batch since the last barrier of the whole CTA.

    Implements :class:`~evoengine.emulator.checks.race_observer.RaceObserver`. Every method except ``restrict``,
    ``converge`` and ``fence`` may raise :class:`PossibleRace`.
    """

    def __init__(self, ctas: int, threads: int, smem_bytes: int) -> None:
        self._ctas, self._threads, self._warps = ctas, threads, threads // 32
        self._warp_of = np.arange(threads)[None, :] // 32
        self._padded = max(16, (smem_bytes + 15) // 16 * 16)
        self._start: Array = np.zeros((1, self._warps), np.int64)
        self._rounds = self._start
        self._groups: Array = np.zeros((1, self._warps), np.int64)
        """Lowest warp index + 1 of each warp's group; 0 for a warp that has passed only barriers of the whole CTA."""
        self._recorded: list[_Access] = []
        self._lanes = 0
        """Number of recorded lanes."""

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Records a read."""
        self._record(_Access(index, size, mask, False, self._rounds))

    def write(
        self, index: Array, size: int, mask: Array | None, site: int, words: Callable[[], StoredWords] | None = None
    ) -> None:
        """Records a write, or the issue of a cp.async; only the detector compares the words."""
        self._record(_Access(index, size, mask, True, self._rounds))

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the completion of a cp.async: its write lasts from issue to completion."""
        self._record(_Access(index, size, mask, True, self._rounds))

    def synchronise(
        self, index: Array, size: int, mask: Array | None, site: int, *, acquires: bool, releases: bool
    ) -> None:
        """Records an atomic. The model ignores the order that such accesses establish, which the detector examines."""
        if acquires and releases:
            self._record(_Access(index, size, mask, True, self._rounds, atomic=True))

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the recorded accesses to some of the CTAs."""
        every = (self._rounds, *(access.rounds for access in self._recorded))
        # Accesses of one round share one array of rounds; keep that, because _by_round tests for identity.
        kept = {id(rounds): select_rows(rounds, rows, self._ctas) for rounds in every}
        self._recorded = [access.restricted(rows, self._ctas, kept[id(access.rounds)]) for access in self._recorded]
        self._lanes = sum(access.index.size for access in self._recorded)
        self._rounds = kept[id(self._rounds)]
        self._groups = select_rows(self._groups, rows, self._ctas)
        self._ctas = row_count(rows)

    def _record(self, access: _Access) -> None:
        self._recorded.append(access)
        self._lanes += access.index.size
        if self._lanes > _MAX_RECORDED_LANES:
            raise PossibleRace

    def finish(self) -> None:
        """Checks the accesses after the last barrier."""
        self._check(self._recorded)

    def read_operand(self, index: Array, mask: Array | None, site: int, groups: Array) -> None:
        """Records the issue of a wgmma as a read."""
        self.read(index, 16, mask, site)

    def finish_operands(self, accesses: Sequence[tuple[Array, Array | None, int]], done: Array) -> None:
        """Records the completion of wgmma reads: they last from issue to the end of the wait."""
        for index, mask, site in accesses:
            self.read(index, 16, mask, site)

    def arrive(self, lanes: Array) -> Array:
        """Reports a possible race: one-way synchronisation is outside the model, as are mbarriers and bulk copies."""
        raise PossibleRace

    def signal(self, mbarrier: int, ctas: Array, warps: Array, phases: Array, site: int) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def end_arrival(self, ctas: Array, lanes: Array) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def touch(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def converge(self, lanes: Array | None) -> None:
        """Does nothing: it matters only to arrivals at mbarriers and to atomics."""

    def fence(self, lanes: Array | None, fenced: Sequence[FencedChunks]) -> None:
        """Does nothing: it matters only to bulk copies."""

    def complete(self, mbarrier: int, ctas: Array, phases: Array) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def acquire(self, mbarrier: int, ctas: Array, warps: Array) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def bulk_write(self, access: BulkAccess, mbarrier: int, phases: Array) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def bulk_read(self, access: BulkAccess) -> None:
        """Reports a possible race."""
        raise PossibleRace

    def barrier(self, lanes: Array | None, arrived: Array | None = None) -> None:
        """Checks and discards the accesses of CTAs whose warps all passed the barrier; updates rounds and groups."""
        if lanes is None or lanes.all():
            self._check(self._recorded)
            self._set_recorded([])
            return
        by_warp = np.asarray(lanes.reshape(len(lanes), -1, min(32, lanes.shape[1])).any(axis=2))
        present: Array = np.broadcast_to(by_warp, (len(lanes), self._warps))
        if (present == present[:1]).all():
            present = present[:1]
        whole: Array = np.asarray(present.all(axis=1, keepdims=True))
        if whole.any():
            self._check(list(_of_ctas(self._recorded, whole)))
            self._set_recorded(list(_of_ctas(self._recorded, ~whole)))
        self._join(present & ~whole)
        self._rounds = np.where(whole, 0, self._rounds + present)

    def _set_recorded(self, accesses: list[_Access]) -> None:
        self._recorded = accesses
        self._lanes = sum(access.index.size for access in accesses)
        if not accesses:
            self._rounds = self._start

    def _join(self, present: Array) -> None:
        """Makes the warps of a partial barrier a group.

        Raises:
            PossibleRace: Some of them already form a group that is not the same set of warps.
        """
        groups = np.broadcast_to(self._groups, np.broadcast_shapes(self._groups.shape, present.shape)).copy()
        lowest = np.broadcast_to(present.argmax(axis=1, keepdims=True) + 1, groups.shape)
        same = (np.where(present, groups, lowest) == lowest) & (present == (groups == lowest))
        fresh = np.where(present, groups, 0).max(axis=1, keepdims=True) == 0
        if not (same.all(axis=1, keepdims=True) | fresh | ~present.any(axis=1, keepdims=True)).all():
            raise PossibleRace
        self._groups = np.where(present, lowest, groups)

    # --- checks -------------------------------------------------------------------------------------------------

    def _check(self, accesses: list[_Access]) -> None:
        if not any(access.writes for access in accesses):
            return
        rows = 1 if all(map(_is_common, accesses)) and len(self._groups) == 1 else self._ctas
        atomics = [self._flatten(access, rows) for access in accesses if access.atomic]
        accesses = [access for access in accesses if not access.atomic]
        flat = [self._flatten(access, rows) for access in accesses]
        if atomics:
            self._find_atomics(atomics, flat, rows)
            if not any(access.writes for access in accesses):
                return
        for same_round in self._by_round(accesses, flat, rows):
            self._find_conflicts(same_round, rows, np.tile(np.arange(self._warps) + 1, rows))
        if self._groups.any():
            alone = np.arange(self._warps) + self._warps + 1
            groups = np.where(self._groups == 0, alone, self._groups)
            self._find_conflicts(flat, rows, np.broadcast_to(groups, (rows, self._warps)).reshape(-1))

    def _find_atomics(self, atomics: list[_Lanes], others: list[_Lanes], rows: int) -> None:
        """Raises :class:`PossibleRace` if bytes that atomics change are accessed in another way, too."""
        changed = np.zeros(rows * self._padded // GRANULE, np.uint8)
        for access in atomics:
            words = changed.view(_WORD[access.size])
            words[access.word] = np.iinfo(words.dtype).max
        if any(changed.view(_WORD[access.size]).take(access.word).any() for access in others):
            raise PossibleRace

    def _flatten(self, access: _Access, rows: int) -> _Lanes:
        word = access.index >> 1 if access.size == 1 else access.index
        warp = self._warp_of
        if rows > 1:
            row = np.arange(rows)[:, None]
            word = word + row * (self._padded >> SHIFT[max(access.size, GRANULE)])
            warp = row * self._warps + warp
        word, warp = select(word, warp, access.mask)
        return _Lanes(word.reshape(-1), warp.reshape(-1), access.size, access.writes)

    def _by_round(self, accesses: list[_Access], flat: list[_Lanes], rows: int) -> Iterator[list[_Lanes]]:
        """Groups the lanes of the accesses by the round of their warps."""
        if all(access.rounds is accesses[0].rounds for access in accesses) and not accesses[0].rounds.any():
            yield flat
            return
        by_round: dict[int, list[_Lanes]] = {}
        for access, lanes in zip(accesses, flat, strict=True):
            rounds = np.broadcast_to(access.rounds, (rows, self._warps)).reshape(-1)
            if (rounds == rounds[0]).all():
                by_round.setdefault(int(rounds[0]), []).append(lanes)
                continue
            own = rounds[lanes.warp]
            for number in set(rounds.tolist()):
                keep = own == number
                if keep.any():
                    part = replace(lanes, word=lanes.word[keep], warp=lanes.warp[keep])
                    by_round.setdefault(number, []).append(part)
        yield from by_round.values()

    def _find_conflicts(self, accesses: list[_Lanes], rows: int, names: Array) -> None:
        """Raises :class:`PossibleRace` if warps with different names access the same bytes and one of them writes.

        All writes first mark their bytes with the name of the writing warp; every access then compares the marks with
        its own name. A byte with several writers fails the comparison of all but the last.

        Args:
            accesses: Lanes to compare.
            rows: Number of CTAs.
            names: Name of each warp, 1 to 255.
        """
        writers = np.zeros(rows * self._padded // GRANULE, np.uint8)
        by_kind: dict[tuple[int, bool], list[_Lanes]] = {}
        for access in accesses:
            by_kind.setdefault((access.size, access.writes), []).append(access)
        marked = []
        for (size, writes), group in by_kind.items():
            word = np.concatenate([access.word for access in group])
            mark = _REPEATED[size].take(names).take(np.concatenate([access.warp for access in group]))
            marked.append((writers.view(_WORD[size]), word, mark, writes))
            if writes:
                marked[-1][0][word] = mark
        for words, word, mark, writes in marked:
            found = words.take(word)
            bad = found != mark
            if not writes:
                bad &= found != 0
            if bad.any() and (writes or _differs(found[bad], mark[bad])):
                raise PossibleRace


_REPEATED: Final = {
    size: (np.arange(256, dtype=np.uint64) * np.uint64(0x0101010101010101)).astype(word) for size, word in _WORD.items()
}
"""Name repeated in each byte of a word, by access size."""


def _differs(found: Array, mark: Array) -> bool:
    """Whether some byte is marked by another warp."""
    bytes_found, bytes_mark = found.view(np.uint8), mark.view(np.uint8)
    return bool(((bytes_found != 0) & (bytes_found != bytes_mark)).any())


def _is_common(access: _Access) -> bool:
    """Whether the access is the same in all CTAs."""
    return access.index.shape[0] == 1 and len(access.rounds) == 1 and (access.mask is None or len(access.mask) == 1)


def _of_ctas(accesses: Iterable[_Access], ctas: Array) -> Iterator[_Access]:
    """The accesses of the CTAs that are set in ``ctas``, bool ``[1 or ctas, 1]``."""
    for access in accesses:
        mask = ctas if access.mask is None else access.mask & ctas
        if mask.any():
            yield replace(access, mask=mask)
