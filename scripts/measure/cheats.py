#!/usr/bin/env python3
"""Offers cheats and known mistakes as generated kernels, and counts those that would reach a GPU.

    python scripts/measure/cheats.py --out docs/results/cheats-emulator          # more than an hour on one core
    python scripts/measure/cheats.py --part cheats
    python scripts/measure/cheats.py --record FILE     # called again, it goes on where it was killed

Each kernel is screened, compiled in the sandbox, screened again as PTX, and emulated, as in a search:

- ``cheats``: those of `tests/cheats`. Each must compile without the screens, and be rejected by the defence it names.
- ``mutants``: all kernels of `selftest` with one known mistake. Each must be rejected.
- ``kernels``: the named starts and random valid configs of every family for every architecture and data type that it
  supports. No screen may reject one.

The exit code is 1 if a kernel is not treated like this.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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
from evoengine.model import Config, DType, Problem
from evoengine.parity.mutants import MUTANTS
from evoengine.parity.mutants.mutant import Mutant, mutate
from evoengine.search.candidate.screening import screen_kernel
from evoengine.search.selftest.gate_controls import PROBLEMS
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import family_names, find_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.cheats.corpus import Cheat, cheats
from tests.cheats.judging import compiles, rejection, source_of, target_of

ARCHITECTURES: Final = (("l4", "sm_80"), ("l4", "sm_86"), ("l4", "sm_89"), ("h200", "sm_90"), ("h200", "sm_90a"))
LARGE: Final = Problem(4, 16, 2048, 64)
"""Problem with more tiles than a GPU has multiprocessors, without which no config distributes its work."""
PARTS: Final = ("cheats", "mutants", "kernels")
SHOWN_S: Final = 60.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True)
class Outcome:
    """Result of one kernel."""

    part: str
    name: str
    by: str
    """Defence that rejected it; empty for none."""
    wrong: str = ""
    """Difference from what it must be; empty for none."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Offer:
    """One kernel to offer."""

    part: str
    name: str
    judge: Callable[[], tuple[str, str]]
    """Returns the defence that rejected it and what is wrong with that; both may be empty."""

    def made(self) -> Outcome:
        """Offers the kernel."""
        begin_s = time.monotonic()
        by, wrong = self.judge()
        return Outcome(self.part, self.name, by, wrong, round(time.monotonic() - begin_s, 2))


def judge_cheat(cheat: Cheat) -> tuple[str, str]:
    source = cheat.applied(source_of(cheat.setup))
    error = compiles(source, target_of(cheat.setup).arch)
    found = rejection(source, cheat.setup)
    by = found.partition(":")[0]
    return by, f"does not compile: {error}" if error else "" if by in cheat.rejected_by else f"rejected by: {found}"


def judge_mutant(mutant: Mutant) -> tuple[str, str]:
    source = mutate(source_of(mutant.setup), mutant.edits)
    found = rejection(replace(source, untrusted=True), mutant.setup)
    return found.partition(":")[0], "" if found else "admitted"


def judge_kernel(arch: str, gpu: str, problem: Problem, config: Config) -> tuple[str, str]:
    """Screens one kernel of a family; one that the compiler refuses is not wrong."""
    target = get_target(gpu).compiled_for(arch)
    library, compiler = TemplateLibrary(*data_dirs("templates")), Compiler(default_cache_dir(), line_info=False)
    source = library.load(config.family).render(config, problem, find_space(config.family), target)
    by = "; ".join(map(str, screen_source(source.text)))
    try:
        screen_kernel(Kernel(replace(source, untrusted=True), compiler.compile(source, arch)))
    except ScreenError as error:
        by = str(error)
    except CandidateError:
        return "compiler", ""
    return by, by


def configs(count: int, seed: int) -> Iterator[tuple[str, str, Problem, Config]]:
    """Yields architectures, GPUs, problems and configs of every family.

    They are the named starts for every architecture and data type, and a random sample, of which every other one has
    the other data type.
    """
    library, rng = TemplateLibrary(*data_dirs("templates")), np.random.default_rng(seed)
    for family in family_names():
        template, space = library.load(family), find_space(family)
        able = [
            (arch, gpu, replace(problem, dtype=dtype))
            for problem in (*PROBLEMS.values(), LARGE)
            for gpu, arch in ARCHITECTURES
            for dtype in DType
            if template.supports(replace(problem, dtype=dtype), arch) is None
        ]
        places = [able[number] for number in rng.permutation(len(able))]
        for arch, dtype in sorted({(arch, problem.dtype) for arch, _, problem in able}, key=str):
            own = cycle([place for place in places if (place[0], place[2].dtype) == (arch, dtype)])
            for start, (_, gpu, problem) in zip(range(len(space.starts)), own, strict=False):
                starts = _valid(space, problem, gpu, arch).starts()
                yield arch, gpu, problem, starts[start % len(starts)]
        by_dtype = [cycle([place for place in places if place[2].dtype is dtype]) for dtype in DType]
        for number in range(count):
            arch, gpu, problem = next(by_dtype[number % len(by_dtype)])
            yield arch, gpu, problem, _valid(space, problem, gpu, arch).sample(rng)


