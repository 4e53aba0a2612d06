"""The shell around the verbs: files of defaults, completion, JSON on every verb that tells something."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from evoengine.cli.app import app
from evoengine.cli.options.config_file import defaults, read_settings
from evoengine.errors import ConfigFileError
from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import Evo, environment
from tests.report.boards import H200, fill

SILENT = {
    "dashboard": "serves until it is ended",
    "export": "writes a file",
    "leaderboard export": "writes a file",
    "landscape record": "writes a file",
    "landscape import": "writes a file",
    "landscape export": "writes a file",
    "landscape merge": "writes a file",
}
"""Verbs that have nothing to tell programs."""


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if name and not (getattr(command, "commands", None) and not command.invoke_without_command):
        yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from verbs(child, f"{name} {word}".strip())


def test_every_verb_that_tells_something_tells_it_to_programs() -> None:
    told = {name: {option for one in verb.params for option in one.opts} for name, verb in verbs(root())}
    assert {"search", "leaderboard", "leaderboard show", "report", "doctor"} <= set(told)
    assert {name for name, options in told.items() if "--json" not in options} <= set(SILENT)


def test_every_verb_can_be_quiet_and_verbose_and_says_what_its_options_do() -> None:
    for name, verb in verbs(root()):
        words = {word for one in verb.params for word in (*one.opts, *one.secondary_opts)}
        assert {"--quiet", "-q", "--verbose", "-v"} <= words, name
        assert all(one.help for one in verb.params if one.opts), name
        assert verb.help, name


@pytest.mark.parametrize(
    "words",
    [
        ("report", "-o", "page.html"),
        ("leaderboard", "export", "-o", "rows.json"),
    ],
    ids=" ".join,
)
def test_quiet_leaves_out_what_only_accompanies(evo: Evo, folder: Path, words: tuple[str, ...]) -> None:
    done = evo(*words, "--db", "mine.db", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert evo(*words, "--db", "mine.db", "--force").out.startswith("wrote ")


def test_quiet_keeps_results_and_errors(evo: Evo, folder: Path) -> None:
    assert "NVIDIA H200" in evo("leaderboard", "-q", "--db", "mine.db").out
    assert evo("leaderboard", "-q", "--db", "mine.db", "show", "999").err.startswith("error: ")


def test_verbose_says_what_is_in_force_and_leaves_the_result_alone(evo: Evo, folder: Path) -> None:
    (folder / "evoengine.toml").write_text('db = "mine.db"\n')
    plain, loud = evo("leaderboard", "--json"), evo("leaderboard", "--json", "--verbose")
    assert loud.out == plain.out
    assert plain.err == ""
    said = loud.err.splitlines()
    assert said[:2] == ["db = mine.db (file of defaults)", "json = True (command line)"]
    assert said[2].startswith("took ")
    both = evo("leaderboard", "-q", "show", "1", "-v")
    assert (both.code, both.err.count("\n")) == (2, 1)
    assert "opposite" in both.err


def root() -> Any:
    return typer.main.get_command(app)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a leaderboard of a hundred rows under another name than the usual."""
    with Leaderboard(f"sqlite:///{tmp_path / 'mine.db'}") as board:
        fill(board, H200)
    return tmp_path


def test_a_file_sets_defaults_and_the_command_line_wins(evo: Evo, folder: Path) -> None:
    (folder / "evoengine.toml").write_text('db = "mine.db"\n[leaderboard]\ntop = 2\njson = true\n')
    assert len(evo("leaderboard").json()) == 2
    assert len(evo("leaderboard", "--top", "5").json()) == 5
    assert evo("leaderboard", "show", "3", "--json").json()["id"] == 3
    assert "other.db" in evo("leaderboard", "--db", "other.db").err
    assert "other.db" in evo("leaderboard", "--db", "other.db", "show", "3").err
    assert "other.db" in evo("leaderboard", "show", "3", "--db", "other.db").err


def test_doctor_shows_what_is_in_force(evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "evoengine.toml").write_text("[search]\nbudget = 7\n")
    assert evo("doctor", "--json").json()["defaults"] == [
        {"file": "evoengine.toml", "verb": "search", "option": "budget", "value": 7}
    ]
    assert "evoengine.toml: search.budget = 7" in evo("doctor").out


