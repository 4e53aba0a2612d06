"""Patches written by people, from TOML files: past improvements of the templates, and ideas to try.

A file has a ``summary``, an optional ``source``, ``[[edits]]`` with ``file``, ``search`` and ``replace``, and optional
``[[tunables]]`` with the fields of :class:`~evoengine.model.NewTunable`.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from evoengine.documents import convert_document, key_path
from evoengine.documents.bounds import BoundsError, decode_text, parse_toml, read_bounded
from evoengine.documents.escaping import printable
from evoengine.errors import PatchFileError
from evoengine.evolution.records import Context, Proposal
from evoengine.model import Edit, NewTunable, Patch

SHIPPED: Final = Path(__file__).resolve().parent.parent / "recorded"
"""Folder of the patches that come with EvoEngine."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """Structure of a patch file."""

    summary: str
    edits: tuple[Edit, ...]
    tunables: tuple[NewTunable, ...] = ()
    source: str = ""


@dataclass(frozen=True)
class RecordedPatch:
    """A patch file."""

    name: str
    """Name of the file without its ending."""
    patch: Patch
    source: str
    """Where the idea comes from."""


def load_patches(*folders: Path) -> tuple[RecordedPatch, ...]:
    """Loads the patch files of folders, by name.

    Raises:
        PatchFileError: A folder cannot be read, or a file is malformed.
    """
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise PatchFileError(folder, "", "is not a folder of patch files (*.toml)")
        found += [load_patch(path) for path in sorted(folder.glob("*.toml"))]
    return tuple(found)


def load_patch(path: Path) -> RecordedPatch:
    """Loads one patch file.

    Raises:
        PatchFileError: It cannot be read, or is malformed.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe waits for its other end
            raise PatchFileError(path, "", "is no regular file")
        content = parse_toml(decode_text(read_bounded(path)))
    except OSError as error:
        raise PatchFileError(path, "", f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, BoundsError) as error:
        raise PatchFileError(path, "", f"is not valid TOML: {error}") from None
    file = convert_document(content, _File, path, PatchFileError)
    _check_keys(content, path)
    if not file.edits:
        raise PatchFileError(path, "edits", "has no edit")
    return RecordedPatch(printable(path.stem), Patch(file.edits, file.tunables, file.summary), file.source)


def _check_keys(content: Mapping[str, Any], path: Path) -> None:
    """Checks that edits and tunables have no unknown key, which the conversion to a dataclass ignores."""
    for name, kind in (("edits", Edit), ("tunables", NewTunable)):
        known = [field.name for field in fields(kind)]
        for number, entry in enumerate(content.get(name, ())):
            unknown = next((key for key in entry if key not in known), None)
            if unknown is not None:
                raise PatchFileError(path, key_path((name, number, unknown)), f"unknown key: use {', '.join(known)}")


class RecordedPatches:
    """Proposes the patches of files, in random order, each once for a parent.

    Args:
        patches: Patches to propose.
    """

    name = "recorded"

    def __init__(self, patches: tuple[RecordedPatch, ...]) -> None:
        self._patches = patches
        self._proposed: set[tuple[str, str]] = set()

    def propose(self, context: Context, rng: random.Random) -> tuple[Proposal, ...]:
        """Returns one patch that fits the parent's regions and was not proposed for it; none if there is none."""
        parent = context.parent.family
        fitting = [
            one for one in self._patches if (parent, one.name) not in self._proposed and _fits(one.patch, context)
        ]
        if not fitting:
            return ()
        chosen = rng.choice(fitting)
        self._proposed.add((parent, chosen.name))
        return (Proposal(self.name, (parent,), chosen.patch, origin=chosen.name),)

    def repair(self, context: Context, proposal: Proposal, message: str) -> Proposal | None:
        """Returns None: a recorded patch has one text."""
        return None


def _fits(patch: Patch, context: Context) -> bool:
    """Returns whether the first edit of each file matches, and the space lacks the tunables."""
    files = dict.fromkeys(edit.file for edit in patch.edits)
    firsts = [next(edit for edit in patch.edits if edit.file == file) for file in files]
    known = context.space.by_name
    return all(
        any(region.file == edit.file and edit.search in region.text for region in context.regions) for edit in firsts
    ) and not any(tunable.name in known for tunable in patch.tunables)
