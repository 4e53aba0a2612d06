"""How far a search asks ahead, and how many configs it begins with."""

from __future__ import annotations

from evoengine.search.opening import Opening
from evoengine.search.pace import Pace
from evoengine.search.session import SearchSettings


def test_a_long_search_on_a_gpu_gives_its_compilers_work_until_the_gpu_is_ready() -> None:
    opening = Opening.of(500, named=17, compilers=15, predicted=False, gets_ready=True)
    assert opening == Opening(head=100, best=36, expected=83)
    pace = Pace.of(SearchSettings(budget=500, lookahead=6, head=opening.head), compilers=15, examiners=1)
    assert pace == Pace(limit=100, lag=44, head=100, early_look=456, stand_by=396)
    assert pace.at_once == 100


def test_a_short_search_learns_early() -> None:
    opening = Opening.of(60, named=17, compilers=15, predicted=False, gets_ready=True)
    assert opening == Opening(head=12, best=12, expected=12)
    pace = Pace.of(SearchSettings(budget=60, lookahead=6, head=opening.head), compilers=15, examiners=1)
    assert pace == Pace(limit=22, lag=44, head=52, early_look=60, stand_by=1)


def test_a_device_that_is_ready_at_once_and_few_compilers_need_no_long_head() -> None:
    replayed = Opening.of(500, named=7, compilers=15, predicted=False, gets_ready=False)
    assert replayed == Opening(head=0, best=36, expected=36)
    emulated = Opening.of(500, named=17, compilers=16, predicted=True, gets_ready=False)
    assert emulated == Opening(head=0, best=12, expected=12)
    assert Opening.of(500, named=17, compilers=1, predicted=False, gets_ready=True) == Opening(7, 36, 36)
    pace = Pace.of(SearchSettings(budget=500), compilers=2, examiners=2)
    assert (pace.limit, pace.lag, pace.head, pace.at_once) == (6, 12, 7, 12)
