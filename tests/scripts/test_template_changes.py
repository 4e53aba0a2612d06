"""``template_changes.py`` without a GPU: a checkout whose kernel of one family was changed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.scripts.running import ROOT, Run

ASSUMED = re.compile(r"\n    __builtin_assume\(.*")


@pytest.mark.thorough
def test_instructions_of_two_checkouts(run: Run, tmp_path: Path) -> None:
    for folder in ("templates", "search_spaces"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    kernel = tmp_path / "templates/scalar/kernel.cu.jinja"
    text = kernel.read_text(encoding="utf-8")
    assert ASSUMED.search(text)
    kernel.write_text(ASSUMED.sub("", text), encoding="utf-8")
    done = run("template_changes.py", tmp_path, "1x1x64x64", "--family", "scalar,hopper", "--out", tmp_path / "out.md")
    assert done.returncode == 0, done.stderr
    rows = [line for line in (tmp_path / "out.md").read_text(encoding="utf-8").splitlines() if "| scalar |" in line]
    assert rows
    assert "hopper" not in done.stdout
    before, after = (int(text.replace(",", "")) for text in rows[0].split("|")[-2].split("→"))
    assert after < before / 2
