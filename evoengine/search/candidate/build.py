"""The first half of a candidate's road, which needs no device: render, compile, resource gate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from evoengine.errors import CandidateError, RenderError, ResourceError, UsageError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Binary, Kernel, Source
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.spilling import spill_reason
from evoengine.kernel.template.renderer import Template, TemplateLibrary
from evoengine.model import Config, Problem, Status
from evoengine.search.candidate.stage_timer import StageClock
from evoengine.space.language.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

_NICENESS: Final = 10
"""Steps of priority that a compile worker gives up: the others get nine tenths of a core that they share with it."""


@dataclass(frozen=True)
class BuildSetup:
    """What a compile worker needs to build candidates."""

    problem: Problem
    target: Target
    arch: str
    spaces: tuple[SearchSpace, ...]
    """One per family."""
    templates_dir: Path
    cache_dir: Path | None
    others: tuple[Problem, ...] = ()
    """Further problems of a workload, for each of which a config is compiled too."""
    spill_limit_bytes: int = 0
    """Spilled bytes per thread above which a kernel is not run; 0 for no limit."""


@dataclass(frozen=True)
class Compilation:
    """How far a config came without a device: a binary that fits, or a status."""

    config: Config
    status: Status
    """OK only means "go on": nothing has run yet."""
    reason: str = ""
    source: Source | None = None
    binary: Binary | None = None
    """Also there when it failed the resource gate."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    others: tuple[Kernel, ...] = ()
    """For the further problems of a workload."""

    @property
    def kernel(self) -> Kernel | None:
        """What to examine; None when the walk has ended."""
        if self.status is not Status.OK or self.source is None or self.binary is None:
            return None
        return Kernel(self.source, self.binary, self.others)


class Builder:
    """Renders and compiles candidates of one search; needs no device. Lives in a compile worker."""

    def __init__(self, setup: BuildSetup) -> None:
        self._setup = setup
        self._library = TemplateLibrary(setup.templates_dir)
        self._families = {space.family: (self._library.load(space.family), space) for space in setup.spaces}
        self._compiler = Compiler(setup.cache_dir, line_info=False)  # who tells a source line compiles with lines

    def build(self, config: Config) -> Compilation:
        """Walks a config up to the resource gate; never raises for a candidate's fault."""
        setup, clock = self._setup, StageClock()
        source: Source | None = None
        binary: Binary | None = None
        others: list[Kernel] = []
        try:
            for problem in (setup.problem, *setup.others):
                with clock.stage("render"):
                    template, space = self._family(config.family)
                    invalid = self._objection(config, space, problem)
                    if invalid:
                        return Compilation(config, Status.INVALID_CONFIG, invalid, None, None, clock.seconds)
                    rendered = template.render(config, problem, space, setup.target)
                source = source or rendered
                with clock.stage("compile"):
                    compiled = self._compiler.compile(rendered, setup.arch)
                if problem is setup.problem:
                    binary = compiled
                else:
                    others.append(Kernel(rendered, compiled))
                excess = resource_gate(compiled, rendered.launch, setup.target)
                excess = excess or spill_reason(compiled, setup.spill_limit_bytes)
                if excess is not None:
                    raise ResourceError(excess)
        except CandidateError as error:
            return Compilation(config, error.status, str(error), source, _joint(binary, others), clock.seconds)
        return Compilation(config, Status.OK, "", source, _joint(binary, others), clock.seconds, tuple(others))

    def _objection(self, config: Config, space: SearchSpace, problem: Problem) -> str:
        """Why a config cannot be for a further problem; those of the first were left out before it was proposed."""
        if problem is self._setup.problem:
            return ""
        broken = space.check(config.as_dict(), problem, self._setup.target)
        return f"{problem.key}: {broken[0].name}: {broken[0].reason}" if broken else ""

    def _family(self, name: str) -> tuple[Template, SearchSpace]:
        """Template and space of a family; one that is not searched may come too, with an older champion.

        Raises:
            RenderError: there is no such family any more.
        """
        if name not in self._families:
            try:
                self._families[name] = (self._library.load(name), find_space(name))
            except UsageError as error:
                raise RenderError(str(error)) from error
        return self._families[name]


def build_service(setup: BuildSetup, *, gives_way: bool = False) -> Builder:
    """The builder of a compile worker, whose process does nothing else.

    Args:
        setup: what is built.
        gives_way: whether whoever else needs a core gets it first. A GPU measures nothing while its worker has none.
    """
    keep_freed_memory()
    if gives_way:
        os.nice(_NICENESS)
    return Builder(setup)


def _joint(binary: Binary | None, others: Sequence[Kernel]) -> Binary | None:
    """The binary with a hash over the code of all: two configs with one hash are one kernel for every problem."""
    if binary is None or not others:
        return binary
    hashes = [binary.code_hash, *(other.binary.code_hash for other in others)]
    return replace(binary, code_hash=hashlib.sha256("".join(hashes).encode()).hexdigest()[:16])
