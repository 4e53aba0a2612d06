"""``selftest`` on the emulator, through the command line, on a few mutants."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.engine.checks.selftest_record import SelftestRecord
from evoengine.errors import UsageError
from evoengine.model import Config, Status
from evoengine.parity.mutants import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant
from evoengine.search.selftest.score import Score, score
from evoengine.search.selftest.selftest import SelftestResult, SelftestTrial, SelftestVerdict
from tests.cli.calling import Evo
from tests.made_once import made_once

NAMES = ("no-op", "last-bit-depends-on-the-call", "k-not-waited-for", "changes-its-input")
SELFTEST = ("selftest", "--device", "emulator", "--valid", "1", "--mutants", ",".join(NAMES))


@pytest.fixture(scope="module")
def tested(shared_cache: Path, evo_in: Evo) -> Path:
    """Folder of a self-test: its printed JSON and the record of its outcomes; all processes share it."""

    def test(folder: Path) -> None:
        done = evo_in(folder, *SELFTEST, "--resume", "outcomes.jsonl", "--json")
        assert done.code == 0, done.err
        (folder / "whole.json").write_text(done.out)

    return made_once(shared_cache.parent / "selftest", test)


@pytest.mark.slow
def test_mutants_are_killed_and_valid_configs_pass(tested: Path) -> None:
    told = json.loads((tested / "whole.json").read_text())
    assert told["passed"] is True
    assert told["kill_rate"] == 1
    assert told["false_rejection_rate"] == 0
    assert told["valid"] == 3  # the two kernels that the mutants change, and a random one
    mutants = {mutant["name"]: mutant for mutant in told["mutants"]}
    assert set(mutants) == set(NAMES)
    assert all(mutant["fate"] == "killed" for mutant in mutants.values())
    assert "never written" in mutants["no-op"]["reason"]
    assert "module variable evo_calls" in mutants["last-bit-depends-on-the-call"]["reason"]
    assert mutants["k-not-waited-for"]["status"] == "launch_failed"


def test_an_unknown_mutant_is_named(evo: Evo) -> None:
    done = evo("selftest", "--mutants", "no-such-thing")
    assert done.code == 2
    assert "no-such-thing" in done.err


def test_a_family_that_the_device_cannot_run_is_refused_with_the_remedy(evo: Evo) -> None:
    done = evo("selftest", "--device", "emulator", "--family", "wgmma")
    assert done.code == 2
    assert "wgmma" in done.err
    assert "--target" in done.err


@pytest.mark.thorough
def test_a_target_gives_the_emulator_other_families(evo: Evo) -> None:
    done = evo(
        *("selftest", "--device", "emulator", "--target", "h200", "--family", "wgmma", "--valid", "1"),
        *("--mutants", "wgmma-first-v-for-all-keys", "--json"),
    )
    assert done.code == 0, done.err
    assert done.json()["arch"] == "sm_90a"
    assert done.json()["kill_rate"] == 1
    assert done.json()["valid"] == 2


def _scored(
    mutant: Mutant, fate: SelftestVerdict, *, predicted: bool, valid: SelftestVerdict = SelftestVerdict.PASSED
) -> Score:
    problem, config = SETUPS[mutant.setup].problem, Config.of("mma", {})
    trials = (
        SelftestTrial(mutant.name, problem, config, 0, mutant.edits),
        SelftestTrial(mutant.setup, problem, config, 0),
    )
    outcomes = [SelftestResult(trial, what, Status.OK, "") for trial, what in zip(trials, (fate, valid), strict=True)]
    return score((mutant,), outcomes, predicted=predicted)


def test_pass_and_kill_rate() -> None:
    hazard = next(mutant for mutant in MUTANTS if mutant.hazard)
    wrong = replace(hazard, hazard=False)
    assert _scored(wrong, SelftestVerdict.REJECTED, predicted=False).passed
    assert not _scored(wrong, SelftestVerdict.PASSED, predicted=False).passed
    assert not _scored(hazard, SelftestVerdict.PASSED, predicted=True).passed, "the emulator must detect hazards"
    assert not _scored(wrong, SelftestVerdict.DEFECT, predicted=False).passed
    assert not _scored(wrong, SelftestVerdict.REJECTED, predicted=False, valid=SelftestVerdict.REJECTED).passed
    unseen = _scored(hazard, SelftestVerdict.PASSED, predicted=False)
    assert unseen.passed
    assert unseen.unseen == (hazard,)
    assert unseen.kill_rate is None, "hazards that the device cannot detect are in no rate"
    assert _scored(hazard, SelftestVerdict.REJECTED, predicted=False).kill_rate == 1
    assert _scored(wrong, SelftestVerdict.DEFECT, predicted=False).kill_rate is None


# -- resuming a self-test ---------------------------------------------------------------------------------------------

LOST = ("no-op", "changes-its-input")
"""Mutants whose outcomes are not recorded: the first is missing, the second is cut off."""


@pytest.mark.thorough
@pytest.mark.slow
def test_an_interrupted_self_test_resumes(tested: Path, evo: Evo, tmp_path: Path) -> None:
    file = Path(shutil.copy(tested / "outcomes.jsonl", tmp_path))
    head, *lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 4 + 3  # the mutants, the two kernels that they change, and a random one
    table = evo(*SELFTEST, "--resume", str(file))
    assert table.code == 0, table.err
    (rejection,) = (line for line in table.out.splitlines() if line.startswith("changes-its-input"))
    assert "memory" in rejection
    assert "changed its input K" in rejection
    assert "4 of 4 mutants, 100.0 %" in table.out
    assert "false rejections  0 of 3 " in table.out
    outcomes = {line: json.loads(line) for line in lines}
    valid = next(told for told in outcomes.values() if told["name"] not in NAMES)
    lost, torn = (next(line for line, told in outcomes.items() if told["name"] == name) for name in LOST)
    cut = {**valid, "reason": "kept"}
    others = (line for line, told in outcomes.items() if line not in (lost, torn) and told != valid)
    file.write_text("".join((head, json.dumps(cut), "\n", *others, torn[:20])))
    again = evo(*SELFTEST, "--resume", str(file), "--json")
    assert (again.code, again.out) == (0, (tested / "whole.json").read_text())
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept[1] == cut, "a stored outcome is not run again"
    assert sorted(line["trial"] for line in kept[1:]) == sorted(told["trial"] for told in outcomes.values())


def test_a_record_of_another_device_is_refused(evo: Evo, tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    with SelftestRecord(file, {"device": "NVIDIA H200"}) as record:
        record.add(SelftestResult(_TRIAL, SelftestVerdict.PASSED, Status.OK, ""))
    done = evo(*SELFTEST, "--resume", str(file))
    assert done.code == 2
    for fact in (str(file), "NVIDIA H200", "NVIDIA L4"):
        assert fact in done.err
    for strange in (
        '{"format": "evoengine-landscape"}\n',
        "a text\n",
        '{"format": "evoengine-selftest"}\n{}\n',
        "[]\n",
    ):
        file.write_text(f"{strange}\n")
        with pytest.raises(UsageError, match="self-test"):
            SelftestRecord(file, {})
    with pytest.raises(UsageError, match="directory"):
        SelftestRecord(tmp_path, {})


def test_a_file_without_a_whole_line_is_kept_unless_it_is_a_torn_record(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my only copy")
    with pytest.raises(UsageError, match="self-test"):
        SelftestRecord(file, {"device": "any"})
    assert file.read_text() == "my only copy"
    with SelftestRecord(tmp_path / "whole.jsonl", {"device": "any"}):
        head = (tmp_path / "whole.jsonl").read_text()
    for torn in ("", head[:9], head[:-1]):
        file.write_text(torn)
        with SelftestRecord(file, {"device": "any"}):
            assert file.read_text() == head


@pytest.mark.parametrize("torn", [b"", b'{"trial": "0', b'{"trial": "0\r'])
def test_a_record_with_windows_line_ends_goes_on(tmp_path: Path, torn: bytes) -> None:
    file, about = tmp_path / "outcomes.jsonl", {"device": "any"}
    passed, other = (SelftestResult(trial, SelftestVerdict.PASSED, Status.OK, "") for trial in (_TRIAL, _OTHER))
    with SelftestRecord(file, about) as record:
        record.add(passed)
    kept = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(kept + torn)
    with SelftestRecord(file, about) as record:
        assert (record.outcome_of(_TRIAL), record.outcome_of(_OTHER)) == (passed, None)
        record.add(other)
    assert file.read_bytes().startswith(kept)
    assert [json.loads(line)["name"] for line in file.read_bytes()[len(kept) :].splitlines()] == [_OTHER.name]
    with SelftestRecord(file, about) as record:
        assert (record.outcome_of(_TRIAL), record.outcome_of(_OTHER)) == (passed, other)


def test_a_record_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for its other end
    for path in (Path("/dev/zero"), tmp_path / "pipe"):
        with pytest.raises(UsageError, match=f"{path}: is no regular file"):
            SelftestRecord(path, {})


def test_an_outcome_belongs_to_its_trial_alone(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    outcome = SelftestResult(_TRIAL, SelftestVerdict.REJECTED, Status.PARITY_FAILED, "wrong")
    with SelftestRecord(file, {"device": "any"}) as record:
        record.add(outcome)
    with SelftestRecord(file, {"device": "any"}) as record:
        assert record.outcome_of(_TRIAL) == outcome
        others = (
            replace(_TRIAL, seed=1),
            replace(_TRIAL, config=Config.of("mma", {"A": 2})),
            replace(_TRIAL, problem=SETUPS["rings"].problem),
            replace(_TRIAL, edits=MUTANTS[0].edits),
        )
        assert [record.outcome_of(other) for other in others] == [None] * 4


_OTHER = SelftestTrial("other", SETUPS["plain"].problem, Config.of("mma", {"A": 2}), 0)
_TRIAL = SelftestTrial("plain", SETUPS["plain"].problem, Config.of("mma", {"A": 1}), 0)
