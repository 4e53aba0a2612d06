"""``template.toml``: the problems and architectures that a family supports, and its launches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from evoengine.documents import Text, convert_document
from evoengine.documents.bounds import read_toml
from evoengine.errors import TemplateError, UsageError
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.tensor_maps import MapTensor, Swizzle
from evoengine.model import DType, Problem
from evoengine.space.language.expression import ExpressionError, names_in
from evoengine.space.language.rules import SHAPE_NAMES

_ARCH: Final = re.compile(r"sm_([0-9]{2,3})[af]?")
_FIRST_WITH_MAPS: Final = 90

Feature = Literal["window", "softcap", "sink", "lse", "packed"]
FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)
"""Features that a problem can have besides a causal mask. A family lists those that it supports."""


def features_of(problem: Problem) -> tuple[str, ...]:
    """Returns the features that a problem needs."""
    needed = {
        "window": problem.window_left is not None or problem.window_right is not None,
        "softcap": problem.softcap > 0,
        "sink": problem.sink,
        "lse": problem.lse,
        "packed": problem.packed,
    }
    return tuple(name for name in FEATURES if needed[name])


@dataclass(frozen=True)
class HeadDims:
    """Head dims that a family can be compiled for: a list, or all multiples of a number up to a maximum."""

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
    """One ``[[then]]`` table: a launch that follows the main one if ``when`` holds."""

    when: str
    entry: str
    grid: tuple[str, str, str]
    threads: str
    smem_bytes: str


@dataclass(frozen=True)
class MapMeta:
    """One ``[[maps]]`` table: a tensor map in the second kernel argument."""

    tensor: MapTensor
    box_rows: str
    box_columns: str
    swizzle_bytes: Swizzle
    grouped: str
    """Whether a box holds all query heads that share a K/V head."""


@dataclass(frozen=True)
class TemplateMeta:
    """Contents of one ``template.toml``."""

    family: str
    doc: str
    min_arch: int
    """Lowest compute capability: 80 for ``sm_80``."""
    only_arch: str | None
    """The only architecture it compiles for, such as ``sm_90a``; None for every architecture from ``min_arch`` on."""
    dtypes: tuple[DType, ...]
    head_dims: HeadDims
    features: tuple[str, ...]
    """Supported members of :data:`FEATURES`."""
    grid: tuple[str, str, str]
    threads: str
    smem_bytes: str
    workspace_bytes: str
    counters: str
    then: tuple[StepMeta, ...]
    maps: tuple[MapMeta, ...]
    maxrregcount: str

    def supports(self, problem: Problem, arch: str) -> str | None:
        """Returns why the family cannot compute a problem on an architecture; None if it can."""
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
    """Returns the compute capability of an architecture: 89 for ``sm_89``, 90 for ``sm_90a``.

    Raises:
        UsageError: The text is not a real architecture.
    """
    match = _ARCH.fullmatch(arch)
    if match is None:
        raise UsageError(f"'{arch}' is not an architecture: give sm_ and its number, for example sm_89")
    return int(match.group(1))


_Positive = Annotated[int, Meta(ge=1)]
_Grid = tuple[Text, Text, Text]


class _LaunchDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grid: _Grid
    threads: Text
    smem_bytes: Text
    workspace_bytes: Text = "0"
    counters: Text = "0"


class _StepDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entry: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*\Z")]
    grid: _Grid
    threads: Text
    smem_bytes: Text
    when: Text = "1"


class _MapDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensor: MapTensor
    box_rows: Text
    box_columns: Text = "64"
    swizzle: Swizzle = 128
    grouped: Text = "0"


class _CompileDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    maxrregcount: Text = "0"


class _HeadDimRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    multiple_of: _Positive
    max: _Positive


class _TemplateDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    family: str
    doc: Text
    min_arch: _Positive
    dtypes: Annotated[tuple[DType, ...], Meta(min_length=1)]
    head_dims: Annotated[tuple[_Positive, ...], Meta(min_length=1)] | _HeadDimRange
    launch: _LaunchDocument
    only_arch: Annotated[str, Meta(pattern=rf"^{_ARCH.pattern}\Z")] | None = None
    features: tuple[Feature, ...] = ()
    then: tuple[_StepDocument, ...] = ()
    maps: tuple[_MapDocument, ...] = ()
    compile: _CompileDocument = msgspec.field(default_factory=_CompileDocument)


def load_meta(path: Path, family: str) -> TemplateMeta:
    """Reads and checks a ``template.toml``.

    Args:
        path: File to read.
        family: Name of the template's folder, which the file must repeat.

    Raises:
        TemplateError: The file is unreadable, or an entry is missing, unknown or invalid.
    """
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        raise TemplateError(path, "", f"cannot be read: {error}") from error
    document = convert_document(content, _TemplateDocument, path, TemplateError)
    if document.family != family:
        raise TemplateError(path, "family", f"is {document.family!r} but the folder is named '{family}'")
    launch = document.launch
    _check_expressions(path, "launch.grid", *launch.grid)
    _check_expressions(path, "launch.workspace_bytes", launch.workspace_bytes)
    _check_expressions(path, "launch.counters", launch.counters)
    _check_fixed(path, "launch.threads", launch.threads)
    _check_fixed(path, "launch.smem_bytes", launch.smem_bytes)
    _check_fixed(path, "compile.maxrregcount", document.compile.maxrregcount)
    return TemplateMeta(
        family=family,
        doc=document.doc,
        min_arch=document.min_arch,
        only_arch=document.only_arch,
        dtypes=document.dtypes,
        head_dims=_head_dims(path, document.head_dims),
        features=document.features,
        grid=launch.grid,
        threads=launch.threads,
        smem_bytes=launch.smem_bytes,
        workspace_bytes=launch.workspace_bytes,
        counters=launch.counters,
        then=_steps(path, document.then),
        maps=_maps(path, document.maps, document.min_arch),
        maxrregcount=document.compile.maxrregcount,
    )


def _head_dims(path: Path, content: tuple[int, ...] | _HeadDimRange) -> HeadDims:
    if isinstance(content, tuple):
        return HeadDims(content)
    if content.max % content.multiple_of:
        raise TemplateError(path, "head_dims.max", f"must be a multiple of {content.multiple_of}, not {content.max}")
    return HeadDims(multiple_of=content.multiple_of, max=content.max)


def _steps(path: Path, steps: tuple[_StepDocument, ...]) -> tuple[StepMeta, ...]:
    for number, step in enumerate(steps):
        key = f"then[{number}]"
        if step.entry == ENTRY:
            raise TemplateError(path, f"{key}.entry", f"is {ENTRY}, the name of the main kernel: choose another")
        _check_expressions(path, f"{key}.grid", *step.grid)
        for name in ("when", "threads", "smem_bytes"):
            _check_fixed(path, f"{key}.{name}", getattr(step, name))
    if len({step.entry for step in steps}) < len(steps):
        raise TemplateError(path, "then", "names an entry twice")
    return tuple(StepMeta(step.when, step.entry, step.grid, step.threads, step.smem_bytes) for step in steps)


def _maps(path: Path, maps: tuple[_MapDocument, ...], min_arch: int) -> tuple[MapMeta, ...]:
    if maps and min_arch < _FIRST_WITH_MAPS:
        raise TemplateError(path, "maps", f"needs min_arch = {_FIRST_WITH_MAPS} or newer, not {min_arch}")
    for number, one in enumerate(maps):
        for name in ("box_rows", "box_columns", "grouped"):
            _check_fixed(path, f"maps[{number}].{name}", getattr(one, name))
        if one.grouped != "0" and one.tensor not in ("q", "o"):
            raise TemplateError(path, f"maps[{number}].grouped", f"only Q and O have grouped heads, not {one.tensor}")
    if len({one.tensor for one in maps}) < len(maps):
        raise TemplateError(path, "maps", "names a tensor twice")
    return tuple(MapMeta(one.tensor, one.box_rows, one.box_columns, one.swizzle, one.grouped) for one in maps)


def _check_fixed(path: Path, key: str, text: str) -> None:
    """Checks an expression whose value must be the same for all batch sizes and lengths."""
    _check_expressions(path, key, text)
    if used := sorted(names_in(text) & set(SHAPE_NAMES)):
        raise TemplateError(path, key, f"must not use {', '.join(used)}: one binary serves every batch and length")


def _check_expressions(path: Path, key: str, *texts: str) -> None:
    for text in texts:
        try:
            names_in(text)
        except ExpressionError as error:
            raise TemplateError(path, key, str(error)) from error
