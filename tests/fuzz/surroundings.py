"""Environment variables with bad values, and folders in a bad state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from tests.fuzz.cases import Case
from tests.fuzz.samples import BOARD, LANDSCAPE
from tests.fuzz.values import PATHS, TEXTS

_VARIABLES: Final = (
    *("EVOENGINE_DATA", "EVOENGINE_LEADERBOARD", "EVOENGINE_COMMAND", "EVOENGINE_CACHE", "XDG_CACHE_HOME"),
    *("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME", "TMPDIR", "COLUMNS", "LINES", "TERM", "NO_COLOR", "LANG", "LC_ALL"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "PATH", "SHELL", "PYTHONPATH"),
    *("COMP_WORDS", "COMP_CWORD", "OMP_NUM_THREADS", "TZ", "PYTHONIOENCODING"),
)
_CALLS: Final = (
    ("leaderboard", "--db", BOARD),
    ("leaderboard", "show", "1", "--db", BOARD),
    ("space", "--family", "scalar"),
    ("export", "1", "-o", "out.cu", "--db", BOARD),
    ("search", "--device", f"replay:{LANDSCAPE}", "--budget", "2", "--db", BOARD),
    ("profile", "1", "--ptx", "--db", BOARD),
    ("report", "-o", "out.html", "--db", BOARD),
    ("--help",),
    ("search", "--help"),
)


def environment_cases(rng: random.Random) -> Iterator[Case]:
    """Yields calls with a bad value of one variable, each variable in turn; endless."""
    values = sorted({**TEXTS, **PATHS, "number": "0", "negative number": "-5", "huge number": "9" * 40}.items())
    while True:
        for variable in _VARIABLES:
            kind, value = rng.choice(values)
            words = rng.choice(_CALLS)
            yield Case(f"{variable} {kind}, {' '.join(words[:2])}", words, environment={variable: value[:50_000]})
