"""Files of a family's template, its own two and the partials that it includes, and their hash."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jinja2
import jinja2.meta
import jinja2.nodes

from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import TemplateError
from evoengine.kernel.template.environment import one_line
from evoengine.kernel.template.patching import without_markers

KERNEL_FILE: Final = "kernel.cu.jinja"
META_FILE: Final = "template.toml"
_INCLUDING: Final = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)
"""Directives that name another template."""


def hash_files(environment: jinja2.Environment, root: Path, family: str) -> str:
    """Hashes the files of a family: its two own files and the partials that it includes, in name order.

    Raises:
        TemplateError: A partial is missing, malformed, or named by an expression, which cannot be resolved in advance.
    """
    texts = {name: without_markers(text) for name, (_, text) in read_files(environment, family).items()}
    texts[META_FILE] = (root / family / META_FILE).read_text("utf-8")
    parts = (f"{name}\0{len(text)}\0{text}" for name, text in sorted(texts.items()))
    return short_hash("".join(parts).encode())


def read_files(environment: jinja2.Environment, family: str) -> dict[str, tuple[Path, str]]:
    """Returns path and text of a family's kernel file and of the partials that it includes, by template name.

    Raises:
        TemplateError: As for :func:`hash_files`.
    """
    found: dict[str, tuple[Path, str]] = {}
    pending = [_Include(f"{family}/{KERNEL_FILE}", Path(), 0)]
    while pending:
        include = pending.pop()
        if include.name in found:
            continue
        text, file = _read_template(environment, include)
        found[include.name] = file, text
        pending += _includes(environment, include.name, file, text)
    return found


@dataclass(frozen=True)
class _Include:
    """One directive that includes a partial."""

    name: str
    """Name of the partial."""
    file: Path
    """Template with the directive."""
    line: int


def _includes(environment: jinja2.Environment, name: str, file: Path, text: str) -> Iterator[_Include]:
    """Yields the partials that a template includes.

    Args:
        environment: Environment of the templates.
        name: Name of the template.
        file: File of the template, for messages.
        text: Its text.

    Raises:
        TemplateError: The template is malformed, or names a partial by an expression.
    """
    try:
        found = _included(environment, name, text)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(file, f"line {error.lineno}", one_line(error.message or "syntax error")) from error
    except RecursionError as error:
        raise TemplateError(file, "", "is nested too deeply") from error
    for included, line in found:
        if included is None:
            raise TemplateError(file, f"line {line}", "must name the partial as a text, not by an expression")
        yield _Include(included, file, line)


@functools.lru_cache(maxsize=256)
def _included(environment: jinja2.Environment, name: str, text: str) -> tuple[tuple[str | None, int], ...]:
    """Returns names and lines of the directives that include a partial; a name is None if it is an expression.

    Results are cached: the families share most partials.
    """
    return tuple(
        (included, node.lineno)
        for node in environment.parse(text, name).find_all(_INCLUDING)
        for included in jinja2.meta.find_referenced_templates(jinja2.nodes.Template([node]))
    )


def _read_template(environment: jinja2.Environment, include: _Include) -> tuple[str, Path]:
    """Returns the text and the file of an included template.

    Raises:
        TemplateError: There is no such partial, or it cannot be read; the message names the line that includes it.
    """
    loader, line = environment.loader, f"line {include.line}"
    assert isinstance(loader, jinja2.FileSystemLoader), "templates are files"
    try:
        text, file, _ = loader.get_source(environment, include.name)
    except jinja2.TemplateNotFound:
        folders = ", ".join(loader.searchpath)
        similar = did_you_mean(include.name, environment.list_templates(["cuh", "jinja"]))
        reason = f"no such partial '{include.name}' in any of {folders}{similar}"
        raise TemplateError(include.file, line, reason) from None
    except (OSError, ValueError) as error:
        reason = f"the partial '{include.name}' cannot be read: {one_line(error)}"
        raise TemplateError(include.file, line, reason) from error
    return text, Path(file)


def short_hash(data: bytes) -> str:
    """Returns the first 16 digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()[:16]
