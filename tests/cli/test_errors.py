"""Invalid input: one line on stderr that names it, the right exit code, and no traceback."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from evoengine.engine.devices.gpus import find_gpu
from tests.cli.calling import ROOT, Evo, environment

SEARCH = ("search", "--device", "emulator", "--budget", "1")
ODD_NUMBERS = ("1_0", "\uff15", " 5", "5 ", "+5", "")
NOT_FINITE = ("inf", "1e400", "nan")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("serch",), "search"),
        (("search", "--budget", "many"), "--budget"),
        (("search", "--budget", "0"), "--budget"),
        *((("search", "--budget", text), "whole number of at least 1") for text in ODD_NUMBERS),
        *((("search", "--time-limit", text), "finite number of at least 0") for text in (*ODD_NUMBERS, *NOT_FINITE)),
        *((("search", "--accept", text), "finite number from 0.0 to 1.0") for text in ("0.0_1", "2")),
        (("search", "--budget", "9" * 5000), "beyond 64 bits"),
        (("search", "--compile-limit", "inf"), "--compile-limit"),
        (("evolve", "--llm-timeout", "inf"), "--llm-timeout"),
        (("evolve", "--llm-money", "1e400"), "--llm-money"),
        (("evolve", "--time-limit", "inf"), "--time-limit"),
        (("tune-model", "model.py", "--time-limit", "inf"), "--time-limit"),
        (("leaderboard", "--top", "1_0"), "--top"),
        (("search", "--bugdet", "3"), "--bugdet"),
        (("search", "--effort", "quik"), "'--effort': 'quik' is not one of 'quick', 'normal', 'thorough'"),
        ((*SEARCH, "--problem", "huge"), "1x8x512x64"),
        ((*SEARCH, "--problem", "1x8x512x63"), "search head_dim 64"),
        ((*SEARCH, "--problem", "0x8x512x64"), "batch"),
        ((*SEARCH, "--problem", "1x1x200000000x128"), "GiB of memory"),
        ((*SEARCH, "--problem", "64x64x65536x64"), "NVIDIA L4 has 24.0"),
        (("evolve", *SEARCH[1:], "--problem", "1048576x1048576x1048576x64"), "NVIDIA L4 has 24.0"),
        ((*SEARCH, "--kv-heads", "3"), "kv_heads"),
        ((*SEARCH, "--kv-heads", "0"), "kv_heads"),
        ((*SEARCH, "--dtype", "fp8"), "bf16"),
        ((*SEARCH, "--window", "128"), "128,0"),
        ((*SEARCH, "--window", "128,-1"), "128,0"),
        ((*SEARCH, "--window", "all,0"), "inf"),
        ((*SEARCH, "--window", "2000000000,0"), "window_left"),
        ((*SEARCH, "--window", "64,64", "--causal"), "causal"),
        ((*SEARCH, "--softcap", "-3"), "softcap"),
        ((*SEARCH, "--softcap", "nan"), "softcap"),
        ((*SEARCH, "--softcap", "much"), "--softcap"),
        ((*SEARCH, "--lengths", "512,384,100"), "write 3x8x512x64"),
        ((*SEARCH, "--lengths", "512,,1"), "--lengths"),
        ((*SEARCH, "--lengths", "512,1.5"), "--lengths"),
        ((*SEARCH, "--lengths-kv", "512"), "without those of Q"),
        ((*SEARCH, "--lengths", "512", "--lengths-kv", "1,2"), "as many lengths"),
        ((*SEARCH, "--lengths", "512", "--seq-kv", "9"), "seq_kv is 9"),
        ((*SEARCH, "--sink", "--family", "scalar"), "family scalar"),
        ((*SEARCH, "--softcap", "50", "--lse", "--family", "wmma"), "softcap or lse"),
        ((*SEARCH, "--strategy", "luck"), "evolution"),
        ((*SEARCH, "--family", "nope"), "mma, scalar, wgmma, wmma"),
        ((*SEARCH, "--family", "mma,nope"), "unknown family 'nope'"),
        ((*SEARCH, "--family", "nope"), "EVOENGINE_DATA"),
        (("space", "--family", "nope"), "EVOENGINE_DATA"),
        ((*SEARCH, "--family", ""), "choose auto"),
        ((*SEARCH, "--family", "mma,"), "choose auto"),
        ((*SEARCH, "--family", "mma", "--space", str(ROOT / "search_spaces" / "wmma.toml")), "of family wmma"),
        (("space", "--family", "mma,nope"), "unknown family 'nope'"),
        ((*SEARCH, "--target", "voodoo2"), "l4"),
        ((*SEARCH, "--arch", "ada"), "sm_89"),
        ((*SEARCH, "--arch", "sm_70"), "sm_80"),
        ((*SEARCH, "--cold-l2"), "--cold-l2"),
        ((*SEARCH, "--space", "none.toml"), "none.toml"),
        ((*SEARCH, "--space", "broken.toml"), "broken.toml"),
        ((*SEARCH, "--db", "foreign.db"), "another program"),
        ((*SEARCH, "--db", "notes.txt"), "leaderboard"),
        ((*SEARCH, "--db", "missing/leaderboard.db"), "folder"),
        ((*SEARCH, "--db", "mysql://host/x"), "SQLite"),
        ((*SEARCH, "--db", "."), "folder"),
        ((*SEARCH, "--db", "byte.db"), "leaderboard"),
        ((*SEARCH, "--db", "sqlite:///x.db?mode=ro"), "parameters"),
        (("search", "--device", "abacus"), "emulator"),
        (("leaderboard",), "search"),
        (("leaderboard", "--db", "foreign.db"), "another program"),
        (("leaderboard", "--db", "empty.db", "--status", "great"), "parity_failed"),
        (("leaderboard", "show", "7", "--db", "empty.db"), "no row 7"),
        (("leaderboard", "show", "first", "--db", "empty.db"), "rank:N"),
        (("leaderboard", "show", "rank:0", "--db", "empty.db"), "rank:N"),
        (("leaderboard", "show", "--json", "--source", "--db", "empty.db"), "--source"),
        (("leaderboard", "--top", "3", "show", "--db", "empty.db"), "--top"),
        (("leaderboard", "--problem", "huge", "--db", "empty.db"), "1x8x512x64"),
        (("leaderboard", "--problem", "1x8x512x64-fp16", "--causal", "--db", "empty.db"), "is a key"),
        (("export", "--best"), "output"),
        (("export", "-o", "best.cu", "--db", "empty.db"), "--best"),
        (("export", "3", "--best", "-o", "best.cu", "--db", "empty.db"), "--best"),
        (("export", "3", "-o", "best.cu", "--db", "empty.db"), "no row 3"),
        (("export", "3", "-o", "notes.txt", "--db", "empty.db"), "--force"),
        (("space", "--target", "voodoo2"), "l4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_are_one_line(quick_evo: Evo, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    prepare(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    done = quick_evo(*arguments)
    assert done.code == 2, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert says in done.err
    assert {path.name for path in tmp_path.iterdir()} == before, "a failed call left files behind"


def prepare(folder: Path) -> None:
    """Writes the invalid files that the calls name, and an empty leaderboard."""
    from evoengine.leaderboard.store import Leaderboard

    (folder / "notes.txt").write_text("not a database, but long enough to look like a file of some kind\n" * 20)
    (folder / "byte.db").write_text("x")
    (folder / "broken.toml").write_text("family = \n")
    with sqlite3.connect(folder / "foreign.db") as connection:
        connection.execute("CREATE TABLE cats (name TEXT)")
    connection.close()
    Leaderboard(f"sqlite:///{folder / 'empty.db'}").close()


def test_nothing_to_export_is_exit_1(evo: Evo, tmp_path: Path) -> None:
    prepare(tmp_path)
    done = evo("export", "--best", "-o", "best.cu", "--db", "empty.db")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "empty.db" in done.err


@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")
def test_a_search_and_the_doctor_say_the_same_of_a_missing_gpu(evo: Evo) -> None:
    done = evo("search", "--device", "cuda", "--budget", "1")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    reason = done.err.removeprefix("error: ").split(":")[0]
    assert reason in evo("doctor").out


def test_unwritable_output(evo: Evo, tmp_path: Path) -> None:
    prepare(tmp_path)
    done = evo("export", "3", "-o", "missing/best.cu", "--db", "empty.db")
    assert (done.code, done.err.count("\n")) == (2, 1)


def test_a_recording_where_no_file_can_be_made_names_no_option_that_it_lacks(quick_evo: Evo) -> None:
    words = ("landscape", "record", "--device", "emulator", "--problem", "tiny", "--count", "1")
    done = quick_evo(*words, "-o", "/proc/x.landscape")
    assert (done.code, done.err.count("\n")) == (2, 1), done
    assert done.err.startswith("error: /proc/x.landscape.part: cannot be opened for writing")
    assert "--db" not in done.err


def test_a_defect_leaves_a_log_and_no_traceback(tmp_path: Path, cache: Path) -> None:
    script = (
        "import sys\n"
        "import evoengine.cli.verbs.doctor as verb\n"
        "def broken(**_): raise RuntimeError('a wheel\\ncame off')\n"
        "verb.run_doctor = broken\n"
        "sys.argv = ['evoengine', 'doctor']\n"
        "from evoengine.cli.app import main\n"
        "main()\n"
    )
    env = {**environment(cache), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "a wheel came off" in done.stderr
    (log,) = tmp_path.glob("evoengine-*.log")
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text()


def test_ctrl_c_is_reported_and_no_thread_is_waited_for(cache: Path, tmp_path: Path) -> None:
    program = (
        "import sys, threading, time; from evoengine.cli.app import main\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "sys.argv[1:] = 'space', '--check', 'scalar', '--problem', 'tiny'\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(cache), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("compiling")
        process.send_signal(signal.SIGINT)
        try:
            assert process.communicate(timeout=120)[1].splitlines()[-1] == "error: interrupted"
        finally:
            process.kill()
    assert process.returncode == 130


def test_a_closed_pipe_is_no_error(cache: Path, tmp_path: Path) -> None:
    call = [sys.executable, "-m", "evoengine", "space"]
    process = subprocess.Popen(
        call, cwd=tmp_path, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=600) if process.stderr is None else ("", process.stderr.read())
    assert (process.wait(timeout=600), err) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(cache: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "evoengine", "space", "--json"],
            cwd=tmp_path, env=environment(cache), stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "space" in done.stderr


def test_imports_stay_lazy(cache: Path) -> None:
    script = (
        "import sys, evoengine.cli.app, evoengine.engine.options.verbs, evoengine.engine.search\n"
        "heavy = {'torch', 'optuna', 'sqlalchemy', 'numpy', 'rich', 'jinja2', 'cupy', 'cuda'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(cache), capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_a_search_does_not_import_the_emulator_first(cache: Path) -> None:
    script = "import sys, evoengine.cli.verbs.search; print('evoengine.emulator.emulator' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(cache), capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--markdown"),
        ("landscape", "record", "--device", "emulator", "--problem", "tiny", "--count", "1", "--force", "-o"),
        ("tune-model", "model.py", "-o"),
    ],
)
def test_a_database_is_refused_as_output_before_the_work(
    tmp_path: Path, quick_evo: Evo, words: tuple[str, ...]
) -> None:
    file = tmp_path / "mine.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE mine (id)")
    database.close()
    (tmp_path / "model.py").write_text("from pathlib import Path\n\nPath('executed').touch()\n")
    before = sorted(tmp_path.iterdir())
    done = quick_evo(*words, str(file))
    assert (done.code, len(done.err.splitlines())) == (2, 1), done
    assert "mine.db: is a database" in done.err
    assert sorted(tmp_path.iterdir()) == before
