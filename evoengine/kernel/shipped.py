"""Where the files that ship with EvoEngine live: in a checkout at its root, in a wheel as package data."""

from __future__ import annotations

from pathlib import Path

from evoengine.errors import MissingDependencyError

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped_templates() -> Path:
    """The folder with one sub-folder per family and ``partials``."""
    return _shipped("templates")


def shipped_spaces() -> Path:
    """The folder with one search-space file per family."""
    return _shipped("search_spaces")


def _shipped(name: str) -> Path:
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise MissingDependencyError(f"the folder '{name}' is missing from this installation: reinstall evoengine")
