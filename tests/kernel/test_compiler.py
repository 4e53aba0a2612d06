"""Compiling with NVRTC: architectures, ptxas' resources, errors, identity of machine code."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.emulator.screen.screen import screen_ptx
from evoengine.errors import CompileError, UsageError
from evoengine.kernel.abi import PARAM_BYTES, PARAMS_DTYPE
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.elf import sections
from evoengine.kernel.compile.nvrtc import compile_ptx, nvrtc_version, supported_archs
from evoengine.kernel.compile.source_screen import screen_source
from evoengine.kernel.compile.toolchain_check import probe_headers, probe_nvrtc, probe_templates
from evoengine.kernel.records import Source, StepSpec
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value
from evoengine.search.candidate.screening import signature_of
from evoengine.space.loader import find_space, load_space
from evoengine.target import get_target
from tests.kernel.families import ROOT, render, write_family

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90")
FAMILIES = tuple(path.parent.name for path in sorted((ROOT / "templates").glob("*/template.toml")))
HOPPER = ("hopper", "wgmma")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    write_family(folder)
    return folder


@pytest.fixture
def compiler() -> Compiler:
    return Compiler(None)


def edited(source: Source, old: str, new: str) -> Source:
    assert old in source.text
    return replace(source, text=source.text.replace(old, new))


@pytest.mark.parametrize("arch", ARCHS)
def test_cubin_and_ptx_for_every_architecture(family: Path, compiler: Compiler, arch: str) -> None:
    binary = compiler.compile(render(family), arch)
    assert binary.arch == arch
    assert binary.cubin.startswith(b"\x7fELF")
    assert f".target {arch}" in binary.ptx
    assert ".entry evo_attention(" in binary.ptx
    assert ".loc" in binary.ptx, "the emulator reports source lines"
    assert f".param .align 8 .b8 evo_attention_param_0[{PARAM_BYTES}]" in binary.ptx
    assert f"'evo_attention' for '{arch}'" in binary.log
    assert 0 < binary.resources.registers <= 255
    assert binary.resources.threads == 64
    assert binary.resources.smem_bytes == 256


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch"),
    [
        pytest.param(
            name, arch, marks=[] if arch == ("sm_90a" if name in HOPPER else "sm_89") else pytest.mark.thorough
        )
        for name in FAMILIES
        for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
    ],
)
def test_shipped_families_compile(name: str, arch: str, compiler: Compiler) -> None:
    problem = Problem(1, 8, 512, 128, dtype=DType.BF16, causal=True)
    space = load_space(ROOT / "search_spaces" / f"{name}.toml")
    template = TemplateLibrary(ROOT / "templates").load(name)
    reason = template.supports(problem, arch)
    if reason is not None:
        pytest.skip(reason)
    values: dict[str, Value] = {item.name: item.values[0] for item in space.tunables}
    source = template.render(space.config(values), problem, space, get_target("l4"))
    binary = compiler.compile(source, arch)
    assert binary.resources.spill_bytes == 0
    assert screen_source(source.text) == (), "what templates contain is what generated sources may contain"
    assert screen_ptx(binary.ptx, signature_of(source.launch)) == ()


def test_params_have_the_same_layout_on_host_and_device(family: Path, compiler: Compiler) -> None:
    fields = PARAMS_DTYPE.fields
    assert fields is not None
    # NVRTC has no <stddef.h> and no __builtin_offsetof; __INTADDR__ is its front end's operator for constant addresses.
    asserts = "#define offsetof(type, member) __INTADDR__(&((type*)0)->member)\n" + "".join(
        f'static_assert(offsetof(AttentionParams, {name}) == {offset}, "{name}");\n'
        f'static_assert(sizeof(AttentionParams::{name}) == {dtype.itemsize}, "{name}");\n'
        for name, (dtype, offset, *_) in fields.items()
    )
    compiler.compile(edited(render(family), 'extern "C"', asserts + 'extern "C"'), "sm_89")
    wrong = edited(render(family), "    long long q_head_stride;\n", "")
    with pytest.raises(CompileError, match="AttentionParams"):
        compiler.compile(wrong, "sm_89")


SPILLING = """
    float many[96];
    const float* from = static_cast<const float*>(p.q);
    for (int j = 0; j < 96; ++j) many[j] = from[j * p.q_row_stride + i];
    __syncthreads();
    for (int j = 0; j < 96; ++j) static_cast<float*>(p.o)[j * p.o_row_stride + i] = many[95 - j] * many[j];
    __shared__ float fixed[40];
    fixed[threadIdx.x % 40] = many[0];
    __syncthreads();
    if (fixed[threadIdx.x % 7] > 1.0f) return;
