"""Disassembly: opcodes and source lines of recorded text and, if nvdisasm is installed, of a real cubin."""

from __future__ import annotations

import pytest

from evoengine.errors import EvoEngineError, MissingDependencyError
from evoengine.kernel.compile import disassembly
from evoengine.kernel.compile.line_table import source_lines
from evoengine.kernel.compile.nvrtc import run_nvrtc

SASS = """	.target	sm_90

//--------------------- .text.other          --------------------------
	.section	.text.other,"ax",@progbits
	//## File "/mma.cu", line 7
        /*0000*/                   EXIT ;
//--------------------- .text.evo_attention  --------------------------
	.section	.text.evo_attention,"ax",@progbits
evo_attention:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/mma.cu", line 12
        /*0010*/                   S2R R3, SR_TID.X ;
        /*0020*/              @!P0 LDS.128 R4, [R2] ;
	//## File "/mma.cu", line 13 inlined at "/mma.cu", line 40
	//## File "/mma.cu", line 40
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0038*/              @!PT LDS RZ, [RZ] ;
        /*0040*/              @UP1 UMOV UR4, URZ ;
	//## File "/mma.cu", line 12
        /*0050*/                   LDS.64 R6, [R3] ;
"""
SOURCE = """
__shared__ float s[64];
__device__ void put(int at, float value) {
  s[at] = value;
}
extern "C" __global__ void k(float* y) {
  put(threadIdx.x ^ 1, y[threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}"""


def test_machine_code() -> None:
    found = disassembly.machine_code(SASS, "evo_attention")
    assert [(one.opcode, one.lines) for one in found] == [
        ("LDC", ()),
        ("S2R", (12,)),
        ("LDS.128", (12,)),
        ("HMMA.16816.F32", (13, 40)),
        ("LDS", (13, 40)),
        ("UMOV", (13, 40)),
        ("LDS.64", (12,)),
    ]
    assert [one.opcode for one in found if one.disabled] == ["LDS"]
    assert found[3].name == "HMMA"
    assert [one.lines for one in disassembly.machine_code(SASS, "other")] == [(7,)]


def test_lines_without_calls() -> None:
    short = SASS.replace('	//## File "/mma.cu", line 40\n', "")
    assert [one.lines for one in disassembly.machine_code(short, "evo_attention")][-4:] == [(13,), (13,), (13,), (12,)]


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembly, "find_disassembler", lambda: None)
    with pytest.raises(MissingDependencyError, match="nvidia-cuda-nvdisasm"):
        disassembly.disassemble(b"")


@pytest.mark.skipif(disassembly.find_disassembler() is None, reason="nvdisasm is not installed")
def test_a_real_cubin() -> None:
    cubin = run_nvrtc(SOURCE, "/k.cu", ["-arch=sm_89", "-lineinfo", "-default-device"]).cubin
    found = disassembly.machine_code(disassembly.disassemble(cubin, calls=True), "k")
    assert [one.lines for one in found if one.name == "STS"] == [(4, 7)]
    assert [one.lines for one in found if one.name == "LDS"] == [(9,)]
    from_ptx = source_lines(run_nvrtc(SOURCE, "/k.cu", ["-arch=compute_89", "-lineinfo", "-default-device"]).ptx)
    assert {(4, 7), (9,)} <= set(from_ptx.values())
    with pytest.raises(EvoEngineError, match="nvdisasm"):
        disassembly.disassemble(b"no cubin")
