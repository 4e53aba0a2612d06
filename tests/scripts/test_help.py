"""Every measurement script prints its help without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import environment
from tests.scripts.running import FOLDER, ROOT
from tests.warm import WarmPython

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
def helps(warm: WarmPython, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Help texts by script; one process runs all scripts, since their imports take most of the time."""
    driver = tmp_path_factory.mktemp("help") / "driver.py"
    driver.write_text(DRIVER)
    done = warm.run(str(driver), [str(FOLDER), *SCRIPTS], ROOT, environment(shared_cache))
    assert done.code == 0, done.err
    found: dict[str, str] = json.loads(done.out)
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_the_command(helps: dict[str, str], script: str) -> None:
    assert helps[script].startswith("usage: ")
    assert f"scripts/measure/{script}.py" in helps[script]


def test_the_readme_lists_every_script() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in SCRIPTS if f"`{name}.py" not in text] == []
