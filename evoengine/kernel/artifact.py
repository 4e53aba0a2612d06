"""Text, binary, launch: the three things between a config and a running kernel, each a plain picklable record."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.model import Config, Problem, Resources
from evoengine.space.expression import evaluate_int


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
    """One launch: CTAs per axis, threads per CTA, dynamic shared memory."""

    grid: tuple[int, int, int]
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
    """Config and derived values that the grid expressions may use."""

    def plan(self, problem: Problem) -> LaunchPlan:
        """The launch for one problem."""
        scope = dict(self.names) | {
            "batch": problem.batch,
            "heads": problem.heads,
            "kv_heads": problem.kv_heads,
            "seq_q": problem.seq_q,
            "seq_kv": problem.seq_kv,
            "head_dim": problem.head_dim,
        }
        x, y, z = (evaluate_int(text, scope) for text in self.grid)
        return LaunchPlan((x, y, z), self.threads, self.smem_bytes)


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
    log: str


@dataclass(frozen=True)
class Kernel:
    """A source and its binary: all that a device needs."""

    source: Source
    binary: Binary

    @property
    def config(self) -> Config:
        """The config it was rendered from."""
        return self.source.config
