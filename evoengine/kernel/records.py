"""Text, binary, launch: the three things between a config and a running kernel, each a plain picklable record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from evoengine.kernel.abi import ENTRY
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.language.expression import evaluate_int
from evoengine.space.language.rules import problem_scope


@dataclass(frozen=True)
class CompileOptions:
    """What NVRTC is told besides the source."""

    arch: str
    """Real architecture: ``sm_89``."""
    maxrregcount: int = 0
    """Register cap per thread; 0 leaves it to the compiler."""
    line_info: bool = True


@dataclass(frozen=True)
class LaunchPlan:
    """One launch: the entry, CTAs per axis, threads per CTA, dynamic shared memory."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    entry: str = ENTRY


@dataclass(frozen=True)
class Workspace:
    """Device memory that one call needs besides its tensors."""

    bytes: int
    """Partial results; whatever they hold before a call."""
    counters: int
    """u32 that are zero before each call and after it."""


@dataclass(frozen=True)
class StepSpec:
    """One launch of a call for any problem: its entry in the binary, and expressions as in :class:`LaunchSpec`."""

    entry: str
    grid: tuple[str, str, str]
    threads: int
    smem_bytes: int


@dataclass(frozen=True)
class LaunchSpec:
    """How to launch a kernel on any problem with its head_dim, dtype and mask.

    ``grid`` holds three expressions over the config, the derived names and the problem's axes; threads and shared
    memory are the same for every problem that the binary fits.
    """

    grid: tuple[str, str, str]
    threads: int
    smem_bytes: int
    names: tuple[tuple[str, int | str | bool], ...]
    """Config and derived values that the expressions may use."""
    workspace_bytes: str = "0"
    """Expression like those of the grid."""
    counters: str = "0"
    """Expression like those of the grid."""
    then: tuple[StepSpec, ...] = ()
    """Launches that follow the main one in every call, in order, each with the same argument."""

    @property
    def launches(self) -> tuple[StepSpec, ...]:
        """All launches of a call, the main one first."""
        return (StepSpec(ENTRY, self.grid, self.threads, self.smem_bytes), *self.then)

    @property
    def entries(self) -> tuple[str, ...]:
        """Every entry that a call runs, the main one first."""
        return tuple(dict.fromkeys(step.entry for step in self.launches))

    def plan(self, problem: Problem) -> LaunchPlan:
        """The main launch for one problem."""
        return self.steps(problem)[0]

    def steps(self, problem: Problem) -> tuple[LaunchPlan, ...]:
        """All launches of one call, in order."""
        scope = self._scope(problem)
        return tuple(
            LaunchPlan(_grid(step.grid, scope), step.threads, step.smem_bytes, step.entry) for step in self.launches
        )

    def workspace(self, problem: Problem) -> Workspace:
        """The memory that one call needs besides its tensors."""
        scope = self._scope(problem)
        return Workspace(evaluate_int(self.workspace_bytes, scope), evaluate_int(self.counters, scope))

    def _scope(self, problem: Problem) -> dict[str, Value]:
        return dict(self.names) | problem_scope(problem)


def _grid(grid: tuple[str, str, str], scope: Mapping[str, Value]) -> tuple[int, int, int]:
    x, y, z = (evaluate_int(text, scope) for text in grid)
    return x, y, z


@dataclass(frozen=True)
class Source:
    """A rendered kernel: flat CUDA C++, all partials inlined, and how to compile and launch it."""

    config: Config
    text: str
    source_hash: str
    """SHA-256 of the text and the compile options that belong to the config, 16 hex digits."""
    template_hash: str
    """SHA-256 of the template folder, partials and template.toml, 16 hex digits."""
    maxrregcount: int
    launch: LaunchSpec


@dataclass(frozen=True)
class Binary:
    """What NVRTC made of a source for one architecture."""

    arch: str
    cubin: bytes
    ptx: str
    code_hash: str
    """SHA-256 over the cubin's code and constant sections (not its debug sections), 16 hex digits."""
    resources: Resources
    """Needs of the main entry."""
    log: str
    further: tuple[tuple[str, Resources], ...] = ()
    """Needs of the entries that the launch runs after the main one."""

    def needs(self, entry: str) -> Resources:
        """What one entry needs of an SM."""
        return dict(self.further).get(entry, self.resources)


@dataclass(frozen=True)
class Kernel:
    """A source and its binary: all that a device needs."""

    source: Source
    binary: Binary

    @property
    def config(self) -> Config:
        """The config it was rendered from."""
        return self.source.config
