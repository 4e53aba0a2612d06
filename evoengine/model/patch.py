"""Patches: changes of a template's source and of its search space, and the variants of families that they make."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

from evoengine.model.records import Value

VARIANT_MARK: Final = "~"
"""Separates the family from the content hash in the name of a variant."""
_HASH_DIGITS: Final = 8


@dataclass(frozen=True)
class Edit:
    """One SEARCH/REPLACE block."""

    file: str
    """Path below ``templates/``, such as ``partials/flash/softmax_step.cuh``."""
    search: str
    """Text that occurs exactly once in the file, inside one marked region."""
    replace: str


@dataclass(frozen=True)
class NewTunable:
    """Tunable that a patch adds to the search space of its family."""

    name: str
    """Upper-case identifier that the family does not have yet; kernels read it as ``Cfg::NAME``."""
    values: tuple[Value, ...]
    """At least two values of one type: ascending integers, lower-case names, or False and True."""
    default: Value
    """Value, one of ``values``, that configs without this tunable take."""
    doc: str = ""
    constraint: str = ""
    """Expression over the names of the search space that every valid config fulfils; empty for none."""
    reason: str = ""
    """Reason of the constraint."""


@dataclass(frozen=True)
class Patch:
    """Change of a family's source and search space."""

    edits: tuple[Edit, ...]
    """Applied in order; each must match the text that the edits before it left."""
    tunables: tuple[NewTunable, ...] = ()
    summary: str = ""
    """One line that says what changes and why; it does not enter the content hash."""

    def then(self, other: Patch) -> Patch:
        """Returns the patch that applies this one and then another, with the summary of the other."""
        return Patch((*self.edits, *other.edits), (*self.tunables, *other.tunables), other.summary)


@dataclass(frozen=True)
class Variant:
    """Family whose source and search space are changed by a patch."""

    family: str
    """Unchanged family."""
    patch: Patch
    """All edits relative to the unchanged family."""

    @cached_property
    def name(self) -> str:
        """Name that stands for the variant wherever a family is named, such as ``mma~1a2b3c4d``."""
        content = asdict(self.patch) | {"summary": "", "family": self.family}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return f"{self.family}{VARIANT_MARK}{digest[:_HASH_DIGITS]}"


@dataclass(frozen=True)
class Region:
    """Marked region of a template file, the only text that a patch may change."""

    file: str
    """Path below ``templates/``."""
    name: str
    text: str
    """Text between the markers."""
    first_line: int
    """Line number in the file, from 1, of the first line of ``text``."""


def base_family(name: str) -> str:
    """Returns the family of a variant's name; any other name is returned unchanged."""
    return name.partition(VARIANT_MARK)[0]


def is_variant(name: str) -> bool:
    """Returns whether a family name is that of a variant."""
    return VARIANT_MARK in name
