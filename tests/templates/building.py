"""Builder of kernels of a shipped family: renders a base config with changes, applies edits, compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import Template
from evoengine.model import Problem, Value
from evoengine.parity.mutants.mutant import Edit, mutate
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target


@dataclass(frozen=True)
class FamilyBuilder:
    """Template and space of one family, and a small, plain config to change."""

    template: Template
    space: SearchSpace
    base: Mapping[str, Value]
    compiler: Compiler
    target: Target

    def build(
        self, overrides: Mapping[str, Value], problem: Problem, edits: tuple[Edit, ...] = (), arch: str = "sm_89"
    ) -> Kernel:
        """Builds the base config with ``overrides``, with ``edits`` applied to its source."""
        config = self.space.config({**self.base, **overrides})
        source = mutate(self.template.render(config, problem, self.space, self.target), edits)
        return Kernel(source, self.compiler.compile(source, arch))
