"""Name and limits of a GPU, as reported by torch."""

from __future__ import annotations

import functools
from typing import Any

import torch

from evoengine.target import Target, native_arch, target_for_gpu


@functools.cache
def gpu_of(device: int) -> tuple[str, Target]:
    """Returns name and limits of a GPU.

    Args:
        device: Ordinal of the GPU in torch.
    """
    facts: Any = torch.cuda.get_device_properties(device)
    arch = native_arch(facts.major, facts.minor)
    known = target_for_gpu(facts.name, facts.total_memory)
    if known is not None:
        return facts.name, known.compiled_for(arch)
    memory_clock_khz, bus_bits = getattr(facts, "memory_clock_rate", 0), getattr(facts, "memory_bus_width", 0)
    target = Target.from_limits(
        marketing_name=facts.name,
        arch=arch,
        sms=facts.multi_processor_count,
        smem_per_sm_bytes=facts.shared_memory_per_multiprocessor,
        smem_per_block_bytes=facts.shared_memory_per_block_optin,
        regs_per_sm=facts.regs_per_multiprocessor,
        max_threads_per_sm=facts.max_threads_per_multi_processor,
        max_threads_per_block=facts.max_threads_per_block,
        max_blocks_per_sm=facts.max_threads_per_multi_processor // 64,  # estimate: torch does not report it
        l2_bytes=facts.L2_cache_size,
        boost_clock_mhz=getattr(facts, "clock_rate", 0) // 1000,
        dram_gbps=2 * memory_clock_khz * bus_bits / 8 / 1e6,  # double data rate
        dram_bytes=facts.total_memory,
    )
    return facts.name, target
