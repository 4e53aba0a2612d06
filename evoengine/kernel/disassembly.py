"""SASS: the machine code of a cubin as text, by NVIDIA's disassembler, which needs no GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evoengine.errors import EvoEngineError, MissingDependencyError

INSTALL_DISASSEMBLER: Final = "python -m pip install 'nvidia-cuda-nvdisasm>=13.2,<14'"
_NAME: Final = "nvdisasm"
_DEFAULT_HOME: Final = "/usr/local/cuda"
_LIMIT_S: Final = 120.0
_LINE: Final = re.compile(r'//## File "([^"]*)", line (\d+)')
_INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_]*)")
_NEVER: Final = ("!PT", "!UPT")
"""Guards of instructions that no lane executes: ptxas writes some to fill time."""
_SECTION: Final = re.compile(r"\.section\s+\.text\.([\w$]+)")


def find_disassembler(environment: Mapping[str, str] = os.environ) -> Path | None:
    """``nvdisasm`` on PATH, in CUDA's folder, or from its pip wheel; None where there is none."""
    homes = (environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), _DEFAULT_HOME)
    spec = importlib.util.find_spec("nvidia")
    wheels = (
        [Path(root) / f"cu{major}" for root in (spec.submodule_search_locations or ()) for major in (13, 12)]
        if spec
        else []
    )
    folders = [environment.get("PATH", ""), *(str(Path(home) / "bin") for home in (*homes, *wheels) if home)]
    found = shutil.which(_NAME, path=os.pathsep.join(folders))
    return None if found is None else Path(found)


def disassemble(cubin: bytes, disassembler: Path | None = None) -> str:
    """The SASS of a cubin, with the source line above each run of instructions where the cubin has line information.

    Raises:
        MissingDependencyError: there is no disassembler.
        EvoEngineError: it failed.
    """
    program = disassembler or find_disassembler()
    if program is None:
        raise MissingDependencyError(f"{_NAME} is not installed: {INSTALL_DISASSEMBLER}")
    with tempfile.TemporaryDirectory(prefix="evoengine-") as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [str(program), "--print-line-info", "--print-code", str(file)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EvoEngineError(f"{program} failed: {' '.join(str(error).split())[:200]}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:200]
        raise EvoEngineError(f"{program} failed with exit code {done.returncode}: {said}")
    return done.stdout


def opcodes_by_line(sass: str, entry: str) -> dict[int, Counter[str]]:
    """How many instructions of each opcode (``HMMA``, ``LDSM``, ``LDS`` …) each source line has, 0 for no line.

    Those that never execute are left out.

    Args:
        sass: what :func:`disassemble` returned.
        entry: the kernel.
    """
    found: dict[int, Counter[str]] = {}
    inside, line = False, 0
    for text in sass.splitlines():
        section = _SECTION.search(text)
        if section:
            inside, line = section.group(1) == entry, 0
            continue
        place = _LINE.search(text)
        if place:
            line = int(place.group(2))
            continue
        instruction = _INSTRUCTION.search(text)
        if inside and instruction and instruction.group(1) not in _NEVER:
            found.setdefault(line, Counter())[instruction.group(2)] += 1
    return found
