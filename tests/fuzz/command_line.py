"""Bad values for every option and argument of every verb, taken from the command line itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evoengine.cli.app import root_command
from tests.fuzz.cases import PORT, Case
from tests.fuzz.samples import BOARD, LANDSCAPE, MEASURED
from tests.fuzz.values import EVERY, in_words

Verb = tuple[str, ...]

_REPLAY: Final = ("--device", f"replay:{LANDSCAPE}", "--budget", "2", "--db", BOARD, "--no-log")
_PLAN: Final = ("--device", "emulator", "--problem", "tiny", "--family", "scalar", "--budget", "1", "--db", "notes.txt")
"""A search that is planned in full, and then refused because of its leaderboard."""
_OPTIONS: Final[Mapping[Verb, tuple[str, ...]]] = {
    ("search",): _REPLAY,
    ("evolve",): (
        *("--device", "emulator", "--problem", "tiny", "--family", "scalar", "--budget", "1", "--time-limit", "0"),
        *("--db", "notes.txt"),
    ),
    ("lineage",): ("--db", BOARD),
    ("export",): ("-o", "out.cu", "--db", BOARD),
    ("lock",): ("-o", "out.lock", "--db", MEASURED),
    ("profile",): ("--db", BOARD, "--ptx"),
    ("compare",): ("--db", BOARD, "--id", "999"),
    ("verify",): ("--db", BOARD, "--device", f"replay:{LANDSCAPE}", "--top", "2"),
    ("space",): ("--family", "scalar"),
    ("selftest",): (
        *("--device", "emulator", "--mutants", "no such mutant"),
        *("--runs", "1", "--budget", "2", "--strategy", "random"),
    ),
    ("report",): ("-o", "out.html", "--db", BOARD),
    ("dashboard",): ("--db", BOARD, "--port", PORT),
    ("leaderboard",): ("--db", BOARD),
    ("leaderboard", "show"): ("--db", BOARD),
    ("leaderboard", "export"): ("--db", BOARD, "-o", "out.json"),
    ("leaderboard", "import"): ("--db", BOARD),
    ("landscape", "record"): (
        *("-o", "planned.xz", "--count", "1", "--problem", "tiny", "--family", "scalar"),
        *("--device", "emulator", "--time-limit", "0"),
    ),
    ("landscape", "merge"): ("-o", "out.xz"),
    ("landscape", "import"): ("-o", "out.xz"),
    ("landscape", "export"): ("-o", "out.json"),
}
"""Valid options that make the call of a verb short."""
_ARGUMENTS: Final[Mapping[Verb, tuple[str, ...]]] = {
    ("export",): ("1",),
    ("profile",): ("1",),
    ("leaderboard", "show"): ("1",),
    ("leaderboard", "import"): ("rows.json",),
    ("landscape", "show"): (LANDSCAPE,),
    ("landscape", "merge"): (LANDSCAPE,),
    ("landscape", "import"): ("cache.json",),
    ("landscape", "export"): (LANDSCAPE,),
}
_PLANNED: Final = frozenset(
    ("--arch", "--target", "--family", "--space", "--workers", "--compile-limit", "--spill-limit", "--problem")
)
"""Options of ``search`` that a replay ignores or cannot change."""
_ENDLESS: Final = {("leaderboard", "--watch"): "missing.db", ("dashboard", "--port"): "missing.db"}
"""Options that may start an endless call: it gets a leaderboard that does not exist."""


@dataclass(frozen=True)
class Place:
    """An option or argument of a verb."""

    verb: Verb
    name: str
    """Longest name of an option; empty for an argument."""
    flag: bool

    @property
    def label(self) -> str:
        return " ".join((*self.verb, self.name or "argument"))

    def words(self, value: str | None) -> tuple[str, ...]:
        """A call with a value here, or with the flag; otherwise a valid one."""
        options = _PLAN if self.verb == ("search",) and self.name in _PLANNED else _OPTIONS.get(self.verb, ())
        arguments: tuple[str, ...] = _ARGUMENTS.get(self.verb, ())
        own: tuple[str, ...] = (self.name,) if value is None else (self.name, value)
        if not self.name and value is not None:
            own, arguments = (), (value,)
        endless = _ENDLESS.get((self.verb[0], self.name)) if self.verb else None
        kept = (*options, "--db", endless) if endless else options
        return (*self.verb, *kept, *own, *arguments)


def places() -> list[Place]:
    """Every option and argument of every verb, except for typer's completion, which depends on the shell around it."""
    found = _places(root_command(), ())
    return [place for place in found if not place.name.endswith("-completion")]


def _places(command: Any, verb: Verb) -> Iterator[Place]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield Place(verb, "", flag=False)
            continue
        flag = bool(parameter.is_flag)
        for name in (max(parameter.opts, key=len), *parameter.secondary_opts):
            yield Place(verb, name, flag)
    for name, child in getattr(command, "commands", {}).items():
        yield from _places(child, (*verb, name))


def option_cases(rng: random.Random, each: int) -> Iterator[Case]:
    """Yields cases with one bad value: `each` values for every option, and all values equally often.

    Flags of one name get a value in one of the verbs that have it: the parser refuses it before the verb begins.
    """
    values = _endless_values(rng)
    valued = set[str]()
    for place in places():
        if place.flag:
            yield Case(place.label, place.words(None))
            if place.name not in valued:
                yield Case(f"{place.label} with a value", (*place.verb, f"{place.name}=maybe"))
            valued.add(place.name)
            continue
        for _ in range(each):
            kind, value = next(values)
            yield Case(f"{place.label} {kind}", place.words(value))


