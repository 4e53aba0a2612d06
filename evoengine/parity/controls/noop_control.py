"""No-op control: the gate must reject a kernel that does nothing, run in place of a candidate that passed.

The no-op fails only if the compared output comes from the requested launch. It passes if the output was left over from
an earlier launch or written by another kernel.
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
from evoengine.kernel.tensor_maps import MAP_BYTES
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase


class NoOpControl:
    """Runs no-ops in place of kernels; compiles one no-op per set of entries and number of tensor maps."""

    def __init__(self) -> None:
        self._compiler = Compiler(None)
        self._binaries: dict[tuple[str, tuple[str, ...], int], Binary] = {}

    def control(self, device: Device, kernel: Kernel, cases: Iterable[ParityCase]) -> None:
        """Runs a no-op with the launches of a kernel through the gate.

        Args:
            device: Device that ran the kernel.
            kernel: Kernel that passed the gate.
            cases: Cases that it passed.

        Raises:
            DefectError: The no-op passed as well.
            LaunchError: The device rejected the launch.
        """
        with closing(device.load(self._no_op(kernel))) as loaded:
            verdict = run_gate(loaded, cases)
        if verdict.passed:
            raise DefectError(
                f"a kernel that does nothing passed the parity gate in the place of {kernel.config.key}: "
                "no verdict is reliable; please report it"
            )

    def _no_op(self, kernel: Kernel) -> Kernel:
        entries, maps = kernel.source.launch.entries, len(kernel.source.launch.maps)
        source = replace(kernel.source, text=_text(entries, maps), source_hash="no-op", maxrregcount=0, untrusted=False)
        key = (kernel.binary.arch, entries, maps)
        if key not in self._binaries:
            self._binaries[key] = self._compiler.compile(source, kernel.binary.arch)
        return Kernel(source, self._binaries[key])


def _text(entries: tuple[str, ...], maps: int) -> str:
    structs = f"struct Params {{ unsigned long long words[{PARAM_BYTES // 8}]; }};\n"
    arguments = "const __grid_constant__ Params p"
    if maps:
        structs += f"struct __align__(128) Maps {{ unsigned char bytes[{maps * MAP_BYTES}]; }};\n"
        arguments += ", const __grid_constant__ Maps maps"
    return structs + "".join(f'extern "C" __global__ void {entry}({arguments}) {{}}\n' for entry in entries)
