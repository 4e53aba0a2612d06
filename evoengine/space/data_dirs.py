"""Locations of templates and search spaces: the user's, and the packaged ones in the wheel or in a checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, get_args

from evoengine.errors import UsageError

DataKind = Literal["templates", "search_spaces"]

ENVIRONMENT: Final = "EVOENGINE_DATA"
"""Environment variable with the path of a folder whose ``templates`` and ``search_spaces`` take precedence over the
packaged ones: a file there replaces the packaged file of the same name."""
_KINDS: Final = get_args(DataKind)


def user_dir() -> Path | None:
    """Returns the folder that :data:`ENVIRONMENT` names; None if the variable is not set.

    Raises:
        UsageError: The folder does not exist, or has neither ``templates`` nor ``search_spaces``.
    """
    own = os.environ.get(ENVIRONMENT)
    if not own:
        return None
    folder = Path(os.path.realpath(own))
    if not any(os.path.isdir(folder / kind) for kind in _KINDS):  # noqa: PTH112 - Path.is_dir raises for a long name
        raise UsageError(
            f"{ENVIRONMENT} is {own}, which has no folder '{_KINDS[0]}' or '{_KINDS[1]}': create one, or "
            "unset the variable"
        )
    return folder


def own_family_hint() -> str:
    """Returns how a family that is not shipped is found, for messages; empty if :data:`ENVIRONMENT` is set."""
    return "" if os.environ.get(ENVIRONMENT) else f"; for a family of your own, set {ENVIRONMENT} to its folder"


def data_dirs(kind: DataKind) -> tuple[Path, ...]:
    """Returns the folders of data files, the user's before the packaged one: the first that has a file wins.

    Raises:
        UsageError: A folder does not exist.
    """
    user = user_dir()
    own = () if user is None or not (user / kind).is_dir() else (user / kind,)
    return (*own, packaged_dir(kind))


def data_dir(kind: DataKind) -> Path:
    """Returns the first of :func:`data_dirs`.

    Raises:
        UsageError: The folder does not exist.
    """
    return data_dirs(kind)[0]


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