def test_the_file_here_wins_over_that_of_the_user(tmp_path: Path) -> None:
    user, here = tmp_path / "user.toml", tmp_path / "here.toml"
    user.write_text('db = "user.db"\n[search]\nbudget = 1\nseed = 5\n[leaderboard.show]\njson = true\n')
    here.write_text('db = "here.db"\nseed = 6\nbudget = 9\n[search]\nbudget = 2\n')
    known = defaults(root(), read_settings(root(), (user, here)))
    assert known["search"] == {"db": "here.db", "budget": 2, "seed": 6}
    assert known["leaderboard"]["show"] == {"db": "here.db", "json_output": True}
    assert known["selftest"]["seed"] == 6
    assert "seed" not in known["report"], "it has no such option"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budget =", "is no TOML"),
        ("budgt = 3", "budgt: no verb has an option --budgt"),
        ("[serch]\nbudget = 3", "serch: there is no such verb: choose one of"),
        ("[leaderboard.sho]\njson = true", r"leaderboard\.sho: there is no such verb: choose one of .*show"),
        ("[search]\ntop = 3", r"search\.top: 'search' has no option --top"),
        ("[search]\nbudget = 'many'", r"search\.budget: is 'many', not a whole number"),
        ("[search]\nbudget = 0", r"search\.budget: is 0, not a whole number of at least 1"),
        ("[search]\nbudget = true", r"search\.budget: is True, not a whole number"),
        ("[search]\naccept = 1.5", r"search\.accept: is 1\.5, not a number from 0\.0 to 1\.0"),
        ("[search]\ncausal = 1", r"search\.causal: is 1, not true or false"),
        ("[search]\nstrategy = 3", r"search\.strategy: is 3, not a text"),
        ("[landscape.record]\nonly = 'A=1'", r"landscape\.record\.only: is 'A=1', not a list"),
        ("[search]\nhelp = true", r"search\.help: 'search' has no option --help"),
    ],
)
def test_a_bad_file_is_refused_with_file_key_and_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "evoengine.toml"
    file.write_text(text)
    with pytest.raises(ConfigFileError, match=says) as refusal:
        read_settings(root(), (file,))
    assert str(refusal.value).startswith(f"{file}: ")
    assert "\n" not in str(refusal.value)


def test_a_bad_file_is_one_line_and_help_still_helps(evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "evoengine.toml").write_text("[search]\nbudget = 'many'\n")
    done = evo("space")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert evo("search", "--help").code == 0


@pytest.mark.parametrize(
    ("words", "expected"), [("evoengine le", "leaderboard"), ("evoengine search --bu", "--budget")]
)
def test_the_shell_completes_words(cache: Path, tmp_path: Path, words: str, expected: str) -> None:
    asked = {"_EVOENGINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "evoengine"], env={**environment(cache), **asked}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [expected]


def test_help_tells_of_completion_and_defaults(evo: Evo) -> None:
    text = " ".join(evo("--help").out.split())
    for word in ("--install-completion", "evoengine.toml", "NO_COLOR", "doctor"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("serch",), 2, "Did you mean 'search'"),
        (("leaderboard", "shwo", "1"), 2, "Did you mean 'show'"),
        (("search", "--probelm", "tiny"), 2, "--problem"),
        (("leaderboard", "--db", "nodir/x.db"), 2, "no folder nodir"),
        (("leaderboard", "--db", "notes.txt"), 2, "is not an EvoEngine leaderboard"),
        (("leaderboard", "show", "999", "--db", "mine.db"), 2, "'leaderboard' lists the ids"),
        (("export", "--best", "-o", "nodir/x.cu"), 2, "run a search first"),
        (("report", "9", "--db", "mine.db"), 2, "the studies are 1"),
        (("lock", "--db", "mine.db", "--gpu", "a100"), 1, "for GPU a100"),
        (("landscape", "show", "mine.db"), 2, "is not JSON, packed or plain"),
        (("landscape", "import", "mine.db", "-o", "x.landscape.xz"), 2, "is not text"),
        (("profile", "1", "--db", "mine.db", "--ptx", "--sass"), 2, "give one"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line_that_says_what_to_do(
    evo: Evo, folder: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    (folder / "notes.txt").write_text("hello\n")
    done = evo(*words)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert done.err.startswith("error: ")
    assert says in done.err


def test_what_finds_nothing_says_what_there_is(evo: Evo, folder: Path) -> None:
    said = evo("leaderboard", "--db", "mine.db", "--device", "a100").out
    assert said.startswith("no such rows in mine.db: 24 ok")
    assert "searched: 1x8x512x64-fp16 on NVIDIA H200" in said
    assert evo("lock", "--db", "mine.db", "--check").out.splitlines()[-1].startswith("evoengine.lock is not up to date")


def test_a_group_without_a_verb_shows_its_help(evo: Evo) -> None:
    done = evo("landscape")
    assert (done.code, done.err) == (0, "")
    assert "record" in done.out