"""


def with_body(source: Source, body: str) -> Source:
    return edited(source, "    int lane;\n", f"{body}\n    int lane;\n")


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas as the reference")
@pytest.mark.parametrize("registers", [0, 32])
def test_resources_agree_with_ptxas(family: Path, compiler: Compiler, tmp_path: Path, registers: int) -> None:
    version = subprocess.run(["ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    if f"V{nvrtc_version()}" not in version:
        pytest.skip("ptxas is of another version")
    source = with_body(replace(render(family), maxrregcount=registers), SPILLING)
    source = edited(source, "__launch_bounds__(Cfg::LAUNCH_THREADS)", "")  # launch bounds override the cap
    binary = compiler.compile(source, "sm_89")
    (tmp_path / "copy.ptx").write_text(binary.ptx)
    command = ["ptxas", "-arch=sm_89", "-lineinfo", "-v", "-o", "copy.cubin", "copy.ptx"]
    command += [f"-maxrregcount={registers}"] if registers else []
    log = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    used = re.search(r"Used (\d+) registers.* (\d+) bytes smem", log)
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert used is not None
    assert frame is not None
    ours = binary.resources
    assert (ours.registers, ours.static_smem_bytes) == (int(used[1]), int(used[2]))
    assert (ours.stack_bytes, ours.spill_bytes) == (int(frame[1]), int(frame[2]) + int(frame[3]))
    assert (ours.spill_bytes > 0) == (registers == 32)
    assert ours.smem_bytes == int(used[2]) + 256
    assert code_of((tmp_path / "copy.cubin").read_bytes()) == code_of(binary.cubin)


def code_of(cubin: bytes) -> bytes:
    return next(section.data for section in sections(cubin) if section.name == ".text.evo_attention")


def test_the_first_error_is_reported_on_one_line(family: Path, compiler: Compiler) -> None:
    source = edited(render(family), "const int i =", "const int i = nowhere +")
    line = source.text[: source.text.index("nowhere")].count("\n") + 1
    with pytest.raises(CompileError) as caught:
        compiler.compile(source, "sm_89")
    assert str(caught.value) == f'copy.cu({line}): error: identifier "nowhere" is undefined'


def test_an_error_of_ptxas_is_reported(family: Path, compiler: Compiler) -> None:
    with pytest.raises(CompileError, match=r"ptxas .*error"):
        compiler.compile(with_body(render(family), 'asm volatile("bogus.b32 %0;" :: "r"(i));'), "sm_89")


def test_a_text_without_the_kernel_is_refused(family: Path, compiler: Compiler) -> None:
    with pytest.raises(CompileError, match="without a kernel evo_attention"):
        compiler.compile(edited(render(family), "evo_attention(", "other_name("), "sm_89")


@pytest.mark.parametrize("arch", ["sm_12", "ampere", ""])
def test_an_unknown_architecture_is_a_usage_error(family: Path, compiler: Compiler, arch: str) -> None:
    with pytest.raises(UsageError, match="gpu-architecture"):
        compiler.compile(render(family), arch)


def test_a_missing_header_of_cccl_names_its_wheel() -> None:
    with pytest.raises(CompileError, match="nvidia-cuda-cccl"):
        compile_ptx("#include <nv/a_header_of_nobody>")


def test_included_headers_are_found(family: Path, compiler: Compiler) -> None:
    text = edited(render(family), "struct Pair", "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nstruct Pair")
    body = "    static_cast<__half*>(p.o)[i] = __float2half(static_cast<float>(i));"
    assert "cvt.rn.f16.f32" in compiler.compile(with_body(text, body), "sm_89").ptx


INTERRUPTED_COMPILATION = """
import os, signal, threading, time
from evoengine.kernel.compile.nvrtc import run_nvrtc
received, compiled = set(), False
def receive(number, _):
    received.add(number)
    if compiled:
        os._exit(len(received))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, receive)
