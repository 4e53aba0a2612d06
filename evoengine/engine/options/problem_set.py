"""Reads ``--problems FILE``: problems that are searched one by one, as TOML or as the ``rbk_config.yaml`` of rbk.

The schema of the TOML::

    [[problems]]
    name = "vit-b-197"          # for messages; default: the problem's key
    problem = "16x12x197x64"    # further keys as in a workload (workload_file.py), without its weights
    model = "ViT-B/16"          # free texts, for readers of the file: model, source, note
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from evoengine.documents import convert_document
from evoengine.engine.options.workload_file import ProblemTable, read_problem_file
from evoengine.errors import ProblemError, WorkloadError
from evoengine.interop.rbk import read_rbk_config
from evoengine.model import Problem

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")]


class _Entry(ProblemTable, forbid_unknown_fields=True):
    """One ``[[problems]]`` table."""

    name: _Name | None = None
    model: str = ""
    source: str = ""
    note: str = ""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    problems: Annotated[tuple[_Entry, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class ProblemSet:
    """Problems to search, by name in the order of the file."""

    problems: dict[str, Problem]
    rbk_folder: str | None = None
    """Folder of rbk's reports; None where the file is not rbk's."""


def read_problem_set(file: Path) -> ProblemSet:
    """Reads and checks a set of problems; a file that does not end in ``.toml`` is rbk's.

    Raises:
        WorkloadError: The TOML cannot be read or is invalid; the error names file, key and reason.
        LandscapeError: An ``rbk_config.yaml`` cannot be read or is invalid.
    """
    if file.suffix != ".toml":
        config = read_rbk_config(file)
        return ProblemSet({shape.name: shape.problem for shape in config.shapes}, config.output_dir)
    document = convert_document(read_problem_file(file), _Document, file, WorkloadError)
    found: dict[str, Problem] = {}
    for number, entry in enumerate(document.problems):
        key = f"problems[{number}]"
        try:
            problem = entry.build()
        except ProblemError as error:
            raise WorkloadError(file, key, str(error)) from error
        name = entry.name or problem.key
        if name in found:
            raise WorkloadError(file, f"{key}.name", f"'{name}' is the name of an earlier problem")
        found[name] = problem
    return ProblemSet(found)
