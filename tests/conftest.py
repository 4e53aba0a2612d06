"""Fixtures and hooks of all tests: GPU tests skip without a GPU, and no test touches the user's own cache."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from evoengine.system.garbage_collection import collect_rarely
from tests.postgres import Server, running_server
from tests.warm import WarmPython


@functools.cache
def _has_gpu() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def pytest_configure() -> None:
    """Limits the threads of NumPy's libraries before it is imported, as ``main`` does, and restores Ctrl-C.

    A shell starts background jobs with SIGINT ignored, and the processes that tests start would inherit that.
    """
    collect_rarely()
    for library in ("OPENBLAS", "OMP", "MKL"):  # xdist's workers take the cores; idle threads of a library spin there
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exempts what was imported and collected from garbage collection: it is never freed, and some seconds to visit."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips GPU tests without a GPU, and marks cases that CI leaves out, before pytest selects by marker."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
    cases: Counter[str] = Counter()
    for item in items:
        every = item.get_closest_marker("every")
        if every is not None and item.get_closest_marker("thorough") is None:
            test, _, _ = item.nodeid.partition("[")
            if cases[test] % every.args[0]:
                item.add_marker(pytest.mark.thorough)
            cases[test] += 1


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cache folder of this test run, shared by the workers of pytest-xdist: each kernel is compiled once.

    It is the ``XDG_CACHE_HOME`` of all tests. Tests of the cache itself use folders of their own.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-cache"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(shared_cache))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmPython]:
    """Starts programs without their imports."""
    with WarmPython() as python:
        yield python


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running PostgreSQL server; the test is skipped where none is installed."""
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """Address of an empty database."""
    return postgres.new_database()


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def nvcc() -> str:
    """Path of nvcc; the test is skipped without it."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found
