"""``template.toml``: what a family supports and how it is launched, strictly checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoengine.errors import TemplateError, UsageError
from evoengine.kernel.abi import ENTRY
from evoengine.model import DType, Problem
from evoengine.space.language.expression import ExpressionError, names_in
from evoengine.space.language.rules import SHAPE_NAMES

_ARCH: Final = re.compile(r"sm_(\d{2,3})[af]?")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")

FEATURES: Final = ("window", "softcap", "sink", "lse", "packed")
"""What a problem may ask for besides attention with or without a causal mask; a family says which it can do."""


def features_of(problem: Problem) -> tuple[str, ...]:
    """The features that a problem asks for."""
    asked = {
        "window": problem.window_left is not None or problem.window_right is not None,
        "softcap": problem.softcap > 0,
        "sink": problem.sink,
        "lse": problem.lse,
        "packed": problem.packed,
    }
    return tuple(name for name in FEATURES if asked[name])


@dataclass(frozen=True)
class HeadDims:
    """Head dims that a family can be compiled for: a list of them, or all multiples up to a largest."""

    listed: tuple[int, ...] = ()
    multiple_of: int = 0
    max: int = 0

    def __contains__(self, head_dim: int) -> bool:
        if self.listed:
            return head_dim in self.listed
        return head_dim % self.multiple_of == 0 and head_dim <= self.max

    def __str__(self) -> str:
        return ", ".join(map(str, self.listed)) if self.listed else f"in multiples of {self.multiple_of} to {self.max}"


@dataclass(frozen=True)
class StepMeta:
    """One ``[[then]]`` table: a launch that follows the main one where ``when`` holds."""

    when: str
    entry: str
    grid: tuple[str, str, str]
    threads: str
    smem_bytes: str


@dataclass(frozen=True)
class TemplateMeta:
    """The contents of one ``template.toml``."""

    family: str
    doc: str
    min_arch: int
    """Lowest compute capability, as in ``sm_80``."""
    only_arch: str | None
    """The one architecture whose instructions it uses, as ``sm_90a``; None for any from the lowest on."""
    dtypes: tuple[DType, ...]
    head_dims: HeadDims
    features: tuple[str, ...]
    """Those of :data:`FEATURES` that it can do."""
    grid: tuple[str, str, str]
    threads: str
    smem_bytes: str
    workspace_bytes: str
    counters: str
    then: tuple[StepMeta, ...]
    maxrregcount: str

    def supports(self, problem: Problem, arch: str) -> str | None:
        """Says why the family cannot serve a problem on an architecture; None when it can."""
        if arch_number(arch) < self.min_arch:
            return f"family {self.family} needs sm_{self.min_arch} or newer, not {arch}"
        if self.only_arch is not None and arch != self.only_arch:
            return f"family {self.family} is for {self.only_arch}, not {arch}: ask for it with --arch {self.only_arch}"
        if problem.dtype not in self.dtypes:
            names = ", ".join(dtype.value for dtype in self.dtypes)
            return f"family {self.family} supports {names}, not {problem.dtype.value}"
        if problem.head_dim not in self.head_dims:
            return f"family {self.family} supports head_dim {self.head_dims}, not {problem.head_dim}"
        missing = [name for name in features_of(problem) if name not in self.features]
        return f"family {self.family} does not do {' or '.join(missing)}" if missing else None


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
    top = {"compile": {}, "features": [], "then": [], "only_arch": None, **top}
    _check_keys(
        path,
        "",
        top,
        {"family", "doc", "min_arch", "only_arch", "dtypes", "head_dims", "features", "launch", "then", "compile"},
    )
    launch, options = _table(path, top, "launch"), _table(path, top, "compile")
    launch = {"workspace_bytes": "0", "counters": "0", **launch}
    options = {"maxrregcount": "0", **options}
    _check_keys(path, "launch.", launch, {"grid", "threads", "smem_bytes", "workspace_bytes", "counters"})
    _check_keys(path, "compile.", options, {"maxrregcount"})
    if top["family"] != family:
        raise TemplateError(path, "family", f"is {top['family']!r} but the folder is named '{family}'")
    return TemplateMeta(
        family=family,
        doc=_text(path, "doc", top["doc"]),
        min_arch=_positive(path, "min_arch", top["min_arch"]),
        only_arch=_only_arch(path, top["only_arch"]),
        dtypes=_dtypes(path, top["dtypes"]),
        head_dims=_head_dims(path, top["head_dims"]),
        features=_features(path, top["features"]),
        grid=_grid(path, "launch.grid", launch["grid"]),
        threads=_fixed(path, "launch.threads", launch["threads"]),
        smem_bytes=_fixed(path, "launch.smem_bytes", launch["smem_bytes"]),
        workspace_bytes=_expression(path, "launch.workspace_bytes", launch["workspace_bytes"])[0],
        counters=_expression(path, "launch.counters", launch["counters"])[0],
        then=_steps(path, top["then"]),
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


def _only_arch(path: Path, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and _ARCH.fullmatch(value)):
        raise TemplateError(path, "only_arch", f"must be an architecture such as sm_90a, not {value!r}")
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


def _head_dims(path: Path, value: object) -> HeadDims:
    if not isinstance(value, dict):
        return HeadDims(tuple(_positive(path, "head_dims", item) for item in _list(path, "head_dims", value)))
    _check_keys(path, "head_dims.", value, {"multiple_of", "max"})
    step, most = (_positive(path, f"head_dims.{key}", value[key]) for key in ("multiple_of", "max"))
    if most % step:
        raise TemplateError(path, "head_dims.max", f"must be a multiple of {step}, not {most}")
    return HeadDims(multiple_of=step, max=most)


def _features(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TemplateError(path, "features", "must be a list")
    for name in value:
        if name not in FEATURES:
            raise TemplateError(path, "features", f"{name!r} is unknown: give some of {', '.join(FEATURES)}")
    return tuple(value)


def _steps(path: Path, value: object) -> tuple[StepMeta, ...]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TemplateError(path, "then", "must be tables: start each with [[then]]")
    steps = tuple(_step(path, f"then.{number}.", item) for number, item in enumerate(value))
    if len({step.entry for step in steps}) < len(steps):
        raise TemplateError(path, "then", "names an entry twice")
    return steps


def _step(path: Path, prefix: str, table: Mapping[str, Any]) -> StepMeta:
    table = {"when": "1", **table}
    _check_keys(path, prefix, table, {"when", "entry", "grid", "threads", "smem_bytes"})
    entry = _text(path, f"{prefix}entry", table["entry"])
    if not _IDENTIFIER.fullmatch(entry) or entry == ENTRY:
        raise TemplateError(path, f"{prefix}entry", f"must be the name of a kernel other than {ENTRY}, not {entry!r}")
    return StepMeta(
        when=_fixed(path, f"{prefix}when", table["when"]),
        entry=entry,
        grid=_grid(path, f"{prefix}grid", table["grid"]),
        threads=_fixed(path, f"{prefix}threads", table["threads"]),
        smem_bytes=_fixed(path, f"{prefix}smem_bytes", table["smem_bytes"]),
    )


def _grid(path: Path, key: str, value: object) -> tuple[str, str, str]:
    axes = [_expression(path, key, item)[0] for item in _list(path, key, value)]
    if len(axes) != 3:
        raise TemplateError(path, key, f"must have three expressions, not {len(axes)}")
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
