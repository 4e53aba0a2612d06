"""A copy of a family from which recorded improvements are removed, by the recorded patches in reverse."""

from __future__ import annotations

import re
from pathlib import Path

from evoengine.evolution.operators.recorded import SHIPPED, load_patch

ROOT = Path(__file__).resolve().parents[2]
REMOVED = ("scalar-sum-once", "scalar-tree-sum")
"""Improvements of family scalar that the emulator's prediction sees."""
START = (
    'THREADS = 32, STAGING = "direct", STAGES = 1, LANES_PER_KEY = 8, KEYS_PER_STEP = 2, VECTOR = 4, PAD_HALVES = 0, '
    "UNROLL = 1"
)
"""First config of a search. The emulator runs it in half the time of the family's own start."""
BAD = Path(__file__).with_name("bad_patches")


def weakened(folder: Path, family: str = "scalar", names: tuple[str, ...] = REMOVED) -> Path:
    """Writes the family without some improvements, and with another start, as a folder for ``EVOENGINE_DATA``."""
    for source in (ROOT / "templates" / family).iterdir():
        target = folder / "templates" / family / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    for name in names:
        for edit in reversed(load_patch(SHIPPED / f"{name}.toml").patch.edits):
            file = folder / "templates" / edit.file
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text((ROOT / "templates" / edit.file).read_text())
            text = file.read_text()
            assert text.count(edit.replace) == 1, name
            file.write_text(text.replace(edit.replace, edit.search))
    (folder / "search_spaces").mkdir()
    space = (ROOT / "search_spaces" / f"{family}.toml").read_text()
    changed = re.sub(r"^(\[starts\..*\n(?:.*\n)*?values = ).*", rf"\1{{ {START} }}", space, flags=re.MULTILINE)
    assert changed != space
    (folder / "search_spaces" / f"{family}.toml").write_text(changed)
    return folder