parent, child = os.getpid(), os.fork()
if child == 0:
    while os.getppid() == parent:
        os.kill(parent, signal.SIGINT)
        os.kill(parent, signal.SIGTERM)
        time.sleep(0.002)
    os._exit(0)
run_nvrtc("", "/empty.cu", ["-arch=compute_80"])
lock = threading.Lock()
lock.acquire()
compiled = len(received) == 2
lock.acquire()
"""


def test_signals_reach_the_handlers_of_the_program_during_and_after_a_compilation() -> None:
    command = [sys.executable, "-c", INTERRUPTED_COMPILATION]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 2, done


def test_the_working_directory_does_not_leak(
    family: Path, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = compiler.compile(render(family), "sm_89")
    monkeypatch.chdir(tmp_path)
    there = compiler.compile(render(family), "sm_89")
    assert (here.cubin, here.ptx) == (there.cubin, there.ptx)
    assert str(tmp_path).encode() not in there.cubin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arch"),
    [*itertools.product(("mma", "scalar", "wmma"), ("sm_89", "sm_90"))],
)
@pytest.mark.thorough
def test_line_information_changes_no_instruction(name: str, arch: str, compiler: Compiler) -> None:
    problem, target = Problem(1, 2, 128, 64), get_target("h200").compiled_for(arch)
    space = find_space(name)
    config = next(iter(space.build(problem, target).starts()))
    source = TemplateLibrary(ROOT / "templates").load(name).render(config, problem, space, target)
    with_lines, without = compiler.compile(source, arch), Compiler(None, line_info=False).compile(source, arch)
    assert ".loc" in with_lines.ptx
    assert ".loc" not in without.ptx
    assert without.code_hash == with_lines.code_hash
    assert without.resources == with_lines.resources
    assert len(without.cubin) < len(with_lines.cubin)


class TestCodeHash:
    """Equal machine code has equal hashes; code or launches that behave differently have different hashes."""

    def hash_of(self, source: Source, arch: str = "sm_89") -> str:
        return Compiler(None).compile(source, arch).code_hash

    def test_comments_lines_and_names_are_ignored(self, family: Path) -> None:
        source = render(family)
        commented = edited(source, "    int lane;\n", "\n\n    // a comment\n    int lane;\n")
        renamed = replace(source, text=re.sub(r"\bstaging\b", "buffer", source.text))
        assert self.hash_of(source) == self.hash_of(commented) == self.hash_of(renamed)

    def test_unused_constants_are_ignored(self, family: Path) -> None:
        source = render(family)
        texts = [edited(source, "struct Pair", f"constexpr int UNUSED = {n};\nstruct Pair") for n in (1, 2)]
        assert self.hash_of(texts[0]) == self.hash_of(texts[1])

    def test_a_register_cap_without_effect_is_ignored(self, family: Path) -> None:
        assert self.hash_of(render(family)) == self.hash_of(render(family, {"REGISTERS": 128}))

    def test_tunables_without_effect_are_ignored(self, family: Path) -> None:
        assert self.hash_of(render(family)) == self.hash_of(render(family, {"PLACE": "direct"}))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (" + 1);", " + 2);"),
            ("{3, 4}", "{3, 5}"),
            ("{1, 2}, {3", "{1, 2}, {7"),
            ("seq_q)\n", "seq_kv)\n"),
        ],
    )
    def test_a_change_of_code_or_of_a_constant_changes_the_hash(self, family: Path, old: str, new: str) -> None:
        source = render(family)
        assert self.hash_of(source) != self.hash_of(edited(source, old, new))

    def test_a_used_global_changes_the_hash(self, family: Path) -> None:
        body = "    if (p.seq_q == 77) seed[1] = i;\n    if (p.seq_kv == 5 && seed[0] == 9) return;"
        texts = [
            with_body(edited(render(family), "struct Pair", f"__device__ int seed[2] = {{{n}, 1}};\nstruct Pair"), body)
            for n in (3, 4)
        ]
        assert self.hash_of(texts[0]) != self.hash_of(texts[1])

    def test_the_launch_and_the_architecture_change_the_hash(self, family: Path) -> None:
        source = render(family)
        threads = replace(source, launch=replace(source.launch, threads=32))
        smem = replace(source, launch=replace(source.launch, smem_bytes=512))
        hashes = {self.hash_of(source), self.hash_of(threads), self.hash_of(smem), self.hash_of(source, "sm_86")}
        assert len(hashes) == 4

    def test_names_in_the_grid_change_the_hash(self, family: Path) -> None:
        source = render(family)
        names = dict(source.launch.names)
        split = replace(source.launch, grid=("ceil_div(seq_q, ROWS) * FACTOR", "heads", "batch"))
        hashes = [
            self.hash_of(replace(source, launch=replace(split, names=tuple({**names, **changed}.items()))))
            for changed in ({}, {"FACTOR": 2}, {"REGISTERS": 64})
        ]
        assert len(set(hashes)) == 2
        assert hashes[0] == hashes[2] != self.hash_of(source)


COMBINE = """
extern "C" __global__ void evo_combine(const __grid_constant__ AttentionParams p) {
    __shared__ float sums[64];
    sums[threadIdx.x] = p.lse[threadIdx.x];
    __syncthreads();
    p.lse[threadIdx.x] = sums[threadIdx.x ^ 1];
}
"""


def test_a_second_entry_has_its_own_resources(family: Path, compiler: Compiler) -> None:
    source = render(family)
    then = (StepSpec("evo_combine", ("1", "1", "1"), 64, 32),)
    two = replace(source, text=source.text + COMBINE, launch=replace(source.launch, then=then))
    binary = compiler.compile(two, "sm_89")
    assert binary.resources == compiler.compile(source, "sm_89").resources
    combine = binary.needs("evo_combine")
    assert (combine.static_smem_bytes, combine.dynamic_smem_bytes, combine.threads) == (256, 32, 64)
    assert 0 < combine.registers < 64
    with pytest.raises(CompileError, match="without a kernel evo_combine"):
        compiler.compile(replace(two, text=source.text), "sm_89")


def test_sections_agree_with_the_resources(family: Path, compiler: Compiler) -> None:
    binary = compiler.compile(with_body(render(family), SPILLING), "sm_89")
    by_name = {section.name: section for section in sections(binary.cubin)}
    assert by_name[".nv.shared.evo_attention"].size >= binary.resources.static_smem_bytes
    assert len(by_name[".text.evo_attention"].data) == by_name[".text.evo_attention"].size > 0


@pytest.mark.parametrize("data", [b"", b"not an ELF", b"\x7fELF\x02\x01" + b"\0" * 20])
def test_other_bytes_than_elf_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        list(sections(data))


def test_probes() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", nvrtc_version())
    assert {80, 86, 89, 90} <= set(supported_archs())
    nvrtc = probe_nvrtc()
    assert nvrtc.ok
    assert nvrtc_version() in nvrtc.detail
    assert probe_headers().ok
    assert probe_templates().ok
