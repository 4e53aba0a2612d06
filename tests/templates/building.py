"""Builder of kernels of a shipped family: renders a base config with changes, applies edits, compiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet

from evoengine.errors import LaunchError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import Template
from evoengine.model import Problem, Value, Verdict
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup, mutate
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
        self, overrides: Mapping[str, Value], problem: Problem, edits: tuple[MutantEdit, ...] = (), arch: str = "sm_89"
    ) -> Kernel:
        """Builds the base config with ``overrides``, with ``edits`` applied to its source."""
        config = self.space.config({**self.base, **overrides})
        source = mutate(self.template.render(config, problem, self.space, self.target), edits)
        return Kernel(source, self.compiler.compile(source, arch))


Case = tuple[str, Problem, Mapping[str, Value]]
"""Name of a case, its problem, and its changes to the base config."""


SHOWN_BY_OTHERS: Mapping[str, frozenset[str]] = {
    "hopper": frozenset(
        {
            *("addresses", "fragments", "keys", "mask", "maximum", "merge", "pipeline", "registers", "scale"),
            *("softmax", "store"),
        }
    ),
    "mma": frozenset({"keys", "maximum", "bias", "mask", "store", "memory", "scale", "state"}),
    "scalar": frozenset({"addresses", "softmax", "scale", "pipeline", "state"}),
    "wgmma": frozenset({"addresses", "scale", "maximum", "fragments", "pipeline"}),
    "wmma": frozenset({"addresses", "bias", "keys", "softmax", "maximum", "mask"}),
}
"""Parts of a family's kernel whose mutants are thorough, because CI runs mutants of another family's same part."""


def spread(cases: Sequence[Case], every: int = 18) -> list[ParameterSet]:
    """Returns the problems and changes as parameters of a test: every 18th one for CI, the others as thorough."""
    return [
        pytest.param(problem, overrides, id=name, marks=[pytest.mark.thorough] if number % every else [])
        for number, (name, problem, overrides) in enumerate(cases)
    ]


def other_archs(narrow: tuple[int, int], wide: tuple[int, int]) -> list[ParameterSet]:
    """Returns an architecture and two values of head_dim, as parameters of a test.

    CI compiles for sm_80 with the narrow ones and for sm_90 with the wide ones; the other pairs are thorough.
    """
    return [
        *(pytest.param("sm_80", narrow), pytest.param("sm_90", wide)),
        pytest.param("sm_80", wide, marks=pytest.mark.thorough),
        pytest.param("sm_90", narrow, marks=pytest.mark.thorough),
    ]


def sample_of(mutants: Iterable[Mutant], family: str) -> list[ParameterSet]:
    """Returns every tenth mutant of each part of a kernel, the first included: `evoengine selftest` runs them all.

    CI runs the first one of each part, of some tests every second of these or fewer; the others, and those of
    :data:`SHOWN_BY_OTHERS`, are thorough.
    """
    shown = set(SHOWN_BY_OTHERS[family])
    parameters = []
    for mutant in _sampled(mutants):
        marks = [pytest.mark.thorough] if mutant.breaks in shown else []
        parameters.append(pytest.param(mutant, id=mutant.name, marks=marks))
        shown.add(mutant.breaks)
    return parameters


def _sampled(mutants: Iterable[Mutant]) -> list[Mutant]:
    of_part: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        of_part[mutant.breaks].append(mutant)
    return [mutant for part in of_part.values() for mutant in part[::10]]


def controls(mutants: Iterable[Mutant], setups: Mapping[str, MutantSetup], every: int = 9) -> list[ParameterSet]:
    """Returns the setups of the sampled mutants, which show nothing unless these pass unchanged; see :func:`spread`."""
    used = {mutant.setup: setups[mutant.setup] for mutant in _sampled(mutants)}
    return [
        pytest.param(setup, id=name, marks=[pytest.mark.thorough] if number % every else [])
        for number, (name, setup) in enumerate(used.items())
    ]


def assert_rejected(
    family: FamilyBuilder,
    judge: Callable[[Kernel, Problem], Verdict],
    setup: MutantSetup,
    mutant: Mutant,
    arch: str = "sm_89",
) -> None:
    """Asserts that the emulator rejects a mutant: a hazard by a fault, any other by a fault or by wrong numbers."""
    broken = family.build(setup.values, setup.problem, mutant.edits, arch)
    if mutant.hazard:
        with pytest.raises(LaunchError):
            judge(broken, setup.problem)
        return
    try:
        verdict = judge(broken, setup.problem)
    except LaunchError:  # the emulator detected a wrong access before the comparison
        return
    assert not verdict.passed
    assert verdict.reason
