"""Every measurement script prints its help without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.scripts.running import FOLDER, ROOT

SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if "__main__" in file.read_text())
DRIVER = """
import contextlib, io, json, runpy, sys
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
helps = {}
for name in names:
    sys.argv = [name, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
    helps[name] = printed.getvalue()
print(json.dumps(helps))
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Help texts by script; one process runs all scripts, since their imports take most of the time."""
    command = [sys.executable, "-c", DRIVER, str(FOLDER), *SCRIPTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_the_command(helps: dict[str, str], script: str) -> None:
    assert helps[script].startswith("usage: ")
    assert f"scripts/measure/{script}.py" in helps[script]


def test_the_readme_lists_every_script() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f"`{name}.py" not in text] == []
