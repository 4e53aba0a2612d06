"""A seeded sequence of bad inputs of all kinds, shared by the test and ``scripts/measure/fuzz.py``."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import Final

from tests.cli.calling import environment
from tests.fuzz.cases import Case
from tests.fuzz.command_line import combined_cases, odd_calls, option_cases
from tests.fuzz.databases import database_cases
from tests.fuzz.files import data_cases, file_cases
from tests.fuzz.python_api import api_cases, objection
from tests.fuzz.runner import Finding, HangError, Runner, call_alone, call_here, time_limit
from tests.fuzz.samples import copy_samples, make_samples
from tests.fuzz.surroundings import environment_cases

KINDS: Final = ("options", "calls", "combinations", "files", "data", "databases", "environment", "Python")
"""Kinds of bad input; ``options`` and ``calls`` are finite, the others have as many cases as wanted."""


def prepare(folder: Path, cache: Path, board: Path | None = None) -> None:
    """Makes the sample files in an empty folder; see :func:`tests.fuzz.samples.make_samples`."""

    def run(where: Path, words: tuple[str, ...]) -> None:
        done = call_here(words, where, environment(cache))
        assert done.code == 0, done

    def run_alone(where: Path, words: tuple[str, ...]) -> None:
        done = call_alone(words, where, environment(cache))
        assert done.code == 0, done

    make_samples(folder, cache, run, run_alone, board)


def cases(kind: str, seed: int, count: int, samples: Path) -> Iterator[Case]:
    """Yields distinct cases of one kind.

    Args:
        kind: One of :data:`KINDS`, except for ``Python``.
        seed: Seed of the choice.
        count: Number of cases; of ``options``, the number for each option.
        samples: Folder of the samples.
    """
    rng = random.Random(f"{kind} {seed}")
    if kind == "options":
        yield from option_cases(rng, count)
        return
    if kind == "calls":
        yield from odd_calls()
        return
    streams: Mapping[str, Iterator[Case]] = {
        "combinations": combined_cases(rng),
        "files": file_cases(rng, samples),
        "data": data_cases(rng),
        "databases": database_cases(rng, samples),
        "environment": environment_cases(rng),
    }
    yield from islice(_distinct(streams[kind]), count)


def _distinct(stream: Iterator[Case]) -> Iterator[Case]:
    seen = set()
    for case in stream:
        key = case.words, tuple(sorted(case.files.items())), tuple(sorted(case.environment.items()))
        if key not in seen:
            seen.add(key)
            yield case


def run_cases(
    kind: str, seed: int, count: int, samples: Path, cache: Path, every: int = 1
) -> tuple[int, list[Finding]]:
    """Runs cases of one kind.

    Args:
        kind: One of :data:`KINDS`.
        seed: Seed of the choice.
        count: Number of cases; see :func:`cases`.
        samples: Folder of the samples.
        cache: Compile cache of all calls.
        every: Step between two cases that run; 1 for all.

    Returns:
        The number of cases that ran, and what was wrong.
    """
    if kind == "Python":
        return _run_api(seed, count, samples, every)
    total, findings = 0, []
    with Runner(samples, cache) as runner:
        for case in islice(cases(kind, seed, count, samples), 0, None, every):
            total += 1
            finding = runner.check(case)
            if finding is not None:
                findings.append(finding)
    return total, findings


def _run_api(seed: int, count: int, samples: Path, every: int) -> tuple[int, list[Finding]]:
    findings, seen = [], set()
    with tempfile.TemporaryDirectory() as scratch:
        copy_samples(samples, Path(scratch))
        with chdir(scratch):
            for case in islice(api_cases(random.Random(f"Python {seed}")), 0, count, every):
                seen.add(case.name)
                try:
                    with time_limit():
                        problem = objection(case)
                except HangError:
                    problem = "does not end"
                if problem:
                    findings.append(Finding(case.name, (), (problem,)))
    return len(seen), findings
