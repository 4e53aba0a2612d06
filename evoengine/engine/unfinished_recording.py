"""The database of a recording that is not complete: shared by processes that record the same, and removed by the last.

A shared lock of the file (flock) shows that a process records into it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evoengine.engine.options.verbs import RecordOptions
from evoengine.errors import UsageError
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.system.files import names_stdout, refuse_database

_MODE = 0o666


def check_output(options: RecordOptions) -> None:
    """Checks that the file of a recording can be written once it is complete.

    Raises:
        UsageError: It exists, is a folder or a database, or is no file.
    """
    output = options.output
    if names_stdout(output):
        raise UsageError(f"{output} is not a file, and a recording keeps its data beside one: give another -o")
    target = Path(os.path.realpath(output))  # resolve() raises RuntimeError for a loop
    if not output.name or target.is_dir():
        raise UsageError(f"{output} is a folder: give a file")
    if target.is_symlink() or not target.parent.is_dir():
        raise UsageError(f"{output} is in no folder, or a link that leads nowhere: give another -o")
    refuse_database(output)
    if output.exists() and not options.force and not options.unfinished.exists():
        raise _existing(output)


def check_alone(board: Leaderboard, study: Study, options: RecordOptions) -> None:
    """Checks that an unfinished recording is this one, since it is removed when this one is complete.

    Raises:
        UsageError: It is another one, or has nothing of this one, and a file of its name exists.
    """
    if options.force:
        return
    if any(board.evaluated(one) for one in board.studies() if one.id != study.id):
        raise UsageError(
            f"{options.unfinished} holds another recording: continue that one with its own options, give another -o, "
            "or --force to drop it"
        )
    if options.output.exists() and not board.evaluated(study):
        raise _existing(options.output)


@contextmanager
def shared_database(part: Path) -> Iterator[int]:
    """Opens the database of a recording for this process, among others; an empty one is removed at the end.

    Yields:
        Descriptor for :func:`discard`.

    Raises:
        UsageError: The file cannot be made.
    """
    descriptor = _locked(part)
    try:
        yield descriptor
    finally:
        if os.fstat(descriptor).st_size == 0:
            part.unlink(missing_ok=True)
        os.close(descriptor)


def discard(part: Path, descriptor: int) -> None:
    """Removes the database of a complete recording, with SQLite's files beside it, unless others still record."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    for name in (part.name, f"{part.name}-wal", f"{part.name}-shm"):
        part.with_name(name).unlink(missing_ok=True)


def _locked(part: Path) -> int:
    while True:
        try:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT, _MODE)
        except OSError as error:
            raise UsageError(f"{part}: cannot be opened for writing: {error.strerror}: give another -o") from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process has just removed it


def _existing(output: Path) -> UsageError:
    return UsageError(f"{output} exists: give --force to replace it, or another -o")
