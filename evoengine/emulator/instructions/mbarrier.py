"""mbarrier instructions, for all lanes of a batch.

The lanes outside a mask may hold any address or count. Source: PTX ISA 9.0, "mbarrier".
"""

from __future__ import annotations

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.instructions.bulk_copy import execute_late_loads


def mbarrier_init(x: Batch, address: Array, count: Array, mask: Array | None, site: int) -> None:
    """Executes ``mbarrier.init``."""
    x.mbarriers.init(address, x.lanes(mask), count, site)


def mbarrier_invalidate(x: Batch, address: Array, mask: Array | None, site: int) -> None:
    """Executes ``mbarrier.inval``."""
    x.mbarriers.invalidate(address, x.lanes(mask), site)


def mbarrier_transact(x: Batch, address: Array, count: Array, sign: int, mask: Array | None, site: int) -> None:
    """Executes ``mbarrier.expect_tx`` (``sign`` 1) or ``mbarrier.complete_tx`` (-1)."""
    active = x.lanes(mask)
    if active.any():
        x.mbarriers.expect(x.mbarriers.uses(address, active, site), count, active, sign)
        x.bulk.settle()


def mbarrier_arrive(
    x: Batch,
    address: Array,
    count: Array,
    expected: Array | None,
    mask: Array | None,
    site: int,
    *,
    drop: bool = False,
    incomplete: bool = False,
) -> Array:
    """Executes ``mbarrier.arrive``, which releases what the warp has written and, through ``cp.async``, waited for.

    Args:
        x: Batch.
        address: Shared address.
        count: Number of arrivals.
        expected: Transaction bytes of ``.expect_tx``; None without it.
        mask: Active lanes.
        site: Index of the instruction.
        drop: Whether later phases expect that many arrivals less (``arrive_drop``).
        incomplete: Whether completing the phase is a fault (``.noComplete``).

    Returns:
        uint64 ``[ctas, threads]``: the state tokens.
    """
    active = x.lanes(mask)
    tokens = np.zeros(active.shape, np.uint64)
    if not active.any():
        return tokens
    uses = x.mbarriers.uses(address, active, site)
    if expected is not None:
        x.mbarriers.expect(uses, expected, active, 1)
    x.copies.publish(active, by_warp=True)
    if x.publication is not None:
        x.publication.shared_atomic(x.cta_numbers, active)
    counts = x.mbarriers.counts(count, active, uses)
    if drop:
        x.mbarriers.drop(uses, counts)
    before = x.mbarriers.phases(uses.ctas, uses.slots)
    tokens[uses.ctas, uses.lanes] = x.mbarriers.arrive(uses, counts).astype(np.uint64)
    if incomplete:
        x.mbarriers.require_incomplete(uses, before)
    x.bulk.settle()
    return tokens


def mbarrier_arrive_copies(x: Batch, address: Array, counted: bool, mask: Array | None, site: int) -> None:
    """Executes ``cp.async.mbarrier.arrive``: completes the lanes' ``cp.async`` and arrives.

    Args:
        x: Batch.
        address: Shared address.
        counted: Whether the count of the mbarrier includes these arrivals (``.noinc``); otherwise each one raises the
            pending count of its phase first.
        mask: Active lanes.
        site: Index of the instruction.
    """
    active = x.lanes(mask)
    x.copies.wait(None, active, by_any=True)
    if not counted and active.any():
        x.mbarriers.expect_arrivals(x.mbarriers.uses(address, active, site))
    mbarrier_arrive(x, address, np.ones((1, 1), np.uint32), None, mask, site)


def mbarrier_try(x: Batch, address: Array, token: Array, parity: bool, mask: Array | None, site: int) -> Array:
    """Returns the lanes, bool, that ``mbarrier.try_wait`` suspends until the phase is complete; the others get false.

    A GPU may give up after a time that it chooses. In launches that are checked for races, each lane gives up once at
    each instruction, if the phase is not complete.
    """
    active = x.lanes(mask)
    if x.races is None or not active.any():
        return x.all_lanes
    uses = x.mbarriers.uses(address, active, site)
    given_up = x.mbarriers.give_up(uses, x.mbarriers.target(uses, token, active, parity=parity))
    if not given_up.any():
        return x.all_lanes
    waiting = np.ones(active.shape, np.bool_)
    waiting[uses.ctas[given_up], uses.lanes[given_up]] = False
    return waiting


def mbarrier_test(x: Batch, address: Array, token: Array, parity: bool, mask: Array | None, site: int) -> Array:
    """Executes ``mbarrier.test_wait``: whether the phase is complete, bool ``[ctas, threads]``."""
    active = x.lanes(mask)
    found = np.zeros(active.shape, np.bool_)
    if not active.any():
        return found
    uses = x.mbarriers.uses(address, active, site)
    target = x.mbarriers.target(uses, token, active, parity=parity)
    done = x.mbarriers.is_complete(uses, target)
    if not done.all() and x.bulk.late:
        execute_late_loads(x, [uses.only(~done)])
        done = x.mbarriers.is_complete(uses, target)
    x.observe(uses.only(done), target[done])
    found[uses.ctas, uses.lanes] = done
    return found
