"""Picklable records between a config and a running kernel: source, binary and launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evoengine.errors import LaunchError
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.tensor_maps import MapSpec
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.language.expression import evaluate_int
from evoengine.space.language.rules import problem_scope


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation."""

    arch: str
    """Real architecture: ``sm_89``."""
    maxrregcount: int = 0
    """Register cap per thread; 0 for none."""
    line_info: bool = True


@dataclass(frozen=True)
class LaunchPlan:
    """One launch with concrete sizes: entry, CTAs per axis, threads per CTA, dynamic shared memory."""

    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int
    entry: str = ENTRY


@dataclass(frozen=True)
class Workspace:
    """Device memory that one call needs besides its tensors."""

    bytes: int
    """Size of the buffer for partial results; its initial contents are arbitrary."""
    counters: int
    """Number of u32 counters, which are zero before and after each call."""


@dataclass(frozen=True)
class StepSpec:
    """One launch of a call for any problem: an entry of the binary, with expressions as in :class:`LaunchSpec`."""

    entry: str
    grid: tuple[str, str, str]
    threads: int
    smem_bytes: int


@dataclass(frozen=True)
class LaunchSpec:
    """Launch parameters of a kernel for every problem with its head_dim, dtype and mask.

    ``grid`` holds three expressions over the config, the derived names and the problem's axes. Threads and shared
    memory are the same for every problem that the binary serves.
    """

    grid: tuple[str, str, str]
    threads: int
    smem_bytes: int
    names: tuple[tuple[str, int | str | bool], ...]
    """Config and derived values that the expressions may use."""
    workspace_bytes: str = "0"
    """Expression, as in ``grid``."""
    counters: str = "0"
    """Expression, as in ``grid``."""
    then: tuple[StepSpec, ...] = ()
    """Launches that follow the main one in every call, in order, with the same arguments."""
    few_sms: tuple[tuple[str, int | str | bool], ...] = ()
    """Those of ``names`` that differ on a GPU of few SMs; empty without any, or if the source depends on them."""
    maps: tuple[MapSpec, ...] = ()
    """Tensor maps in the order of the second argument's members; without any there is no second argument."""

    @property
    def launches(self) -> tuple[StepSpec, ...]:
        """All launches of a call, beginning with the main one."""
        return (StepSpec(ENTRY, self.grid, self.threads, self.smem_bytes), *self.then)

    @property
    def entries(self) -> tuple[str, ...]:
        """Distinct entries that a call runs, beginning with the main one."""
        return tuple(dict.fromkeys(step.entry for step in self.launches))

    @property
    def on_few_sms(self) -> LaunchSpec | None:
        """Launch of the same binary on a GPU of few SMs; None if it does not depend on their number."""
        return replace(self, names=tuple({**dict(self.names), **dict(self.few_sms)}.items())) if self.few_sms else None

    def plan(self, problem: Problem) -> LaunchPlan:
        """Returns the main launch for one problem."""
        return self.steps(problem)[0]

    def steps(self, problem: Problem) -> tuple[LaunchPlan, ...]:
        """Returns all launches of one call, in order."""
        scope = self._scope(problem)
        return tuple(
            LaunchPlan(_grid(step.grid, scope), step.threads, step.smem_bytes, step.entry) for step in self.launches
        )

    def workspace(self, problem: Problem) -> Workspace:
        """Returns the memory that one call needs besides its tensors."""
        scope = self._scope(problem)
        return Workspace(evaluate_int(self.workspace_bytes, scope), evaluate_int(self.counters, scope))

    def _scope(self, problem: Problem) -> dict[str, Value]:
        return dict(self.names) | problem_scope(problem)


def _grid(grid: tuple[str, str, str], scope: Mapping[str, Value]) -> tuple[int, int, int]:
    x, y, z = (evaluate_int(text, scope) for text in grid)
    return x, y, z


@dataclass(frozen=True)
class Source:
    """Rendered kernel: flat CUDA C++ with all partials inlined, and its compile and launch parameters."""

    config: Config
    text: str
    source_hash: str
    """SHA-256 of the text and the config's compile options, 16 hex digits."""
    template_hash: str
    """SHA-256 of the template, its partials and ``template.toml``, 16 hex digits."""
    maxrregcount: int
    launch: LaunchSpec
    untrusted: bool = False
    """Whether parts of the text are generated: it is screened, compiled in a sandbox, and emulated before a GPU runs
    it."""


@dataclass(frozen=True)
class Binary:
    """Compilation of a source for one architecture."""

    arch: str
    cubin: bytes
    ptx: str
    code_hash: str
    """SHA-256 of the cubin's code and constant sections, without debug sections, 16 hex digits."""
    resources: Resources
    """Resources of the main entry."""
    log: str
    further: tuple[tuple[str, Resources], ...] = ()
    """Resources of the entries that the launch runs after the main one."""

    def needs(self, entry: str) -> Resources:
        """Returns the resources of one entry."""
        return dict(self.further).get(entry, self.resources)


@dataclass(frozen=True)
class Kernel:
    """Source and binary: everything that a device needs to run it."""

    source: Source
    binary: Binary
    admitted: bool = False
    """Whether a GPU may run the kernel although its source is untrusted: the emulator ran it, or the user consented."""

    @property
    def config(self) -> Config:
        return self.source.config

    def require_admitted(self) -> None:
        """Checks that a GPU may run the kernel.

        Raises:
            LaunchError: Its source is untrusted, and it was not admitted.
        """
        if self.source.untrusted and not self.admitted:
            raise LaunchError(f"{self.config.family}: a generated kernel must pass the emulator before a GPU runs it")
