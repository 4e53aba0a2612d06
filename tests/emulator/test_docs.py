"""docs/emulator.md: the example runs and the table matches the translator. The emulator imports no other package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.emulator.isa_coverage import support_table
from tests.golden import assert_golden

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "emulator.md"
BEGIN, END = "<!-- supported: begin -->\n", "<!-- supported: end -->"


def test_the_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    script = tmp_path / "example.py"
    script.write_text(code, "utf-8")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr[-500:]
    first, last = run.stdout.strip().splitlines()[0], run.stdout.strip().splitlines()[-1]
    assert re.fullmatch(r"\d+ warp instructions, \d+ arrivals at barriers", first)
    assert last.startswith(
        "emulator: data_race: warp 0 reads what warp 1 writes with no barrier between them, at PTX line "
    )
    assert ", source /kernel.cu:9, block (0, 0, 0), thread (0, 0, 0)" in last


def test_the_table_matches_the_translator() -> None:
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    assert END in rest
    assert_golden(PAGE, head + BEGIN + support_table() + END + tail)


def test_the_emulator_imports_no_other_package() -> None:
    code = "import sys; from evoengine.emulator import Emulator; "
    code += "print(*sorted(m for m in sys.modules if m.startswith('evoengine')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    rooms = {name.split(".")[1] for name in run.stdout.split() if "." in name}
    assert rooms == {"emulator", "errors"}
