"""Compiling in the sandbox: the same binary, no file, bounded time; screened sources."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import CompileError, ScreenError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.nvrtc import header_dirs, run_nvrtc
from evoengine.kernel.compile.sandbox import NAMESPACES, run_sandboxed
from evoengine.kernel.compile.source_screen import SourceRule, screen_source
from evoengine.kernel.records import Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.parity.mutants.mma import BASE
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.kernel.families import ROOT, render, write_family

OPTIONS = ("-arch=sm_89", "--std=c++17", "-default-device", "--ptxas-options=-v")
KERNEL = 'extern "C" __global__ void kernel(int* x) { *x = VALUE; }\n'


def test_the_binary_is_that_of_an_ordinary_compilation(tmp_path: Path) -> None:
    write_family(tmp_path)
    source = render(tmp_path)
    ordinary = Compiler(None).compile(source, "sm_89")
    assert Compiler(None).compile(replace(source, untrusted=True), "sm_89") == ordinary


def tensor_core_kernel() -> Source:
    """A kernel that the options of a debug build change."""
    space = find_space("mma")
    library, target = TemplateLibrary(data_dir("templates")), get_target("l4")
    return library.load("mma").render(space.config(BASE), Problem(1, 8, 512, 64), space, target)


BESIDE_CUDNN = """import mmap, sys
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.nvrtc import compile_ptx
from tests.kernel.test_sandbox import tensor_core_kernel
with open(sys.argv[1], "rb") as file:
    loaded = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
compile_ptx('extern "C" __global__ void other(float* x) { *x *= 2; }', "sm_89", "-G")
print(Compiler(None).compile(tensor_core_kernel(), "sm_89").code_hash)
"""
"""Script for a separate process, in which another library has left NVRTC with the options of a debug build."""


@pytest.mark.parametrize("library", ["libcudnn.so.9", pytest.param("another.so", marks=pytest.mark.thorough)])
def test_other_users_of_nvrtc_do_not_change_the_code(tmp_path: Path, library: str) -> None:
    (tmp_path / library).write_bytes(b"x")
    command = [sys.executable, "-c", BESIDE_CUDNN, str(tmp_path / library)]
    beside = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    alone = Compiler(None).compile(tensor_core_kernel(), "sm_89").code_hash
    assert (beside == alone) == (library == "libcudnn.so.9"), "without a sandbox the code differs"


def test_headers_are_passed_in_memory() -> None:
    text = "#include <mma.h>\n" + KERNEL.replace("VALUE", "sizeof(nvcuda::wmma::mem_row_major)")
    made = run_sandboxed(text, "/kernel.cu", OPTIONS)
    folders = [f"--include-path={folder}" for folder in header_dirs()]
    assert made.compilation == run_nvrtc(text, "/kernel.cu", [*OPTIONS, *folders])
    assert {"limits", "capabilities"} <= set(made.confinement) <= {"limits", "capabilities", "folder", NAMESPACES}


@pytest.mark.parametrize("name", ['"/etc/hostname"', "</etc/passwd>", '"../../etc/passwd"', '"/proc/self/environ"'])
def test_no_file_can_be_included(name: str) -> None:
    with pytest.raises(CompileError, match="cannot open source file"):
        run_sandboxed(f"#include {name}\n", "/kernel.cu", OPTIONS)


def test_no_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    text = f'#if __has_include("{tmp_path}/there")\n#error seen\n#endif\n' + KERNEL.replace("VALUE", "1")
    assert run_sandboxed(text, "/kernel.cu", OPTIONS).compilation.cubin
    with pytest.raises(CompileError, match="seen"):
        run_nvrtc(text, "/kernel.cu", OPTIONS)


@pytest.mark.slow
def test_a_source_that_compiles_for_ever_is_stopped() -> None:
    endless = (
        "template<int N, int M> struct Deep { static constexpr int value = Deep<N - 1, 2 * M>::value + "
        "Deep<N - 1, 2 * M + 1>::value; };\ntemplate<int M> struct Deep<0, M> { static constexpr int value = M; };\n"
        + KERNEL.replace("VALUE", "Deep<26, 0>::value")
    )
    with pytest.raises(CompileError, match="limit was exceeded"):
        run_sandboxed(endless, "/kernel.cu", OPTIONS, limit_s=2.0)


def test_comments_and_assembly_are_no_directives() -> None:
    text = (
        "int x = 1000; auto c = L'\\'';\n"
        "// # include <x>, 10 %: __TIME__\n/* #error\n# include <y> */\n#define JOINED(a) \\\n    (a)\n"
        '#pragma unroll 4\n#include <mma.h>\nconst char* text = "# ## %: ??";\n'
    )
    assert screen_source(text) == ()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (SourceRule.TEXT, "int x;\0"),
        (SourceRule.TEXT, "int x;\x1b[31m"),
        (SourceRule.TEXT, "x" * (1 << 21)),
        (SourceRule.SPELLING, "?" + "?=include <mma.h>"),
        (SourceRule.SPELLING, "int a<:3:>;"),
        (SourceRule.SPELLING, "// goes on \\ \n#include <mma.h>"),
        (SourceRule.SPELLING, "#define JOINED(a, b) '\"' a##b '\"'"),
        (SourceRule.INCLUDE, 'auto quote = u\'"\'; auto text = "/*";\n#include <x>\n/* */'),
        (SourceRule.SPELLING, "int x = 1'000;"),
        (SourceRule.INCLUDE, '#include "mma.h"'),
        (SourceRule.INCLUDE, "#include <mma.h> extra"),
        (SourceRule.INCLUDE, "#include <../mma.h>"),
        (SourceRule.INCLUDE, "  #  include_next <mma.h>"),
        (SourceRule.DIRECTIVE, "#embed </etc/passwd>"),
        (SourceRule.DIRECTIVE, "#pragma nv_diag_suppress 1"),
        (SourceRule.DIRECTIVE, "#error text"),
        (SourceRule.DIRECTIVE, "/**/#line 3"),
        (SourceRule.IDENTIFIER, 'int x = __has_include("y");'),
    ],
)
def test_what_a_generated_source_may_not_contain(rule: SourceRule, text: str) -> None:
    wanted = {SourceRule.INCLUDE, SourceRule.DIRECTIVE} if "include_next" in text else {rule}
    assert {finding.rule for finding in screen_source(text)} & wanted


SKIPPED = '#if 0\n{}\n#endif\n#include "/nowhere/x.h"\n#if 0\n*/ {}\n#endif\n'


@pytest.mark.parametrize(
    ("line", "last"),
    [("don't /*", "'\""), ("1'0'\"'\"'\" /*'", ""), ("\u0663'a'\"'\"'\" /*'", ""), ("\u00e91'a'\"'\"'\" /*'", "")],
)
def test_no_quote_hides_an_include_that_the_compiler_sees(line: str, last: str) -> None:
    text = SKIPPED.format(line, last)
    with pytest.raises(CompileError, match=r"x\.h"):
        run_nvrtc(text + KERNEL.replace("VALUE", "1"), "/kernel.cu", OPTIONS)
    assert [finding.rule for finding in screen_source(text)] == [SourceRule.SPELLING]


def test_an_untrusted_source_is_screened_before_the_compiler_sees_it(tmp_path: Path) -> None:
    write_family(tmp_path)
    source = render(tmp_path)
    changed = replace(source, text=source.text + '#include "/etc/hostname"\n', untrusted=True)
    with pytest.raises(ScreenError, match="include: line"):
        Compiler(None).compile(changed, "sm_89")
