"""Where the log of a study goes, by default and by choice."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard


def log_path(board: Leaderboard, study: Study, chosen: Path | None) -> Path:
    """The file of a study's log.

    Args:
        board: the leaderboard; two files may hold studies of one name, each has a log of its own.
        study: the study.
        chosen: what the user named; None for a file in the folder of the user's logs (``XDG_STATE_HOME``).
    """
    if chosen is not None:
        return chosen
    digest = hashlib.sha256(str(board.path.resolve()).encode()).hexdigest()[:8]
    return state_dir() / "log" / f"{study.name}-{digest}.jsonl"


def state_dir() -> Path:
    """Folder of what is kept between runs and can be deleted: ``$XDG_STATE_HOME/evoengine``."""
    home = os.environ.get("XDG_STATE_HOME", "")
    root = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return root / "evoengine"
