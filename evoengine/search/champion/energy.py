"""Energy per call of the elites, measured at the end of a search and added to their rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from evoengine.errors import EvoEngineError
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.candidate.jobs import Compile, JobService, MeasureEnergy
from evoengine.search.settings import SearchResult, StopReason

STAGE: Final = "energy"
"""Name of this measurement among the stages of a search."""

_COMPLETE: Final = (StopReason.BUDGET_REACHED, StopReason.SPACE_EXHAUSTED)


def meter_elites(board: Leaderboard, result: SearchResult, compiler: JobService, examiner: JobService) -> SearchResult:
    """Measures the energy per call of the elites whose rows do not have it yet.

    This takes over a tenth of a second per elite, so it is left out for other candidates, and where the user waits for
    the end: after Ctrl-C and a time limit.

    Args:
        board: Leaderboard with the rows.
        result: Result of the finished search.
        compiler: Service that compiles the elites again, from its cache.
        examiner: Service that measures, if it supports that.

    Returns:
        The result with the elites' energy and the time taken; unchanged where nothing can be measured.
    """
    wanted = [row for row in result.elites if row.energy_uj is None and not row.predicted]
    if result.stop not in _COMPLETE or not examiner.supports(MeasureEnergy) or not wanted:
        return result
    start_s = time.perf_counter()
    measured = dict(_measure(wanted, compiler, examiner))
    for row_id, energy_uj in measured.items():
        board.set_energy(row_id, energy_uj)

    def metered(row: Row) -> Row:
        return replace(row, energy_uj=measured.get(row.id, row.energy_uj))

    best, champion, leader = (row and metered(row) for row in (result.best, result.champion, result.leader))
    return replace(
        result,
        best=best,
        champion=champion,
        leader=leader,
        elites=tuple(map(metered, result.elites)),
        stage_seconds=dict(result.stage_seconds) | {STAGE: time.perf_counter() - start_s},
    )


def _measure(rows: Iterable[Row], compiler: JobService, examiner: JobService) -> Iterable[tuple[int, float]]:
    """Yields ids and microjoules of the rows that could be compiled and measured."""
    building = [(row, compiler.submit(Compile(row.full_config))) for row in rows]
    for row, future in building:
        try:
            candidate = future.result().candidate
            if candidate is None or candidate.code_hash != row.code_hash:
                continue  # the row is of another template or compiler
            energy_uj = examiner.submit(MeasureEnergy(candidate)).result()
        except EvoEngineError:
            continue
        if energy_uj is None:
            return  # this driver does not report it
        yield row.id, energy_uj
