"""Config to source: renders a family's Jinja template into one flat CUDA file.

Jinja's default delimiters break CUDA (``{{1,2},{3,4}}``, ``"{%0, %1}"``), so the templates use ``@{ expression }@``,
``/*% statement %*/``, ``/*# comment #*/``, and for whole lines ``//% statement`` and ``//# comment``.
"""

from __future__ import annotations

import functools
import hashlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import jinja2
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import RenderError, SearchSpaceError, TemplateError, UsageError
from evoengine.kernel.records import LaunchSpec, Source, StepSpec
from evoengine.kernel.template.expression_names import check_names, with_definitions
from evoengine.kernel.template.metadata import TemplateMeta, load_meta
from evoengine.kernel.template.patching import apply_edits, regions_of, without_markers
from evoengine.kernel.template.prologue import Field, Prologue, choice, constant, launch_fields, trait_fields
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import Config, Problem, Region, Value, Variant, base_family
from evoengine.space.data_dirs import packaged_dir
from evoengine.space.language.expression import ExpressionError, evaluate, evaluate_int
from evoengine.space.language.rules import TRAIT_NAMES, problem_scope
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

KERNEL_FILE: Final = "kernel.cu.jinja"
META_FILE: Final = "template.toml"
PARTIALS: Final = "partials"
_LONGEST_RANGE: Final = 1 << 16
_FEW_SMS: Final = 2
"""SMs of a GPU on which CTAs of small problems take several pieces of work."""
_MOST_CTAS: Final = (2**31 - 1, 65535, 65535)
"""Limits of the axes of a grid (CUDA C++ Programming Guide, technical specifications)."""
CORE: Final = "core"
"""Folder of the partials that any family includes by their bare names; others are included as ``flash/work.cuh``."""

_UNDEFINED: Final = re.compile(r"'(\w+)' is undefined")
"""Jinja's message about an unknown name."""

_INCLUDING: Final = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)
"""Directives that name another template."""

_HASHED_AS: Final = {f"flash/{name}.cuh": f"mma/{name}.cuh" for name in ("merge", "softmax_step", "work")}
"""Names under which partials enter the template hash. The hash is part of each rendered source and of each stored row,
so that moving a file must not change it. An entry may go as soon as the text of its partial changes."""


class TemplateLibrary:
    """Families in templates folders: ``<family>/kernel.cu.jinja`` with ``template.toml``, and ``partials/``.

    A family is taken from the first folder that has it. Partials that its folder lacks are taken from those shipped
    with EvoEngine, never from another folder.

    Args:
        templates_dir: First folder.
        others: Further folders.
        variants: Variants that are loaded by their names.
    """

    def __init__(self, templates_dir: Path, *others: Path, variants: Sequence[Variant] = ()) -> None:
        self._root = templates_dir
        self._environments = {root: _environment(root) for root in (templates_dir, *others)}
        self._variants = {variant.name: variant for variant in variants}

    def families(self) -> tuple[str, ...]:
        """Returns the names of the families, sorted."""
        files = (path for root in self._environments for path in root.glob(f"*/{META_FILE}"))
        return tuple(sorted({path.parent.name for path in files if path.is_file()}))

    def load(self, family: str) -> Template:
        """Loads one family, or a variant of one.

        Raises:
            TemplateError: The family does not exist, or its ``template.toml`` or its template is malformed.
            PatchError: The patch of a variant does not apply.
        """
        if family in self._variants:
            return self._load_variant(self._variants[family])
        root = self._root_of(family)
        environment = self._environments[root]
        meta = load_meta(root / family / META_FILE, family)
        kernel = _get_template(environment, root, f"{family}/{KERNEL_FILE}")
        return Template(meta, root, _hash_files(environment, root, family), kernel)

    def files(self, family: str) -> dict[str, str]:
        """Returns the texts of a family's or a variant's template files by path below ``templates/``, with markers.

        Raises:
            TemplateError: As for :meth:`load`.
            PatchError: As for :meth:`load`.
        """
        variant = self._variants.get(family)
        name = family if variant is None else variant.family
        root = self._root_of(name)
        sources = _read_files(self._environments[root], name)
        texts = {_below(root, file): text for file, text in sources.values()}
        return texts if variant is None else texts | apply_edits(texts, variant.patch.edits)

    def regions(self, family: str) -> tuple[Region, ...]:
        """Returns the regions of a family's or a variant's files that a patch may change.

        Raises:
            TemplateError: As for :meth:`load`.
            PatchError: As for :meth:`load`.
        """
        return tuple(region for file, text in self.files(family).items() for region in regions_of(file, text))

    def _load_variant(self, variant: Variant) -> Template:
        base, root = self.load(variant.family), self._root_of(variant.family)
        texts = self.files(variant.family)
        environment = _environment(root, apply_edits(texts, variant.patch.edits))
        kernel = _get_template(environment, root, f"{variant.family}/{KERNEL_FILE}")
        meta = replace(base.meta, family=variant.name)
        return Template(meta, root, _hash_files(environment, root, variant.family), kernel, untrusted=True)

    def _root_of(self, family: str) -> Path:
        if family not in self.families():
            known = ", ".join((*self.families(), *self._variants)) or "none"
            raise TemplateError(self._root, family, f"there is no such family: the families are {known}")
        return next(root for root in self._environments if (root / family / META_FILE).is_file())

    def load_for(self, space: SearchSpace) -> Template:
        """Loads the family of a search space and checks that its launch expressions use only known names.

        Raises:
            TemplateError: As for :meth:`load`, or an expression of ``template.toml`` reads a name that neither the
                search space nor the problem defines.
        """
        template = self.load(space.family)
        check_names(template.meta, template.root / base_family(space.family) / META_FILE, space)
        return template


