"""Report of a launch: warp instructions by pipe, bytes by memory, counts of every instruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evoengine.emulator.ptx.dependency_analysis import Structure
from evoengine.emulator.ptx.pipes import Pipe


@dataclass(frozen=True)
class InstructionCounts:
    """Counts of one PTX instruction in a launch."""

    ptx_line: int
    ptx_text: str
    source_line: int
    """Line of the CUDA source; 0 if the PTX has no line information."""
    source_file: str
    opcode: str
    pipe: Pipe
    executions: int
    """Executions by warps, including those in which the guard disables all lanes."""
    lanes: int
    """Active lanes, over all executions."""
    wavefronts: int = 0
    """Wavefronts of shared memory."""
    ideal_wavefronts: int = 0
    """Wavefronts of the same accesses without bank conflicts."""
    sectors: int = 0
    """Sectors of 32 bytes of global and local memory."""
    ideal_sectors: int = 0
    """Fewest sectors that can hold the bytes each warp accesses."""
    split_warps: int = 0
    """Executions of a branch in which the lanes of the warp diverge."""

    @property
    def conflicts(self) -> int:
        """Additional wavefronts caused by bank conflicts."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True)
class LaunchReport:
    """Counters of one launch. An instruction counts once per warp with at least one active lane."""

    ctas: int
    warps: int
    warp_instructions: int
    pipes: Mapping[Pipe, int]
    """Warp instructions by pipe."""
    barriers: int
    """Arrivals of warps at barriers."""
    global_read_bytes: int
    global_written_bytes: int
    cp_async_bytes: int
    shared_read_bytes: int
    shared_written_bytes: int
    local_bytes: int
    tensor_flops: int
    wgmma_flops: int = 0
    """Part of ``tensor_flops`` that ``wgmma`` executes."""
    merging_warps: int = 0
    """Warps that merge partial results of other CTAs, counted once per merge."""
    busiest_cta: float = 1.0
    """Tensor operations of the busiest CTA, relative to the mean; above 1 under a causal mask, for example. Counts
    instructions in a kernel without tensor operations."""
    busiest_warp: float = 1.0
    """The same of the busiest warp of the grid."""
    longest_first: bool = False
    """Whether CTAs have less of that work the later they start."""
    code: int = 0
    """Distinct instructions that were executed, without moves: the code that an SM fetches."""
    conflicts: float = 1.0
    """Wavefronts of shared memory, relative to conflict-free accesses; 1 if they were not counted."""
    structure: Structure = field(default_factory=Structure)
    """Dependency structure, summed over the launch."""
    instructions_by_line: Mapping[int, int] = field(default_factory=dict)
    """Warp instructions by source line (0: unknown)."""
    sites: tuple[InstructionCounts, ...] = ()
    """Counts of every executed instruction, in PTX order, if the launch was run with ``counters=True``."""

    @property
    def global_bytes(self) -> int:
        """All bytes read from or written to global memory, including those of cp.async."""
        return self.global_read_bytes + self.global_written_bytes + self.cp_async_bytes
