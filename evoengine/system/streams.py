"""Standard streams that a program can always write to, also when they are closed, full, or their reader is gone."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

_NAMES: Final = {1: "stdout", 2: "stderr"}


class Output(io.RawIOBase):
    """A file descriptor that swallows everything after its first write error, so that no work ends for a message.

    Args:
        descriptor: Number of the file descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None
        """First error; None while everything was written."""

    @property
    def lost_reader(self) -> bool:
        """Whether the reader of a pipe is gone, which is no fault: ``head`` takes only what it needs."""
        return isinstance(self.error, BrokenPipeError)

    def write(self, data: Any, /) -> int:
        size = len(memoryview(data).cast("B"))
        if self.error is None:
            try:
                return self._write(data)
            except OSError as error:
                self.error = error
        return size

    def _write(self, data: Any) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # another program made the pipe non-blocking
                select.select([], [self._descriptor], [])

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def require_reader() -> None:
    """Ends an endless output whose reader is gone.

    Raises:
        BrokenPipeError: Nothing reads stdout any more.
    """
    output = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(output, Output) and output.lost_reader:
        raise BrokenPipeError


def open_missing_streams() -> None:
    """Opens closed standard streams on the null device.

    Otherwise the next file that is opened, such as the leaderboard, gets the number of such a stream, and a library
    that prints to it writes into that file.
    """
    for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)  # the lowest free number, which is this one
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a file descriptor for the life of the process
    for descriptor, name in _NAMES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115 - likewise


@contextmanager
def lasting_output() -> Iterator[dict[str, Output]]:
    """Replaces stdout and stderr for the block by streams that never raise.

    Streams that a test or a notebook has put in their place stay.

    Yields:
        The descriptors by name, with the first error of each.
    """
    outputs: dict[str, Output] = {}
    before: dict[str, TextIO] = {}
    for descriptor, name in _NAMES.items():
        stream = getattr(sys, name)
        if stream is None or stream is not getattr(sys, f"__{name}__"):
            continue
        stream.flush()
        outputs[name], before[name] = Output(descriptor), stream
        text = io.TextIOWrapper(
            io.BufferedWriter(outputs[name]),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.isatty() or name == "stderr",
        )
        setattr(sys, name, text)
    try:
        yield outputs
    finally:
        for name, stream in before.items():
            getattr(sys, name).flush()
            setattr(sys, name, stream)