@dataclass(frozen=True)
class Template:
    """Template of one family, ready to render."""

    meta: TemplateMeta
    root: Path
    template_hash: str
    kernel: jinja2.Template
    untrusted: bool = False
    """Whether a patch changed its text; see :class:`~evoengine.kernel.records.Source`."""

    @property
    def family(self) -> str:
        return self.meta.family

    def supports(self, problem: Problem, arch: str) -> str | None:
        """Returns why the family cannot compute a problem on an architecture; None if it can."""
        return self.meta.supports(problem, arch)

    def render(self, config: Config, problem: Problem, space: SearchSpace, target: Target) -> Source:
        """Renders one config for the traits of a problem: head_dim, dtype, mask.

        Args:
            config: Values of every tunable of the space.
            problem: Problem whose traits enter the text; batch, heads and lengths are kernel arguments.
            space: Search space with the tunables, their docs and the derived values.
            target: GPU whose limits the derived values may use.

        Raises:
            RenderError: A value is missing or has the wrong type, or the template uses an unknown name.
            SearchSpaceError: A derived value cannot be evaluated.
            TemplateError: A partial is missing or malformed.
        """
        fixed = _fixed_values(config, problem, space, target)
        maxrregcount = _evaluate(self.meta.maxrregcount, fixed, "compile.maxrregcount")
        meta = _resolved(self.meta, space)
        steps = _steps(meta, fixed)
        launch = _launch_spec(meta, fixed, steps, problem.dtype.bytes)
        _check_launch(launch, problem)
        prologue = _prologue(problem, space, fixed, launch_fields((launch.launches[0], *steps), launch.maps))
        head = f"// EvoEngine, family {self.family}, template {self.template_hash}: {config}\n"
        text = head + self._text({**fixed, **vars(prologue), "family": self.family, "maps": launch.maps})
        launch = _with_few_sms(launch, config, problem, space, target, text)
        return Source(
            config=config,
            text=text,
            source_hash=_hash(f"{maxrregcount}\n{text}".encode()),
            template_hash=self.template_hash,
            maxrregcount=maxrregcount,
            launch=launch,
            untrusted=self.untrusted,
        )

    def _text(self, context: Mapping[str, object]) -> str:
        try:
            return self.kernel.render(context)
        except jinja2.TemplateSyntaxError as error:
            raise _syntax_error(self.root, error) from error
        except Exception as error:  # an expression in a template can raise anything; the candidate fails
            unknown = _UNDEFINED.fullmatch(str(error)) if isinstance(error, jinja2.UndefinedError) else None
            similar = did_you_mean(unknown[1], context) if unknown else ""
            raise RenderError(f"{_template_line(self.root, error)}: {_one_line(error)}{similar}") from error


def _bounded_range(*bounds: int) -> range:
    """Stands for ``range`` in templates; the values of a search space can have any size.

    Raises:
        ValueError: It is longer than any kernel needs.
    """
    numbers = range(*bounds)
    if len(numbers) > _LONGEST_RANGE:
        raise ValueError(f"a loop of {len(numbers)} steps: the search space has a value that no kernel supports")
    return numbers


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
        """Returns text, file name and freshness of a template, as Jinja asks for them."""
        text, file, is_fresh = super().get_source(environment, template)
        return self._texts.get(_below(self._root, Path(file)), text), file, is_fresh