def _endless_values(rng: random.Random) -> Iterator[tuple[str, str]]:
    while True:
        order = sorted(EVERY.items())
        rng.shuffle(order)
        yield from order


def combined_cases(rng: random.Random) -> Iterator[Case]:
    """Yields cases with two to four options at once, valid ones, bad ones and flags; endless."""
    by_verb: dict[Verb, list[Place]] = {}
    for place in places():
        if place.verb and (place.verb[0], place.name) not in _ENDLESS and place.name:
            by_verb.setdefault(place.verb, []).append(place)
    verbs = sorted(by_verb)
    while True:
        verb = rng.choice(verbs)
        chosen = rng.sample(by_verb[verb], min(len(by_verb[verb]), rng.randint(2, 4)))
        words: list[str] = []
        for place in chosen:
            words.append(place.name)
            if not place.flag:
                words.append(rng.choice(_GOOD) if rng.random() < 0.5 else rng.choice(sorted(EVERY.values())))
        name = f"{' '.join(verb)} with {', '.join(map(in_words, words))}"
        yield Case(name, (*verb, *_base(verb), *words, *_arguments(verb)))


_GOOD: Final = ("1", "2", "0.5", "ok", "all", "scalar", "l4", "sm_89", "tiny", BOARD, "json", "out.x", "space.toml")


def _base(verb: Verb) -> tuple[str, ...]:
    return _OPTIONS.get(verb, ())


def _arguments(verb: Verb) -> tuple[str, ...]:
    return _ARGUMENTS.get(verb, ())


def odd_calls() -> Iterator[Case]:
    """Yields calls that are no call: unknown verbs and options, missing and repeated ones, options in odd places."""
    calls: Sequence[tuple[str, ...]] = (
        ("serch",),
        ("",),
        ("--",),
        ("-",),
        ("--no-such-option",),
        ("search", "--budget"),
        ("search", "--budget", "1", "--budget", "x"),
        ("search", "extra", "words"),
        ("leaderboard", "shwo", "1"),
        ("leaderboard", "show"),
        ("leaderboard", "show", "1", "2"),
        ("leaderboard", "--json", "show", "1", "--db", BOARD, "--jsno"),
        ("landscape",),
        ("landscape", "merge", "-o", "out.xz"),
        ("export",),
        ("export", "1", "--best", "-o", "out.cu", "--db", BOARD),
        ("export", "1", "--all", "-o", "out.cu", "--db", BOARD),
        ("export", "1", "-o", "n" * 255, "--db", BOARD),
        ("export", "1", "-o", "n" * 249 + ".cubin", "--format", "cubin", "--db", BOARD),
        ("export", "1", "-o", "n" * 251 + ".ptx", "--format", "ptx", "--db", BOARD),
        ("export", "1", "-o", "n" * 253 + ".h", "--format", "header", "--db", BOARD),
        ("export", "1", "-o", "out.txt", "--format", "cubin", "--db", BOARD),
        ("export", "1", "-o", "a-b.py", "--format", "torch", "--db", BOARD),
        ("export", "1", "-o", "-", "--format", "cubin", "--db", BOARD),
        ("export", "1", "-o", "notes.txt", "--db", BOARD),
        ("export", "1", "-o", "missing/out.cu", "--db", BOARD),
        ("export", "1", "-o", "notes.txt/out.cu", "--db", BOARD),
        ("export", "1", "-o", "folder.db", "--force", "--db", BOARD),
        ("leaderboard", "export", "-o", "notes.txt", "--format", "rbk", "--db", BOARD, "--device", "emulator"),
        ("leaderboard", "export", "-o", "missing/x.json", "--db", BOARD),
        ("leaderboard", "export", "-o", "-", "--format", "rbk", "--db", BOARD),
        ("leaderboard", "export", "-o", "x", "--problems", "rbk_config.yaml", "--db", BOARD),
        ("report", "-o", "missing/out.html", "--db", BOARD),
        ("report", "-o", "folder.db", "--force", "--db", BOARD),
        ("lock", "-o", "missing/out.lock", "--db", MEASURED),
        ("lock", "-o", "out.txt", "--db", MEASURED),
        ("lock", "--check", "-o", "notes.txt", "--db", MEASURED),
        ("landscape", "export", LANDSCAPE, "-o", "missing/out.json"),
        ("landscape", "record", "-o", "missing/out.xz", "--device", "emulator", "--count", "1"),
        ("landscape", "record", "-o", LANDSCAPE, "--device", "emulator", "--count", "1"),
        ("landscape", "record", "-o", "out.xz", "--count", "1", "--all"),
        ("search", "--quiet", "--verbose"),
        ("search", "--log", "x", "--no-log"),
        ("search", *_REPLAY[:-1], "--log", "missing/x.log"),
        ("search", *_REPLAY[:-1], "--log", "folder.db"),
        ("profile", "1", "--ptx", "--sass", "--db", BOARD),
        ("profile", "1", "--again", "--db", BOARD),
        ("leaderboard", "--watch", "--json", "--db", "missing.db"),
    )
    for words in calls:
        yield Case(f"call {' '.join(map(in_words, words[:4]))}", words)
    for verb in sorted({place.verb for place in places() if place.verb}):
        yield Case(f"{' '.join(verb)} with invalid UTF-8", (*verb, "\udcff\udcfe"))
        yield Case(f"{' '.join(verb)} with all flags", (*verb, *_flags(verb)))


def _flags(verb: Verb) -> tuple[str, ...]:
    chosen = [place.name for place in places() if place.verb == verb and place.flag and place.name != "--watch"]
    return (*_base(verb), *chosen, *_arguments(verb))
