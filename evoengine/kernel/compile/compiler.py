"""Source to binary: compiles with NVRTC for a real architecture and reads the resources from ptxas' report."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from evoengine.errors import CompileError, ScreenError
from evoengine.kernel.compile.cache import DiskCache
from evoengine.kernel.compile.elf import hash_code
from evoengine.kernel.compile.nvrtc import NvrtcOutput, has_other_users, header_dirs, nvrtc_version, run_nvrtc
from evoengine.kernel.compile.sandbox import run_sandboxed
from evoengine.kernel.compile.source_screen import screen_source
from evoengine.kernel.records import Binary, CompileOptions, LaunchSpec, Source
from evoengine.kernel.resources import parse_resources
from evoengine.kernel.tensor_maps import MAP_BYTES
from evoengine.space.language.expression import names_in

_KEY_FORMAT: Final = "2"
"""Version of the cache entries' contents. Entries of version 1 may have been compiled beside cuDNN."""
_FIRST_WITH_CACHE: Final = (12, 9)
_HEADER_PACKAGES: Final = (
    "nvidia-cuda-runtime",
    "nvidia-cuda-crt",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-cccl",
    "nvidia-cuda-cccl-cu12",
)
_INCLUDE: Final = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([\w./]+)>", re.MULTILINE)
_GLOBAL_VARIABLE: Final = re.compile(
    r"\s*(?:\.(?:visible|extern|weak|common)\s+)*\.global\s[^;=\[]*?([\w$]+)\s*(?:[=\[;])"
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_$][\w$]*")


class Compiler:
    """Compiles sources for one process; processes share the cache on disk.

    Args:
        cache_dir: Folder of the cache; None disables it.
        line_info: Whether binaries map instructions to source lines. The instructions are the same; compilation takes
            about 3 % longer and the binary is about three times as large.
    """

    def __init__(self, cache_dir: Path | None, *, line_info: bool = True) -> None:
        self._cache = DiskCache(cache_dir)
        self._line_info = line_info

    def compile(self, source: Source, arch: str) -> Binary:
        """Compiles a source to cubin and PTX; an untrusted one is screened first and compiled in a sandbox.

        Where another library in this process uses NVRTC too, every source is compiled in the sandbox: the machine code
        must not depend on what that library has compiled.

        Args:
            source: Rendered kernel.
            arch: Real architecture, for example ``sm_89``.

        Raises:
            ScreenError: An untrusted source contains what generated code must not contain.
            CompileError: NVRTC or ptxas rejected the source; the message is the first error.
            UsageError: NVRTC does not support the architecture.
            MissingDependencyError: NVRTC, or a header that the source includes, is not installed.
        """
        if source.untrusted:
            _screen(source)
        options = CompileOptions(arch, source.maxrregcount, self._line_info)
        arguments = _nvrtc_options(options)
        identity = [_KEY_FORMAT, nvrtc_version(), *arguments]
        headers = _INCLUDE.findall(source.text)
        if headers:
            identity += _header_versions()
        name = f"/{source.config.family}.cu"
        key = _hash([*identity, name, source.text])
        stored = self._cache.get(key)
        if stored is not None and len(stored) == 3:
            return _binary(source, arch, NvrtcOutput(stored[0], stored[1].decode(), stored[2].decode()))
        if source.untrusted or has_other_users():
            made = run_sandboxed(source.text, name, arguments).compilation
        else:
            folders = header_dirs(headers) if headers else ()
            made = run_nvrtc(source.text, name, (*arguments, *(f"--include-path={folder}" for folder in folders)))
        binary = _binary(source, arch, made)
        self._cache.put(key, (made.cubin, made.ptx.encode(), made.log.encode()))
        return binary


def _screen(source: Source) -> None:
    found = screen_source(source.text)
    if found:
        raise ScreenError(f"{source.config.family}.cu: {found[0]}")


