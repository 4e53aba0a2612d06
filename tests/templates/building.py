"""Builds any shipped family: renders a base config with changes, mutates the text, compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import Template
from evoengine.model import Problem, Value
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

Edit = tuple[str, str]
"""A mutation of a rendered source: text that must occur, and what replaces it."""


@dataclass(frozen=True)
class FamilyBuilder:
    """One family, its space, and a small, plain config to change."""

    template: Template
    space: SearchSpace
    base: Mapping[str, Value]
    compiler: Compiler
    target: Target

    def build(
        self, overrides: Mapping[str, Value], problem: Problem, edits: tuple[Edit, ...] = (), arch: str = "sm_89"
    ) -> Kernel:
        """The kernel of the base config with ``overrides``, its text changed by ``edits``."""
        config = self.space.config({**self.base, **overrides})
        source = self.template.render(config, problem, self.space, self.target)
        text = source.text
        for old, new in edits:
            assert old in text, f"the mutant no longer fits the template: {old!r} is gone"
            text = text.replace(old, new)
        source = replace(source, text=text, source_hash=source.source_hash if not edits else f"mutant{hash(edits):x}")
        return Kernel(source, self.compiler.compile(source, arch))