def _below(root: Path, file: Path) -> str:
    """Returns the path of a file below its templates folder, which is the family's or the shipped one."""
    folder = root if file.is_relative_to(root) else packaged_dir("templates")
    return file.relative_to(folder).as_posix()


def _environment(root: Path, texts: Mapping[str, str] | None = None) -> jinja2.Environment:
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


def _partial_dirs(root: Path) -> tuple[Path, Path]:
    return root / PARTIALS, root / PARTIALS / CORE


def _get_template(environment: jinja2.Environment, root: Path, name: str) -> jinja2.Template:
    try:
        return environment.get_template(name)
    except jinja2.TemplateSyntaxError as error:
        raise _syntax_error(root, error) from error
    except (jinja2.TemplateNotFound, OSError, UnicodeDecodeError) as error:
        raise TemplateError(root / name, "", "cannot be read") from error


def _fixed_values(config: Config, problem: Problem, space: SearchSpace, target: Target) -> dict[str, Value]:
    """Returns config, derived values and traits: every name whose value is compiled into the binary.

    Derived values that depend on the batch size or the lengths only serve the constraints and are left out.
    """
    try:
        derived = space.derive(config.as_dict(), problem, target)
    except SearchSpaceError:
        raise
    except UsageError as error:
        raise RenderError(f"config {config.key}: {error}") from error
    own = {name: value for name, value in derived.items() if name not in space.shape_dependent}
    scope = problem_scope(problem)
    return {**config.as_dict(), **own, **{name: scope[name] for name in TRAIT_NAMES}}


def _with_few_sms(
    launch: LaunchSpec, config: Config, problem: Problem, space: SearchSpace, target: Target, text: str
) -> LaunchSpec:
    """Adds the names that differ on a GPU of few SMs, if it can run the same binary: the text only declares them."""
    try:
        others = _fixed_values(config, problem, space, replace(target, sms=_FEW_SMS))
        few = tuple(item for item in others.items() if item not in launch.names)
        if not few or any(len(re.findall(rf"\b{name}\b", text)) > 1 for name, _ in few):
            return launch
        found = replace(launch, few_sms=few)
        _check_launch(found.on_few_sms or launch, problem)
    except (RenderError, SearchSpaceError):  # an expression of the user's own that has no value for few SMs
        return launch
    return found


def _resolved(meta: TemplateMeta, space: SearchSpace) -> TemplateMeta:
    try:
        return with_definitions(meta, space)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: launch: {_one_line(error)}") from error


def _steps(meta: TemplateMeta, fixed: Mapping[str, Value]) -> tuple[StepSpec, ...]:
    """Returns all further steps of a family; the prologue states even those whose condition does not hold."""
    return tuple(
        StepSpec(
            entry=step.entry,
            grid=step.grid,
            threads=_evaluate(step.threads, fixed, f"then.{step.entry}.threads"),
            smem_bytes=_evaluate(step.smem_bytes, fixed, f"then.{step.entry}.smem_bytes"),
        )
        for step in meta.then
    )


def _maps(meta: TemplateMeta, fixed: Mapping[str, Value], element_bytes: int) -> tuple[MapSpec, ...]:
    found = []
    for number, item in enumerate(meta.maps):
        rows, columns = (
            _evaluate(getattr(item, name), fixed, f"maps[{number}].{name}") for name in ("box_rows", "box_columns")
        )
        grouped = _holds(item.grouped, fixed, f"maps[{number}].grouped")
        found.append(MapSpec(item.tensor, rows, columns, item.swizzle_bytes, grouped))
        objection = found[-1].objection(element_bytes)
        if objection:
            raise RenderError(f"{META_FILE}: maps[{number}].{objection}")
    return tuple(found)


def _launch_spec(
    meta: TemplateMeta, fixed: Mapping[str, Value], steps: tuple[StepSpec, ...], element_bytes: int
) -> LaunchSpec:
    """Returns the launch of one config, with the further steps whose condition holds."""
    return LaunchSpec(
        grid=meta.grid,
        threads=_evaluate(meta.threads, fixed, "launch.threads"),
        smem_bytes=_evaluate(meta.smem_bytes, fixed, "launch.smem_bytes"),
        names=tuple(fixed.items()),
        workspace_bytes=meta.workspace_bytes,
        counters=meta.counters,
        then=tuple(
            spec
            for step, spec in zip(meta.then, steps, strict=True)
            if _holds(step.when, fixed, f"then.{step.entry}.when")
        ),
        maps=_maps(meta, fixed, element_bytes),
    )


