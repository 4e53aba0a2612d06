"""Pickles whose large arrays lie in files that all processes map, so that no process copies them.

The inputs of a search can take gigabytes. In plain pickles they would pass through two pipes on their way from the
process that draws them to a device worker, and each process on that way would hold copies.
"""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    import numpy as np

FILE_BYTES: Final = 2**14
"""Size from which an array goes to a file; smaller ones are part of the pickle."""
_ALIGNMENT: Final = 4096


def dumps(value: object, folder: Path) -> bytes:
    """Pickles a value; :func:`pickle.loads` reads it as long as the folder exists.

    An array that was loaded from such a file is not written again, so it must not be changed: the pickle stands for the
    content of the file. Where the disk is full, arrays are part of the pickle.

    Args:
        value: Picklable value.
        folder: Folder of the files.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, folder)
    try:
        pickler.dump(value)
    finally:
        pickler.close()
    return buffer.getvalue()


class _ArrayFile:
    """A file of arrays in a pickle, which has each such object once: when it is loaded, the file is mapped once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _mapped, (self.name,)


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, folder: Path) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._folder = folder
        self._file: BinaryIO | None = None
        self._name = ""
        self._files: dict[str, _ArrayFile] = {}

    def reducer_override(self, value: object) -> Any:
        """Reduces a large array to its place in a file."""
        if type(value).__module__ != "numpy" or type(value).__name__ != "ndarray":  # NumPy need not be imported
            return NotImplemented
        array: np.ndarray[Any, Any] = value  # type: ignore[assignment]
        if array.nbytes < FILE_BYTES or array.dtype.hasobject or not array.flags.c_contiguous:
            return NotImplemented
        place = _place_of(array) or self._stored(array)
        if place is None:
            return NotImplemented
        name, offset = place
        file = self._files.setdefault(name, _ArrayFile(name))
        return _part, (file, offset, array.dtype.str, array.shape)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _stored(self, array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
        """Writes an array to the file; returns name and offset, or None if the disk is full."""
        try:
            if self._file is None:
                descriptor, self._name = tempfile.mkstemp(dir=self._folder, prefix="arrays-")
                self._file = os.fdopen(descriptor, "wb")
            offset = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
            os.posix_fallocate(self._file.fileno(), offset, array.nbytes)  # or a process would die of SIGBUS later
            self._file.seek(offset)
            self._file.write(array.reshape(-1).view("u1").data)
            self._file.flush()
        except OSError:
            return None
        return self._name, offset


def _place_of(array: np.ndarray[Any, Any]) -> tuple[str, int] | None:
    """Returns the file and the offset of an array that was loaded from one; None for any other."""
    import numpy as np

    base: Any = array
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    if base is None or base.filename is None or not Path(base.filename).is_file():
        return None
    return str(base.filename), base.offset + int(array.ctypes.data) - int(base.ctypes.data)


def _mapped(name: str) -> np.memmap[Any, Any]:
    """Maps a file; what is written to its arrays stays in this process."""
    import numpy as np

    return np.memmap(name, np.uint8, "c")


def _part(file: np.memmap[Any, Any], offset: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Returns an array of a mapped file."""
    import numpy as np

    return np.ndarray(shape, dtype, file, offset)
