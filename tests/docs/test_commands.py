"""Every command that the documentation shows is run, page by page and in order, on small problems."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.app import root_command
from tests.cli.calling import ROOT, SMALL_SEARCH, environment
from tests.cli.searched import BUDGET, small_search
from tests.landscape.making import RECORDED
from tests.warm import WarmPython

PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
BOARD = "leaderboard.db"
COMMAND: Any = root_command()
VERBS = tuple(COMMAND.commands)
LAUNCHERS = ("./scripts/evoengine ", "evoengine ", "python -m evoengine ")
TRIED_ELSEWHERE = (
    "./scripts/setup",
    "./scripts/test",
    "./scripts/check",
    "source .venv/bin/activate",
    "python -m pip",
    "python scripts/",
    "selftest",
    "tune-model",
    "dashboard",
    "evolve",
    "lineage",
    "space --check",
)
"""Commands not run here: CI itself, and those with tests of their own because they take long or run until stopped."""
NEEDS_GPU = re.compile(r"compare|lock|.*noise=")
"""Commands that need a GPU or its measurements: without, they say so in one line."""
SHORT = {"search": ["--budget", str(BUDGET), "--strategy", "random"], "landscape": ["--count", "2"]}
"""Options that make long commands short; the last one of two equal options counts."""
SMALL = ["--problem", SMALL_SEARCH[2]]
"""Problem of most commands. The only shipped family that supports its small head dim is mma."""
WIDE = ["--problem", "1x1x1x64"]
"""Problem of another family, whose kernel takes the emulator long."""
REPLAYED = ["--device", f"replay:{RECORDED}", "--budget", "8"]
"""Options of the search with a strategy: without warm starts, so that the strategy proposes all configs."""
OVERRIDDEN = ("--problem", "--budget", "--effort")
"""Options of a search that the appended ones override."""


def commands(page: str) -> list[str]:
    """The lines of a page's bash blocks, continuation lines joined, comments taken away."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return list(filter(None, (re.sub(r"(^|\s+)#.*", "", line).strip() for line in lines)))


def is_of_another_family(words: list[str]) -> bool:
    return words[0] == "search" and "--family" in words and "mma" not in words


def shortened(words: list[str]) -> list[str]:
    """The same on a problem that takes seconds, and the verbs that read its rows on that problem too."""
    if words[:2] == ["landscape", "record"] or (words[0] == "search" and "replay:" not in " ".join(words)):
        if "--strategy" in words:
            return [*words, *REPLAYED]
        return [*words, *SHORT[words[0]], *(WIDE if is_of_another_family(words) else SMALL)]
    return [SMALL[-1] if word == "tiny" else word for word in words]


def is_plain(words: list[str]) -> bool:
    """Whether a shortened search is that of most pages: it has no options but appended ones and ``--quiet``."""
    options = {word for word in words if word.startswith("--")}
    return words[0] == "search" and options <= {*OVERRIDDEN, "--strategy", "--quiet"}


def run(words: list[str], folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def recorded(warm: WarmPython, words: list[str], folder: Path, settings: dict[str, str]) -> list[str]:
    """The options of a search of another family whose candidate is recorded before: checked on the problem alone."""
    family = words[words.index("--family") + 1]
    record = ["landscape", "record", "--family", family, *WIDE, "--count", "1", "--no-small-cases", "-o", "one.xz"]
    done = warm.run("evoengine", record, folder, settings)
    assert done.code == 0, done
    return ["--device", "replay:one.xz"]


def run_ours(
    warm: WarmPython, call: str, folder: Path, settings: dict[str, str], shared_cache: Path, *, whole: bool
) -> None:
    """A verb with its options: works, or says on one line that it needs a GPU.

    The first search of a page finds its candidates evaluated, unless it has options of its own.
    """
    words = shortened(shlex.split(call))
    if is_plain(words) and not (folder / BOARD).exists():
        shutil.copyfile(small_search(warm, shared_cache) / BOARD, folder / BOARD)
    if is_of_another_family(words) and not whole:
        words += recorded(warm, words, folder, settings)
    done = warm.run("evoengine", words, folder, settings)
    if NEEDS_GPU.match(call) and shutil.which("nvidia-smi") is None:
        assert done.code in (1, 2), (call, done)
        assert len(done.err.strip().splitlines()) == 1, (call, done)
    else:
        assert done.code == 0, (call, done)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "whole"),
    [
        *(pytest.param(page, False, id=page) for page in PAGES if commands(page)),
        pytest.param("docs/new-family.md", True, id="the search of docs/new-family.md", marks=pytest.mark.thorough),
    ],
)
def test_the_commands_of_a_page_work(
    page: str, whole: bool, tmp_path: Path, shared_cache: Path, warm: WarmPython
) -> None:
    """Unless it is to be whole, the search of another family than mma finds its candidate recorded."""
    settings = environment(shared_cache)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for command in commands(page):
        ours = next((command.removeprefix(one) for one in LAUNCHERS if command.startswith(one)), "")
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            settings[name] = value
        elif command.startswith("nvcc "):
            if shutil.which("nvcc"):
                done = run(shlex.split(command.partition("&&")[0]), tmp_path, settings)
                assert done.returncode == 0, (command, done.stderr)
        elif ours and not ours.startswith(TRIED_ELSEWHERE):
            run_ours(warm, ours, tmp_path, settings, shared_cache, whole=whole)
        else:
            assert (ours or command).startswith(TRIED_ELSEWHERE), (
                f"{page} shows a command that nothing tries: {command}"
            )


def test_pages_link_to_what_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def spans(page: str) -> list[list[str]]:
    """Commands that stand in the text itself: after a launcher, or a verb with an option."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for span in re.findall(r"`([^`]+)`", text):
        words = re.sub(r"^(\./scripts/evoengine|python -m evoengine|evoengine) ", "", span)
        if words.startswith("VERB"):
            continue  # any of them
        if words != span or re.match(rf"(?:{'|'.join(VERBS)}) (.* )?--", span):
            found.append(words.split())
    return found


def objection(words: list[str]) -> str:
    """Why a command cannot be one of ours; empty where verb and options are known."""
    command: Any = COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        return f"there is no verb {words[0]}"
    options = {"--help"}.union(*(param.opts + param.secondary_opts for param in command.params))
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in options]
    return f"{command.name} has no {unknown[0]}" if unknown else ""


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_are_ours(page: str) -> None:
    assert {" ".join(words): objection(words) for words in spans(page) if objection(words)} == {}


def test_a_command_in_the_text_that_is_none_is_noticed() -> None:
    assert objection(["leaderboard", "show", "1", "--json"]) == objection(["leaderboard", "--top", "3"]) == ""
    assert "shw" in objection(["leaderboard", "shw", "1"])
    assert "leaderbord" in objection(["leaderbord"])
    assert "--jsn" in objection(["leaderboard", "show", "1", "--jsn"])
    assert sum(len(spans(page)) for page in PAGES) > 20
