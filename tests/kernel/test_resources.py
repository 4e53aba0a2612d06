"""Resource gate and occupancy, compared with NVIDIA's occupancy calculator."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoengine.kernel.compile.nvrtc import header_dirs
from evoengine.kernel.records import Binary, LaunchPlan, LaunchSpec, StepSpec
from evoengine.kernel.resources import (
    occupancy,
    parse_resources,
    resource_gate,
    resource_reason,
)
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES, spill_reason
from evoengine.model import Resources
from evoengine.target import TARGETS, Target, get_target

L4 = get_target("l4")
LAUNCH = LaunchSpec(("1", "1", "1"), 128, 1024, ())


def needs(registers: int = 32, threads: int = 128, smem: int = 0, static: int = 0) -> Resources:
    return Resources(registers, 0, 0, static, smem, threads)


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'evo_attention' for 'sm_89'
ptxas info    : Function properties for evo_attention
ptxas         .     256 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     32 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 27 registers, used 1 barriers, 288 bytes cumulative stack size, 128 bytes smem, 372 bytes cmem[0]
"""


COMBINE_LOG = """\
ptxas info    : Compiling entry function 'evo_combine' for 'sm_89'
ptxas info    : Function properties for evo_combine
ptxas         .     8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 200 registers, used 0 barriers, 64 bytes smem, 372 bytes cmem[0]
"""
TWO_STEPS = replace(LAUNCH, then=(StepSpec("evo_combine", ("1", "1", "1"), 512, 2048),))


def test_ptxas_report() -> None:
    assert parse_resources(LOG, LAUNCH) == {"evo_attention": Resources(27, 48, 288, 128, 1024, 128)}
    assert parse_resources(LOG.replace("evo_attention", "other"), LAUNCH) == {}
    assert parse_resources("", LAUNCH) == {}


def test_each_entry_has_its_own_report() -> None:
    combine = Resources(200, 16, 8, 64, 2048, 512)
    for log in (LOG + COMBINE_LOG, COMBINE_LOG + LOG):
        found = parse_resources(log, TWO_STEPS)
        assert list(found.items()) == [
            ("evo_attention", Resources(27, 48, 288, 128, 1024, 128)),
            ("evo_combine", combine),
        ]
        assert list(parse_resources(log, LAUNCH)) == ["evo_attention"]


def test_the_gate_checks_every_entry() -> None:
    needs_of = parse_resources(LOG + COMBINE_LOG, TWO_STEPS)
    binary = Binary("sm_89", b"", "", "", needs_of["evo_attention"], "", (("evo_combine", needs_of["evo_combine"]),))
    assert binary.needs("evo_attention").registers == 27
    assert binary.needs("evo_combine").registers == 200
    assert "evo_combine: 512 threads x 200 registers" in str(resource_gate(binary, TWO_STEPS, L4))


@pytest.mark.parametrize(
    ("resources", "part"),
    [
        (needs(), None),
        (needs(registers=255, threads=256), None),
        (needs(registers=128, threads=512), None),
        (needs(smem=99 * 1024), None),
        (needs(smem=99 * 1024 + 1), "101377 bytes of shared memory per CTA; l4 has 101376"),
        (needs(smem=99 * 1024, static=16), "101392 bytes of shared memory"),
        (needs(threads=1025), "1025 threads per CTA"),
        (needs(threads=0), "0 threads per CTA"),
        (needs(registers=65, threads=1024), "take 73728 registers; an SM of l4 has 65536"),
        (needs(registers=168, threads=416), "take 86016 registers"),
    ],
)
def test_gate(resources: Resources, part: str | None) -> None:
    reason = resource_reason(resources, L4)
    assert reason is None if part is None else part in str(reason)
    assert (occupancy(resources, L4).blocks_per_sm == 0) == (reason is not None)


def test_the_gate_checks_the_given_launch() -> None:
    binary = Binary("sm_89", b"", "", "", needs(smem=1024), "")
    assert resource_gate(binary, LAUNCH, L4) is None
    assert "shared memory" in str(resource_gate(binary, replace(LAUNCH, smem_bytes=1 << 20), L4))
    assert "threads" in str(resource_gate(binary, LaunchPlan((1, 1, 1), 2048, 0), L4))


