"""GPU data sheets: the limits and rates used by search spaces and predictions when no GPU is present."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from evoengine.errors import UsageError


@dataclass(frozen=True)
class Target:
    """Data sheet of one GPU model. Limits are fixed by its architecture; rates are peaks at the boost clock.

    Figures that ``source`` lists as estimates are not published by NVIDIA.
    """

    name: str
    """Key on the command line: ``l4``."""
    marketing_name: str
    arch: str
    """Architecture of the GPU, or that for which its binaries are compiled: ``sm_89``."""
    sms: int
    boost_clock_mhz: int
    dram_gbps: float
    """DRAM bandwidth in 1e9 bytes per second."""
    dram_bytes: int
    l2_bytes: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    """Maximum shared memory of one CTA after opt-in, static and dynamic."""
    regs_per_sm: int
    """Number of 32-bit registers."""
    max_regs_per_thread: int
    max_threads_per_sm: int
    max_threads_per_block: int
    max_blocks_per_sm: int
    max_warps_per_sm: int
    schedulers_per_sm: int
    """Warp schedulers; each issues one warp instruction per clock."""
    fp16_tensor_tflops: float
    """Dense fp16 or bf16 tensor peak with fp32 accumulation, 1e12 FLOP per second."""
    tensor_flops_per_clk_per_sm: int
    """The same peak per SM and clock; a multiply-add counts as 2."""
    mma_sync_fraction: float
    """Share of that peak reachable with ``mma.sync``: 1 before Hopper, whose peak needs ``wgmma``."""
    fp32_lanes_per_sm: int
    """fp32 multiply-adds per clock and SM."""
    int32_lanes_per_sm: int
    """32-bit integer additions per clock and SM."""
    mufu_per_clk_per_sm: int
    """Special-function results (ex2, rcp, lg2) per clock and SM."""
    smem_bytes_per_clk_per_sm: int
    l2_bytes_per_clk: int
    """L2 read bandwidth of the whole chip per clock."""
    register_allocation_unit: int
    """Granularity of register allocation per warp."""
    smem_allocation_bytes: int
    """Granularity of shared-memory allocation per CTA."""
    smem_reserved_per_block_bytes: int
    """Shared memory that the driver reserves for each resident CTA."""
    launch_overhead_us: float
    """Device time of an empty kernel in a CUDA graph."""
    source: str
    """Sources of the figures."""
    max_clock_mhz: int | None = None
    """Clock without power or thermal throttling, if it exceeds the boost clock of the data sheet."""
    dram_share: float | None = None
    """Share of the DRAM bandwidth that reading reaches; None if it is not known."""

    @property
    def clock_mhz(self) -> int:
        """Clock assumed for a short kernel."""
        return self.max_clock_mhz or self.boost_clock_mhz

    @property
    def mma_flops_per_clk_per_sm(self) -> float:
        """Peak of ``mma.sync`` per SM and clock, fp16 inputs and fp32 accumulation."""
        return self.tensor_flops_per_clk_per_sm * self.mma_sync_fraction

    @property
    def arch_number(self) -> int:
        """Compute capability of :attr:`arch`: 89."""
        return arch_number(self.arch)

    def compiled_for(self, arch: str) -> Target:
        """Returns the same GPU, running binaries of a possibly older architecture."""
        return replace(self, arch=arch)

    def scope(self) -> dict[str, int]:
        """Returns the limits by their names in search-space expressions."""
        return {
            "arch_number": self.arch_number,
            "smem_per_block": self.smem_per_block_bytes,
            "smem_per_sm": self.smem_per_sm_bytes,
            "regs_per_sm": self.regs_per_sm,
            "max_regs_per_thread": self.max_regs_per_thread,
            "max_threads_per_block": self.max_threads_per_block,
            "max_threads_per_sm": self.max_threads_per_sm,
            "max_warps_per_sm": self.max_warps_per_sm,
            "max_blocks_per_sm": self.max_blocks_per_sm,
            "sms": self.sms,
        }

    @classmethod
    def from_limits(
        cls,
        *,
        marketing_name: str,
        arch: str,
        sms: int,
        smem_per_sm_bytes: int,
        smem_per_block_bytes: int,
        regs_per_sm: int,
        max_threads_per_sm: int,
        max_threads_per_block: int,
        max_blocks_per_sm: int,
        l2_bytes: int,
        boost_clock_mhz: int,
        dram_gbps: float,
        dram_bytes: int,
    ) -> Target:
        """Builds a target from the driver's description of a GPU without a data sheet here.

        Rates that the driver does not report are those of the nearest known architecture: the same one, else the
        newest older one, else the oldest.
        """
        like = _nearest_architecture(arch)
        clock_ghz = boost_clock_mhz / 1000
        return replace(
            like,
            name=re.sub(r"[^a-z0-9]+", "-", marketing_name.lower()).strip("-"),
            marketing_name=marketing_name,
            arch=arch,
            sms=sms,
            boost_clock_mhz=boost_clock_mhz,
            max_clock_mhz=None,
            dram_gbps=dram_gbps,
            dram_bytes=dram_bytes,
            l2_bytes=l2_bytes,
            smem_per_sm_bytes=smem_per_sm_bytes,
            smem_per_block_bytes=smem_per_block_bytes,
            regs_per_sm=regs_per_sm,
            max_threads_per_sm=max_threads_per_sm,
            max_threads_per_block=max_threads_per_block,
            max_blocks_per_sm=max_blocks_per_sm,
            max_warps_per_sm=max_threads_per_sm // 32,
            fp16_tensor_tflops=round(sms * like.tensor_flops_per_clk_per_sm * clock_ghz / 1000, 1),
            l2_bytes_per_clk=like.l2_bytes_per_clk * sms // like.sms,
            source=f"limits from the CUDA driver; rates per SM estimated from {like.marketing_name}",
        )


def native_arch(major: int, minor: int) -> str:
    """Returns the default architecture for binaries of a compute capability.

    It is ``sm_90a`` for compute capability 9.0, because only that architecture has Hopper's ``wgmma``.
    """
    return "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


def get_target(name: str) -> Target:
    """Returns a data sheet by its key.

    Raises:
        UsageError: The key is unknown; the message lists the known ones.
    """
    target = TARGETS.get(name.lower())
    if target is None:
        raise UsageError(f"unknown target '{name}': choose one of {', '.join(TARGETS)}")
    return target


def target_for_gpu(gpu_name: str, memory_bytes: int | None = None) -> Target | None:
    """Returns the data sheet for a driver's device name such as ``NVIDIA A100-SXM4-80GB``; None if unknown.

    Args:
        gpu_name: Device name reported by the driver.
        memory_bytes: Total memory; distinguishes models whose names are equal.
    """
    words = re.split(r"[^a-z0-9]+", gpu_name.lower())
    if "mig" in words or "laptop" in words or "max" in words:
        return None  # a MIG slice or a mobile GPU has other limits and clocks than the card of the same name
    if "a100" in words:
        big = "80gb" in words or (memory_bytes or 0) > 45_000_000_000
        return TARGETS["a100-80g" if big else "a100-40g"]
    if "h100" in words:
        other_board = {"pcie", "nvl"} & set(words)
        return None if other_board else TARGETS["h100-sxm"]
    if "rtx" in words:
        index = words.index("rtx")
        model, suffix = words[index + 1 : index + 2], set(words[index + 2 :])
        return None if suffix & {"ti", "super", "d"} or not model else TARGETS.get(f"rtx{model[0]}")
    return next((TARGETS[key] for key in ("h200", "l40s", "l4", "a10") if key in words), None)


def _nearest_architecture(arch: str) -> Target:
    known = sorted(TARGETS.values(), key=lambda target: target.arch_number)
    older = [target for target in known if target.arch_number <= arch_number(arch)]
    return older[-1] if older else known[0]


def arch_number(arch: str) -> int:
    """Number of an architecture of any origin; 0 for a text that names none."""
    found = re.search(r"[0-9]{1,4}", arch)
    return int(found[0]) if found is not None else 0


_MIB: Final = 2**20
_KIB: Final = 2**10
_GIB: Final = 2**30
_COMMON_SOURCE: Final = (
    "limits: CUDA C++ Programming Guide, 'Technical Specifications per Compute Capability' and 'Throughput of Native "
    "Arithmetic Instructions'; allocation units: CUDA Occupancy Calculator; estimates: l2_bytes_per_clk, "
    "launch_overhead_us"
)

_AMPERE_A100: Final = Target(
    name="a100-40g",
    marketing_name="NVIDIA A100 SXM4 40GB",
    arch="sm_80",
    sms=108,
    boost_clock_mhz=1410,
    dram_gbps=1555.0,
    dram_bytes=40 * _GIB,
    l2_bytes=40 * _MIB,
    smem_per_sm_bytes=164 * _KIB,
    smem_per_block_bytes=163 * _KIB,
    regs_per_sm=65536,
    max_regs_per_thread=255,
    max_threads_per_sm=2048,
    max_threads_per_block=1024,
    max_blocks_per_sm=32,
    max_warps_per_sm=64,
    schedulers_per_sm=4,
    fp16_tensor_tflops=312.0,
    tensor_flops_per_clk_per_sm=2048,
    mma_sync_fraction=1.0,
    fp32_lanes_per_sm=64,
    int32_lanes_per_sm=64,
    mufu_per_clk_per_sm=16,
    smem_bytes_per_clk_per_sm=128,
    l2_bytes_per_clk=5120,
    register_allocation_unit=256,
    smem_allocation_bytes=128,
    smem_reserved_per_block_bytes=1 * _KIB,
    launch_overhead_us=2.0,
    source="NVIDIA A100 Tensor Core GPU Architecture (white paper, which also gives 5120 L2 bytes per clock) and "
    f"A100 data sheet; {_COMMON_SOURCE}",
)

_GA102_A10: Final = replace(
    _AMPERE_A100,
    name="a10",
    marketing_name="NVIDIA A10",
    arch="sm_86",
    sms=72,
    boost_clock_mhz=1695,
    dram_gbps=600.0,
    dram_bytes=24 * _GIB,
    l2_bytes=6 * _MIB,
    smem_per_sm_bytes=100 * _KIB,
    smem_per_block_bytes=99 * _KIB,
    max_threads_per_sm=1536,
    max_blocks_per_sm=16,
    max_warps_per_sm=48,
    fp16_tensor_tflops=125.0,
    tensor_flops_per_clk_per_sm=1024,
    fp32_lanes_per_sm=128,
    l2_bytes_per_clk=1024,
    source=f"NVIDIA A10 data sheet; NVIDIA Ampere GA102 GPU Architecture (white paper); {_COMMON_SOURCE}",
)

_AD104_L4: Final = replace(
    _GA102_A10,
    name="l4",
    marketing_name="NVIDIA L4",
    arch="sm_89",
    sms=58,
    boost_clock_mhz=2040,
    dram_gbps=300.0,
    dram_bytes=24 * _GIB,
    l2_bytes=48 * _MIB,
    max_blocks_per_sm=24,
    fp16_tensor_tflops=121.0,
    l2_bytes_per_clk=1024,
    source="NVIDIA L4 data sheet (242 TFLOP/s fp16 is with sparsity, 121 dense); NVIDIA Ada GPU Architecture (white "
    f"paper, V2.01); {_COMMON_SOURCE}",
)

_H100_SXM: Final = replace(
    _AMPERE_A100,
    name="h100-sxm",
    marketing_name="NVIDIA H100 SXM5 80GB",
    arch=native_arch(9, 0),
    sms=132,
    boost_clock_mhz=1830,
    max_clock_mhz=1980,
    dram_gbps=3350.0,
    dram_bytes=80 * _GIB,
    l2_bytes=50 * _MIB,
    smem_per_sm_bytes=228 * _KIB,
    smem_per_block_bytes=227 * _KIB,
    fp16_tensor_tflops=989.4,
    tensor_flops_per_clk_per_sm=4096,
    mma_sync_fraction=0.63,
    fp32_lanes_per_sm=128,
    launch_overhead_us=0.75,
    source="launch overhead: a kernel that returns at once, 20 in a CUDA graph, took 0.74 us each on an H200; "
    "NVIDIA H100 Tensor Core GPU Architecture (white paper; 1830 MHz is the clock behind its tensor peak) and "
    "H100 data sheet; max_clock_mhz: the driver's, at which an H200 ran every kernel of a recorded landscape; mma.sync "
    "reaches 63 % of the wgmma peak: 'Benchmarking and Dissecting the Nvidia Hopper GPU Architecture' (arXiv "
    f"2402.13499); {_COMMON_SOURCE}",
)

_ALL: Final = (
    _AD104_L4,
    replace(
        _AD104_L4,
        name="rtx4090",
        marketing_name="NVIDIA GeForce RTX 4090",
        sms=128,
        boost_clock_mhz=2520,
        dram_gbps=1008.0,
        l2_bytes=72 * _MIB,
        fp16_tensor_tflops=165.2,
        tensor_flops_per_clk_per_sm=512,
        l2_bytes_per_clk=2048,
        source="NVIDIA Ada GPU Architecture (white paper; GeForce runs fp32 accumulation at half rate); "
        f"{_COMMON_SOURCE}",
    ),
    replace(
        _AD104_L4,
        name="l40s",
        marketing_name="NVIDIA L40S",
        sms=142,
        boost_clock_mhz=2520,
        dram_gbps=864.0,
        dram_bytes=48 * _GIB,
        l2_bytes=96 * _MIB,
        fp16_tensor_tflops=362.0,
        l2_bytes_per_clk=2048,
        source=f"NVIDIA L40S data sheet; NVIDIA Ada GPU Architecture (white paper); {_COMMON_SOURCE}",
    ),
    _GA102_A10,
    replace(
        _GA102_A10,
        name="rtx3090",
        marketing_name="NVIDIA GeForce RTX 3090",
        sms=82,
        dram_gbps=936.0,
        fp16_tensor_tflops=71.0,
        tensor_flops_per_clk_per_sm=512,
        source="NVIDIA Ampere GA102 GPU Architecture (white paper; GeForce runs fp32 accumulation at half rate); "
        f"{_COMMON_SOURCE}",
    ),
    _AMPERE_A100,
    replace(
        _AMPERE_A100, name="a100-80g", marketing_name="NVIDIA A100 SXM4 80GB", dram_gbps=2039.0, dram_bytes=80 * _GIB
    ),
    _H100_SXM,
    replace(
        _H100_SXM,
        name="h200",
        marketing_name="NVIDIA H200 SXM5 141GB",
        dram_gbps=4800.0,
        dram_bytes=141 * 10**9,
        l2_bytes=60 * _MIB,
        dram_share=0.93,
        source="NVIDIA H200 data sheet; l2_bytes as the CUDA driver reports it; dram_share: 128 MiB read in 30.1 us "
        f"beside the launch; compute as {_H100_SXM.source}",
    ),
)

TARGETS: Final[Mapping[str, Target]] = {target.name: target for target in _ALL}
"""Data sheets by key."""
