"""Runs the command line in an empty folder: in a process of its own, as a user does, or quickly in this process."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from evoengine.cli.app import main
from tests.cli.calling import Done, Evo, environment
from tests.cli.searched import small_search
from tests.warm import WarmPython


@pytest.fixture(scope="session")
def cache(shared_cache: Path) -> Path:
    """A compile cache that all calls share."""
    return shared_cache


@pytest.fixture(scope="session")
def evo_in(cache: Path, warm: WarmPython) -> Evo:
    """``evo_in(folder, "doctor")`` calls ``python -m evoengine doctor`` in a folder."""

    def call(folder: Path, *arguments: str, timeout_s: float = 1800) -> Done:
        return warm.run("evoengine", arguments, folder, environment(cache), timeout_s)

    return call


@pytest.fixture
def evo(tmp_path: Path, evo_in: Evo) -> Evo:
    """``evo("doctor", "--json")`` calls ``python -m evoengine doctor --json`` in the test's folder."""
    return partial(evo_in, tmp_path)


@pytest.fixture(scope="session")
def small(shared_cache: Path, warm: WarmPython) -> Path:
    """Folder of the small search that many tests share. It is only read."""
    return small_search(warm, shared_cache)


@pytest.fixture
def quick_evo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evo:
    """Like ``evo``, but calls ``main`` in this process, which takes a twentieth of the time.

    It is for calls that start no other process. A call's streams and signals are tested with ``evo``.
    """
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["evoengine", *arguments])
            with pytest.raises(SystemExit) as end:
                main()
        return Done(int(end.value.code or 0), out.getvalue(), err.getvalue())

    return call
