"""Jinja environment of a templates folder.

Jinja's default delimiters break CUDA (``{{1,2},{3,4}}``, ``"{%0, %1}"``), so the templates use ``@{ expression }@``,
``/*% statement %*/``, ``/*# comment #*/``, and for whole lines ``//% statement`` and ``//# comment``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import jinja2
import jinja2.sandbox

from evoengine.documents.bounds import MAX_TEXT_BYTES, BoundsError
from evoengine.errors import TemplateError
from evoengine.space.data_dirs import packaged_dir

PARTIALS: Final = "partials"
CORE: Final = "core"
"""Folder of the partials that any family includes by their bare names; others are included as ``flash/work.cuh``."""
_LONGEST_RANGE: Final = 1 << 16


def open_environment(root: Path, texts: Mapping[str, str] | None = None) -> jinja2.Environment:
    """Returns the environment of one templates folder.

    Args:
        root: The folder.
        texts: Texts of patched files by path below ``templates/``; with them expressions run in Jinja's sandbox.
    """
    # A user's templates folder need not repeat the shipped partials.
    folders = (root, *_partial_dirs(root), *_partial_dirs(packaged_dir("templates")))
    kind = jinja2.Environment if texts is None else jinja2.sandbox.ImmutableSandboxedEnvironment
    environment = kind(
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="@{",
        variable_end_string="}@",
        comment_start_string="/*#",
        comment_end_string="#*/",
        line_statement_prefix="//%",
        line_comment_prefix="//#",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the output is C++, not HTML
        auto_reload=False,  # an edit during a search must not mix two versions of a template
        loader=_PatchedLoader(root, folders, texts or {}),
    )
    environment.globals["range"] = _bounded_range
    return environment


def load_template(environment: jinja2.Environment, root: Path, name: str) -> jinja2.Template:
    """Loads a template by its path below the templates folder.

    Raises:
        TemplateError: It cannot be read, or is malformed.
    """
    try:
        return environment.get_template(name)
    except jinja2.TemplateSyntaxError as error:
        raise syntax_error(root, error) from error
    except SyntaxError as error:  # in the Python that Jinja makes of it, whose lines are others
        raise TemplateError(root / name, "", f"Jinja cannot compile it: {one_line(error.msg)}") from error
    except RecursionError as error:
        raise TemplateError(root / name, "", "is nested too deeply") from error
    except (jinja2.TemplateNotFound, OSError, ValueError) as error:
        raise TemplateError(root / name, "", f"cannot be read: {one_line(error)}") from error


def path_below(root: Path, file: Path) -> str:
    """Returns the path of a file below its templates folder, which is the family's or the shipped one."""
    folder = root if file.is_relative_to(root) else packaged_dir("templates")
    return file.relative_to(folder).as_posix()


def syntax_error(root: Path, error: jinja2.TemplateSyntaxError) -> TemplateError:
    """Returns Jinja's error with file and line."""
    return TemplateError(error.filename or root, f"line {error.lineno}", one_line(error.message or "syntax error"))


def one_line(error: object) -> str:
    """Returns an error's message without line breaks."""
    return " ".join(str(error).split())


class _PatchedLoader(jinja2.FileSystemLoader):
    """Loader that replaces the texts of some files.

    Args:
        root: Templates folder of the family.
        folders: Folders to search.
        texts: Texts by path below ``templates/``.
    """

    def __init__(self, root: Path, folders: Sequence[Path], texts: Mapping[str, str]) -> None:
        super().__init__(folders)
        self._root = root
        self._texts = texts

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        """Returns text, file name and a check of freshness of a template; implements Jinja's interface.

        Raises:
            BoundsError: The file is larger than :data:`MAX_TEXT_BYTES`.
        """
        text, file, is_fresh = super().get_source(environment, template)
        if len(text) > MAX_TEXT_BYTES:
            raise BoundsError(f"is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return self._texts.get(path_below(self._root, Path(file)), text), file, is_fresh


def _bounded_range(*bounds: int) -> range:
    """Replaces ``range`` in templates, because values of a search space, and so loops, can have any size.

    Raises:
        ValueError: The loop is longer than any kernel needs.
    """
    numbers = range(*bounds)
    if len(numbers) > _LONGEST_RANGE:
        raise ValueError(f"a loop of {len(numbers)} steps: the search space has a value that no kernel supports")
    return numbers


def _partial_dirs(root: Path) -> tuple[Path, Path]:
    return root / PARTIALS, root / PARTIALS / CORE
