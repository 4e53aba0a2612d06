"""Screening of generated kernels: the checks before anything executes a kernel whose source is not ours."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.screen.records import Access, PointerField, Signature
from evoengine.emulator.screen.screen import screen_ptx
from evoengine.errors import ScreenError
from evoengine.kernel.abi import PARAMS_DTYPE
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, LaunchSpec, Source
from evoengine.kernel.tensor_maps import MAP_BYTES

_INPUTS: Final = ("q", "k", "v", "sink")
_OFFSETS: Final = ("cu_seqlens_q", "cu_seqlens_kv")
_OUTPUTS: Final = ("o", "lse")


def signature_of(launch: LaunchSpec) -> Signature:
    """Returns what the arguments of a launch's entries may be used for."""
    fields = [(name, Access.READ, name in _OFFSETS) for name in (*_INPUTS, *_OFFSETS)]
    fields += [(name, Access.WRITE, False) for name in _OUTPUTS]
    fields += [("workspace", Access.READ | Access.WRITE, False), ("counters", Access.ATOMIC, True)]
    dtypes = PARAMS_DTYPE.fields
    assert dtypes is not None, "the argument is a record"
    return Signature(
        entries=launch.entries,
        argument_bytes=PARAMS_DTYPE.itemsize,
        pointers=tuple(PointerField(name, dtypes[name][1], access, indexes) for name, access, indexes in fields),
        maps=tuple(Access.WRITE if item.tensor == "o" else Access.READ for item in launch.maps),
        map_bytes=MAP_BYTES,
    )


def screened_kernel(compiler: Compiler, source: Source, arch: str, *, admitted: bool = False) -> Kernel:
    """Compiles a source, and screens the result if the source is untrusted.

    Args:
        compiler: Compiler, which screens and confines untrusted sources.
        source: Source to compile.
        arch: Architecture to compile for.
        admitted: Whether a GPU may run the kernel although its source is untrusted.

    Raises:
        ScreenError: It contains what no generated kernel may contain.
        CompileError: It does not compile.
    """
    kernel = Kernel(source, compiler.compile(source, arch), admitted=admitted)
    screen_kernel(kernel)
    return kernel


def screen_kernel(kernel: Kernel) -> None:
    """Screens the PTX of a compiled kernel if its source is untrusted.

    Raises:
        ScreenError: It contains what no generated kernel may contain; the message names the first finding.
    """
    if not kernel.source.untrusted:
        return
    found = screen_ptx(kernel.binary.ptx, signature_of(kernel.source.launch))
    if found:
        raise ScreenError(f"{kernel.config.family}: {found[0]}")
