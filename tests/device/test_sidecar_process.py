"""The process that computes for another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.errors import UsageError


@pytest.fixture(scope="module")
def helper() -> Iterator[SidecarProcess]:
    with closing(SidecarProcess("helper", ("math", "no_such_module"))) as helper:
        yield helper


def _refuse(what: str) -> None:
    raise UsageError(f"not {what}")


def test_it_computes_one_call_after_the_other_in_a_process_of_its_own(helper: SidecarProcess) -> None:
    assert helper.run(partial(pow, 2, 5)) == 32
    assert helper.run(os.getpid) == helper.run(os.getpid) != os.getpid()


def test_an_error_of_a_call_is_raised_and_the_next_call_works(helper: SidecarProcess) -> None:
    with pytest.raises(UsageError, match="not this"):
        helper.run(partial(_refuse, "this"))
    assert helper.run(partial(pow, 2, 5)) == 32


def test_a_dead_sidecar_is_replaced_by_a_local_call_and_closes_twice() -> None:
    with closing(SidecarProcess("helper", ())) as helper:
        os.kill(helper.run(os.getpid), signal.SIGKILL)
        assert helper.run(os.getpid) == os.getpid()
        assert helper.run(os.getpid) == os.getpid()
        helper.close()
