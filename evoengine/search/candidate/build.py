"""The part of the candidate pipeline that needs no device: render, compile, resource gate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evoengine.errors import CandidateError, RenderError, ResourceError, UsageError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Binary, Source
from evoengine.kernel.resources import performance_loss, resource_gate
from evoengine.kernel.spilling import spill_reason
from evoengine.kernel.template.renderer import Template, TemplateLibrary
from evoengine.model import Config, Problem, Status, Variant
from evoengine.search.candidate.results import Compilation
from evoengine.search.candidate.screening import screened_kernel
from evoengine.search.candidate.stage_timer import StageClock
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.system.processes import give_way
from evoengine.target import Target


@dataclass(frozen=True)
class BuildSetup:
    """Problems, families and limits of a compile worker; picklable."""

    problems: tuple[Problem, ...]
    """Problems that every config is compiled for; a single problem is a workload of one."""
    target: Target
    arch: str
    spaces: tuple[SearchSpace, ...]
    """One per family."""
    templates_dirs: tuple[Path, ...]
    cache_dir: Path | None
    variants: tuple[Variant, ...] = ()
    """Variants of families that may be built besides the spaces."""
    spill_limit_bytes: int = 0
    """Spilled bytes per thread above which a kernel is not run; 0 for no limit."""


class Builder:
    """Renders and compiles candidates of one search; needs no device. Lives in a compile worker."""

    def __init__(self, setup: BuildSetup) -> None:
        self._setup = setup
        self._variants = {variant.name: variant for variant in setup.variants}
        self._library = TemplateLibrary(*setup.templates_dirs, variants=setup.variants)
        self._families = {space.family: (self._library.load_for(space), space) for space in setup.spaces}
        self._compiler = Compiler(setup.cache_dir, line_info=False)  # a fault is located by a second compilation

    def build(self, config: Config) -> Compilation:
        """Runs a config up to the resource gate, for every problem; a fault of the config is a status of the result.

        A proposed config satisfies the first problem's constraints; those of the other problems are checked here.
        """
        setup, clock = self._setup, StageClock()
        sources: list[Source] = []
        binaries: list[Binary] = []
        status, reason = Status.OK, ""
        try:
            for number, problem in enumerate(setup.problems):
                with clock.stage("render"):
                    template, space = self._family(config.family)
                    violation = _violation(config, space, problem, setup.target) if number else ""
                    if violation:
                        return Compilation(config, Status.INVALID_CONFIG, violation, stage_seconds=clock.seconds)
                    sources.append(template.render(config, problem, space, setup.target))
                with clock.stage("compile"):
                    binaries.append(screened_kernel(self._compiler, sources[-1], setup.arch).binary)
                excess = resource_gate(binaries[-1], sources[-1].launch, setup.target)
                excess = excess or performance_loss(binaries[-1])
                excess = excess or spill_reason(binaries[-1], setup.spill_limit_bytes)
                if excess is not None:
                    raise ResourceError(excess)
        except CandidateError as error:
            status, reason = error.status, str(error)
        return Compilation(config, status, reason, tuple(sources), tuple(binaries), clock.seconds)

    def build_variant(self, config: Config, variant: Variant) -> Compilation:
        """Runs a config of a variant up to the resource gate; see :meth:`build`.

        A patch that does not fit, or an added tunable that is invalid, gives the status RENDER_FAILED.
        """
        if variant.name not in self._variants:
            self._variants[variant.name] = variant
            self._library = TemplateLibrary(*self._setup.templates_dirs, variants=tuple(self._variants.values()))
        return self.build(config)

    def _family(self, name: str) -> tuple[Template, SearchSpace]:
        """Returns template and space of a family; an older champion may be of a family that is not searched.

        Raises:
            RenderError: The family does not exist any more.
        """
        if name not in self._families:
            try:
                space = find_space(name, tuple(self._variants.values()))
                self._families[name] = (self._library.load_for(space), space)
            except UsageError as error:
                raise RenderError(str(error)) from error
        return self._families[name]


def _violation(config: Config, space: SearchSpace, problem: Problem, target: Target) -> str:
    """The first constraint of a problem that a config violates, with its reason; empty when there is none."""
    broken = space.check(config.as_dict(), problem, target)
    return f"{problem.key}: {broken[0].name}: {broken[0].reason}" if broken else ""


def build_service(setup: BuildSetup, *, gives_way: bool = False) -> Builder:
    """Returns the builder of a compile worker; the process does nothing else.

    Args:
        setup: Problems and families to build for.
        gives_way: Whether to run at low priority, beside a GPU's worker.
    """
    keep_freed_memory()
    if gives_way:
        give_way()
    return Builder(setup)
