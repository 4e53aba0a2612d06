"""``space --check`` on families of users: which tunables have an effect, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.errors import short_line
from tests.cli.calling import ROOT, Evo
from tests.naive_family import KERNEL, write_naive

PROBLEM = ("--problem", "1x1x64x16")


@pytest.mark.thorough
def test_a_family_whose_tunables_have_effects_passes(evo: Evo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOENGINE_DATA", str(ROOT / "docs" / "examples" / "warp_row"))
    done = evo("space", "--check", "warp_row", "--problem", "1x2x128x64")
    assert done.code == 0, done.err
    rows = [line.split()[:3] for line in done.out.splitlines()[2:]]
    assert rows == [[name, "machine", "code"] for name in ("WARPS", "KEYS_PER_STEP", "UNROLL")]


def test_a_tunable_that_does_nothing_is_an_error(evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_naive(tmp_path / "data", kernel=KERNEL.replace("#pragma unroll Cfg::UNROLL", "#pragma unroll 2"))
    monkeypatch.setenv("EVOENGINE_DATA", str(folder))
    done = evo("space", "--check", "naive", *PROBLEM, "--json", "-q")
    assert done.code == 1
    (family,) = done.json()["families"]
    assert {one["name"]: one["changes"] for one in family["tunables"]} == {"THREADS": "code", "UNROLL": "nothing"}
    (error,) = family["errors"]
    assert done.err == f"error: {short_line(error)}\n"
    assert error.startswith("family naive: tunable UNROLL ")
    assert error.endswith(f"delete it from {folder / 'search_spaces' / 'naive.toml'}")


def test_a_mistake_in_a_family_is_reported_when_it_is_loaded(
    quick_evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_naive(tmp_path / "data")
    monkeypatch.setenv("EVOENGINE_DATA", str(folder))
    file = folder / "templates" / "naive" / "template.toml"
    file.write_text(file.read_text().replace('threads = "THREADS"', 'threads = "THREDS"'))
    expected = f"error: {file}: launch.threads: THREDS is unknown in `THREDS`: did you mean THREADS?\n"
    for verb in (("space", "--family"), ("space", "--check"), ("search", "--device", "emulator", "--family")):
        done = quick_evo(*verb, "naive", *PROBLEM)
        assert (done.code, done.err) == (2, expected)
