"""Locations of the packaged templates and search spaces: inside the wheel, or in the root of a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from evoengine.errors import UsageError

DataKind = Literal["templates", "search_spaces"]

ENVIRONMENT: Final = "EVOENGINE_DATA"
"""Environment variable with the path of another folder that contains ``templates`` and ``search_spaces``."""


def data_dir(kind: DataKind) -> Path:
    """Returns a folder of data files: the one below :data:`ENVIRONMENT` if set, else the packaged one.

    Raises:
        UsageError: The folder does not exist.
    """
    own = os.environ.get(ENVIRONMENT)
    if own:
        folder = Path(os.path.realpath(own)) / kind
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
            raise UsageError(f"{ENVIRONMENT} is {own}, which has no folder '{kind}': create it, or unset the variable")
        return folder
    return packaged_dir(kind)


def packaged_dir(kind: DataKind) -> Path:
    """Returns a folder of packaged data files, regardless of :data:`ENVIRONMENT`.

    Raises:
        UsageError: The folder does not exist.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_data" / kind, package.parent / kind):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no folder '{kind}' in the installed package or beside it: reinstall evoengine")
