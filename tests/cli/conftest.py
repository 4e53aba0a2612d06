"""Runs the command line in a process of its own, in an empty folder, as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.calling import Done, Evo, environment


@pytest.fixture(scope="session")
def cache(shared_cache: Path) -> Path:
    """A compile cache that all calls share."""
    return shared_cache


@pytest.fixture
def evo(tmp_path: Path, cache: Path) -> Evo:
    """``evo("doctor", "--json")`` calls ``python -m evoengine doctor --json`` in the test's folder."""

    def call(*arguments: str, timeout_s: float = 1800) -> Done:
        done = subprocess.run(
            [sys.executable, "-m", "evoengine", *arguments],
            cwd=tmp_path,
            env=environment(cache),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return call
