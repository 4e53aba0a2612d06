"""Helpers of the measurement scripts: paths, command lines, output files, landscapes and builders.

Importing it puts the repository root on ``sys.path``: scripts run without an installation, and find ``tests``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.landscape import Landscape
from evoengine.model import Problem
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target, target_for_gpu

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "docs" / "results"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_landscapes(options: argparse.ArgumentParser) -> None:
    """Adds the input landscapes and ``--out`` to a parser."""
    options.add_argument("landscapes", nargs="+", type=Path, help="Files of measured landscapes.")
    options.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")


def comma_list(text: str) -> list[str]:
    return text.split(",")


def without_folders(words: Iterable[str]) -> list[str]:
    """Words of a command line; folders of this machine are removed from the names of existing files."""
    return [Path(word).name if Path(word).is_file() else word for word in words]


def write_results(out: Path | None, document: Any, text: str, *, indent: int | None = 1) -> None:
    """Prints a page, and writes OUT.json and OUT.md if `out` is given."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def write_table(out: Path | None, text: str) -> None:
    """Prints a table, and writes it to a file if `out` is given."""
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


def measured_on(landscape: Landscape) -> tuple[Problem, Target]:
    """Problem and data sheet of a measured landscape.

    Raises:
        UsageError: The landscape is predicted, is of a foreign kernel, or no data sheet describes its GPU.
    """
    if landscape.problem is None or landscape.device.predicted:
        raise UsageError(f"{landscape.key}: needs measured landscapes of attention problems")
    target = target_for_gpu(landscape.device.name)
    if target is None:
        raise UsageError(f"{landscape.key}: no data sheet of {landscape.device.name}")
    return landscape.problem, target.compiled_for(landscape.device.arch)


def builder_setup(
    problem: Problem, target: Target, spaces: Sequence[SearchSpace], cache: Path | None = None
) -> BuildSetup:
    """Setup of a builder of kernels for `target`; without `cache`, it uses the default compile cache."""
    from evoengine.kernel.compile.cache import default_cache_dir
    from evoengine.space.data_dirs import data_dirs

    folder = default_cache_dir() if cache is None else cache
    return BuildSetup((problem,), target, target.arch, tuple(spaces), data_dirs("templates"), folder)


def builder(problem: Problem, target: Target, spaces: Sequence[SearchSpace], cache: Path | None = None) -> Builder:
    return Builder(builder_setup(problem, target, spaces, cache))


def run(main: Callable[[], int]) -> NoReturn:
    """Exits with the code of `main`; an error of EvoEngine becomes one line and exit code 2."""
    try:
        code = main()
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    raise SystemExit(code)