def _prologue(problem: Problem, space: SearchSpace, fixed: Mapping[str, Value], launch: tuple[Field, ...]) -> Prologue:
    return Prologue(
        tunables=tuple(
            choice(item.name, fixed[item.name], item.values, item.unit, item.doc)
            if item.kind == "categorical"
            else constant(item.name, fixed[item.name], item.unit, item.doc)
            for item in space.tunables
        ),
        derived=tuple(
            constant(item.name, fixed[item.name], item.unit, item.doc) for item in space.derived if item.name in fixed
        ),
        traits=trait_fields(problem),
        launch=launch,
    )


def _evaluate(text: str, scope: Mapping[str, Value], key: str) -> int:
    try:
        return evaluate_int(text, scope)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: {key}: {_one_line(error)}") from error


def _holds(text: str, scope: Mapping[str, Value], key: str) -> bool:
    try:
        return bool(evaluate(text, scope))
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: {key}: {_one_line(error)}") from error


def _check_launch(launch: LaunchSpec, problem: Problem) -> None:
    """Checks that every expression of the launch has a valid value for the rendered problem."""
    try:
        workspace, steps = launch.workspace(problem), launch.steps(problem)
    except ExpressionError as error:
        raise RenderError(f"{META_FILE}: launch: {_one_line(error)}") from error
    for name, size in (("workspace_bytes", workspace.bytes), ("counters", workspace.counters)):
        if size < 0:
            raise RenderError(f"{META_FILE}: launch.{name}: is {size} for {problem.key}, it must be at least 0")
    for step in steps:
        if min(step.grid) < 1:
            raise RenderError(
                f"{META_FILE}: grid of {step.entry}: is {step.grid} for {problem.key}, every axis needs at least 1"
            )
        if any(size > most for size, most in zip(step.grid, _MOST_CTAS, strict=True)):
            raise RenderError(
                f"{META_FILE}: grid of {step.entry}: is {step.grid} for {problem.key}, CUDA allows {_MOST_CTAS}: "
                "choose another family, or fewer sequences or heads"
            )


def _hash_files(environment: jinja2.Environment, root: Path, family: str) -> str:
    """Hashes the files of a family: its two own files and the partials that it includes, in name order.

    Raises:
        TemplateError: A partial is missing, malformed, or named by an expression, which cannot be resolved in advance.
    """
    texts = {name: without_markers(text) for name, (_, text) in _read_files(environment, family).items()}
    texts[META_FILE] = (root / family / META_FILE).read_text("utf-8")
    hashed = {_HASHED_AS.get(name, name): _with_hashed_names(text) for name, text in texts.items()}
    parts = (f"{name}\0{len(text)}\0{text}" for name, text in sorted(hashed.items()))
    return _hash("".join(parts).encode())


def _read_files(environment: jinja2.Environment, family: str) -> dict[str, tuple[Path, str]]:
    """Returns path and text of a family's kernel file and of the partials that it includes, by template name.

    Raises:
        TemplateError: As for :func:`_hash_files`.
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


def _with_hashed_names(text: str) -> str:
    for name, former in _HASHED_AS.items():
        text = text.replace(f'include "{name}"', f'include "{former}"')
    return text


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
        raise TemplateError(file, f"line {error.lineno}", _one_line(error.message or "syntax error")) from error
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
    except (OSError, UnicodeDecodeError) as error:
        reason = f"the partial '{include.name}' cannot be read: {_one_line(error)}"
        raise TemplateError(include.file, line, reason) from error
    return text, Path(file)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _syntax_error(root: Path, error: jinja2.TemplateSyntaxError) -> TemplateError:
    return TemplateError(error.filename or root, f"line {error.lineno}", _one_line(error.message or "syntax error"))


def _template_line(root: Path, error: BaseException) -> str:
    """Returns the innermost template line of a traceback, as ``family/kernel.cu.jinja:12``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(root)]
    return f"{Path(frames[-1].filename).relative_to(root).as_posix()}:{frames[-1].lineno}" if frames else str(root)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
