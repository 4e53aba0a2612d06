"""Execution of one batch of CTAs: scheduling of blocks, warp divergence and reconvergence, barriers.

Each basic block has a mask of the lanes that are ready to run it. The lowest-numbered block with ready lanes runs next,
for all of them, so lanes that diverged reconverge at the first block after their paths in layout order. A lane at a
barrier becomes ready again when all threads that the barrier expects have arrived. A branch that sends whole CTAs two
ways splits the batch. Lanes that wait for an asynchronous operation are kept by
:mod:`evoengine.emulator.execution.suspensions`.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, restricted
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.execution.barriers import Waiter, check_barrier, require_aligned
from evoengine.emulator.execution.cta_order import CtaOrder
from evoengine.emulator.execution.cta_split import MAX_BATCHES, MIN_SPLIT_LANES, split_ctas
from evoengine.emulator.execution.ready_warps import other_warps
from evoengine.emulator.execution.suspensions import Suspensions
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind, SiteFault, place_text
from evoengine.emulator.faults import EmulatorTimeoutError as Timeout
from evoengine.emulator.instructions.bulk_copy import finish_bulk
from evoengine.emulator.ptx.control_flow import EXIT
from evoengine.emulator.translate.program import Program
from evoengine.errors import short_line

_SPINNING: Final = 256
"""Steps without a new wait after which late operations execute although lanes are ready: these may wait in a loop."""
_FAIRNESS: Final = 512
"""Interval, in executed blocks, at which a ready block other than the lowest runs, and then other batches do."""
_PATIENCE: Final = 16
"""Blocks of polling after which the other batches of the launch have their turn."""


class Executor:
    """Control flow of one batch.

    Args:
        program: Translated entry.
        batch: State of the CTAs.
        executed: Number of warps that executed each block; updated in place.
        deadline: CPU time of this thread, as of ``time.thread_time``, at which execution stops; None for no limit.
        max_steps: Limit on executed blocks.
        order: Random order of the CTAs; None to cut the batch only where a branch sends whole CTAs two ways.
    """

    def __init__(
        self,
        program: Program,
        batch: Batch,
        executed: list[int],
        deadline: float | None,
        max_steps: int,
        order: CtaOrder | None = None,
    ) -> None:
        self._program = program
        self._batch = batch
        self._executed = executed
        self._deadline = deadline
        self._max_steps = max_steps
        self._order = order
        self._shape = (batch.ctas, batch.threads)
        self._padded = batch.real_threads != batch.threads
        self._ready: dict[int, Array | None] = {0: batch.alive.copy() if self._padded else None}
        """Lanes that are ready to run each block; None for all."""
        self._waiting: list[Waiter] = []
        self._suspended = Suspensions(batch)
        self._held: list[tuple[int, Array]] = []
        """Lanes that are ready to run a block, but wait for suspended lanes of their warp."""
        self._registers = program.registers()
        self._steps = 0
        self._polls = 0
        """Blocks that only poll since another one has been executed, or since this batch had its turn."""
        self._last_wait = 0
        """Step at which lanes were last suspended, or late operations executed although others were ready."""
        self._common_work = 0
        """Work of each warp that all warps have done together; see :attr:`.Program.work`."""
        self._own_work: Array = np.zeros((batch.ctas, batch.warps), np.int64)
        """Work that each warp has done under a mask."""

    def report_work(self, cta_work: Array) -> int:
        """Writes the work of each CTA into ``cta_work`` by its number, and returns that of the busiest warp."""
        work = self._common_work + self._own_work
        cta_work[self._batch.cta_numbers] = work.sum(axis=1)
        return int(work.max())

    def run(self, *, allow_split: bool) -> tuple[Executor, ...]:
        """Runs the batch until it exits, splits, or yields to the other batches of its launch.

        Args:
            allow_split: Whether the batch may be split: by a branch that sends whole CTAs two ways, or by its order.

        Returns:
            The executors to run next: none if every lane has exited, this one if it yields, or two after a split.

        Raises:
            EmulatorError: A fault of the kernel, with block, thread and lines.
            EmulatorTimeoutError: The deadline or the step limit is exceeded.
        """
        batch, program, registers = self._batch, self._program, self._registers
        try:
            while self._ready or self._waiting or self._suspended:
                if self._suspended:
                    self._hold()
                if not self._ready and not self._continue():
                    continue
                index, mask = self._next_block(self._steps)
                if self._order is not None and allow_split and mask is None and (halves := self._cut(index)):
                    return halves
                result = program.function(index)(registers, batch, mask)
                batch.record_block(index, mask, result)
                self._count(index, mask)
                if self._steps & 63 == 0:
                    self._check_time(self._steps, index)
                if isinstance(result, int):
                    self._enqueue(result, mask)
                elif allow_split and mask is None and (halves := self._split(result)):
                    return halves
                else:
                    self._transfer(result, mask)
                self._wake()
                if self._suspended and self._steps - self._last_wait >= _SPINNING:
                    self._last_wait = self._steps
                    self._resume(self._suspended.advance())
                if self._steps % _FAIRNESS == 0 or self._polls >= _PATIENCE:
                    self._polls = 0
                    return (self,)
            self._finish()
        except SiteFault as fault:
            raise self._complete(fault) from None
        return ()

    def _count(self, index: int, mask: Array | None) -> None:
        """Counts the execution of a block."""
        work = self._program.work[index]
        self._polls = self._polls + 1 if index in self._program.polling else 0
        if mask is None:
            self._executed[index] += self._batch.ctas * self._batch.warps
            self._common_work += work
        else:
            warps = self._warps(mask)
            self._executed[index] += int(warps.sum())
            self._own_work += warps * work
        self._steps += 1

    def _finish(self) -> None:
        """Runs the checks at the end of the batch."""
        if self._batch.races is not None:
            self._batch.races.finish()
        if self._batch.has_bulk_copies:
            finish_bulk(self._batch)

    def _split(self, result: tuple[Any, ...]) -> tuple[Executor, ...]:
        """Two executors if a branch of all lanes sends whole CTAs two ways, else none.

        The one at the later block comes first, so that CTAs that leave a loop finish first, as they would on a GPU.
        """
        if self._ready or self._waiting or self._suspended or isinstance(result[0], str):
            return ()
        target, lanes, follower = result
        if lanes.shape[0] == 1 or (
            self._shape[0] * self._shape[1] < MIN_SPLIT_LANES and not self._ends(target) and not self._ends(follower)
        ):
            return ()
        ctas = split_ctas(lanes)
        if not ctas:
            return ()
        taken, not_taken = copy.copy(self), copy.copy(self)
        taken.restrict(ctas[0], target)
        not_taken.restrict(ctas[1], follower)
        target_is_later = target == EXIT or (follower != EXIT and target > follower)
        return (taken, not_taken) if target_is_later else (not_taken, taken)

    def _cut(self, index: int) -> tuple[Executor, ...]:
        """Two executors that continue at the same block, if the order of the CTAs has a cut here, else none."""
        if self._ready or self._waiting or self._suspended or self._order is None:
            return ()
        ctas = self._order.cut(index, self._shape[0])
        if ctas is None:
            return ()
        halves = copy.copy(self), copy.copy(self)
        for half, rows in zip(halves, ctas, strict=True):
            half.restrict(rows, index)
        return halves

    def _ends(self, target: int) -> bool:
        """Whether the target block exits at once."""
        if target == EXIT:
            return True
        first = self._program.entry.instructions[self._program.flow.blocks[target].start]
        return first.name in ("ret", "exit") and first.predicate is None

    def restrict(self, rows: CtaRows, target: int) -> None:
        """Restricts the executor to some of the CTAs, which continue at the block ``target``."""
        ctas = self._shape[0]
        self._batch = restricted(self._batch, rows)
        self._shape = (self._batch.ctas, self._batch.threads)
        self._ready, self._waiting, self._suspended = {}, [], Suspensions(self._batch)
        self._registers = [values[rows] if len(values) == ctas else values for values in self._registers]
        self._own_work = self._own_work[rows]
        self._enqueue(target, None)

    def _next_block(self, steps: int) -> tuple[int, Array | None]:
        """The block to run and its lanes.

        This is the lowest block with ready lanes. Every ``_FAIRNESS`` steps it is the highest block that is the lowest
        of some warp, so that a warp for which another one polls also runs. If the lowest block only polls, every other
        step goes to one of the other blocks by turns.
        """
        ready = self._ready
        if len(ready) == 1:
            return ready.popitem()
        lowest, turn = min(ready), steps % _FAIRNESS == _FAIRNESS - 1
        polls = lowest in self._program.polling
        if not turn and not (polls and steps & 1):
            return lowest, ready.pop(lowest)
        index, lanes = other_warps(ready, self._batch, self._program, None if turn else steps // 2)
        mask = ready.pop(index)
        rest = (self._batch.alive if mask is None else mask) & ~lanes
        if rest.any():
            ready[index] = rest
        return index, lanes

    def _check_time(self, steps: int, index: int) -> None:
        """Raises :class:`EmulatorTimeoutError` if a limit is exceeded; it names the end of the last executed block."""
        if steps > self._max_steps:
            limit = f"more than {self._max_steps} executed blocks in one batch; possibly an infinite loop"
        elif self._deadline is not None and time.thread_time() > self._deadline:
            limit = "the launch exceeded its deadline; possibly an infinite loop, or too much work of one thread"
        else:
            return
        last = self._program.entry.instructions[self._program.flow.blocks[index].end - 1]
        raise Timeout(short_line(f"emulator: {limit}, {place_text(*self._program.place_of(last))}"))

    def _warps(self, mask: Array) -> Array:
        """Whether each warp has at least one of the masked lanes, ``[ctas, warps]``."""
        batch = self._batch
        present = mask if mask.shape[1] == 1 else mask.reshape(len(mask), batch.warps, 32).any(axis=2)
        return np.broadcast_to(present, (batch.ctas, batch.warps))

    # --- ready lanes --------------------------------------------------------------------------------------------

    def _enqueue(self, target: int, mask: Array | None) -> None:
        if target == EXIT:
            self._exit(mask)
        elif target in self._ready:
            current = self._ready[target]
            merged = None if current is None or mask is None else current | mask
            self._ready[target] = None if merged is None or (not self._padded and bool(merged.all())) else merged
        else:
            self._ready[target] = mask

    def _transfer(self, result: tuple[Any, ...], mask: Array | None) -> None:
        if result[0] == "barrier":
            self._arrive(result, mask)
        elif result[0] == "suspend":
            self._suspend(result, mask)
        elif result[0] == "switch":
            self._switch(result[1], result[2], mask)
        else:
            target, lanes, follower = result
            self._enqueue(target, lanes if mask is None else lanes & mask)
            self._enqueue(follower, ~lanes if mask is None else ~lanes & mask)

    def _switch(self, value: Array, targets: list[int], mask: Array | None) -> None:
        active = np.ones((1, 1), np.bool_) if mask is None else mask
        for number in np.unique(value).tolist():
            lanes = (value == number) & active
            if lanes.any():
                self._enqueue(targets[number], None if mask is None and bool(lanes.all()) else lanes)

    def _exit(self, mask: Array | None) -> None:
        if mask is None:
            self._batch.alive[:] = False
        else:
            self._batch.alive &= ~mask
            if self._waiting:
                self._release()

    # --- waits for asynchronous operations ----------------------------------------------------------------------

    def _suspend(self, result: tuple[Any, ...], mask: Array | None) -> None:
        _, wait, guard, follower, site = result
        lanes = self._batch.lanes(mask)
        if guard is not None:
            skipped = lanes & ~guard
            if skipped.any():
                self._enqueue(follower, skipped)
            lanes = lanes & guard
        if lanes.any():
            self._suspended.add(wait, lanes, follower, site)
            self._last_wait = self._steps
            self._resume(self._suspended.released())

    def _wake(self) -> None:
        """Releases suspended lanes after a block that may have ended their wait, and makes held lanes ready again."""
        batch = self._batch
        self._restore_held()
        if not self._suspended:
            return
        if batch.mbarriers.changed or batch.registers is not None:
            batch.mbarriers.changed = False
            self._resume(self._suspended.released())

    def _hold(self) -> None:
        """Moves ready lanes that have to wait for suspended ones of their warp to the held lanes.

        A warp reconverges before it goes on: lanes do not pass the block that its suspended lanes continue at.
        """
        positions = self._suspended.positions()
        lowest = int(positions.min())
        waiting = sorted(index for index in self._ready if index >= lowest)
        limit = np.repeat(positions, 32, axis=1) if waiting else positions
        for index in waiting:
            mask = self._ready[index]
            lanes = self._batch.lanes(mask)
            held = lanes & (limit <= index)
            if held.any():
                self._held.append((index, held))
                del self._ready[index]
                if not held[lanes].all():
                    self._ready[index] = lanes & ~held

    def _restore_held(self) -> None:
        held, self._held = self._held, []
        for index, lanes in held:
            self._enqueue(index, lanes)

    def _continue(self) -> bool:
        """Lets lanes continue when none is ready: by late operations, or without the reconvergence of their warps.

        Returns:
            Whether a lane is ready.

        Raises:
            SiteFault: No lane can ever run.
        """
        if self._resume(self._suspended.advance()):
            self._restore_held()
            if self._suspended:
                self._hold()
            return bool(self._ready)
        if not self._held:
            self._deadlock()
            return False
        (index, lanes), *self._held = self._held
        self._ready[index] = lanes
        return True

    def _resume(self, moves: list[tuple[int, Array]]) -> bool:
        """Makes lanes ready to run a block; returns whether there are any."""
        for follower, lanes in moves:
            self._enqueue(follower, None if not self._padded and bool(lanes.all()) else lanes)
        return bool(moves)

    # --- barriers -----------------------------------------------------------------------------------------------

    def _arrive(self, result: tuple[Any, ...], mask: Array | None) -> None:
        _, number, count, waits, follower, site, guard = result
        if guard is not None:
            if not (guard if mask is None else guard & mask).any():
                self._enqueue(follower, mask)
                return
            if not guard.all():
                self._enqueue(follower, ~guard if mask is None else ~guard & mask)
                mask = guard if mask is None else guard & mask
        simple = mask is None and not self._waiting and waits and isinstance(number, int)
        if (
            simple
            and not self._batch.split_barriers
            and (count is None or (isinstance(count, int) and count == self._shape[1]))
        ):
            if self._batch.shared.lane_order is not None:
                self._batch.shared.lane_order.check_arrival(number, self._batch.alive, site)
            self._batch.votes.close(number, None)
            self._batch.record_barrier(number, None)
            self._batch.copies.publish(None)
            self._enqueue(follower, None)
            return
        active = np.broadcast_to(self._batch.alive if mask is None else mask, self._shape)
        numbers = np.broadcast_to(np.asarray(number, np.int64), self._shape)
        counts = None if count is None else np.broadcast_to(np.asarray(count, np.int64), self._shape)
        check_barrier(numbers, counts, active, site)
        waiter = Waiter(numbers, counts, active, follower if waits else None, site)
        races, order = self._batch.races, self._batch.shared.lane_order
        if order is not None:
            order.check_arrival(numbers, active, site)
            waiter.released = None if waits else order.release(active)
        if races is not None and not waits:
            waiter.clocks = races.arrive(active)
        self._waiting.append(waiter)
        if not waits:
            self._enqueue(follower, mask)
        self._release()

    def _release(self) -> None:
        """Releases the lanes of every barrier at which all expected threads of a CTA have arrived."""
        passed: Array | None = None
        for number in sorted(set[int]().union(*(waiter.numbers for waiter in self._waiting))):
            arrived, expected = self._arrivals(number)
            opened = (arrived >= expected) & (arrived > 0)
            if opened.any():
                released = self._open(number, opened)
                passed = released if passed is None else passed | released
        if passed is not None:
            self._batch.copies.publish(None if bool(passed.all()) else passed)

    def _arrivals(self, number: int) -> tuple[Array, Array]:
        """Numbers of threads at a barrier and of those that it expects, ``[ctas]`` each; it expects -1 where none is.

        Raises:
            SiteFault: More threads are there than it expects, or they name different thread counts.
        """
        arrived = np.zeros(self._shape[0], np.int64)
        expected, named = np.full_like(arrived, -1), np.full_like(arrived, -1)
        for waiter in self._waiting:
            present = waiter.mask & (waiter.number == number)
            arrived += present.sum(axis=1)
            count = self._shape[1] if waiter.count is None else waiter.count
            wanted = np.where(present, count, -1).max(axis=1)
            known = np.where(named < 0, wanted, named)
            if (present & (count != known[:, None])).any():
                self._fail_at(number, waiter, present & (count != known[:, None]), "has different thread counts")
            named = np.maximum(named, wanted)
            if waiter.count is None:  # threads that have exited are not waited for
                wanted = np.where(present.any(axis=1), self._batch.alive.sum(axis=1), -1)
            expected = np.maximum(expected, wanted)
        if self._padded:
            expected = np.where(expected > self._batch.real_threads, self._batch.real_threads, expected)
        above = (arrived > expected) & (expected >= 0)
        if above.any():
            cta = int(above.argmax())
            what = f"expects {int(expected[cta])} threads, and {int(arrived[cta])} are there: any of them may pass"
            for waiter in self._waiting:
                self._fail_at(number, waiter, waiter.mask & (waiter.number == number) & above[:, None], what)
        return arrived, expected

    def _fail_at(self, number: int, waiter: Waiter, lanes: Array, what: str) -> None:
        """Raises :class:`SiteFault` for the first of some lanes at a barrier, if there is one."""
        if lanes.any():
            cta, lane = np.unravel_index(int(lanes.argmax()), lanes.shape)
            detail = f"barrier {number} {what}"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, waiter.site, int(cta), int(lane))

    def _open(self, number: int, opened: Array) -> Array:
        """Opens a barrier in some CTAs; returns the lanes that have passed it."""
        require_aligned(self._batch, self._program.entry, self._waiting, number, opened)
        self._batch.votes.close(number, opened)
        waiting = []
        passed = np.zeros(self._shape, np.bool_)
        arrived: Array | None = None
        clocks: Array | None = None
        lane_clock: Array | None = None
        moves: list[tuple[int, Array]] = []
        for waiter in self._waiting:
            released = waiter.mask & (waiter.number == number) & opened[:, None]
            if released.any():
                if waiter.follower is not None:
                    passed |= released
                    moves.append((waiter.follower, released))
                else:
                    arrived = released if arrived is None else arrived | released
                    clocks = self._joint_clock(waiter, released, clocks)
                    lane_clock = _merged(lane_clock, waiter.released, released.any(axis=1))
                waiter.mask = waiter.mask & ~released
            if waiter.mask.any():
                waiting.append(waiter)
        self._waiting = waiting
        self._batch.record_barrier(number, passed, arrived, (clocks, lane_clock))
        for follower, lanes in moves:
            self._enqueue(follower, None if not self._padded and bool(lanes.all()) else lanes)
        return passed if arrived is None else passed | arrived

    def _joint_clock(self, waiter: Waiter, released: Array, clocks: Array | None) -> Array | None:
        """Joint clock of the warps with released lanes, ``[ctas, agents]``, and of ``clocks``."""
        if waiter.clocks is None:
            return clocks
        own = np.where(self._warps(released)[:, :, None], waiter.clocks, 0).max(axis=1)
        if clocks is None:
            return np.asarray(own)
        agents = max(own.shape[1], clocks.shape[1])
        wide = [np.pad(one, ((0, 0), (0, agents - one.shape[1]))) for one in (own, clocks)]
        return np.asarray(np.maximum(wide[0], wide[1]))

    def _deadlock(self) -> None:
        waiter = next((w for w in self._waiting if w.follower is not None), None)
        if waiter is None and not self._suspended:  # only bar.arrive is left: every thread has exited
            self._waiting = []
            return
        if waiter is None:
            site, cta, lane = self._suspended.first()
        else:
            site, cta = waiter.site, int(waiter.mask.any(axis=1).argmax())
            lane = int(waiter.mask[cta].argmax())
        found = self._suspended.describe(cta)
        for w in self._waiting:
            if w.mask[cta].any() and w.follower is not None:
                warps = sorted({int(lane) // 32 for lane in np.flatnonzero(w.mask[cta])})
                numbers = sorted({int(n) for n in w.number[cta][w.mask[cta]]})
                found.append((w.site, f"warps {warps} at barrier {numbers}"))
        lines = self._program.entry.instructions
        locations = [f"{text} (PTX line {lines[at].line})" for at, text in found]
        living = int(self._batch.alive[cta].sum())
        raise SiteFault(
            FaultKind.BARRIER_DEADLOCK,
            f"{living} threads have not exited and none can run: {'; '.join(locations)}",
            site,
            cta,
            lane,
        )

    # --- errors -------------------------------------------------------------------------------------------------

    def _complete(self, fault: SiteFault) -> EmulatorError:
        batch = self._batch
        ins = self._program.entry.instructions[fault.site]
        base = self._program.fault_at(ins, fault.kind, fault.detail)
        block = thread = None
        if fault.cta is not None:
            number = int(batch.cta_numbers[fault.cta])
            x, y, _ = batch.grid
            block = (number % x, number // x % y, number // (x * y))
        if fault.lane is not None:
            x, y, _ = batch.block
            thread = (fault.lane % x, fault.lane // x % y, fault.lane // (x * y))
        return EmulatorError(
            Fault(
                fault.kind,
                fault.detail,
                base.ptx_line,
                base.ptx_text,
                base.source_line,
                base.source_file,
                block,
                thread,
                fault.address,
            )
        )


def _merged(clock: Array | None, other: Array | None, ctas: Array) -> Array | None:
    """Merges two joint clocks, ``[ctas, agents]``, the second one only in some CTAs; None without any."""
    if other is None:
        return clock
    other = np.where(ctas[:, None], other, 0)
    return other if clock is None else np.maximum(clock, other)


def run_all(executor: Executor, cta_work: Array) -> int:
    """Runs a batch and the batches that it splits into.

    They run round-robin, because one may poll for what another writes.

    Args:
        executor: Executor of the batch.
        cta_work: Receives the work of each CTA by its linear number, ``[ctas of the grid]``; see :attr:`.Program.work`.

    Returns:
        Work of the busiest warp.

    Raises:
        EmulatorError: A fault of the kernel.
        EmulatorTimeoutError: The deadline or the step limit is exceeded.
    """
    queue, batches, busiest_warp = deque([executor]), 1, 0
    while queue:
        current = queue.popleft()
        successors = current.run(allow_split=batches < MAX_BATCHES)
        if not successors:
            busiest_warp = max(busiest_warp, current.report_work(cta_work))
        elif len(successors) == 1:
            queue.extend(successors)
        else:
            batches += len(successors) - 1
            queue.extendleft(reversed(successors))
    return busiest_warp
