#!/usr/bin/env python3
"""Offers cheats and known mistakes as generated kernels, and counts those that would reach a GPU.

    python scripts/measure/cheats.py --out docs/results/cheats-emulator          # about 30 minutes on one core
    python scripts/measure/cheats.py --part cheats

Each kernel is screened, compiled in the sandbox, screened again as PTX, and emulated, as in a search:

- ``cheats``: those of `tests/cheats`. Each must compile without the screens, and be rejected by the defence it names.
- ``mutants``: all kernels of `selftest` with one known mistake. Each must be rejected.
- ``kernels``: the named starts and random valid configs of every family for every architecture that it supports. No
  screen may reject one.

The exit code is 1 if a kernel is not treated like this.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final

import common
import numpy as np

from evoengine.errors import CandidateError, ScreenError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.source_screen import screen_source
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, Problem
from evoengine.parity.mutants import MUTANTS
from evoengine.parity.mutants.mutant import Mutant, mutate
from evoengine.search.candidate.screening import screen_kernel
from evoengine.search.selftest.gate_controls import PROBLEMS
from evoengine.space.data_dirs import data_dirs
from evoengine.space.language.loader import family_names, find_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.cheats.corpus import Cheat, cheats
from tests.cheats.judging import compiles, rejection, source_of, target_of

ARCHITECTURES: Final = (("l4", "sm_80"), ("l4", "sm_86"), ("l4", "sm_89"), ("h200", "sm_90"), ("h200", "sm_90a"))
PARTS: Final = ("cheats", "mutants", "kernels")


@dataclass(frozen=True)
class Outcome:
    """Result of one kernel."""

    part: str
    name: str
    by: str
    """Defence that rejected it; empty for none."""
    wrong: str = ""
    """Difference from what it must be; empty for none."""


def offer_cheat(cheat: Cheat) -> Outcome:
    source = cheat.applied(source_of(cheat.setup))
    error = compiles(source, target_of(cheat.setup).arch)
    found = rejection(source, cheat.setup)
    by = found.partition(":")[0]
    wrong = f"does not compile: {error}" if error else "" if by in cheat.rejected_by else f"rejected by: {found}"
    return Outcome("cheats", cheat.name, by, wrong)


def offer_mutant(mutant: Mutant) -> Outcome:
    source = mutate(source_of(mutant.setup), mutant.edits)
    found = rejection(replace(source, untrusted=True), mutant.setup)
    return Outcome("mutants", mutant.name, found.partition(":")[0], "" if found else "admitted")


def offer_kernel(arch: str, gpu: str, problem: Problem, config: Config) -> Outcome | None:
    """Screens one kernel of a family; None if it does not compile."""
    target = get_target(gpu).compiled_for(arch)
    library, compiler = TemplateLibrary(*data_dirs("templates")), Compiler(default_cache_dir(), line_info=False)
    source = library.load(config.family).render(config, problem, find_space(config.family), target)
    by = "; ".join(map(str, screen_source(source.text)))
    try:
        screen_kernel(Kernel(replace(source, untrusted=True), compiler.compile(source, arch)))
    except ScreenError as error:
        by = str(error)
    except CandidateError as error:
        print(f"not compiled: {error}", file=sys.stderr)
        return None
    return Outcome("kernels", f"{arch} {problem.key} {config.family} {config}", by, by)


def configs(count: int, seed: int) -> Iterator[tuple[str, str, Problem, Config]]:
    """Yields architectures, GPUs, problems and configs of every family: named starts, and a random sample."""
    library, rng = TemplateLibrary(*data_dirs("templates")), np.random.default_rng(seed)
    for family in family_names():
        template, space = library.load(family), find_space(family)
        able = [
            (arch, gpu, problem)
            for problem in PROBLEMS.values()
            for gpu, arch in ARCHITECTURES
            if template.supports(problem, arch) is None
        ]
        places = [able[number] for number in rng.permutation(len(able))]
        for arch in sorted({arch for arch, _, _ in able}):
            own = cycle([place for place in places if place[0] == arch])
            for start, (_, gpu, problem) in zip(range(len(space.starts)), own, strict=False):
                starts = _valid(space, problem, gpu, arch).starts()
                yield arch, gpu, problem, starts[start % len(starts)]
        for _, (arch, gpu, problem) in zip(range(count), cycle(places), strict=False):
            yield arch, gpu, problem, _valid(space, problem, gpu, arch).sample(rng)


def _valid(space: SearchSpace, problem: Problem, gpu: str, arch: str) -> ValidSpace:
    return space.build(problem, get_target(gpu).compiled_for(arch))


def offers(part: str, count: int, seed: int) -> list[Callable[[], Outcome | None]]:
    """Returns what is offered in a part, in a random order: a part that is stopped early is a sample."""
    found: list[Callable[[], Outcome | None]]
    if part == "cheats":
        found = [partial(offer_cheat, cheat) for cheat in cheats()]
    elif part == "mutants":
        found = [partial(offer_mutant, mutant) for mutant in MUTANTS]
    else:
        found = [partial(offer_kernel, *place) for place in configs(count, seed)]
    random.Random(seed).shuffle(found)
    return found


def page(outcomes: list[Outcome], totals: Mapping[str, int], words: list[str], minutes: float) -> str:
    """The Markdown page."""
    lines = [
        "# Cheats and mistakes offered as generated kernels",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, 2-core machine without a GPU, {minutes:.0f} minutes, with",
        f"`{' '.join(['python', 'scripts/measure/cheats.py', *words])}`.",
        "",
        "| part | offered | of | rejected by | not as it must be |",
        "|---|---|---|---|---|",
    ]
    for part in PARTS:
        own = [outcome for outcome in outcomes if outcome.part == part]
        by = Counter(outcome.by.partition(":")[0] for outcome in own if outcome.by)
        text = ", ".join(f"{name} {number}" for name, number in by.most_common()) or "–"
        if own:
            wrong = sum(bool(outcome.wrong) for outcome in own)
            lines.append(f"| {part} | {len(own)} | {totals[part]} | {text} | {wrong} |")
    return "\n".join(lines)


def main() -> int:
    options = common.parser(__doc__)
    options.add_argument("--part", choices=PARTS, help="Only this part.")
    options.add_argument("--count", type=int, default=40, help="Random configs of each family.")
    options.add_argument("--seed", type=int, default=1, help="Seed of the random configs.")
    options.add_argument("--minutes", type=float, default=0, help="Longest time of each part; 0 for no limit.")
    options.add_argument("--out", type=Path, help="Path of the page, without a suffix.")
    arguments: argparse.Namespace = options.parse_args()
    begin_s, outcomes, totals = time.monotonic(), list[Outcome](), Counter[str]()
    for part in PARTS if arguments.part is None else (arguments.part,):
        offered = offers(part, arguments.count, arguments.seed)
        totals[part], part_s = len(offered), time.monotonic()
        for offer in offered:
            if arguments.minutes and time.monotonic() - part_s > 60 * arguments.minutes:
                break
            outcome = offer()
            outcomes += [outcome] if outcome is not None else []
            if outcome is not None and outcome.wrong:
                print(f"{part}: {outcome.name}: {outcome.wrong}", file=sys.stderr, flush=True)
    text = page(outcomes, totals, common.without_folders(sys.argv[1:]), (time.monotonic() - begin_s) / 60)
    common.write_table(arguments.out and arguments.out.with_suffix(".md"), text)
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    common.run(main)
