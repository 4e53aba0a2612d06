"""Answers as data: whatever bytes arrive, either the expected record comes out, or a WireError."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from evoengine.device.workers.wire import WireError, decode, encode
from evoengine.model import Config, DeviceInfo, Problem, Status, Timing, Verdict
from evoengine.search.candidate.results import Compilation, Examination
from evoengine.target import Target, get_target
from tests.device.scalar_kernel import build
from tests.device.serving import Colour, Parcel

TIMING = Timing(5.0, 4.9, 5.1, False, "graph-warm", (4.9, 5.0, 5.1), 9.0, "sdpa-cudnn")
VERDICT = Verdict(False, float("inf"), 1e-3, 0.5, 6, "mission", "mission: wrong", inputs_seed=2**47)
EXAMINATION = Examination(Status.PARITY_FAILED, "wrong", VERDICT, TIMING, {"parity": 0.02})


def test_answers_survive_a_round_trip() -> None:
    kernel = build(Problem(1, 2, 32, 16))
    compilation = Compilation(kernel.config, Status.OK, "", (kernel.source,), (kernel.binary,), {"compile": 0.5})
    about = (DeviceInfo("cuda", "a GPU", "sm_90", False), get_target("h200"))
    for kind, value in (
        (Examination, EXAMINATION),
        (Compilation, compilation),
        (tuple[DeviceInfo, Target], about),
        (Parcel, Parcel(1, 2, "x", b"y", False, None, Colour.RED, (), (1, ""), {}, None)),
        (Literal["a", "b"], "b"),
        (Config, Config.of("f", {"A": 1, "B": True, "C": "text"})),
    ):
        assert decode(kind, encode(value)) == value


def test_bool_and_number_are_distinct() -> None:
    assert decode(Config, encode(Config.of("f", {"A": True})))["A"] is True
    with pytest.raises(WireError):
        decode(int, encode(True))
    with pytest.raises(WireError):
        decode(bool, encode(1))
    with pytest.raises(WireError):
        decode(float, encode(True))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"status": "splendid"}, "status: 'splendid' .*Status"),
        ({"reason": 7}, "reason: 7 .*str"),
        ({"timing": {}}, "timing: {} .*Timing"),
        ({"stage_seconds": {"bench": "long"}}, r"stage_seconds\['bench'\]: 'long' .*float"),
        ({"extra": 1}, "Examination"),
    ],
)
def test_a_mismatch_is_reported_with_its_position(change: dict[str, object], named: str) -> None:
    fields = {
        "status": Status.OK,
        "reason": "",
        "verdict": None,
        "timing": TIMING,
        "stage_seconds": {"bench": 0.1},
        "notes": (),
    }
    assert decode(Examination, encode(fields)).timing == TIMING
    with pytest.raises(WireError, match=named):
        decode(Examination, encode(fields | change))


def test_the_checks_of_a_record_apply_to_decoded_data() -> None:
    fields = {name: getattr(Problem(1, 1, 1, 8), name) for name in Problem.__dataclass_fields__}
    assert decode(Problem, encode(fields)) == Problem(1, 1, 1, 8)
    with pytest.raises(WireError, match="heads must be at least 1"):
        decode(Problem, encode(fields | {"heads": 0, "kv_heads": 1}))


def test_corrupted_bytes_are_rejected() -> None:
    """Bytes changed, cut off and doubled at random: an examination comes out, or a WireError; nothing else happens."""
    rng = random.Random(0)
    whole = encode(EXAMINATION)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            start = rng.randrange(len(data))
            data[start : start + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        try:
            found = decode(Examination, bytes(data))
        except WireError:
            refused += 1
        else:
            assert isinstance(found, Examination)
            assert isinstance(found.status, Status)
            assert found.timing is None or isinstance(found.timing.median_us, float)
    assert refused > 2000
