"""The schedule and the warm start of searches."""

from __future__ import annotations

from evoengine.model import DeviceInfo
from evoengine.search.scheduling import Schedule
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.warm_start_plan import WarmStartPlan


def test_a_long_search_on_a_gpu_has_a_long_head() -> None:
    opening = WarmStartPlan.of(500, named=17, compilers=15, gets_ready=True)
    assert opening == WarmStartPlan(head=100, best=36, expected=83)
    pace = Schedule.of(SearchSettings(budget=500, compile_queue=6, head=opening.head), compilers=15, examiners=1)
    assert pace == Schedule(
        limit=100,
        compiling=21,
        lag=44,
        head=100,
        elect_after=456,
        inspect_ahead_after=333,
        start_sanitizer_after=396,
        in_order=True,
    )
    assert [pace.in_flight(number) for number in (0, 99, 100, 499)] == [1, 100, 100, 100]


def test_a_short_search_has_a_short_head() -> None:
    opening = WarmStartPlan.of(60, named=17, compilers=15, gets_ready=True)
    assert opening == WarmStartPlan(head=12, best=12, expected=12)
    pace = Schedule.of(SearchSettings(budget=60, compile_queue=6, head=opening.head), compilers=15, examiners=1)
    assert pace == Schedule(
        limit=22,
        compiling=21,
        lag=44,
        head=52,
        elect_after=60,
        inspect_ahead_after=40,
        start_sanitizer_after=1,
        in_order=True,
    )


def test_a_fast_device_or_few_compilers_need_no_long_head() -> None:
    replayed = WarmStartPlan.of(500, named=7, compilers=15, gets_ready=False)
    assert replayed == WarmStartPlan(head=0, best=36, expected=36)
    emulated = WarmStartPlan.of(500, named=17, compilers=16, gets_ready=False)
    assert emulated == WarmStartPlan(head=0, best=36, expected=36)
    assert WarmStartPlan.of(500, named=17, compilers=1, gets_ready=True) == WarmStartPlan(7, 36, 36)
    pace = Schedule.of(SearchSettings(budget=500), compilers=2, examiners=2)
    assert (pace.limit, pace.lag, pace.head) == (6, 12, 7)
    assert [pace.in_flight(number) for number in (0, 11, 12, 499)] == [1, 12, 6, 6]


def test_after_the_head_fewer_are_in_flight_where_proposals_wait_for_nothing() -> None:
    gpu = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", False)
    settings = SearchSettings(budget=500, compile_queue=6, head=100).paced_for(gpu)
    pace = Schedule.of(settings, compilers=15, examiners=1)
    assert (pace.limit, pace.head, pace.elect_after) == (29, 100, 442), "eight wait for the GPU or are on it"
    in_flight = [pace.in_flight(number) for number in range(600)]
    assert in_flight[:100] == list(range(1, 101))
    assert in_flight[100:104] == [100] * 2 + [99] * 2
    assert in_flight[240:] == [30] * 2 + [29] * 358