def _valid(space: SearchSpace, problem: Problem, gpu: str, arch: str) -> ValidSpace:
    return space.build(problem, get_target(gpu).compiled_for(arch))


def offers(part: str, count: int, seed: int) -> list[Offer]:
    """Returns what is offered in a part, in a random order: a part that is stopped early is a sample."""
    if part == "cheats":
        found = [Offer(part, cheat.name, partial(judge_cheat, cheat)) for cheat in cheats()]
    elif part == "mutants":
        found = [Offer(part, f"{one.setup}: {one.name}", partial(judge_mutant, one)) for one in MUTANTS]
    else:
        found = [
            Offer(
                part,
                f"{arch} {problem.key} {config.family} {config}",
                partial(judge_kernel, arch, gpu, problem, config),
            )
            for arch, gpu, problem, config in configs(count, seed)
        ]
    own = {offer.name: offer for offer in found}
    assert part == "kernels" or len(own) == len(found), "a name stands for one kernel"
    found = list(own.values())
    random.Random(seed).shuffle(found)
    return found


def page(outcomes: list[Outcome], totals: Mapping[str, int], words: list[str]) -> str:
    """The Markdown page."""
    lines = [
        "# Cheats and mistakes offered as generated kernels",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, 2-core machine without a GPU, with",
        f"`{' '.join(['python', 'scripts/measure/cheats.py', *words])}`. Seconds are those of a machine that other",
        "programs kept busy.",
        "",
        "| part | offered | of | rejected by | not as it must be | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for part in totals:
        own = [outcome for outcome in outcomes if outcome.part == part]
        by = Counter(outcome.by.partition(":")[0] for outcome in own if outcome.by)
        text = ", ".join(f"{name} {number}" for name, number in by.most_common()) or "–"
        wrong, seconds = sum(bool(outcome.wrong) for outcome in own), sum(outcome.seconds for outcome in own)
        lines.append(f"| {part} | {len(own)} | {totals[part]} | {text} | {wrong} | {seconds:.0f} |")
    return "\n".join(lines)


def judged(offered: list[Offer], minutes: float, record: Path | None) -> list[Outcome]:
    """Offers kernels until the time is up; those in the record are not offered again."""
    known: dict[tuple[str, str], Outcome] = {}
    if record is not None and record.exists():
        stored = [Outcome(**json.loads(line)) for line in record.read_text().splitlines()]
        known = {(one.part, one.name): one for one in stored}
    begin_s, shown_s, outcomes = time.monotonic(), time.monotonic(), list[Outcome]()
    for number, offer in enumerate(offered, 1):
        if minutes and time.monotonic() - begin_s > 60 * minutes:
            break
        outcome = known.get((offer.part, offer.name)) or offer.made()
        outcomes.append(outcome)
        if record is not None and (offer.part, offer.name) not in known:
            with record.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        if outcome.wrong:
            print(f"{outcome.part}: {outcome.name}: {outcome.wrong}", file=sys.stderr, flush=True)
        if time.monotonic() - shown_s > SHOWN_S:
            shown_s = time.monotonic()
            print(f"{offer.part}: {number} of {len(offered)}", file=sys.stderr, flush=True)
    return outcomes


def main() -> int:
    options = common.parser(__doc__)
    options.add_argument("--part", choices=PARTS, help="Only this part.")
    options.add_argument("--count", type=int, default=40, help="Random configs of each family.")
    options.add_argument("--seed", type=int, default=1, help="Seed of the random configs.")
    options.add_argument("--minutes", type=float, default=0, help="Longest time of each part; 0 for no limit.")
    options.add_argument("--record", type=Path, help="File of outcomes; the same command goes on where it ended.")
    options.add_argument("--out", type=Path, help="Path of the page, without a suffix.")
    arguments: argparse.Namespace = options.parse_args()
    outcomes, totals = list[Outcome](), dict[str, int]()
    for part in PARTS if arguments.part is None else (arguments.part,):
        offered = offers(part, arguments.count, arguments.seed)
        totals[part] = len(offered)
        outcomes += judged(offered, arguments.minutes, arguments.record)
    document = {"of": totals, "outcomes": [asdict(one) for one in outcomes]}
    common.write_results(arguments.out, document, page(outcomes, totals, common.without_folders(sys.argv[1:])))
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    common.run(main)