def _nvrtc_options(options: CompileOptions) -> tuple[str, ...]:
    """Returns the options for NVRTC.

    Fast math stays off: a template that uses an approximation states it in the code. NVRTC's own cache (since 12.9,
    with a driver) is off too, because its results lack ptxas' report.
    """
    return (
        f"-arch={options.arch}",
        "--std=c++17",
        "-default-device",
        "--ptxas-options=-v",
        *(("--no-cache",) if _nvrtc_release() >= _FIRST_WITH_CACHE else ()),
        *(("-lineinfo",) if options.line_info else ()),
        *((f"--maxrregcount={options.maxrregcount}",) if options.maxrregcount > 0 else ()),
    )


def _nvrtc_release() -> tuple[int, ...]:
    return tuple(int(part) for part in nvrtc_version().split(".")[:2])


def _binary(source: Source, arch: str, made: NvrtcOutput) -> Binary:
    found = parse_resources(made.log, source.launch) if made.cubin else {}
    missing = [entry for entry in source.launch.entries if entry not in found]
    if missing:
        raise CompileError(f"{source.config.family}.cu: compiled, but without a kernel {missing[0]} in it")
    _check_arguments(source, made.ptx)
    resources, *_ = found.values()
    facts = (arch, resources.registers, resources.stack_bytes, resources.threads, resources.dynamic_smem_bytes)
    code_hash = hash_code(made.cubin, *facts, *_launch_facts(source.launch), with_globals=_uses_globals(made.ptx))
    return Binary(arch, made.cubin, made.ptx, code_hash, resources, made.log, tuple(found.items())[1:])


def _check_arguments(source: Source, ptx: str) -> None:
    """Checks that each kernel has a second argument exactly if there are tensor maps: the driver does not check it."""
    want = MAP_BYTES * len(source.launch.maps)
    for entry in source.launch.entries:
        found = re.search(rf"\.entry\s+{entry}\s*\((.*?)\)", ptx, re.DOTALL)
        _, *others = found.group(1).split(",") if found else ("",)
        sizes = [int(size) for text in others for size in re.findall(r"\[(\d+)\]", text)]
        if sum(sizes) != want or len(others) != bool(want):
            raise CompileError(
                f"{source.config.family}.cu: {entry} has {sum(sizes)} bytes of arguments after AttentionParams; "
                f"[[maps]] of template.toml declares {len(source.launch.maps)} tensor maps with {want} bytes"
            )


def hash_machine_code(binary: Binary) -> str:
    """Returns the identity of a binary's machine code alone: other launches of the same code have the same hash."""
    return hash_code(binary.cubin, with_globals=_uses_globals(binary.ptx))


def _launch_facts(launch: LaunchSpec) -> Iterator[int | str]:
    """Yields what distinguishes launches of equal machine code: the expressions and the values that they read."""
    expressions = [*launch.grid, launch.workspace_bytes, launch.counters]
    for step in launch.then:
        yield from (step.entry, step.threads, step.smem_bytes)
        expressions += step.grid
    read = frozenset[str]().union(*map(names_in, expressions))
    yield from expressions
    for item in launch.maps:
        yield from (item.tensor, item.box_rows, item.box_columns, item.swizzle_bytes)
        if item.grouped:
            yield "grouped"
    yield from (f"{name}={value}" for name, value in launch.names if name in read)


def _uses_globals(ptx: str) -> bool:
    """Whether any instruction names a module-scope global variable."""
    lines = ptx.splitlines()
    found = {line: match.group(1) for line in lines if ".global" in line and (match := _GLOBAL_VARIABLE.match(line))}
    if not found:
        return False
    names, others = frozenset(found.values()), [line for line in lines if line not in found]
    heads = "".join(sorted({name[0] for name in names}))
    # This cheap search decides most kernels; the exact one below is slow.
    if names.isdisjoint(re.findall(rf"[{re.escape(heads)}][\w$]*", "\n".join(others))):
        return False
    return not names.isdisjoint(_IDENTIFIER.findall("\n".join(line.partition("//")[0] for line in others)))


def _header_versions() -> list[str]:
    """Returns the versions of the installed headers; their paths would make the cache depend on the machine."""
    found = []
    for package in _HEADER_PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return found


def _hash(parts: list[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()
