"""Features of all verbs: files of defaults, completion, JSON, quiet and verbose."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.app import root_command
from evoengine.cli.options.config_file import defaults, read_settings
from evoengine.errors import ConfigFileError
from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import ROOT, Evo, environment
from tests.report.boards import H200, fill
from tests.warm import WarmPython

WITHOUT_JSON = {
    "dashboard": "serves until it is stopped",
    "export": "writes a file",
    "leaderboard export": "writes a file",
    "landscape record": "writes a file",
    "landscape import": "writes a file",
    "landscape export": "writes a file",
    "landscape merge": "writes a file",
}
"""Verbs without JSON output, with the reason."""
SERVER = "postgresql+psycopg://team:s3cret@127.0.0.1:1/board"
"""Address of a server that does not run."""


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if name and not (getattr(command, "commands", None) and not command.invoke_without_command):
        yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from verbs(child, f"{name} {word}".strip())


def test_every_verb_that_prints_data_prints_json() -> None:
    options_of = {name: {option for one in verb.params for option in one.opts} for name, verb in verbs(root_command())}
    assert {"search", "leaderboard", "leaderboard show", "report", "doctor"} <= set(options_of)
    assert {name for name, options in options_of.items() if "--json" not in options} <= set(WITHOUT_JSON)


def test_every_verb_has_quiet_and_verbose_and_help_for_every_option() -> None:
    for name, verb in verbs(root_command()):
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
def test_quiet_leaves_out_progress(quick_evo: Evo, folder: Path, words: tuple[str, ...]) -> None:
    done = quick_evo(*words, "--db", "mine.db", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert quick_evo(*words, "--db", "mine.db", "--force").out.startswith("wrote ")


def test_quiet_keeps_results_and_errors(quick_evo: Evo, folder: Path) -> None:
    assert "NVIDIA H200" in quick_evo("leaderboard", "-q", "--db", "mine.db").out
    assert quick_evo("leaderboard", "-q", "--db", "mine.db", "show", "999").err.startswith("error: ")


def test_verbose_lists_the_options_in_force_and_keeps_the_result(evo: Evo, folder: Path) -> None:
    (folder / "evoengine.toml").write_text('db = "mine.db"\n')
    plain, loud = evo("leaderboard", "--json"), evo("leaderboard", "--json", "--verbose")
    assert loud.out == plain.out
    assert plain.err == ""
    lines = loud.err.splitlines()
    assert lines[:2] == ["db = mine.db (file of defaults)", "json = True (command line)"]
    assert lines[2].startswith("took ")
    both = evo("leaderboard", "-q", "show", "1", "-v")
    assert (both.code, both.err.count("\n")) == (2, 1)
    assert "opposite" in both.err


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        (("leaderboard", "-v", "--db", SERVER), ""),
        (("leaderboard", "-v"), f"db = '{SERVER}'"),
        (("db", "copy", "-v", SERVER, "copy.db"), ""),
        (("db", "copy", "-v", "none.db", SERVER), ""),
    ],
    ids=["option", "file", "source", "destination"],
)
def test_verbose_prints_no_password_of_a_server(
    quick_evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], setting: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "evoengine").mkdir()
    (tmp_path / "evoengine" / "config.toml").write_text(setting)
    done = quick_evo(*words)
    assert re.search(
        r"^(db|source|destination) = postgresql\+psycopg://127\.0\.0\.1:1/board \(", done.err, re.MULTILINE
    )
    assert "s3cret" not in done.out + done.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a leaderboard of a hundred rows that is not named leaderboard.db."""
    with Leaderboard(f"sqlite:///{tmp_path / 'mine.db'}") as board:
        fill(board, H200)
    return tmp_path


def test_a_file_sets_defaults_and_the_command_line_wins(quick_evo: Evo, folder: Path) -> None:
    (folder / "evoengine.toml").write_text('db = "mine.db"\n[leaderboard]\ntop = 2\njson = true\n')
    assert len(quick_evo("leaderboard").json()) == 2
    assert len(quick_evo("leaderboard", "--top", "5").json()) == 5
    assert quick_evo("leaderboard", "show", "3", "--json").json()["id"] == 3
    assert "other.db" in quick_evo("leaderboard", "--db", "other.db").err
    assert "other.db" in quick_evo("leaderboard", "--db", "other.db", "show", "3").err
    assert "other.db" in quick_evo("leaderboard", "show", "3", "--db", "other.db").err


def test_doctor_lists_the_defaults_of_files(evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "evoengine.toml").write_text("[search]\nbudget = 7\n")
    assert evo("doctor", "--json").json()["defaults"] == [
        {"file": "evoengine.toml", "verb": "search", "option": "budget", "value": 7}
    ]
    assert "evoengine.toml: search.budget = 7" in evo("doctor").out


