"""The verbs on a terminal: colours or none, few columns."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import environment
from tests.report.boards import H200, L4, fill

RUN_ALL = """
import json, sys
from evoengine.cli.app import main
for words in json.loads(sys.argv[1]):
    print("=== " + " ".join(words), flush=True)
    sys.argv = ["evoengine", *words]
    try:
        main()
    except SystemExit:
        pass
"""
CALLS = (
    ("--help",),
    ("search", "--help"),
    ("doctor",),
    ("space", "--problem", "tiny"),
    ("space", "--problem", "tiny", "--family", "auto"),
    ("leaderboard", "--db", "mine.db"),
    ("leaderboard", "--db", "mine.db", "--status", "all", "--top", "3"),
    ("leaderboard", "show", "24", "--db", "mine.db"),
    ("leaderboard", "export", "--db", "mine.db", "-o", "rows.json", "--force"),
    ("leaderboard", "import", "rows.json", "--db", "other.db"),
    ("report", "--db", "mine.db", "--force"),
    ("lock", "--db", "mine.db"),
    ("export", "--db", "mine.db", "24", "-o", "one.cu"),
    ("profile", "24", "--db", "mine.db"),
    ("compare", "--db", "mine.db", "--problem", "mission"),
    ("landscape", "show", "none.landscape.xz"),
    ("dashboard", "--db", "none.db"),
    ("search", "--problem", "nonsense"),
    ("selftest", "--mutants", "nonsense"),
)
"""Calls of every verb that end quickly; those that fail print one line."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminal")
    with Leaderboard(f"sqlite:///{path / 'mine.db'}") as board:
        fill(board, H200)
        fill(board, L4)
    return path


def seen(folder: Path, calls: Sequence[Sequence[str]], columns: int, **extra: str) -> str:
    """The output of calls on a terminal with this many columns."""
    main, side = os.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {
        name: value for name, value in environment(folder / "cache").items() if name not in {*extra, "COLUMNS", "LINES"}
    }
    settings |= {"TERM": "xterm-256color"} | {name: value for name, value in extra.items() if value}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_ALL, json.dumps(calls)], cwd=folder, env=settings, stdout=side, stderr=side
    )
    os.close(side)
    text = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    process.wait(timeout=600)
    os.close(main)
    return text.decode().replace("\r\n", "\n")


def colours(text: str) -> list[str]:
    """Control codes that set a colour, without bold and dim."""
    codes = [code for group in re.findall(r"\x1b\[([0-9;]*)m", text) for code in group.split(";") if code]
    return [code for code in codes if re.fullmatch(r"[349][0-7]|[34]8|10[0-7]", code)]


@pytest.mark.thorough
def test_no_color_is_honoured_by_every_verb(folder: Path) -> None:
    assert colours(seen(folder, CALLS[:3], 100, NO_COLOR="")), "control: without NO_COLOR there is colour"
    text = seen(folder, CALLS, 100, NO_COLOR="1")
    assert text.count("\n=== ") == len(CALLS) - 1, "every call ran"
    assert "Traceback" not in text
    assert "NVIDIA H200" in text
    assert colours(text) == []


def test_a_ranking_fits_a_narrow_terminal(folder: Path) -> None:
    calls = [("leaderboard", "--db", "mine.db", "--device", "cuda", "--top", "4")]
    narrow, wide = seen(folder, calls, 60, NO_COLOR="1"), seen(folder, calls, 160, NO_COLOR="1")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", narrow)
    assert max(map(len, plain.splitlines()[1:])) <= 60
    assert "…" not in plain, "no number is cut"
    rows = [line.split() for line in plain.splitlines() if re.match(r" *\d+[* ] ", line)]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("1*", "24", "4.00"), ("2", "23", "4.50"), ("3", "22", "5.00"), ("4", "21", "5.50"),
    ]  # fmt: skip
    assert "hidden columns: spill, smem, regs" in " ".join(plain.split())
    assert "the only row of wmma: BLOCK_N=128 " in " ".join(plain.split()), "what rows share is printed once, below"
    assert "hidden columns" not in wide
    assert "regs  spill  smem" in re.sub(r"\x1b\[[0-9;]*m", "", wide)
