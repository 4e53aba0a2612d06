"""GPU data sheets: consistency of the figures, and look-up by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.errors import UsageError
from evoengine.target import TARGETS, Target, get_target, native_arch, target_for_gpu

# (shared memory per SM in KiB, per block in KiB, threads, blocks, warps per SM): CUDA C++ Programming Guide
LIMITS = {
    "sm_80": (164, 163, 2048, 32, 64),
    "sm_86": (100, 99, 1536, 16, 48),
    "sm_89": (100, 99, 1536, 24, 48),
    "sm_90": (228, 227, 2048, 32, 64),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
class TestEveryTarget:
    def test_limits_match_the_compute_capability(self, target: Target) -> None:
        smem, block_smem, threads, blocks, warps = LIMITS[target.arch.rstrip("a")]
        assert target.smem_per_sm_bytes == smem * 1024
        assert target.smem_per_block_bytes == block_smem * 1024
        assert (target.max_threads_per_sm, target.max_blocks_per_sm, target.max_warps_per_sm) == (
            threads,
            blocks,
            warps,
        )
        assert (target.regs_per_sm, target.max_regs_per_thread, target.max_threads_per_block) == (65536, 255, 1024)

    def test_one_block_and_its_reserve_fill_an_sm(self, target: Target) -> None:
        assert target.smem_per_block_bytes + target.smem_reserved_per_block_bytes == target.smem_per_sm_bytes

    def test_tensor_peak_is_sms_times_clock_times_rate(self, target: Target) -> None:
        product = target.sms * target.boost_clock_mhz * 1e6 * target.tensor_flops_per_clk_per_sm / 1e12
        assert product == pytest.approx(target.fp16_tensor_tflops, rel=0.015)

    def test_has_a_source(self, target: Target) -> None:
        assert target.source

    def test_found_by_its_own_name(self, target: Target) -> None:
        assert get_target(target.name) is target
        assert target_for_gpu(target.marketing_name) is target


def test_unknown_target_lists_the_names() -> None:
    with pytest.raises(UsageError, match=r"unknown target 'l5'.*l4, rtx4090.*h200"):
        get_target("l5")


@pytest.mark.parametrize(
    ("gpu_name", "name"),
    [
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("Quadro", None),
        ("", None),
    ],
)
def test_driver_names(gpu_name: str, name: str | None) -> None:
    target = target_for_gpu(gpu_name)
    assert (target.name if target else None) == name


def test_memory_size_distinguishes_a100_models() -> None:
    small, big = target_for_gpu("NVIDIA A100", 40 * 2**30), target_for_gpu("NVIDIA A100", 80 * 2**30)
    assert small is not None
    assert small.name == "a100-40g"
    assert big is not None
    assert big.name == "a100-80g"


def test_scope_names_the_limits() -> None:
    scope = get_target("l4").scope()
    assert scope["smem_per_block"] == 99 * 1024
    assert scope["sms"] == 58
    assert scope["arch_number"] == 89
    assert set(scope) == {
        "arch_number",
        "smem_per_block",
        "smem_per_sm",
        "regs_per_sm",
        "max_regs_per_thread",
        "max_threads_per_block",
        "max_threads_per_sm",
        "max_warps_per_sm",
        "max_blocks_per_sm",
        "sms",
    }


@pytest.mark.parametrize(("arch", "like"), [("sm_89", "sm_89"), ("sm_120", "sm_90a"), ("sm_75", "sm_80")])
def test_limits_of_an_unknown_gpu_come_from_the_driver(arch: str, like: str) -> None:
    target = Target.from_limits(
        marketing_name="NVIDIA Test 5000",
        arch=arch,
        sms=100,
        smem_per_sm_bytes=100 * 1024,
        smem_per_block_bytes=99 * 1024,
        regs_per_sm=65536,
        max_threads_per_sm=1536,
        max_threads_per_block=1024,
        max_blocks_per_sm=24,
        l2_bytes=2**25,
        boost_clock_mhz=2000,
        dram_gbps=500.0,
        dram_bytes=2**34,
    )
    known = {candidate.fp32_lanes_per_sm for candidate in TARGETS.values() if candidate.arch == like}
    assert target.name == "nvidia-test-5000"
    assert target.max_warps_per_sm == 48
    assert target.fp32_lanes_per_sm in known
    assert target.scope()["sms"] == 100
    assert replace(target, sms=1).scope()["sms"] == 1


@pytest.mark.parametrize(
    ("capability", "arch"), [((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100"), ((12, 0), "sm_120")]
)
def test_native_architecture(capability: tuple[int, int], arch: str) -> None:
    assert native_arch(*capability) == arch
