"""Damaged files of every kind that EvoEngine reads, each with the calls that read it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from tests.cli.calling import ROOT
from tests.fuzz.cases import Case
from tests.fuzz.mutation import byte_damage, json_damage, landscape_damage, line_damage, lockfile_damage
from tests.fuzz.samples import BOARD, LANDSCAPE, LOCK, MEASURED, RBK, SETTINGS, SPACE, WORKLOAD

Damage = Callable[[random.Random, bytes], Iterator[tuple[str, bytes]]]

_IMPORT: Final = ("leaderboard", "import", "bad", "--db", BOARD)
_REPLAY: Final = ("search", "--device", f"replay:{LANDSCAPE}", "--budget", "2", "--db", BOARD, "--no-log")
_PLAN: Final = ("search", "--device", "emulator", "--problem", "tiny", "--budget", "1", "--db", "notes.txt", "--no-log")


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    sample: str
    name: str
    """Name that the damaged copy gets."""
    readers: tuple[tuple[str, ...], ...]
    damage: Damage


def _lines(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    for kind, text in line_damage(rng, content.decode()):
        yield kind, text.encode()


KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        LANDSCAPE,
        "bad",
        (
            ("landscape", "show", "bad"),
            ("landscape", "show", "bad", "--json"),
            ("landscape", "merge", "bad", "-o", "out.xz"),
            ("landscape", "merge", LANDSCAPE, "bad", "-o", "out.xz"),
            ("landscape", "export", "bad", "-o", "out.json"),
            ("landscape", "export", "bad", "-o", "out.json", "--format", "t4"),
            ("search", "--device", "replay:bad", "--budget", "2", "--db", BOARD, "--no-log"),
        ),
        landscape_damage,
    ),
    Kind("cache.json", "bad", (("landscape", "import", "bad", "-o", "out.xz"),), json_damage),
    Kind("land.t4.json", "bad", (_IMPORT, (*_IMPORT, "--family", "mma")), json_damage),
    Kind("rows.json", "bad", (_IMPORT,), json_damage),
    Kind("rows.t4", "bad", (_IMPORT,), json_damage),
    Kind("rows.csv", "bad", (_IMPORT,), _lines),
    Kind(
        LOCK,
        LOCK,
        (("lock", "--check", "--db", MEASURED), ("lock", "--db", MEASURED)),
        lockfile_damage,
    ),
    Kind(
        SPACE,
        "bad.toml",
        (
            ("space", "--space", "bad.toml", "--family", "auto"),
            ("space", "--family", "bad.toml", "--json"),
            ("export", "1", "-o", "out.cu", "--db", BOARD, "--space", "bad.toml"),
            (*_PLAN, "--space", "bad.toml"),
        ),
        _lines,
    ),
    Kind(WORKLOAD, "bad", ((*_PLAN, "--workload", "bad"),), _lines),
    Kind(
        RBK,
        "bad",
        (
            ("leaderboard", "export", "--format", "rbk", "--problems", "bad", "-o", "out", "--db", BOARD),
            (*_REPLAY, "--problems", "bad"),
        ),
        _lines,
    ),
    Kind(
        SETTINGS,
        "evoengine.toml",
        (("leaderboard", "show", "1"), ("space", "--family", "scalar"), ("leaderboard", "--db", BOARD)),
        _lines,
    ),
    Kind(
        "selftest.jsonl",
        "bad",
        (("selftest", "--device", "emulator", "--valid", "0", "--mutants", "no such mutant", "--resume", "bad"),),
        json_damage,
    ),
)
"""Every kind of file that a user names, but databases."""

_DATA_FILES: Final = (
    "search_spaces/scalar.toml",
    "templates/scalar/template.toml",
    "templates/scalar/kernel.cu.jinja",
)
_DATA_READERS: Final = (
    ("space", "--family", "scalar"),
    ("export", "1", "-o", "out.cu", "--db", BOARD),
    ("leaderboard", "import", "rows.json", "--db", BOARD),
    (*_PLAN, "--family", "scalar"),
)


def file_cases(rng: random.Random, samples: Path) -> Iterator[Case]:
    """Yields calls that read a damaged file, each kind of file in turn; endless."""
    contents = {kind.sample: (samples / kind.sample).read_bytes() for kind in KINDS}
    streams = {
        kind: (_endless_bytes(rng, contents[kind.sample]), kind.damage(rng, contents[kind.sample])) for kind in KINDS
    }
    for number in count():
        for kind, (damaged, changed) in streams.items():
            what, content = next(damaged if number % 3 == 0 else changed)
            words = kind.readers[number % len(kind.readers)]
            yield Case(f"{kind.sample} {what}, {' '.join(words[:2])}", words, {kind.name: content})


def _endless_bytes(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    while True:
        found = list(byte_damage(rng, content))
        rng.shuffle(found)
        yield from found


def data_cases(rng: random.Random) -> Iterator[Case]:
    """Yields calls with a data folder of the user's, one file of which is damaged; endless."""
    whole = {name: (ROOT / name).read_bytes() for name in _DATA_FILES}
    streams = {name: (_endless_bytes(rng, whole[name]), _lines(rng, whole[name])) for name in _DATA_FILES}
    for number in count():
        for name, (damaged, changed) in streams.items():
            what, content = next(damaged if number % 4 == 0 else changed)
            words = _DATA_READERS[number % len(_DATA_READERS)]
            files = {f"data/{other}": text for other, text in (whole | {name: content}).items()}
            yield Case(f"data {name} {what}, {words[0]}", words, files, {"EVOENGINE_DATA": "data"})
