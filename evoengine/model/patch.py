"""Patches: changes of a template's source and of its search space."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.model.records import Value


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
    """At least two values of one type: int, bool or str."""
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
    tunables: tuple[NewTunable, ...] = ()
    summary: str = ""
    """One line that says what changes and why; it does not enter the variant's content hash."""
