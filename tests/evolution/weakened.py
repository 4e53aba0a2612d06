"""A copy of a family from which recorded improvements are removed, by the recorded patches in reverse."""

from __future__ import annotations

from pathlib import Path

from evoengine.evolution.operators.recorded import SHIPPED, load_patch

ROOT = Path(__file__).resolve().parents[2]
REMOVED = ("scalar-sum-once", "scalar-tree-sum", "scalar-rescale-once")
"""Improvements of family scalar that the emulator's prediction sees."""
BAD = Path(__file__).with_name("bad_patches")


def weakened(folder: Path, family: str = "scalar", names: tuple[str, ...] = REMOVED) -> Path:
    """Writes the family without some improvements as a folder for ``EVOENGINE_DATA``."""
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
    return folder
