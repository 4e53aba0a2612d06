"""The page in a real browser without network: every plot is drawn, and the console stays empty."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from evoengine.report.facts import gather
from evoengine.report.page import render_page
from tests.report.boards import EVIL, H200, fill, open_board

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")


@dataclass(frozen=True)
class Visit:
    """Document and console output of a page load."""

    dom: str
    console: tuple[str, ...]

    def drawn(self) -> set[str]:
        """Returns the ids of the plots that were drawn."""
        blocks = re.split(r'<div class="plot(?: [^"]*)?" id="', self.dom)[1:]
        return {block.partition('"')[0] for block in blocks if 'class="main-svg"' in block}


def visit(page: Path, profile: Path, *, dark: bool = False) -> Visit:
    """Loads a file without network and runs all scripts to their end."""
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9",
            "--enable-logging=stderr", "--virtual-time-budget=20000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return Visit(done.stdout, console)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    with open_board(tmp_path_factory.mktemp("board")) as board:
        study = fill(board, H200)
        board.set_energy(24, 900.0)
        return render_page(gather(board, study.id), program="evoengine", written_at="now")


def written(text: str, folder: Path) -> Path:
    page = folder / "report.html"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn_without_console_messages(text: str, tmp_path: Path, dark: bool) -> None:
    seen = visit(written(text, tmp_path), tmp_path / "profile", dark=dark)
    assert seen.console == ()
    wanted = set(re.findall(r'<div class="plot" id="([\w-]+)"', text))
    assert len(wanted) >= 7
    assert seen.drawn() == wanted
    assert f'data-plots="{len(wanted)}"' in seen.dom, "the script ended early"
    inks = {True: "fill: rgb(230, 233, 236)", False: "fill: rgb(29, 35, 41)"}
    assert inks[dark] in seen.dom, "the plots use the text colour of the page"
    assert inks[not dark] not in seen.dom
    assert EVIL not in seen.dom


def test_external_references_and_errors_are_detected(text: str, tmp_path: Path) -> None:
    """Control: a page with an external reference and a script error fails the same checks."""
    leaky = text.replace("<footer>", '<img src="http://example.com/x.png"><footer>')
    broken = leaky.replace("draw(false);\n  dark", "nonsense(false);\n  dark")
    assert len({text, leaky, broken}) == 3
    seen = visit(written(broken, tmp_path), tmp_path / "profile")
    assert any("Content Security Policy" in line for line in seen.console)
    assert any("nonsense" in line for line in seen.console)
    assert seen.drawn() == set()
