"""Fixtures that run the kernels of the .cu files in this folder, compiled for three architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evoengine.emulator import Emulator, LaunchReport
from evoengine.kernel.compile.nvrtc import compile_ptx

FOLDER = Path(__file__).parent
ARCHS = ("sm_80", "sm_89", "sm_90")
Run = Callable[..., LaunchReport]


@cache
def ptx_of(name: str, arch: str) -> str:
    return compile_ptx((FOLDER / f"{name}.cu").read_text("utf-8"), arch, name=f"{name}.cu")


@pytest.fixture(params=ARCHS)
def run(request: pytest.FixtureRequest) -> Run:
    """Function ``run("file.kernel", grid, block, args)``, which updates the arrays among the arguments."""

    def launch(kernel: str, grid: Any, block: Any, args: Sequence[Any], **options: Any) -> LaunchReport:
        file, _, entry = kernel.partition(".")
        emulator = Emulator(ptx_of(file, request.param), entry=entry)
        return emulator.launch(grid, block, args, races=True, **options)

    return launch


@pytest.fixture(scope="session")
def every_ptx() -> Callable[[], list[tuple[str, list[str]]]]:
    """Function that returns all modules, each with the names of its entries."""

    def modules() -> list[tuple[str, list[str]]]:
        texts = [ptx_of(path.stem, arch) for path in sorted(FOLDER.glob("*.cu")) for arch in ARCHS]
        lines = [[line for line in text.splitlines() if ".entry" in line] for text in texts]
        return [
            (text, [line.split(".entry")[1].strip(" (\t") for line in entries])
            for text, entries in zip(texts, lines, strict=True)
        ]

    return modules
