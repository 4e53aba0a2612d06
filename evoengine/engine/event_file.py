"""Event logs of studies in the user's state folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from evoengine.errors import UsageError
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.event_log import EventLog
from evoengine.system.user_folders import user_folder


def open_event_log(board: Leaderboard, study: Study, file: Path | None) -> EventLog | None:
    """Opens the event log of a study.

    Args:
        board: Leaderboard of the study.
        study: Study that is searched.
        file: File chosen by the user; None for the default one, which a search can do without.

    Returns:
        The log; None if the default file cannot be written.

    Raises:
        UsageError: The chosen file cannot be written.
    """
    chosen = file or _default_file(board, study)
    try:
        return None if chosen is None else EventLog(chosen, study)
    except UsageError:
        if file is not None:
            raise
        return None


def _default_file(board: Leaderboard, study: Study) -> Path | None:
    """The file of a study, with a hash of its leaderboard in the name; None for a user without a home."""
    folder = user_folder("state")
    if folder is None:
        return None
    place = board.name if board.on_server else str(board.path.resolve())
    digest = hashlib.sha256(place.encode()).hexdigest()[:8]
    return folder / "log" / f"{study.name}-{digest}.jsonl"
