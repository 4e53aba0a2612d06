"""``scaling.py``: which parts of a host its searches get."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from tests.scripts.running import load


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("scaling")


def test_searches_at_once_share_neither_devices_nor_cores(script: ModuleType) -> None:
    host = script.Host(4, range(100, 116))
    together, parts = threading.Barrier(3, timeout=10), []

    def use(count: int) -> None:
        with host.lend(count) as part:
            together.wait()  # all three hold their parts at this moment
            parts.append(part)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(use, (1, 2, 1)))
    assert sorted(device for part in parts for device in part.devices) == [0, 1, 2, 3]
    assert sorted(core for part in parts for core in part.cores) == list(range(100, 116))
    for part in parts:
        assert len(part.cores) == 4 * len(part.devices)
        assert part.devices[0] % len(part.devices) == 0, "neighbours that start where a part of that size can"


def test_a_search_on_the_whole_host_waits_for_the_others(script: ModuleType) -> None:
    host, order = script.Host(2, range(8)), []

    def whole() -> None:
        with host.lend(2) as part:
            order.append(part.devices)

    with ThreadPoolExecutor(1) as threads:
        with host.lend(1):
            waiting = threads.submit(whole)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.2)
            order.append("one")
        waiting.result(timeout=10)
    assert order == ["one", (0, 1)]