def test_the_working_directory_wins_over_the_users_folder(tmp_path: Path) -> None:
    user, here = tmp_path / "user.toml", tmp_path / "here.toml"
    user.write_text('db = "user.db"\n[search]\nbudget = 1\nseed = 5\n[leaderboard.show]\njson = true\n')
    here.write_text('db = "here.db"\nseed = 6\nbudget = 9\n[search]\nbudget = 2\n')
    known = defaults(root_command(), read_settings(root_command(), (user, here)))
    assert known["search"] == {"db": "here.db", "budget": 2, "seed": 6}
    assert known["leaderboard"]["show"] == {"db": "here.db", "json_output": True}
    assert known["selftest"]["seed"] == 6
    assert "seed" not in known["report"], "it has no such option"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budget =", "is no TOML"),
        ("budgt = 3", "budgt: .*--budgt"),
        ("[serch]\nbudget = 3", r"serch: unknown verb: .*search"),
        ("[leaderboard.sho]\njson = true", r"leaderboard\.sho: unknown verb: .*show"),
        ("[search]\ntop = 3", r"search\.top: .*no option --top"),
        ("[search]\nbudget = 'many'", r"search\.budget: .*'many'"),
        ("[search]\nbudget = 0", r"search\.budget: .*0.* 1"),
        ("[search]\nbudget = true", r"search\.budget: .*True"),
        ("[search]\naccept = 1.5", r"search\.accept: .*1\.5.* 1\.0"),
        ("[search]\ncausal = 1", r"search\.causal: .*true or false"),
        ("[search]\nstrategy = 3", r"search\.strategy: .*3"),
        ("[landscape.record]\nonly = 'A=1'", r"landscape\.record\.only: .*list"),
        ("[search]\nstrategy = 'evil:Sampler'", r"search\.strategy: names a class.*--strategy"),
        ("strategy = 'evil:Sampler'", r"strategy: names a class"),
        ("[export]\ntrust-source = true", r"export\.trust-source: .*no option"),
        ("[evolve]\nvariants = true", r"evolve\.variants: .*no option"),
        ("[evolve]\npatches = 'x'", r"evolve\.patches: decides what is compiled"),
        ("force = true", r"force: chooses what is written.*--force"),
        ("output = 'x.cu'", r"output: chooses what is written.*--output"),
        ("[search]\nlog = 'x'", r"search\.log: chooses what is written"),
        ("[compare]\nmarkdown = 'x'", r"compare\.markdown: chooses what is written"),
        ("[selftest]\nresume = 'x'", r"selftest\.resume: chooses what is written"),
        ("[search]\nspace = 'x.toml'", r"search\.space: decides what is compiled"),
        ("[evolve]\nllm-url = 'http://127.0.0.1:9/v1'", r"evolve\.llm-url: sends data to another machine.*--llm-url"),
        ("[search]\ncluster = '127.0.0.1:9'", r"search\.cluster: sends data to another machine.*--cluster"),
        ("sanitizer = false", r"sanitizer: changes how kernels are checked"),
        ("[profile]\nncu = true", r"profile\.ncu: starts another program"),
        ("workers = 100000", r"workers: chooses how many processes"),
        ("strategy = 'evil:a:b'", r"strategy: names a class"),
        ("strategy = 'e=vil:Sampler'", r"strategy: names a class"),
        ("[space]\nfamily = 'mma, x.toml'", r"space\.family: names a search-space file"),
        ("[space]\ncheck = 'x.toml'", r"space\.check: names a search-space file"),
        ("[search]\ndevice = 'replay:/data/x.landscape'", r"search\.device: names a file outside"),
        ("[search]\nworkload = '../x.toml'", r"search\.workload: names a file outside"),
        ("[leaderboard.export]\nproblems = '/x.yaml'", r"leaderboard\.export\.problems: names a file outside"),
        ("db = '/home/other.db'", r"db: names a leaderboard outside"),
        ("db = 'sqlite:////home/other.db'", r"db: names a leaderboard outside"),
        ("[search]\ndb = '../other.db'", r"search\.db: names a leaderboard outside"),
        ("db = " + "[" * 5000, "nested deeper"),
        ("seed = " + "9" * 5000, "64 bits"),
        ("[search]\nhelp = true", r"search\.help: .*no option --help"),
    ],
)
def test_a_bad_file_is_refused_with_file_key_and_reason(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "evoengine.toml"
    file.write_text(text)
    with pytest.raises(ConfigFileError, match=says) as refusal:
        read_settings(root_command(), (file,))
    assert str(refusal.value).startswith(f"{file}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    [
        *("db = 'link.db'", "db = 'folder/x.db'", "[search]\nworkload = 'loop'"),
        *(f"[search]\ndevice = 'replay:link.db{end}'" for end in ("", "?seed=0")),
    ],
)
def test_a_file_of_the_folder_leaves_it_by_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    for link, target in (("link.db", "../other.db"), ("folder", ".."), ("loop", "loop"), ("inside.db", "x.db")):
        (tmp_path / link).symlink_to(target)
    Path("evoengine.toml").write_text(text)
    with pytest.raises(ConfigFileError, match="working directory"):
        read_settings(root_command())
    Path("evoengine.toml").write_text("db = 'inside.db'")
    assert len(read_settings(root_command())) == 1


