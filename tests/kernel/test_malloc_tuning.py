"""Heap of a compile worker: freed memory is kept, and machine code does not depend on it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import hashlib, json, resource, sys
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.compile.nvrtc import run_nvrtc

if "keep" in sys.argv:
    keep_freed_memory()
body = "".join(f"if (x[{n}] > {n}.0f) x[{n + 1}] = x[{n}] * {n}.5f + sqrtf(x[{n}]);" for n in range(200))
text = 'extern "C" __global__ void k(float* x) {' + body + "}"
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = run_nvrtc(text, "/k.cu", ["-arch=sm_90"])
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(json.dumps([faults, hashlib.sha256(made.cubin).hexdigest()]))
"""


def _second_compilation(*arguments: str) -> tuple[int, str]:
    """Returns the page faults of a second compilation and the hash of its cubin."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    faults, digest = json.loads(done.stdout)
    return faults, digest


@pytest.mark.thorough
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc's heap")
def test_a_second_compilation_reuses_the_heap() -> None:
    kept, same = _second_compilation("keep")
    given_back, code = _second_compilation()
    assert kept < given_back / 4
    assert same == code
