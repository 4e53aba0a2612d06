"""``template.toml``: what a family supports and how it is launched, strictly checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import TemplateError, UsageError
from evoengine.model import DType, Problem
from evoengine.space.expression import ExpressionError, names_in
from evoengine.space.rules import SHAPE_NAMES

_ARCH: Final = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True)
class TemplateMeta:
    """The contents of one ``template.toml``."""

    family: str
    doc: str
    min_arch: int
    """Lowest compute capability, as in ``sm_80``."""
    dtypes: tuple[DType, ...]
    head_dims: tuple[int, ...]
    grid: tuple[str, str, str]
    threads: str
    smem_bytes: str
    maxrregcount: str

    def supports(self, problem: Problem, arch: str) -> str | None:
        """Says why the family cannot serve a problem on an architecture; None when it can."""
        if arch_number(arch) < self.min_arch:
            return f"family {self.family} needs sm_{self.min_arch} or newer, not {arch}"
        if problem.dtype not in self.dtypes:
            names = ", ".join(dtype.value for dtype in self.dtypes)
            return f"family {self.family} supports {names}, not {problem.dtype.value}"
        if problem.head_dim not in self.head_dims:
            sizes = ", ".join(map(str, self.head_dims))
            return f"family {self.family} supports head_dim {sizes}, not {problem.head_dim}"
        return None


def arch_number(arch: str) -> int:
    """The compute capability in ``sm_89`` or ``sm_90a``: 89, 90.

    Raises:
        UsageError: the text is not a real architecture.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise UsageError(f"'{arch}' is not an architecture: give sm_ and its number, for example sm_89")
    return int(match.group(1))


def load_meta(path: Path, family: str) -> TemplateMeta:
    """Reads and checks a ``template.toml``.

    Raises:
        TemplateError: the file is unreadable, or a key is missing, unknown or of the wrong kind.
    """
    try:
        top = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TemplateError(path, "", f"cannot be read: {error}") from error
    top = {"compile": {}, **top}
    _check_keys(path, "", top, {"family", "doc", "min_arch", "dtypes", "head_dims", "launch", "compile"})
    launch, options = _table(path, top, "launch"), _table(path, top, "compile")
    options = {"maxrregcount": "0", **options}
    _check_keys(path, "launch.", launch, {"grid", "threads", "smem_bytes"})
    _check_keys(path, "compile.", options, {"maxrregcount"})
    if top["family"] != family:
        raise TemplateError(path, "family", f"is {top['family']!r} but the folder is named '{family}'")
    return TemplateMeta(
        family=family,
        doc=_text(path, "doc", top["doc"]),
        min_arch=_positive(path, "min_arch", top["min_arch"]),
        dtypes=_dtypes(path, top["dtypes"]),
        head_dims=tuple(_positive(path, "head_dims", item) for item in _list(path, "head_dims", top["head_dims"])),
        grid=_grid(path, launch["grid"]),
        threads=_fixed(path, "launch.threads", launch["threads"]),
        smem_bytes=_fixed(path, "launch.smem_bytes", launch["smem_bytes"]),
        maxrregcount=_fixed(path, "compile.maxrregcount", options["maxrregcount"]),
    )


def _check_keys(path: Path, prefix: str, table: Mapping[str, Any], wanted: set[str]) -> None:
    for key in sorted(wanted - table.keys()):
        raise TemplateError(path, prefix + key, "is missing")
    for key in sorted(table.keys() - wanted):
        raise TemplateError(path, prefix + key, f"is unknown: the keys are {', '.join(sorted(wanted))}")


def _table(path: Path, top: Mapping[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(top[key], dict):
        raise TemplateError(path, key, "must be a table")
    return dict(top[key])


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TemplateError(path, key, "must be a text that is not empty")
    return value


def _positive(path: Path, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TemplateError(path, key, f"must be a whole number above 0, not {value!r}")
    return value


def _list(path: Path, key: str, value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise TemplateError(path, key, "must be a list that is not empty")
    return value


def _dtypes(path: Path, value: object) -> tuple[DType, ...]:
    known = {dtype.value: dtype for dtype in DType}
    names = _list(path, "dtypes", value)
    for name in names:
        if name not in known:
            raise TemplateError(path, "dtypes", f"{name!r} is unknown: give some of {', '.join(known)}")
    return tuple(known[str(name)] for name in names)


def _grid(path: Path, value: object) -> tuple[str, str, str]:
    axes = [_expression(path, "launch.grid", item)[0] for item in _list(path, "launch.grid", value)]
    if len(axes) != 3:
        raise TemplateError(path, "launch.grid", f"must have three expressions, not {len(axes)}")
    return axes[0], axes[1], axes[2]


def _fixed(path: Path, key: str, value: object) -> str:
    """An expression for something that one binary fixes, whatever the lengths of the problem."""
    text, names = _expression(path, key, value)
    if used := sorted(names & set(SHAPE_NAMES)):
        raise TemplateError(path, key, f"must not use {', '.join(used)}: one binary serves every batch and length")
    return text


def _expression(path: Path, key: str, value: object) -> tuple[str, frozenset[str]]:
    text = _text(path, key, value)
    try:
        return text, names_in(text)
    except ExpressionError as error:
        raise TemplateError(path, key, str(error)) from error
