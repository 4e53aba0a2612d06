"""The user's folders for caches, settings and state; a search works without any of them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

from platformdirs import user_cache_path, user_config_path, user_state_path

Kind = Literal["cache", "config", "state"]

_NAME: Final = "evoengine"
_PLATFORM: Final[Mapping[Kind, Callable[[], Path]]] = {
    "cache": lambda: user_cache_path(_NAME, appauthor=False),
    "config": lambda: user_config_path(_NAME),
    "state": lambda: user_state_path(_NAME),
}
_IN_HOME: Final[Mapping[Kind, str]] = {"cache": ".cache", "config": ".config", "state": ".local/state"}


def user_folder(kind: Kind) -> Path | None:
    """Returns the user's folder of a kind, which need not exist: on Linux ``$XDG_CACHE_HOME/evoengine`` and so on.

    A relative path in such a variable is ignored, as the XDG specification requires, and a HOME that is empty or
    relative too: it would put files in the working directory.

    Returns:
        None for a user without a home.
    """
    found = _PLATFORM[kind]()
    if found.is_absolute() and os.environ.get("HOME") != "":
        return found
    home = Path(os.environ.get("HOME") or "")
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            return None
    return home / _IN_HOME[kind] / _NAME if home.is_absolute() else None