@pytest.mark.parametrize(
    "text",
    ["[search]\nworkload = 'pipe'", *(f"[search]\ndevice = 'replay:pipe{end}'" for end in ("", "?seed=0", "?a?b"))],
)
def test_a_file_of_the_folder_names_no_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("evoengine.toml").write_text(text)
    with pytest.raises(ConfigFileError, match="pipe"):
        read_settings(root_command())
    Path("pipe").unlink()
    Path("pipe").write_text("")
    assert len(read_settings(root_command())) == 1


REFUSED = {
    *("output", "force", "log", "markdown", "resume", "space", "patches", "cluster", "cluster-parts"),
    *("llm-url", "llm-model", "llm-price", "llm-calls", "llm-tokens", "llm-money", "llm-seconds", "llm-reply-tokens"),
    *("llm-timeout", "ncu", "again", "sass", "sanitizer", "inputs-seed", "small-cases", "workers"),
    *("trust-source", "variants"),
}
"""Options that the file of the working directory cannot set; an option that it may set is listed in the code."""


def accepts(file: Path, verb: str, option: str) -> bool:
    """Whether a file may set an option; one of the values has its type and is within its bounds."""
    for value in ("true", "10", "0.5", "'x'", "['x']"):
        file.write_text(f"[{verb.replace(' ', '.')}]\n{option} = {value}\n")
        with suppress(ConfigFileError):
            read_settings(root_command(), (file,))
            return True
    return False


def test_a_file_of_the_working_directory_sets_listed_options_only(tmp_path: Path) -> None:
    options = {
        (verb, max(parameter.opts, key=len).removeprefix("--"))
        for verb, command in verbs(root_command())
        for parameter in command.params
        if parameter.param_type_name == "option"
    }
    refused = {option for verb, option in options if not accepts(tmp_path / "evoengine.toml", verb, option)}
    assert refused == REFUSED, "decide whether a folder of anyone may set a new option (folder_settings.py)"
    assert not any(accepts(tmp_path / "evoengine.toml", verb, option) for verb, option in options if option in REFUSED)


def test_the_users_own_file_may_set_the_other_options(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        "force = true\ndb = '/data/all.db'\n[search]\nlog = 'x.log'\ncluster = 'auto'\nstrategy = 'mine:Sampler'\n"
        "[evolve]\nllm-url = 'http://127.0.0.1:8000/v1'\n"
    )
    known = defaults(root_command(), read_settings(root_command(), (file,)))
    assert known["export"]["force"]
    assert known["search"] == {"db": "/data/all.db", "log": "x.log", "cluster": "auto", "strategy": "mine:Sampler"}
    assert known["evolve"]["llm_url"] == "http://127.0.0.1:8000/v1"


