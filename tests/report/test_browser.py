"""The page in a real browser without network: what it draws, in light and dark, on a phone, and with its chooser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evoengine.leaderboard.store import Leaderboard
from evoengine.report.facts import gather
from evoengine.report.page import render_page
from tests.report.boards import EVIL, H200, L4, fill, open_board

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome")

PHONE = 400
"""Width of a phone in CSS pixels; the page is opened in a frame, since a headless window has at least 500."""
PROBE = """
<script>
(() => {
  // Elements that begin or end outside the page, except in boxes that scroll, and what Plotly measures texts with.
  const outside = () => [...document.body.querySelectorAll("*")].filter((one) => {
    const box = one.getBoundingClientRect();
    const beyond = box.right > innerWidth + 1 || box.left < -1;
    return box.width && beyond && !one.closest(".wide, pre, .skip, #js-plotly-tester");
  }).map((one) => `${one.tagName} ${one.textContent.slice(0, 40)}`);
  const report = () => {
    const plots = [...document.querySelectorAll(".plot")].filter((one) => one.querySelector(".main-svg"));
    const texts = [...document.querySelectorAll(".plot svg text")].filter((one) => one.textContent);
    const target = document.getElementById(location.hash.slice(1));
    return {
      width: innerWidth,
      scrolls: document.documentElement.scrollWidth > innerWidth,
      outside: outside(),
      boxes: document.querySelectorAll("article.shown .wide").length,
      drawn: plots.map((one) => one.id),
      top: target && target.getBoundingClientRect().top,
      smallest: Math.min(...texts.map((one) => parseFloat(getComputedStyle(one).fontSize))),
      shown: [...document.querySelectorAll("article")].filter((one) => one.offsetHeight).map((one) => one.id),
      title: document.title, fragment: location.hash, chosen: (document.getElementById("chooser") || {}).value,
      ground: getComputedStyle(document.body).backgroundColor,
    };
  };
  const choose = (id) => {
    const chooser = document.getElementById("chooser");
    chooser.value = id;
    chooser.dispatchEvent(new Event("change"));
  };
  window.setTimeout(() => {
    const found = [report()];
    STEPS
    window.setTimeout(() => parent.postMessage(JSON.stringify([...found, report()]), "*"), 2000);
  }, 2000);
})();
</script>
"""
FRAME = """<!DOCTYPE html><title>frame</title>
<iframe style="width: {width}px; height: 900px; border: 0" src="{page}"></iframe>
<script>addEventListener("message", (event) => document.body.setAttribute("data-seen", event.data));</script>"""


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
            "--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1280,1000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return Visit(done.stdout, console)


def probe(text: str, folder: Path, *, steps: str, fragment: str = "", dark: bool = False) -> list[dict[str, Any]]:
    """Opens a page at a phone's width; reports before and after ``steps``, a script."""
    page = written(text.replace("</body>", f"{PROBE.replace('STEPS', steps)}</body>"), folder)
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=PHONE, page=f"{page.name}{fragment}"), encoding="utf-8")
    seen = visit(frame, folder / "profile", dark=dark)
    assert seen.console == ()
    found = re.search(r"data-seen='([^']*)'|data-seen=\"([^\"]*)\"", seen.dom)
    assert found is not None, "the script of the page ended early"
    reports: list[dict[str, Any]] = json.loads((found[1] or found[2]).replace("&quot;", '"').replace("&amp;", "&"))
    return reports


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboard with a measured study, 1, and a predicted one, 2."""
    folder = tmp_path_factory.mktemp("board")
    with open_board(folder) as board:
        fill(board, H200)
        board.set_energy(24, 900.0)
        fill(board, L4)
    return folder


@pytest.fixture(scope="module")
def text(board: Path) -> str:
    return page_of(board, 1)


def page_of(board: Path, *studies: int) -> str:
    with Leaderboard(f"sqlite:///{board / 'leaderboard.db'}", create=False) as opened:
        facts = [gather(opened, study) for study in studies]
    return render_page(*facts, program="evoengine", written_at="now")


def written(text: str, folder: Path) -> Path:
    page = folder / "report.html"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_plot_is_drawn_without_console_messages(text: str, tmp_path: Path, dark: bool) -> None:
    seen = visit(written(text, tmp_path), tmp_path / "profile", dark=dark)
    assert seen.console == ()
    wanted = set(re.findall(r'<div class="plot" id="([\w-]+)"', text))
    assert len(wanted) == 6
    assert seen.drawn() == wanted
    assert f'data-plots="{len(wanted)}"' in seen.dom, "the script ended early"
    inks = {True: "fill: rgb(230, 233, 236)", False: "fill: rgb(27, 33, 39)"}
    assert inks[dark] in seen.dom, "the plots use the text colour of the page"
    assert inks[not dark] not in seen.dom
    assert EVIL not in seen.dom


def test_on_a_phone_nothing_is_outside_and_the_chooser_shows_one_study(board: Path, tmp_path: Path) -> None:
    wide = (
        "document.querySelector('article.shown').insertAdjacentHTML('beforeend', '<p style=\"width: 500px\">wide</p>');"
    )
    control = "found.push(report()); document.querySelector('article.shown').lastElementChild.remove();"
    steps = f"{wide} {control} choose('study-2');"
    first, broken, second = probe(page_of(board, 1, 2), tmp_path, steps=steps)
    for seen, study in ((first, "study-1"), (second, "study-2")):
        assert seen["width"] == PHONE
        assert (seen["scrolls"], seen["outside"]) == (False, [])
        assert seen["boxes"] >= 2, "the tables are in boxes that scroll"
        assert seen["smallest"] >= 12
        assert seen["shown"] == [study]
        assert {name for name in seen["drawn"] if name.startswith(study)} >= {
            f"{study}-best-so-far",
            f"{study}-roofline",
        }
    assert not [name for name in first["drawn"] if name.startswith("study-2")], "drawn when shown"
    assert second["fragment"] == "#study-2"
    assert "(predicted)" in second["title"]
    assert "(predicted)" not in first["title"]
    assert (broken["scrolls"], broken["outside"]) == (True, ["P wide"]), "control: a wide element is found"


def test_the_fragment_chooses_a_study_and_scrolls_to_its_section(board: Path, tmp_path: Path) -> None:
    steps = "location.hash = '#study-1-h-roof';"
    first, second = probe(page_of(board, 1, 2), tmp_path, steps=steps, fragment="#study-2-h-roof", dark=True)
    assert (first["shown"], first["chosen"]) == (["study-2"], "study-2")
    assert max(abs(first["top"]), abs(second["top"])) < 60, "the section is at the top of the window"
    assert (second["shown"], second["chosen"]) == (["study-1"], "study-1")
    assert first["ground"] == second["ground"] == "rgb(18, 22, 26)", "dark"


def test_external_references_and_errors_are_detected(text: str, tmp_path: Path) -> None:
    """Control: a page with an external reference and a script error fails the same checks."""
    leaky = text.replace("<footer>", '<img src="http://example.com/x.png"><footer>')
    broken = leaky.replace("  route();\n  if", "  nonsense();\n  if")
    assert len({text, leaky, broken}) == 3
    seen = visit(written(broken, tmp_path), tmp_path / "profile")
    assert any("Content Security Policy" in line for line in seen.console)
    assert any("nonsense" in line for line in seen.console)
    assert seen.drawn() == set()
