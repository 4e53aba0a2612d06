"""Config to source: renders a family's Jinja template into one flat CUDA file."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import jinja2

from evoengine.documents.suggestions import did_you_mean
from evoengine.errors import RenderError, TemplateError
from evoengine.kernel.records import Source
from evoengine.kernel.template.environment import load_template, one_line, open_environment, path_below, syntax_error
from evoengine.kernel.template.expression_names import check_names
from evoengine.kernel.template.files import KERNEL_FILE, META_FILE, hash_files, read_files, short_hash
from evoengine.kernel.template.launch import (
    check_launch,
    evaluated,
    fixed_values,
    further_steps,
    launch_spec,
    resolved,
    with_few_sms,
)
from evoengine.kernel.template.metadata import TemplateMeta, load_meta
from evoengine.kernel.template.patching import apply_edits, regions_of
from evoengine.kernel.template.prologue import Field, Prologue, choice, constant, launch_fields, trait_fields
from evoengine.model import Config, Problem, Region, Value, Variant, base_family
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

_MOST_REGISTERS: Final = 255
"""Registers that a thread can have."""
MOST_CHARACTERS: Final = 1 << 21
"""Maximum length of a source, so that a leaderboard can store it; the packaged families have less than 200,000."""
_UNDEFINED: Final = re.compile(r"'(\w+)' is undefined")
"""Jinja's message about an unknown name."""


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
        self._environments = {root: open_environment(root) for root in (templates_dir, *others)}
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
        kernel = load_template(environment, root, f"{family}/{KERNEL_FILE}")
        return Template(meta, root, hash_files(environment, root, family), kernel)

    def files(self, family: str) -> dict[str, str]:
        """Returns the texts of a family's or a variant's template files by path below ``templates/``, with markers.

        Raises:
            TemplateError: As for :meth:`load`.
            PatchError: As for :meth:`load`.
        """
        variant = self._variants.get(family)
        name = family if variant is None else variant.family
        root = self._root_of(name)
        sources = read_files(self._environments[root], name)
        texts = {path_below(root, file): text for file, text in sources.values()}
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
        environment = open_environment(root, apply_edits(texts, variant.patch.edits))
        kernel = load_template(environment, root, f"{variant.family}/{KERNEL_FILE}")
        meta = replace(base.meta, family=variant.name)
        return Template(meta, root, hash_files(environment, root, variant.family), kernel, untrusted=True)

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
        fixed = fixed_values(config, problem, space, target)
        maxrregcount = evaluated(self.meta.maxrregcount, fixed, "compile.maxrregcount")
        if not 0 <= maxrregcount <= _MOST_REGISTERS:
            raise RenderError(
                f"{META_FILE}: compile.maxrregcount: is {maxrregcount}, which is not from 0 to {_MOST_REGISTERS}"
            )
        meta = resolved(self.meta, space)
        steps = further_steps(meta, fixed)
        launch = launch_spec(meta, fixed, steps, problem.dtype.bytes)
        check_launch(launch, problem)
        prologue = _prologue(problem, space, fixed, launch_fields((launch.launches[0], *steps), launch.maps))
        head = f"// EvoEngine, family {self.family}, template {self.template_hash}: {config}\n"
        text = head + self._text({**fixed, **vars(prologue), "family": self.family, "maps": launch.maps})
        launch = with_few_sms(launch, config, problem, space, target, text)
        return Source(
            config=config,
            text=text,
            source_hash=short_hash(f"{maxrregcount}\n{text}".encode()),
            template_hash=self.template_hash,
            maxrregcount=maxrregcount,
            launch=launch,
            untrusted=self.untrusted,
        )

    def _text(self, context: Mapping[str, object]) -> str:
        try:
            return _bounded(self.kernel.generate(context))
        except RenderError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise syntax_error(self.root, error) from error
        except Exception as error:  # an expression in a template can raise anything; the candidate fails
            unknown = _UNDEFINED.fullmatch(str(error)) if isinstance(error, jinja2.UndefinedError) else None
            similar = did_you_mean(unknown[1], context) if unknown else ""
            raise RenderError(f"{_template_line(self.root, error)}: {one_line(error)}{similar}") from error


def _bounded(parts: Iterable[str]) -> str:
    """Joins the parts of a source.

    Raises:
        RenderError: They are longer than :data:`MOST_CHARACTERS`.
    """
    found, length = [], 0
    for part in parts:
        found.append(part)
        length += len(part)
        if length > MOST_CHARACTERS:
            raise RenderError(f"the source is longer than {MOST_CHARACTERS:,} characters")
    return "".join(found)


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


def _template_line(root: Path, error: BaseException) -> str:
    """Returns the innermost template line of a traceback, as ``family/kernel.cu.jinja:12``."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(root)]
    return f"{Path(frames[-1].filename).relative_to(root).as_posix()}:{frames[-1].lineno}" if frames else str(root)