def test_a_file_of_the_folder_sends_nothing_to_a_server(quick_evo: Evo, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        for verb, key, value in (("evolve", "llm-url", f"http://{address}/v1"), ("search", "cluster", address)):
            (tmp_path / "evoengine.toml").write_text(f"[{verb}]\n{key} = '{value}'\n")
            done = quick_evo(verb, "--problem", "tiny")
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
            assert f"evoengine.toml: {verb}.{key}: " in done.err
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_bad_file_is_one_line_and_help_still_works(quick_evo: Evo, tmp_path: Path) -> None:
    (tmp_path / "evoengine.toml").write_text("[search]\nbudget = 'many'\n")
    done = quick_evo("space")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert quick_evo("search", "--help").code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("evoengine le", ["leaderboard"]),
        ("evoengine search --bu", ["--budget"]),
        ("evoengine search --effort t", ["thorough"]),
        ("evoengine search --strategy e", ["evolution"]),
        ("evoengine search --problem m", ["medium", "multi_batch", "mission"]),
        ("evoengine search --family mma,wm", ["mma,wmma"]),
        ("evoengine space --target h2", ["h200"]),
        ("evoengine compare --peers flash_attn,fle", ["flash_attn,flex"]),
        ("evoengine search --strategy nothing", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.every(2)
def test_the_shell_completes_words(
    cache: Path, tmp_path: Path, warm: WarmPython, words: str, expected: list[str]
) -> None:
    asked = {"_EVOENGINE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = warm.run("evoengine", (), tmp_path, {**environment(cache), **asked})
    assert (done.out.split(), done.err) == (expected, "")


def test_families_of_the_user_are_completed(cache: Path, tmp_path: Path) -> None:
    asked = {"_EVOENGINE_COMPLETE": "complete_bash", "COMP_WORDS": "evoengine search --family wa", "COMP_CWORD": "3"}
    for data, expected in ((ROOT / "docs/examples/warp_row", ["warp_row"]), (tmp_path / "none", [])):
        done = subprocess.run(
            [sys.executable, "-m", "evoengine"], env={**environment(cache), **asked, "EVOENGINE_DATA": str(data)},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.stdout.split(), done.stderr) == (expected, "")


PANELS = ["Arguments", "Options", "Problem", "Search", "Device", "Acceptance", "Output"]


def test_help_fits_80_columns_in_panels_of_one_order(quick_evo: Evo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, _ in verbs(root_command()):
        lines = quick_evo(*name.split(), "--help").out.splitlines()
        assert max(map(len, lines)) <= 80, name
        titles = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
        panels = [title for title in titles if title != "Commands"]
        assert panels == [title for title in PANELS if title in panels], name
        assert panels[-1] == "Output", name
    search = quick_evo("search", "--help").out
    assert [line[:-1] for line in search.splitlines() if line.endswith(":") and line[0] != " "] == PANELS[2:]
    first = {title: search.partition(f"\n{title}:\n")[2].split()[0] for title in PANELS[2:]}
    assert first == {
        "Problem": "--problem", "Search": "--effort", "Device": "--device", "Acceptance": "--accept", "Output": "--db",
    }  # fmt: skip


def test_a_problem_has_the_same_panel_in_every_verb(quick_evo: Evo) -> None:
    panels = {
        name: quick_evo(*name.split(), "--help").out.partition("\nProblem:\n")[2].partition("\n\n")[0]
        for name in ("search", "compare", "verify", "space", "landscape record")
    }
    search = panels.pop("search")
    shared = search[search.index("  --causal") :]  # after --problem, which selects a stored one in some verbs
    for name, panel in panels.items():
        assert panel.startswith("  --problem SHAPE "), name
        assert "--lengths-kv" in panel
        assert shared.startswith(panel[panel.index("  --causal") :]), name  # search has files of problems besides


def test_help_names_completion_and_defaults(quick_evo: Evo) -> None:
    text = " ".join(quick_evo("--help").out.split())
    for word in ("--install-completion", "evoengine.toml", "NO_COLOR", "doctor"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("serch",), 2, "search"),
        (("leaderboard", "shwo", "1"), 2, "show"),
        (("search", "--probelm", "tiny"), 2, "--problem"),
        (("search", "--effort", "fast"), 2, "quick"),
        (("leaderboard", "--db", "nodir/x.db"), 2, "nodir"),
        (("leaderboard", "--db", "notes.txt"), 2, "notes.txt"),
        (("leaderboard", "show", "999", "--db", "mine.db"), 2, "999"),
        (("export", "--best", "-o", "nodir/x.cu"), 2, "leaderboard.db"),
        (("report", "9", "--db", "mine.db"), 2, "9"),
        (("report", "--problem", "long", "--db", "mine.db"), 1, "1x8x512x64-fp16 on NVIDIA H200"),
        (("lock", "--db", "mine.db", "--gpu", "a100"), 1, "a100"),
        (("landscape", "show", "mine.db"), 2, "mine.db"),
        (("landscape", "import", "mine.db", "-o", "x.landscape.xz"), 2, "mine.db"),
        (("profile", "1", "--db", "mine.db", "--ptx", "--sass"), 2, "--sass"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line_that_names_it(
    quick_evo: Evo, folder: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    (folder / "notes.txt").write_text("hello\n")
    done = quick_evo(*words)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    assert done.err.startswith("error: ")
    assert says in done.err


def test_an_empty_selection_is_reported_with_the_contents(quick_evo: Evo, folder: Path) -> None:
    text = quick_evo("leaderboard", "--db", "mine.db", "--device", "a100").out
    for fact in ("mine.db", "24 ok", "1x8x512x64-fp16 on NVIDIA H200"):
        assert fact in text
    check = quick_evo("lock", "--db", "mine.db", "--check")
    assert (check.code, check.out.splitlines()[-1].startswith("evoengine.lock ")) == (1, True)


def test_a_group_without_a_verb_shows_its_help(evo: Evo) -> None:
    done = evo("landscape")
    assert (done.code, done.err) == (0, "")
    assert "record" in done.out
