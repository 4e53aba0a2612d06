"""SASS: the machine code of a cubin as text, from NVIDIA's disassembler, which needs no GPU."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.errors import EvoEngineError, MissingDependencyError
from evoengine.system.temporary import TemporaryFolder

INSTALL_DISASSEMBLER: Final = "python -m pip install 'nvidia-cuda-nvdisasm>=13.2,<14'"
_NAME: Final = "nvdisasm"
_DEFAULT_HOME: Final = "/usr/local/cuda"
_LIMIT_S: Final = 120.0
_LINE: Final = re.compile(r'//## File "([^"]*)", line (\d+)( inlined at)?')
_INSTRUCTION: Final = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.]*)")
_NEVER: Final = ("!PT", "!UPT")
_SECTION: Final = re.compile(r"\.section\s+\.text\.([\w$]+)")


@dataclass(frozen=True)
class MachineInstruction:
    """One instruction of a cubin."""

    opcode: str
    """Opcode with its modifiers: ``LDS.64``."""
    lines: tuple[int, ...]
    """Source line, then the line of the call that it was inlined into, and so on outwards; empty if unknown."""
    disabled: bool
    """Whether its guard is never true. ptxas pads latencies with such instructions: they are issued without effect."""

    @property
    def name(self) -> str:
        """Opcode without modifiers."""
        return self.opcode.split(".")[0]


def find_disassembler(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Finds ``nvdisasm`` on PATH, in the CUDA folder or in its pip wheel; returns None if it is not installed."""
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


def disassemble(cubin: bytes, disassembler: Path | None = None, *, calls: bool = False) -> str:
    """Returns the SASS of a cubin; with line information, each source line stands above its instructions.

    Args:
        cubin: Machine code.
        disassembler: Path of ``nvdisasm``; None searches for it.
        calls: Whether to add, below each source line, the lines of the calls that it was inlined into.

    Raises:
        MissingDependencyError: The disassembler is not installed.
        EvoEngineError: The disassembler failed.
    """
    program = disassembler or find_disassembler()
    if program is None:
        raise MissingDependencyError(f"{_NAME} is not installed: {INSTALL_DISASSEMBLER}")
    with TemporaryFolder() as folder:
        file = folder / "kernel.cubin"
        file.write_bytes(cubin)
        command = [
            str(program),
            "--print-line-info-inline" if calls else "--print-line-info",
            "--print-code",
            str(file),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", check=False, timeout=_LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EvoEngineError(f"{program} failed: {' '.join(str(error).split())[:200]}") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())[:200]
        raise EvoEngineError(f"{program} failed with exit code {done.returncode}: {reason}")
    return done.stdout


def machine_code(sass: str, entry: str) -> tuple[MachineInstruction, ...]:
    """Returns the instructions of one kernel in the order of their addresses.

    Args:
        sass: Text from :func:`disassemble`.
        entry: Name of the kernel.
    """
    found: list[MachineInstruction] = []
    inside, complete = False, True
    lines: tuple[int, ...] = ()
    for text in sass.splitlines():
        section = _SECTION.search(text)
        if section:
            inside, lines = section.group(1) == entry, ()
            continue
        line = _LINE.search(text)
        if line:
            # A line that is not inlined ends the chain.
            lines = (() if complete else lines) + (int(line.group(2)),)
            complete = not line.group(3)
            continue
        instruction = _INSTRUCTION.search(text)
        if inside and instruction:
            guard, opcode = instruction.groups()
            found.append(MachineInstruction(opcode, lines, guard in _NEVER))
            complete = True
    return tuple(found)