@pytest.mark.parametrize(
    ("resources", "blocks", "limiter"),
    [
        (needs(registers=32, threads=64), 24, "warps"),
        (needs(registers=16, threads=32), 24, "blocks"),
        (needs(registers=128, threads=128), 4, "registers"),
        (needs(registers=96, threads=128, smem=33 * 1024), 2, "shared memory"),
        (needs(registers=41, threads=256), 5, "registers"),
    ],
)
def test_occupancy_of_an_l4(resources: Resources, blocks: int, limiter: str) -> None:
    found = occupancy(resources, L4)
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    assert found.warps_per_sm == blocks * resources.threads // 32
    assert found.fraction == found.warps_per_sm / 48


ORACLE = """\
#include <cstdio>
#include "cuda_occupancy.h"
int main() {
    int major, minor, regs, threads, smem, stat, per_sm, per_block, warps, blocks, registers;
    while (scanf("%d %d %d %d %d %d %d %d %d %d %d", &major, &minor, &per_sm, &per_block, &warps, &blocks, &registers,
                 &regs, &threads, &smem, &stat) == 11) {
        cudaOccDeviceProp device;
        device.computeMajor = major; device.computeMinor = minor;
        device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = 65536; device.regsPerMultiprocessor = registers; device.warpSize = 32;
        device.sharedMemPerBlock = 49152; device.sharedMemPerMultiprocessor = per_sm; device.numSms = 1;
        device.sharedMemPerBlockOptin = per_block; device.reservedSharedMemPerBlock = 1024;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = 1024; kernel.numRegs = regs; kernel.sharedSizeBytes = stat;
        kernel.partitionedGCConfig = PARTITIONED_GC_OFF; kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        kernel.maxDynamicSharedSizeBytes = smem; kernel.numBlockBarriers = 1;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, smem) != 0) return 1;
        printf("%d\\n", result.activeBlocksPerMultiprocessor);
    }
}
"""


def oracle_line(target: Target, resources: Resources) -> str:
    arch = int(target.arch.removeprefix("sm_").rstrip("a"))
    facts = [*divmod(arch, 10), target.smem_per_sm_bytes, target.smem_per_block_bytes, target.max_warps_per_sm]
    facts += [target.max_blocks_per_sm, target.regs_per_sm, resources.registers, resources.threads]
    return " ".join(map(str, [*facts, resources.dynamic_smem_bytes, resources.static_smem_bytes]))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler for NVIDIA's calculator")
def test_occupancy_agrees_with_nvidia(tmp_path: Path) -> None:
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    build = ["g++", "-std=c++17", "-w", *(f"-I{folder}" for folder in header_dirs()), "oracle.cpp", "-o", "oracle"]
    subprocess.run(build, cwd=tmp_path, check=True)
    rng = np.random.default_rng(7)
    targets = [target for target in TARGETS.values() if target.arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")]
    cases = [
        (
            targets[int(rng.integers(len(targets)))],
            needs(
                registers=int(rng.integers(16, 256)),
                threads=32 * int(rng.integers(1, 33)),
                smem=int(rng.choice([0, 1024, int(rng.integers(0, 170_000))])),
                static=int(rng.choice([0, 128])),
            ),
        )
        for _ in range(3000)
    ]
    lines = "\n".join(oracle_line(target, resources) for target, resources in cases)
    truth = subprocess.run(
        [tmp_path / "oracle"], input=lines, capture_output=True, text=True, check=True
    ).stdout.split()
    wrong = [
        (target.name, resources, occupancy(resources, target).blocks_per_sm, int(expected))
        for (target, resources), expected in zip(cases, truth, strict=True)
        if occupancy(resources, target).blocks_per_sm != int(expected)
    ]
    assert wrong == []
    assert len({int(expected) for expected in truth}) > 10


def test_the_spill_limit_names_the_entry_and_can_be_disabled() -> None:
    at_limit = replace(needs(), spill_bytes=SPILL_LIMIT_BYTES)
    beyond = replace(needs(), spill_bytes=SPILL_LIMIT_BYTES + 1)
    binary = Binary("sm_89", b"", "", "c", at_limit, "")
    assert spill_reason(binary, SPILL_LIMIT_BYTES) is None
    reason = spill_reason(replace(binary, resources=beyond), SPILL_LIMIT_BYTES)
    assert re.findall(r"\d+|--[a-z-]+", reason or "") == ["2049", "2048", "--spill-limit"]
    further = replace(binary, further=(("evo_combine", beyond),))
    assert (spill_reason(further, SPILL_LIMIT_BYTES) or "").startswith("evo_combine: 2049 bytes")
    assert spill_reason(further, 0) is None
    assert resource_gate(further, LAUNCH, L4) is None, "a rule of the search, not a limit of the device"
