"""Result files of other tuners in any known format, plain or compressed, as landscapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from evoengine.documents.bounds import BoundsError, decode_text
from evoengine.errors import LandscapeError, UsageError
from evoengine.interop.csv_results import csv_landscape
from evoengine.interop.kernel_tuner import cache_landscape, parse_cache
from evoengine.interop.ktt import ktt_landscape
from evoengine.interop.t4_import import t4_landscape
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.packing import read_unpacked

AUTO: Final = "auto"
CSV: Final = "csv"
_READERS: Final[Mapping[str, Callable[[Any, Path], Landscape]]] = {
    "kernel-tuner": cache_landscape,
    "t4": t4_landscape,
    "ktt": ktt_landscape,
}
_MARKS: Final[Mapping[str, str]] = {"cache": "kernel-tuner", "results": "t4", "Results": "ktt"}
"""Entry of a JSON document by which its format is recognised."""
FORMATS: Final = (AUTO, *_READERS, CSV)


def read_foreign(path: Path, format_: str = AUTO) -> Landscape:
    """Reads a result file of another tuner; it may be compressed with gzip or xz, or be alone in a zip archive.

    Args:
        path: File to read.
        format_: One of :data:`FORMATS`; ``auto`` recognises the format by the content.

    Raises:
        UsageError: The format is unknown.
        LandscapeError: The file cannot be read, is of no known format, or an entry is missing or invalid.
    """
    if format_ not in FORMATS:
        raise UsageError(f"unknown format '{format_}': choose {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    content = read_unpacked(path)
    if format_ == CSV or (format_ == AUTO and content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[")):
        return csv_landscape(content, path)
    try:
        text = decode_text(content)
    except BoundsError as error:
        raise LandscapeError(path, "", str(error)) from None
    document = parse_cache(text, path)
    if not isinstance(document, dict):
        raise LandscapeError(path, "", "is not a JSON object")
    found = format_ if format_ != AUTO else next((_MARKS[key] for key in _MARKS if key in document), None)
    if found is None:
        raise LandscapeError(path, "", f"has none of the entries {', '.join(_MARKS)}: no known format")
    return _READERS[found](document, path)
