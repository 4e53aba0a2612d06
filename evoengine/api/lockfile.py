"""Lockfile: the kernel of each problem and GPU, with hashes, so that all hosts of a job use the same kernels.

The file is JSON with one object per kernel, sorted, so that versions can be compared line by line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from evoengine import __version__
from evoengine.api.rows import KernelRow
from evoengine.errors import EvoEngineError, StoreError
from evoengine.leaderboard.codec import problem_from_json, problem_json
from evoengine.model import Config

LOCK_SUFFIX: Final = ".lock"
_FORMAT: Final = 1
_TOP: Final = {"evoengine_lock", "written_by", "sha256", "kernels"}
_TEXTS: Final = ("gpu", "arch", "template_hash", "source_hash", "code_hash", "nvrtc", "method", "baseline")
_SPACE: Final = "space"
"""Optional key: omitted for the packaged search space."""
_KERNEL: Final = {field.name for field in fields(KernelRow)} - {_SPACE} | {"family"}


def lock_text(rows: Iterable[KernelRow]) -> str:
    """Returns the text of a lockfile.

    Args:
        rows: Kernels, one per problem and GPU.
    """
    kernels = sorted(
        (_document(row) for row in rows), key=lambda item: (item["gpu"], json.dumps(item["problem"], sort_keys=True))
    )
    document = {"evoengine_lock": _FORMAT, "written_by": __version__, "sha256": _digest(kernels), "kernels": kernels}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_lockfile(path: Path) -> list[KernelRow]:
    """Reads the kernels of a lockfile.

    Raises:
        StoreError: The file cannot be read, is malformed, has another format, or was changed after it was written.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path}: cannot be read as a lockfile: {error}") from error
    if not isinstance(document, dict) or document.keys() != _TOP or not isinstance(document["kernels"], list):
        raise StoreError(f"{path}: is not a lockfile: create one with 'evoengine lock'")
    if document["evoengine_lock"] != _FORMAT:
        raise StoreError(f"{path}: has format {document['evoengine_lock']}, not {_FORMAT}: run 'evoengine lock' again")
    if document["sha256"] != _digest(document["kernels"]):
        raise StoreError(f"{path}: was changed after it was written: restore it, or run 'evoengine lock' again")
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


def _row(path: Path, number: int, item: Any) -> KernelRow:
    where = f"{path}: kernels[{number}]"
    if not isinstance(item, dict) or item.keys() - {_SPACE} != _KERNEL:
        raise StoreError(f"{where}: must have exactly the keys {', '.join(sorted(_KERNEL))}")
    for name in (*_TEXTS, "family", *({_SPACE} & item.keys())):
        if not isinstance(item[name], str):
            raise StoreError(f"{where}: {name}: must be a string, not {item[name]!r}")
    _check_numbers(where, item)
    config = item["config"]
    if not isinstance(config, dict) or not all(isinstance(value, int | str) for value in config.values()):
        raise StoreError(f"{where}: config: each value must be an integer, a string, true or false")
    try:
        problem = problem_from_json(json.dumps(item["problem"]))
    except (EvoEngineError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{where}: problem: is invalid: {error}") from error
    known = {name: item[name] for name in item if name not in ("family", "config", "problem")}
    return KernelRow(**known, problem=problem, config=Config.of(item["family"], config))


def _check_numbers(where: str, item: Mapping[str, Any]) -> None:
    for name in ("median_us", "baseline_us"):
        value = item[name]
        missing = name == "baseline_us" and value is None
        if not missing and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
            raise StoreError(f"{where}: {name}: must be a number above 0, not {value!r}")
    if not isinstance(item["champion"], bool):
        raise StoreError(f"{where}: champion: must be true or false, not {item['champion']!r}")
    if isinstance(item["row_id"], bool) or not isinstance(item["row_id"], int):
        raise StoreError(f"{where}: row_id: must be an integer, not {item['row_id']!r}")
