"""Writing of the files that a user names: whole or not at all, through symlinks, and in place where it is no file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from evoengine.errors import UsageError

_MODE: Final = 0o666
"""Mode of a new file, which the umask reduces."""
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/(?:self|thread-self|(\d+)(?:/task/\d+)?))/fd/(\d+)")
_MAX_LINKS: Final = 40
_DASH: Final = Path("-")
"""Name of the standard output, as in many programs."""
_STDOUT: Final = 1
_DATABASE: Final = b"SQLite format 3\0"
_BESIDE_DATABASES: Final = ("-wal", "-shm", "-journal")
"""Endings of the files in which SQLite keeps changes that are not in the database yet."""
_FOLDER_REFUSES: Final = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV))
"""Errors of a folder that takes no new file, while an existing file in it may still be written."""


def write_file(path: Path, content: str | bytes) -> None:
    """Writes a whole file or nothing, also when the disk is full or the process is killed; never over a database.

    The files that SQLite keeps beside a database count as parts of it. A symlink stays, and the file that it names is
    written. An existing file keeps its mode and its owner. Devices, pipes and open descriptors (``/dev/stdout``, and
    ``-`` for the same) are written as they are; a reader of the standard output that ends early is no error.

    Raises:
        UsageError: The file cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = _final_target(path)
        if target == _STDOUT:
            _write_stdout(data)
        elif isinstance(target, int):
            _write_all(os.dup(target), data)
        elif _is_special(target):
            _write_all(os.open(target, os.O_WRONLY), data)
        else:
            refuse_database(path)
            _replace(target, data)
    except OSError as error:
        raise UsageError(_explain(path, error)) from error


def names_stdout(path: Path) -> bool:
    """Whether a path names the standard output, as ``-`` and ``/dev/stdout`` do: nothing else may be printed there."""
    try:
        return _final_target(path) == _STDOUT
    except OSError:
        return False


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Checks that no file would be overwritten, unless that is allowed.

    A device or a pipe holds nothing to lose. What an open descriptor such as ``/dev/stdout`` loses was decided when it
    was opened.

    Raises:
        UsageError: A file exists, is or belongs to a database, or cannot be looked at.
    """
    for path in paths:
        refuse_database(path)
        try:
            if isinstance(_final_target(path), int):
                continue
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UsageError(_explain(path, error)) from error
        if not force and not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
            raise UsageError(f"{path} exists: give --force to overwrite it, or another -o")


def refuse_special(path: Path) -> None:
    """Checks that a path names a regular file or nothing: opening a pipe waits for its other end, whatever the signal.

    Raises:
        UsageError: It names a folder, a pipe, a socket or a device, or cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UsageError(f"{path}: cannot be opened: {error.strerror}: give another file") from error
    if not stat.S_ISREG(mode):
        what = "is a directory" if stat.S_ISDIR(mode) else "is no regular file"
        raise UsageError(f"{path}: {what}: give another file")


def refuse_database(path: Path) -> None:
    """Checks that a path names no database and no file that SQLite keeps beside one.

    The results of searches are not overwritten, not even with ``--force``. A name that SQLite would use counts even if
    there is no such file yet. Devices and pipes are not opened.

    Raises:
        UsageError: It names one.
    """
    try:
        target = path.resolve()
    except (OSError, RuntimeError):  # links in a loop, a name that is too long: nothing is there to overwrite
        return
    if _is_database(target):
        raise UsageError(f"{path}: is a database, which is never overwritten: remove it first, or give another file")
    for suffix in _BESIDE_DATABASES:
        name = target.name.removesuffix(suffix)
        if name not in ("", target.name) and _is_database(target.with_name(name)):
            raise UsageError(f"{path}: is a file of the database {name}, which is never overwritten: give another file")


def _is_database(path: Path) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(len(_DATABASE)) == _DATABASE
    return False


def _final_target(path: Path) -> Path | int:
    """Follows symlinks; returns a file, or the number of an own open descriptor that a link such as /dev/stdout names.

    Raises:
        OSError: The links form a loop.
    """
    if path == _DASH:
        return _STDOUT
    here = Path(os.path.abspath(path))  # noqa: PTH100 - the links are followed one by one
    for _ in range(_MAX_LINKS):
        place = Path(os.path.realpath(here.parent)) / here.name  # resolve() raises RuntimeError for a loop
        descriptor = _DESCRIPTOR.fullmatch(str(here)) or _DESCRIPTOR.fullmatch(str(place))
        if descriptor is not None and descriptor[1] in (None, str(os.getpid())):
            return int(descriptor[2])
        if descriptor is not None or not place.is_symlink():
            return place
        here = Path(os.path.abspath(place.parent / place.readlink()))  # noqa: PTH100 - likewise
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_special(target: Path) -> bool:
    """Whether something exists there that is no regular file, or a file that another process has open."""
    if _DESCRIPTOR.fullmatch(str(target)):
        return True
    try:
        return not stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        return False


def _replace(target: Path, data: bytes) -> None:
    """Writes a new file beside the target and renames it; in place where the folder refuses a new file."""
    partial = target.with_name(f".evoengine-{secrets.token_hex(8)}.part")  # short: the target's name may be 255 bytes
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    except OSError as error:
        if error.errno in _FOLDER_REFUSES and target.exists():
            _overwrite(target, data)
            return
        raise
    try:
        _keep_owner_and_mode(descriptor, target)
        _write_all(descriptor, data)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if error.errno != errno.EBUSY:  # a mount point, such as a file that a container mounts
            raise
        _overwrite(target, data)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _overwrite(target: Path, data: bytes) -> None:
    """Writes in place. Space is reserved first, so that a full disk leaves the old content."""
    with target.open("r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            os.posix_fallocate(stream.fileno(), 0, max(1, len(data)))
        except OSError:
            os.ftruncate(stream.fileno(), size)
            raise
        stream.write(data)
        stream.truncate(len(data))


def _keep_owner_and_mode(descriptor: int, target: Path) -> None:
    try:
        known = target.stat()
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):  # only the superuser may give files away
        os.fchown(descriptor, known.st_uid, known.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(known.st_mode))


def _write_stdout(data: bytes) -> None:
    """Writes after what was printed, through the stream that knows of readers that ended early."""
    sys.stdout.flush()
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:  # a stream of text only, such as a notebook's
        sys.stdout.write(data.decode(errors="backslashreplace"))
        return
    stream.write(data)
    stream.flush()


def _write_all(descriptor: int, data: bytes) -> None:
    """Writes and closes."""
    with open(descriptor, "wb") as stream:
        stream.write(data)


def _explain(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"{path}: cannot be written: its folder does not exist: create it, or give another file"
    return f"{path}: cannot be written: {error.strerror}: give another file"
