"""The finals: once a search is over, the energy per call of its elites is measured and added to their rows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, runtime_checkable

from evoengine.errors import EvoEngineError
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.services import CompileService
from evoengine.search.settings import SearchResult, StopReason

STAGE = "energy"
"""Its name among the stages of a search."""

_OVER = (StopReason.BUDGET_REACHED, StopReason.SPACE_EXHAUSTED)


@runtime_checkable
class EnergyMeter(Protocol):
    """An examine service that can measure energy."""

    def energy(self, kernel: Kernel) -> Future[float | None]:
        """Microjoules per call; None where they cannot be known."""


def meter_elites(board: Leaderboard, result: SearchResult, compiler: CompileService, examiner: object) -> SearchResult:
    """Measures the energy per call of the elites whose rows do not have it yet.

    It takes a good tenth of a second per elite, so it is left out for all other candidates, and where the user waits
    for the end: after Ctrl-C and a time limit.

    Args:
        board: where the rows are.
        result: of the search that is over.
        compiler: builds the elites again, which are in its cache.
        examiner: measures, if it is an :class:`EnergyMeter`.

    Returns:
        The result with the elites' energy and the time that it took; as it came where nothing can be measured.
    """
    wanted = [row for row in result.elites if row.energy_uj is None and not row.predicted]
    if result.stop not in _OVER or not isinstance(examiner, EnergyMeter) or not wanted:
        return result
    start_s = time.perf_counter()
    measured = dict(_measure(wanted, compiler, examiner))
    for row_id, energy_uj in measured.items():
        board.set_energy(row_id, energy_uj)
    elites = tuple(replace(row, energy_uj=measured.get(row.id, row.energy_uj)) for row in result.elites)
    seconds = dict(result.stage_seconds) | {STAGE: time.perf_counter() - start_s}
    champion = result.champion
    if champion is not None and champion.id in measured:
        champion = replace(champion, energy_uj=measured[champion.id])
    return replace(result, elites=elites, champion=champion, stage_seconds=seconds)


def _measure(rows: Iterable[Row], compiler: CompileService, meter: EnergyMeter) -> Iterable[tuple[int, float]]:
    """Ids and microjoules of those that could be built and measured; the others have had their say in the search."""
    building = [(row, compiler.submit(Config.of(row.family, row.config))) for row in rows]
    for row, future in building:
        try:
            kernel = future.result().kernel
            if kernel is None or kernel.binary.code_hash != row.code_hash:
                continue  # of another template or compiler than the row's
            energy_uj = meter.energy(kernel).result()
        except EvoEngineError:
            continue
        if energy_uj is None:
            return  # this driver does not say
        yield row.id, energy_uj
