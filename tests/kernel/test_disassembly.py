"""Machine code as text: counting opcodes by source line, on recorded text and, where nvdisasm is, on a real cubin."""

from __future__ import annotations

import pytest

from evoengine.errors import EvoEngineError, MissingDependencyError
from evoengine.kernel import disassembly
from evoengine.kernel.nvrtc import run_nvrtc

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
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0038*/              @!PT LDS RZ, [RZ] ;
        /*0040*/              @UP1 UMOV UR4, URZ ;
	//## File "/mma.cu", line 12
        /*0050*/                   LDS.64 R6, [R3] ;
"""
SOURCE = """extern "C" __global__ void k(float* y) {
  __shared__ float s[64];
  s[threadIdx.x ^ 1] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}"""


def test_opcodes_by_line() -> None:
    found = disassembly.opcodes_by_line(SASS, "evo_attention")
    assert found == {0: {"LDC": 1}, 12: {"S2R": 1, "LDS": 2}, 13: {"HMMA": 1, "UMOV": 1}}
    assert disassembly.opcodes_by_line(SASS, "other") == {7: {"EXIT": 1}}


def test_without_a_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembly, "find_disassembler", lambda: None)
    with pytest.raises(MissingDependencyError, match="nvidia-cuda-nvdisasm"):
        disassembly.disassemble(b"")


@pytest.mark.skipif(disassembly.find_disassembler() is None, reason="nvdisasm is not installed")
def test_a_real_cubin() -> None:
    cubin = run_nvrtc(SOURCE, "/k.cu", ["-arch=sm_89", "-lineinfo", "-default-device"]).cubin
    found = disassembly.opcodes_by_line(disassembly.disassemble(cubin), "k")
    assert found[3]["STS"] == 1
    assert found[5]["LDS"] == 1
    with pytest.raises(EvoEngineError, match="nvdisasm"):
        disassembly.disassemble(b"no cubin")
