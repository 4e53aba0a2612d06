"""Fixture that runs the scripts of ``scripts/measure``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.running import Run, runner
from tests.warm import WarmPython


@pytest.fixture(scope="session")
def run(warm: WarmPython, shared_cache: Path) -> Run:
    return runner(warm, shared_cache)
