"""Names that the expressions of ``template.toml`` read: their check before rendering, and their definitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import TemplateError
from evoengine.kernel.template.metadata import TemplateMeta
from evoengine.space.language.expression import ExpressionError, inline, names_in
from evoengine.space.language.rules import LIMIT_NAMES, SHAPE_NAMES, TRAIT_NAMES
from evoengine.space.search_space import SearchSpace


@dataclass(frozen=True)
class _Entry:
    """One expression of a ``template.toml``."""

    key: str
    text: str
    is_fixed: bool
    """Whether its value is the same for all batch sizes and lengths."""


def check_names(meta: TemplateMeta, file: Path, space: SearchSpace) -> None:
    """Checks that the launch expressions of a family read only names that a search space or the problem defines.

    Args:
        meta: Contents of the ``template.toml``; its expressions are valid.
        file: Path of the ``template.toml``, for messages.
        space: Search space of the family.

    Raises:
        TemplateError: An expression reads an unknown name or a limit of the target; or one whose value is the same for
            all batch sizes and lengths reads a derived value that depends on them.
    """
    derived = {item.name for item in space.derived} - space.shape_dependent
    fixed = {*space.by_name, *derived, *TRAIT_NAMES}
    for entry in _entries(meta):
        known = fixed if entry.is_fixed else {*fixed, *SHAPE_NAMES, *space.shape_dependent}
        try:
            text = entry.text if entry.is_fixed else inline(entry.text, space.shape_definitions)
        except ExpressionError as error:
            raise TemplateError(file, entry.key, str(error)) from error
        for name in sorted(names_in(text) - known):
            shown = f"`{' '.join(entry.text.split())}`"
            raise TemplateError(file, entry.key, _objection(name, shown, known, space))


def with_definitions(meta: TemplateMeta, space: SearchSpace) -> TemplateMeta:
    """Returns the contents of a ``template.toml`` whose launch expressions read the config and the problem only.

    Derived values that depend on the batch size or the lengths are replaced by their expressions, so that a launch can
    be computed for every problem of a binary.

    Raises:
        ExpressionError: An expression becomes too large.
    """
    known = space.shape_definitions
    return replace(
        meta,
        grid=_inlined(meta.grid, known),
        workspace_bytes=inline(meta.workspace_bytes, known),
        counters=inline(meta.counters, known),
        then=tuple(replace(step, grid=_inlined(step.grid, known)) for step in meta.then),
    )


def _inlined(grid: tuple[str, str, str], known: tuple[tuple[str, str], ...]) -> tuple[str, str, str]:
    x, y, z = (inline(text, known) for text in grid)
    return x, y, z


def _objection(name: str, shown: str, known: Collection[str], space: SearchSpace) -> str:
    """Returns why an expression must not read a name."""
    if name in space.shape_dependent:
        return f"{name} depends on the batch size or the lengths, and a binary serves all of them: {shown}"
    if name in LIMIT_NAMES:
        where = space.file or "the search space"
        return f"{name} is a limit of the target: read it in a derived value of {where} without lengths: {shown}"
    return f"{name} is unknown in {shown}{did_you_mean(name, known)}"


def _entries(meta: TemplateMeta) -> Iterator[_Entry]:
    for axis, text in enumerate(meta.grid):
        yield _Entry(f"launch.grid[{axis}]", text, is_fixed=False)
    yield _Entry("launch.threads", meta.threads, is_fixed=True)
    yield _Entry("launch.smem_bytes", meta.smem_bytes, is_fixed=True)
    yield _Entry("launch.workspace_bytes", meta.workspace_bytes, is_fixed=False)
    yield _Entry("launch.counters", meta.counters, is_fixed=False)
    for number, step in enumerate(meta.then):
        for axis, text in enumerate(step.grid):
            yield _Entry(f"then[{number}].grid[{axis}]", text, is_fixed=False)
        yield _Entry(f"then[{number}].when", step.when, is_fixed=True)
        yield _Entry(f"then[{number}].threads", step.threads, is_fixed=True)
        yield _Entry(f"then[{number}].smem_bytes", step.smem_bytes, is_fixed=True)
    for number, one in enumerate(meta.maps):
        yield _Entry(f"maps[{number}].box_rows", one.box_rows, is_fixed=True)
        yield _Entry(f"maps[{number}].box_columns", one.box_columns, is_fixed=True)
        yield _Entry(f"maps[{number}].grouped", one.grouped, is_fixed=True)
    yield _Entry("compile.maxrregcount", meta.maxrregcount, is_fixed=True)
