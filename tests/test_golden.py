"""Golden files: a failing comparison shows what differs and how to accept it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden import ROOT, UPDATE, assert_golden


@pytest.fixture(autouse=True)
def _compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPDATE, raising=False)


def failure(path: Path, text: str) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        assert_golden(path, text)
    return str(caught.value).splitlines()


def test_a_difference_is_shown_as_a_unified_diff_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("one\ntwo\nthree\n")
    assert_golden(path, "one\ntwo\nthree\n")
    lines = failure(path, "one\n2\nthree\n")
    assert {"-two", "+2", " one", " three"} <= set(lines)
    assert lines[-1].endswith(f"{UPDATE}=1 ./scripts/test tests/test_golden.py")
    assert (ROOT / "scripts" / "test").exists()
    assert path.read_text() == "one\ntwo\nthree\n"


def test_a_long_difference_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cu"
    path.write_text("".join(f"{number}\n" for number in range(5000)))
    lines = failure(path, "".join(f"{number}!\n" for number in range(5000)))
    assert len(lines) < 150
    assert "more lines of the difference" in lines[-2]


def test_a_missing_file_and_a_missing_line_end_are_differences(tmp_path: Path) -> None:
    assert "+new" in failure(tmp_path / "none.cu", "new\n")
    (tmp_path / "end.cu").write_text("new")
    assert "line end" in "".join(failure(tmp_path / "end.cu", "new\n"))


def test_the_command_rewrites_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UPDATE, "1")
    assert_golden(tmp_path / "kernel.cu", "new\n")
    assert (tmp_path / "kernel.cu").read_text() == "new\n"
