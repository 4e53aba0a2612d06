"""``export`` chooses rows, writes every file of a format, and overwrites none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.verbs.export import run_export
from evoengine.engine.options.verbs import ExportOptions
from evoengine.errors import NothingFoundError, UsageError
from tests.api.boards import MISSION, Entry, mma, store

CAUSAL, SHORT = replace(MISSION, causal=True), replace(MISSION, seq_q=256, seq_kv=256)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two problems on an H200, of which one has a newer row than its champion; then one problem on an L4."""
    folder = tmp_path_factory.mktemp("board")
    entries = Entry(SHORT, mma()), Entry(MISSION, mma({"BLOCK_N": 16}), 4.0), Entry(MISSION, mma(), 6.0, crowned=False)
    store(folder / "h200.db", folder / "cache", *entries)
    store(folder / "both.db", folder / "cache", *entries, Entry(CAUSAL, mma(), gpu="NVIDIA L4"))
    return folder


@pytest.fixture
def export(board: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``export("kit.py", format="torch", …)`` returns the output of the verb."""

    def export(name: str, db: str = "h200.db", **options: Any) -> str:
        output = name if name == "-" else str(tmp_path / name)
        run_export(ExportOptions(output, db=str(board / db), **options))
        return capsys.readouterr().out

    return export


@pytest.mark.thorough
def test_all_problems_of_a_device_go_into_one_module(export: Callable[..., str], tmp_path: Path) -> None:
    printed = export("kit.py", format="torch", every=True)
    assert [line.split(": row ")[1].split(",")[0] for line in printed.splitlines()[:-1]] == ["1", "2"]
    assert printed.splitlines()[-1] == f"next: python {tmp_path / 'kit.py'}"
    text = (tmp_path / "kit.py").read_text()
    assert text.count("= EmbeddedKernel(") == 2
    assert f"name={MISSION.key!r}" in text
    assert f"name={SHORT.key!r}" in text
    only = export("l4.h", "both.db", format="header", every=True)
    assert CAUSAL.key in only
    assert SHORT.key not in only
    named = export("named.h", "both.db", format="header", every=True, device="h200")
    assert MISSION.key in named
    assert CAUSAL.key not in named


def test_problems_by_name(export: Callable[..., str], tmp_path: Path) -> None:
    export("two.h", format="header", problems="mission, short")
    text = (tmp_path / "two.h").read_text()
    assert "namespace kernel_1" in text
    assert "namespace kernel_2" not in text
    assert text.index(f"//   {MISSION.key} on") < text.index(f"//   {SHORT.key} on")
    with pytest.raises(UsageError, match="--device"):
        export("three.h", "both.db", format="header", problems=f"short,{CAUSAL.key}")
    with pytest.raises(NothingFoundError, match="long"):
        export("four.h", format="header", problems="short,long")


def test_one_problem_is_exported_though_another_key_begins_with_it(export: Callable[..., str], tmp_path: Path) -> None:
    for problem, row in (("mission", 2), (MISSION, 2), (MISSION.key, 2), (CAUSAL, 4), (None, 4)):
        assert f": row {row}, " in export("best.cu", "both.db", row="best", problem=problem, force=True)
    assert ": row 3, " in export("best.cu", "both.db", row="rank:2", problem="mission", force=True)
    with pytest.raises(NothingFoundError, match=r"1x8x1024x64-fp16.*--problem 1x8x512x64 --causal; "):
        export("best.cu", "both.db", best=True, problem="long", force=True)


@pytest.mark.parametrize(("kind", "count"), [("cu", 1), ("torch", 1), ("header", 1), ("cubin", 3), ("ptx", 3)])
def test_every_format_writes_its_files_once(export: Callable[..., str], tmp_path: Path, kind: str, count: int) -> None:
    name = {"torch": "best.py", "header": "best.h"}.get(kind, f"best.{kind}")
    printed = export(name, format=kind, best=True, problem="mission")
    assert len(list(tmp_path.iterdir())) == count
    assert printed.splitlines()[0].endswith("row 2, 1x8x512x64-fp16 on NVIDIA H200, 4.00 us measured")
    last = max(tmp_path.iterdir())
    last.write_text("mine")
    if count > 1:
        (tmp_path / name).unlink()  # the files beside it are not overwritten either
    with pytest.raises(UsageError, match="--force"):
        export(name, format=kind, row="1")
    assert last.read_text() == "mine"
    export(name, format=kind, row="1", force=True)
    assert last.read_bytes() != b"mine"
    if count == 1:
        assert export("-", format=kind, best=True, problem="mission")
    else:
        with pytest.raises(UsageError, match="-o"):
            export("-", format=kind, best=True, problem="mission")


@pytest.mark.parametrize(
    ("name", "language", "program"),
    [("best.cu", "", "best"), ("kernel", "-x cu ", "kernel.out"), ("kernel.cpp", "-x cu ", "kernel")],
)
def test_the_next_command_compiles_the_file_and_keeps_it(
    export: Callable[..., str], tmp_path: Path, name: str, language: str, program: str
) -> None:
    call = f"{tmp_path / name} -o {tmp_path / program} && {tmp_path / program}"
    printed = export(name, row="best", problem="mission")
    assert printed.splitlines()[-1] == f"next: nvcc {language}-arch=sm_90 {call}"


@pytest.mark.parametrize(
    ("name", "kind", "command"),
    [
        ("-x.cu", "cu", "nvcc -arch=sm_90 ./-x.cu -o ./-x && ./-x"),
        ("-x.h", "header", "nvcc -x cu -arch=sm_90 -DEVO_ATTENTION_MAIN ./-x.h -o ./-x && ./-x"),
        ("-x.ptx", "ptx", "python ./-x_test.py"),
    ],
)
def test_the_next_command_reads_no_file_as_an_option(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, kind: str, command: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run_export(ExportOptions(name, format=kind, best=True, problem="mission", db=str(board / "h200.db")))
    assert capsys.readouterr().out.splitlines()[-1] == f"next: {command}"


def test_a_shortlist_becomes_one_module_that_measures(board: Path, tmp_path: Path) -> None:
    """The module has two of the three predicted kernels, and not the measured one."""
    configs = mma(), mma({"STORE_OP": "streaming"}), mma({"BLOCK_N": 16})
    predicted = [Entry(MISSION, config, 5.0 + number / 100, predicted=True) for number, config in enumerate(configs)]
    store(tmp_path / "lb.db", board / "cache", Entry(MISSION, mma(), 4.0), *predicted)
    options = ExportOptions(str(tmp_path / "kit.py"), format="torch", top=2, db=str(tmp_path / "lb.db"))
    run_export(options)
    text = (tmp_path / "kit.py").read_text()
    assert text.count("= EmbeddedKernel(") == 2
    assert ", 2 kernels, 5.00 to 5.0" in text
    assert "rows 2, " in text
    assert "4.00 us" not in text
    assert "checks and times them" in text
    with pytest.raises(UsageError, match=r"give --format torch$"):
        run_export(replace(options, format="header", force=True))
    with pytest.raises(NothingFoundError, match="no predicted kernel"):
        run_export(replace(options, device="cuda", force=True))


def test_exactly_one_selection_is_allowed(export: Callable[..., str]) -> None:
    ways: tuple[dict[str, Any], ...] = ({}, {"row": "1", "best": True}, {"every": True, "problems": "mission"})
    for way in ways:
        with pytest.raises(UsageError, match="--best"):
            export("kit.py", format="torch", **way)
    with pytest.raises(UsageError, match="format cu"):
        export("kit.cu", every=True)
