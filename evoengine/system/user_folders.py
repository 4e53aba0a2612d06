"""The user's folders for caches, settings and state; a search works without any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path, user_config_path, user_state_path

Kind = Literal["cache", "config", "state"]
_NAME = "evoengine"


def user_folder(kind: Kind) -> Path | None:
    """Returns the user's folder of a kind, which need not exist: on Linux ``$XDG_CACHE_HOME/evoengine`` and so on.

    A relative path in such a variable or in HOME is ignored, as the XDG specification requires.

    Returns:
        None for a user without a home, where the folder would be one of the working directory.
    """
    if kind == "cache":
        found = user_cache_path(_NAME, appauthor=False)
    else:
        found = user_config_path(_NAME) if kind == "config" else user_state_path(_NAME)
    return found if found.is_absolute() else None
