"""Where the packaged templates and search spaces are: inside the wheel, or in the root of a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from evoengine.errors import UsageError

DataKind = Literal["templates", "search_spaces"]

ENVIRONMENT: Final = "EVOENGINE_DATA"
"""Variable that names another folder with ``templates`` and ``search_spaces`` in it."""


def data_dir(kind: DataKind) -> Path:
    """The folder of packaged data files, or that of the same name in the folder that :data:`ENVIRONMENT` names.

    Raises:
        UsageError: it is not there.
    """
    own = os.environ.get(ENVIRONMENT)
    if own:
        folder = Path(own).resolve() / kind
        if not folder.is_dir():
            raise UsageError(f"{ENVIRONMENT} is {own}, where there is no folder '{kind}': make one, or unset it")
        return folder
    return packaged_dir(kind)


def packaged_dir(kind: DataKind) -> Path:
    """The folder that came with EvoEngine, whatever :data:`ENVIRONMENT` says.

    Raises:
        UsageError: it is not there.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_data" / kind, package.parent / kind):
        if candidate.is_dir():
            return candidate
    raise UsageError(f"no folder '{kind}' in the installed package or beside it: reinstall evoengine")
