"""Verbs that only print facts: help, version, doctor, space."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import evoengine
from tests.cli.calling import Evo

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def test_version(evo: Evo) -> None:
    done = evo("--version")
    assert (done.code, done.out, done.err) == (0, f"evoengine {evoengine.__version__}\n", "")


@pytest.mark.parametrize("verb", ["search", "leaderboard", "export", "doctor", "space"])
def test_help_names_the_verb(quick_evo: Evo, verb: str) -> None:
    assert verb in quick_evo("--help").out
    done = quick_evo(verb, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: evoengine {verb}")


def test_no_verb_shows_the_help(evo: Evo) -> None:
    done = evo()
    assert (done.code, done.err) == (0, "")
    assert done.out == evo("--help").out


def test_doctor_names_the_devices(evo: Evo) -> None:
    facts = evo("doctor", "--json").json()
    assert "emulator" in facts["devices"]
    by_name = {probe["name"]: probe for probe in facts["probes"]}
    assert by_name["NVRTC"]["ok"]
    assert by_name["torch"]["ok"]
    assert ("cuda" in facts["devices"]) == (by_name["GPU"]["ok"] and by_name["CuPy"]["ok"])
    text = evo("doctor")
    assert text.code == 0
    assert not CONTROL.search(text.out.replace("\n", ""))
    for name, probe in by_name.items():
        if name == "bytecode" and not probe["ok"]:
            assert f"warning: {probe['detail']}" in text.out
            continue
        assert re.search(rf"^{'ok' if probe['ok'] else 'missing'} +{name}", text.out, re.MULTILINE)


@pytest.mark.parametrize("kept", [True, False])
def test_doctor_warns_if_python_writes_no_bytecode(
    evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "" if kept else "1")
    (probe,) = (probe for probe in evo("doctor", "--json").json()["probes"] if probe["name"] == "bytecode")
    assert probe["ok"] is kept
    assert ("unset PYTHONDONTWRITEBYTECODE" in probe["fix"]) is not kept


def test_space_counts_add_up(quick_evo: Evo) -> None:
    done = quick_evo("space", "--json").json()
    assert done["valid"] >= 3000
    assert done["combinations"] == math.prod(len(tunable["values"]) for tunable in done["tunables"])
    assert len(done["tunables"]) >= 10
    assert all(tunable["doc"] for tunable in done["tunables"])
    text = quick_evo("space").out
    assert f"{done['valid']:,} " in text
    assert all(name in text for name in done["removed"])


def test_space_follows_problem_and_target(quick_evo: Evo) -> None:
    mission, tiny = (quick_evo("space", "--json", "--problem", name).json()["valid"] for name in ("mission", "tiny"))
    assert tiny != mission
    assert quick_evo("space", "--json", "--target", "h200").json()["valid"] > mission


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (("--problem", "decode"), "8x32x1x128-kv8-skv4096-fp16"),
        (("--window", "128,0"), "1x8x512x64-fp16-causal-left128"),
        (("--window", "64, 32", "--softcap", "50", "--sink"), "1x8x512x64-fp16-left64-right32-cap50-sink"),
        (("--window", "inf,inf", "--lse"), "1x8x512x64-fp16-lse"),
        (("--problem", "2x8x99x64", "--lengths", "99,0"), "2x8x99x64-packed99.0-fp16"),
        (
            ("--problem", "2x8x99x64", "--lengths", "99,0", "--lengths-kv", "7,300", "--dtype", "bf16"),
            "2x8x99x64-skv300-packed99.0_7.300-bf16",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.every(2)
def test_flags_make_a_problem(quick_evo: Evo, flags: tuple[str, ...], key: str) -> None:
    done = quick_evo("space", "--json", *flags)
    assert done.code == 0, done
    assert done.json()["problem"] == key
