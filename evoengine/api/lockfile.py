"""Lockfile: the kernel of each problem on each GPU, with hashes, so that all hosts of a job choose the same one.

The file is JSON with one object per kernel, sorted so that two versions can be compared line by line.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine import __version__
from evoengine.api.rows import KernelRow
from evoengine.documents import convert_document
from evoengine.documents.bounds import BoundsError, parse_json, read_bounded
from evoengine.documents.escaping import printable
from evoengine.errors import EvoEngineError, FileError, StoreError
from evoengine.leaderboard.codec import problem_from_json, problem_json
from evoengine.model import Config, Value

LOCK_SUFFIX: Final = ".lock"
_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 24
"""Maximum size of a file; a kernel needs about 1 KiB, and several with a search space of its own."""
_TOP: Final = {"evoengine_lock", "written_by", "sha256", "kernels"}
_SPACE: Final = "space"
"""Entry that is left out if the search space is the family's own."""
_Time = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class StaleLockError(StoreError):
    """A lockfile of EvoEngine that ``lock`` can replace: it has another format, or was edited."""


class _KernelDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    gpu: str
    arch: str
    problem: dict[str, object]
    family: str
    config: dict[str, Value]
    template_hash: str
    source_hash: str
    code_hash: str
    nvrtc: str
    method: str
    median_us: _Time
    baseline: str
    baseline_us: _Time | None
    champion: bool
    row_id: int
    space: str = ""


def lock_text(rows: Iterable[KernelRow]) -> str:
    """Returns the text of a lockfile.

    Args:
        rows: One row per problem and GPU.
    """
    kernels = sorted(
        (_document(row) for row in rows), key=lambda item: (item["gpu"], json.dumps(item["problem"], sort_keys=True))
    )
    document = {"evoengine_lock": _FORMAT, "written_by": __version__, "sha256": _digest(kernels), "kernels": kernels}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def read_lockfile(path: Path) -> list[KernelRow]:
    """Reads the kernels of a lockfile.

    Raises:
        StoreError: The file cannot be read, or is malformed.
        StaleLockError: It has another format, or was edited after it was written.
    """
    try:
        document = parse_json(read_bounded(path, _MOST_BYTES))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read as a lockfile: {error.strerror}") from error
    except BoundsError as error:
        raise StoreError(f"{path}: cannot be read as a lockfile: it {error}") from error
    if not isinstance(document, dict) or "evoengine_lock" not in document:
        raise StoreError(f"{path}: is not a lockfile: write one with 'lock'")
    if document["evoengine_lock"] != _FORMAT:
        version = printable(str(document["evoengine_lock"]))[:40]
        raise StaleLockError(f"{path}: has format {version}, this EvoEngine reads {_FORMAT}: run 'lock' again")
    if document.keys() != _TOP or not isinstance(document["kernels"], list):
        raise StoreError(f"{path}: is not a lockfile: write one with 'lock'")
    if document["sha256"] != _digest(document["kernels"]):
        raise StaleLockError(f"{path}: was changed after 'lock' wrote it: restore it, or write it again with 'lock'")
    return [_row(path, number, item) for number, item in enumerate(document["kernels"])]


def _document(row: KernelRow) -> dict[str, Any]:
    fields_of_row = {name: value for name, value in asdict(row).items() if name != _SPACE or value}
    return {
        **fields_of_row,
        "problem": json.loads(problem_json(row.problem)),
        "family": row.config.family,
        "config": row.config.as_dict(),
    }


def _digest(kernels: list[Any]) -> str:
    text = json.dumps(kernels, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _row(path: Path, number: int, content: object) -> KernelRow:
    key = f"kernels[{number}]"
    try:
        item = convert_document(content, _KernelDocument, path, FileError, key)
        problem = problem_from_json(json.dumps(item.problem))
    except FileError as error:
        raise StoreError(str(error)) from None
    except (EvoEngineError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path}: {key}.problem: is not a problem: {error}") from error
    known = {name: value for name, value in msgspec.structs.asdict(item).items() if name != "family"}
    return KernelRow(**known | {"problem": problem, "config": Config.of(item.family, item.config)})
