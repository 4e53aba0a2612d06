"""Where the packaged templates and search spaces are: inside the wheel, or in the root of a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from evoengine.errors import UsageError

DataKind = Literal["templates", "search_spaces"]


def data_dir(kind: DataKind) -> Path:
    """The folder of packaged data files.

    Raises:
        UsageError: it is neither in the installed package nor beside it.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_data" / kind, package.parent / kind):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no folder '{kind}' in the installed package or beside it: reinstall evoengine")
