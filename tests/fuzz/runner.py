"""Runs bad inputs through the program's own entry point and says what is wrong with the answers."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Self

from evoengine.cli.app import main
from tests.cli.calling import Done, environment
from tests.fuzz.cases import PORT, Case
from tests.fuzz.samples import LOCK, copy_samples
from tests.fuzz.snapshot import Snapshot, take_snapshot

LONGEST_LINE: Final = 300
"""Exclusive limit of the characters of a refusal."""
TIME_LIMIT_S: Final = 180.0
"""Limit of one call, which takes milliseconds: one that needs longer hangs."""
_LOG: Final = re.compile(r"\S*evoengine-\S*\.log")
_QUIET_CODES: Final = ("doctor", "selftest", "lock", "verify")
"""Verbs that report by their exit code what they found, without an error; so does a set of searches."""


class HangError(BaseException):
    """A call that does not end; no handler of the program catches it."""


@dataclass(frozen=True)
class Finding:
    """A bad input that was not answered as it must be."""

    name: str
    words: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        call = " ".join(word if len(word) < 60 else f"{word[:30]}…" for word in self.words)
        return ascii(f"{self.name}: {call}: {'; '.join(self.problems)}")[1:-1]


class Runner:
    """Runs cases, each in a folder of its own with fresh samples; a context manager.

    Args:
        samples: Folder of :func:`tests.fuzz.samples.make_samples`.
        cache: Compile cache of all calls.
    """

    def __init__(self, samples: Path, cache: Path) -> None:
        self._samples = samples
        self._cache = cache
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = str(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def check(self, case: Case, *, alone: bool = False) -> Finding | None:
        """Runs a case.

        Args:
            case: Case.
            alone: Whether to run it in a process of its own, as a user does.

        Returns:
            What is wrong with the answer; None if nothing is.
        """
        words = tuple(word.replace(PORT, self._port) for word in case.words)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            folder = Path(scratch) / "here"
            folder.mkdir()
            copy_samples(self._samples, folder)
            for name, content in case.files.items():
                _write(folder / name, content)
            before = take_snapshot(folder)
            values = self._environment(Path(scratch), case.environment)
            call = call_alone if alone else call_here
            try:
                done = call(words, folder, values)
            except HangError:
                return Finding(case.name, words, (f"no answer within {TIME_LIMIT_S:.0f} s",))
            problems = (*_objections(done, words), *_file_objections(done, words, before, take_snapshot(folder)))
        return Finding(case.name, words, problems) if problems else None

    def _environment(self, scratch: Path, own: Mapping[str, str]) -> dict[str, str]:
        folders = {f"XDG_{kind}_HOME": str(scratch / kind.lower()) for kind in ("STATE", "CONFIG")}
        return {**environment(self._cache), **folders, "TMPDIR": str(scratch), "HOME": str(scratch), **own}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.write_bytes(content)


def call_here(words: Sequence[str], folder: Path, values: Mapping[str, str]) -> Done:
    """Calls ``main`` in this process.

    Raises:
        HangError: It does not end.
    """
    out, err = _stream("strict"), _stream("backslashreplace")
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(folder), _replaced(words, values), time_limit(), streams[0], streams[1]:
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, _text(out), _text(err))


def call_alone(words: Sequence[str], folder: Path, values: Mapping[str, str]) -> Done:
    """Calls the program in a process of its own.

    Raises:
        HangError: It does not end.
    """
    given = [word.encode("utf-8", "surrogateescape") for word in words]
    command: list[str | bytes] = [sys.executable, "-m", "evoengine", *given]
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(values), capture_output=True, check=False, timeout=TIME_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise HangError from None
    return Done(done.returncode, *(text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr)))


def _stream(errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", errors, newline="")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def _replaced(words: Sequence[str], values: Mapping[str, str]) -> Iterator[None]:
    """Sets arguments, environment and temporary folder of this process for one call."""
    arguments, known, folder = sys.argv, dict(os.environ), tempfile.tempdir
    sys.argv, tempfile.tempdir = ["evoengine", *words], None
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        sys.argv, tempfile.tempdir = arguments, folder
        os.environ.clear()
        os.environ.update(known)


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Ends the block with a :class:`HangError` when it takes too long."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    known = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, known)


def _objections(done: Done, words: Sequence[str]) -> Iterator[str]:
    """Yields what is wrong with an exit code and the printed lines."""
    if done.code not in (0, 1, 2):
        yield f"exit code {done.code}{_traceback(done.err)}"
    if "Traceback" in done.err + done.out:
        yield "a traceback"
    lines = done.err.split("\n")[:-1] if done.err.endswith("\n") else done.err.split("\n")
    errors = [line for line in lines if line.startswith("error: ")]
    told = words[:1] in [(verb,) for verb in _QUIET_CODES] or (done.code == 1 and "--problems" in words)
    if done.code in (1, 2) and len(errors) != 1 and not told:
        yield f"{len(errors)} error lines: {done.err[:200]!r}"
    if done.code == 0 and errors:
        yield f"an error, but exit code 0: {errors[0][:100]!r}"
    if errors and lines[-1] != errors[0]:
        yield f"more lines after the error: {done.err[-200:]!r}"
    for line in lines if done.code else ():
        if len(line) >= LONGEST_LINE:
            yield f"a line of {len(line)} characters: {line[:80]!r}"
    for line in lines:
        if not line.replace("\t", "").isprintable():
            yield f"characters that cannot be printed: {line[:80]!r}"
    if any(not one.isprintable() and one not in "\n\t" for one in done.out):
        yield f"control characters on stdout: {done.out[:80]!r}"


def _traceback(errors: str) -> str:
    """The end of the log that an internal error names."""
    found = _LOG.search(errors)
    detail = ""
    if found is not None and Path(found[0]).is_file():
        lines = Path(found[0]).read_text().strip().splitlines()
        places = [line.strip() for line in lines if line.startswith('  File "') and "evoengine" in line]
        detail = f" at {places[-1]}" if places else ""
    return f": {errors.strip()[-300:]}{detail}"


def _file_objections(done: Done, words: Sequence[str], before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Yields what a call did to the files that it should not have."""
    for change in before.changes(after, refused=done.code == 2):
        if done.code == 0 and _is_output(change, words):
            continue
        yield change


def _is_output(change: str, words: Sequence[str]) -> bool:
    """Whether a changed file is one that the call was told to write."""
    name = change.removesuffix(" was changed")
    if words[0] == "lock" and name == LOCK and "--check" not in words:
        return True  # its output, which replaces an older one
    if name in ("bad.db", "empty") and ("search" in words or "import" in words):
        return True  # rows were added to a database whose other rows SQLite cannot read, or to an empty file
    return any(Path(word).name == name.rpartition("/")[2] for word in words) and "--force" in words
