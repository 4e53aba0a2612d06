"""The choice among several kernels for one problem, with results of checks and times that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evoengine.runtime.call import Call
from evoengine.runtime.kernel_choice import choices_file, choose_kernel
from evoengine.runtime.launcher import KernelPlan
from tests.api.boards import MISSION


@dataclass(frozen=True)
class Named:
    """A kernel whose code is its name."""

    sha256: str

    def plan(self, call: Call) -> KernelPlan:
        return KernelPlan(self.sha256.encode(), ())


KERNELS = tuple(map(Named, ("a", "b", "c", "d")))
TIMES_US = {b"a": 5.0, b"b": 4.0, b"c": 1.0, b"d": 4.5}
CALL: Any = MISSION


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def check(plan_for: Any, call: Any, *_: Any, **__: Any) -> str:
    return "its largest error is 1" if plan_for(call).code == b"c" else ""


def timer(plans: Sequence[KernelPlan], *_: Any) -> list[float]:
    return [TIMES_US[plan.code] for plan in plans]


def no_timer(*_: Any) -> list[float]:
    raise RuntimeError("no events\nhere")


def chosen(gpu: str = "H200", timer: Any = timer, check: Any = check) -> Any:
    return choose_kernel(KERNELS, CALL, 0, None, gpu, check, timer)


def test_the_fastest_correct_kernel_is_chosen_once_for_a_gpu() -> None:
    assert chosen() == Named("b")
    assert chosen(timer=no_timer) == Named("b"), "the kept choice needs no timing"
    with pytest.warns(RuntimeWarning, match="no events here"):
        assert chosen("H100", timer=no_timer) == Named("a"), "another GPU"


def test_a_kept_choice_is_checked_and_a_damaged_file_ignored() -> None:
    assert chosen() == Named("b")
    wrong = "ab"
    assert chosen(check=lambda plan_for, call, *_, **__: "wrong" * (plan_for(call).code.decode() in wrong)) == Named(
        "c"
    )
    file = choices_file()
    assert file is not None
    file.write_text("[1", encoding="utf-8")
    assert chosen() == Named("b")


def test_no_correct_kernel_and_no_folder(cache: Path) -> None:
    assert chosen(check=lambda *_, **__: "wrong") == "none of 4 kernels is right for it: wrong"
    (cache / "evoengine").write_text("a file")
    assert chosen() == Named("b")


@pytest.mark.parametrize("home", [None, "relative"])
def test_a_user_without_a_home_keeps_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    def no_entry(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", no_entry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    assert choices_file() is None
    assert chosen() == Named("b")
    with pytest.warns(RuntimeWarning, match="cannot be timed"):
        assert chosen(timer=no_timer) == Named("a")
    assert list(tmp_path.iterdir()) == []
