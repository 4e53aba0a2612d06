"""The sabotage control: in the place of a candidate that passed the gate, a kernel that does nothing must fail it.

It fails only if the outputs that are judged are those of the launch that was asked for: not left over from another one,
not made by another kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace

from evoengine.device.protocols import Device
from evoengine.errors import DefectError
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Binary, Kernel
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase


class NoOpControl:
    """Puts no-ops in the place of kernels; compiles one for each set of entries."""

    def __init__(self) -> None:
        self._compiler = Compiler(None)
        self._binaries: dict[tuple[str, tuple[str, ...]], Binary] = {}

    def control(self, device: Device, kernel: Kernel, cases: Iterable[ParityCase]) -> None:
        """Runs a no-op with the launches of a kernel through the gate.

        Args:
            device: where the kernel ran.
            kernel: passed the gate.
            cases: those that it passed.

        Raises:
            DefectError: the no-op passed as well.
            LaunchError: the device does not take the launch this time.
        """
        with closing(device.load(self._no_op(kernel))) as loaded:
            verdict = run_gate(loaded, cases)
        if verdict.passed:
            raise DefectError(
                f"a kernel that does nothing passed the parity gate in the place of {kernel.config.key}: "
                "no verdict can be believed"
            )

    def _no_op(self, kernel: Kernel) -> Kernel:
        entries = kernel.source.launch.entries
        source = replace(kernel.source, text=_text(entries), source_hash="no-op", maxrregcount=0)
        key = (kernel.binary.arch, entries)
        if key not in self._binaries:
            self._binaries[key] = self._compiler.compile(source, kernel.binary.arch)
        return Kernel(source, self._binaries[key])


def _text(entries: tuple[str, ...]) -> str:
    params = f"struct Params {{ unsigned long long words[{PARAM_BYTES // 8}]; }};\n"
    return params + "".join(
        f'extern "C" __global__ void {entry}(const __grid_constant__ Params p) {{}}\n' for entry in entries
    )
