"""Landscape files: round trips, size, and errors that name file, key and reason."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import struct
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoengine.errors import LandscapeError
from evoengine.landscape.file import landscape_document, pack_landscape, read_landscape
from evoengine.landscape.landscape import RecordedFamily
from evoengine.landscape.packing import read_unpacked
from evoengine.model import Config, Evaluation, Problem, Resources, Status, Timing
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.landscape.making import RECORDED, toy


def test_round_trip(tmp_path: Path) -> None:
    landscape = toy()
    file = tmp_path / "toy.landscape.xz"
    file.write_bytes(pack_landscape(landscape))
    again = read_landscape(file)
    for name in ("problem", "device", "limits", "method", "provenance", "key"):
        assert getattr(again, name) == getattr(landscape, name)
    assert again.families[0].space == replace(landscape.families[0].space, file=str(file))
    assert dict(again.by_config) == dict(landscape.by_config)


def two_streams(content: bytes) -> bytes:
    """Packs content as two xz streams with padding, of which the first is longer than what is unpacked at once."""
    noise = random.Random(0).randbytes(100_000).hex().encode()
    return lzma.compress(b'{"ignored": "' + noise + b'", ') + bytes(8) + lzma.compress(content[1:])


@pytest.mark.parametrize("pack", [gzip.compress, bytes, lzma.compress, two_streams])
def test_plain_and_gzip_json_are_read(tmp_path: Path, pack: Any) -> None:
    file = tmp_path / "toy.json"
    file.write_bytes(pack(json.dumps(landscape_document(toy())).encode()))
    assert read_landscape(file).key == toy().key


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_is_unpacked_whole_is_refused(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
        archive.writestr("toy.json", bytes(1 << 20))
    with pytest.raises(LandscapeError, match="is not deflate"):
        read_unpacked(tmp_path / "x.zip")


def test_a_damaged_archive_is_refused_or_read(tmp_path: Path) -> None:
    """Python's reader has errors of many types for impossible numbers, such as a negative position."""
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("toy.json", b"1234567890" * 9)
    whole, reasons = file.read_bytes(), set()
    for position in range(4, len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            file.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                read_unpacked(file)
            except LandscapeError as error:
                reasons.add(error.reason)
    assert len(reasons) > 5


def test_an_archive_of_many_files_is_refused_before_its_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's object of an entry has 600 bytes, and an entry 46: an archive of 256 MiB would take over 2 GiB."""
    count, file = 50_000, tmp_path / "x.zip"
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a"
    member = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, count * len(entry), len(member), 0)
    file.write_bytes(member + count * entry + end)
    assert len(zipfile.ZipFile(file).infolist()) == count
    monkeypatch.setattr("evoengine.landscape.packing.MOST_BYTES", 1 << 22)  # Python reserves as many to read a file
    tracemalloc.start()
    with pytest.raises(LandscapeError, match="more than 1,000 files"):
        read_unpacked(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (1 << 22) + 2 * file.stat().st_size


def test_the_key_follows_from_the_content_alone(tmp_path: Path) -> None:
    shuffled = list(toy().evaluations)
    random.Random(1).shuffle(shuffled)
    assert toy(shuffled).key == toy().key
    slower = [replace(e, timing=replace(e.timing, high_us=99.0)) if e.timing else e for e in toy().evaluations]
    assert toy(slower).key != toy().key


def test_the_recorded_landscape_of_the_repository_is_complete() -> None:
    landscape = read_landscape(RECORDED)
    assert landscape.device.predicted
    assert landscape.problem == Problem(1, 2, 128, 64)
    assert len(landscape.evaluations) == landscape.families[0].valid_configs == 216
    assert landscape.counts == {Status.OK: 216}
    assert landscape.best.value_us == min(e.value_us for e in landscape.evaluations if e.value_us is not None)
    assert all(e.resources is not None and e.code_hash for e in landscape.evaluations)
    assert "--only" in landscape.provenance.command
    assert landscape.provenance.checks


def test_five_thousand_configs_of_a_real_space_stay_below_300_kib() -> None:
    """Random values, hashes and times compress worse than those of a GPU, so this is an upper bound."""
    space, rng = find_space("mma"), np.random.default_rng(0)
    valid = space.build(Problem(1, 8, 512, 64), get_target("h200"))
    rows = valid.diagram.rows(rng.integers(valid.diagram.count, size=5000))
    evaluations = {config: _random_evaluation(config, rng) for config in map(valid.config_of, rows)}
    family = RecordedFamily(space, "s1", "t1", valid.size, tuple(evaluations.values()))
    packed = pack_landscape(replace(toy(), families=(family,)))
    assert len(evaluations) == 5000
    assert len(packed) <= 300 * 1024


def _random_evaluation(config: Config, rng: np.random.Generator) -> Evaluation:
    us = float(f"{rng.lognormal(2, 0.5):.5g}")
    timing = Timing(us, us * (1 - 0.01 * rng.random()), us * (1 + 0.01 * rng.random()), False, "graph-warm")
    numbers = rng.integers((40, 0, 0, 0, 1024, 32), (255, 300, 100, 1, 200000, 512))
    resources = Resources(*(int(number) for number in numbers))
    seconds = {name: float(rng.lognormal(0, 0.3)) for name in ("compile", "parity", "bench")}
    return Evaluation(config, Status.OK, "", "", rng.bytes(8).hex(), "t1", "", resources, None, timing, seconds)


def test_a_file_that_is_no_landscape_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.xz"
    with pytest.raises(LandscapeError, match=r"x\.xz: cannot be read"):
        read_landscape(file)
    for content, reason in (
        (pack_landscape(toy())[:-40], "is damaged"),
        (gzip.compress(b"{}")[:-9], "is damaged"),
        (lzma.compress(b"{}") + lzma.compress(b" ")[:-9], "is damaged: it ends before"),
        (lzma.compress(b"") * 1001, "more than 1,000 xz streams"),
        (b"\x80\x04\x95", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"cache": {}}', "format: is not 'evoengine-landscape'"),
    ):
        file.write_bytes(content)
        with pytest.raises(LandscapeError, match=reason):
            read_landscape(file)


def _set(*path: str | int, to: Any) -> Any:
    def change(document: Any) -> None:
        for step in path[:-1]:
            document = document[step]
        document[path[-1]] = to

    return change


_DERIVED = [{"name": "LOOPS", "expr": "seq_kv // TILE", "unit": "loops", "doc": "trip count"}]


def _append(*path: str | int, value: Any) -> Any:
    def change(document: Any) -> None:
        for step in path:
            document = document[step]
        document.append(value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", to=2), "schema: is 2"),
        (_set("problem", "heads", to=0), "problem: .*heads must be at least 1"),
        (_set("problem", "heads", to="2"), r"problem\.heads: "),
        (_set("problem", "colour", to=1), r"problem\.colour: "),
        (_set("device", "predicted", to=1), r"device\.predicted: "),
        (_set("limits", "sms", to=-1), r"limits\.sms: .*>= 0"),
        (_set("provenance", to=[]), "provenance: "),
        (_set("families", to={}), "families: "),
        (_set("families", to=[]), "families: "),
        (_set("families", 0, to=[]), r"families\[0\]: "),
        (_set("families", 0, "count", to=4), r"families\[0\]\.\S+: has 5 entries, not 4"),
        (_set("families", 0, "count", to=0), r"families\[0\]\.count: .*>= 1"),
        (_set("families", 0, "count", to=2**19 + 1), r"families: have 524,289 configs: at most 524,288"),
        (_set("families", to=[{"count": 2**19}, {"count": 9}, {"count": -99}]), "families: have 524,297 configs"),
        (_set("families", 0, "configs", "TILE", 1, to=3), r"configs\.TILE\[1\]: is 3"),
        (_set("families", 0, "configs", "TILE", 1, to=True), r"configs\.TILE\[1\]: "),
        (_append("families", 0, "configs", "TILE", value=1), r"configs\.TILE: has 6 entries, not 5"),
        (_set("families", 0, "configs", to={}), r"configs\.TILE: is missing"),
        (_set("families", 0, "tunables", to=[]), r"families\[0\]\.tunables: "),
        (_set("families", 0, "tunables", 1, "name", to="TILE"), r"tunables\[1\]\.name: 'TILE' occurs twice"),
        (_set("families", 0, "tunables", 0, "values", to=[64, 32, 16]), r"tunables\[0\]\.values: "),
        (_set("families", 0, "tunables", 0, "values", to=[]), r"tunables\[0\]\.values: "),
        (_set("families", 0, "tunables", 0, "values", to=list(range(257))), r"tunables\[0\]\.values: .*256"),
        (_set("families", 0, "tunables", 1, "values", to=["plain", 0.5]), r"tunables\[1\]\.values\[1\]: "),
        (_set("families", 0, "tunables", 1, "values", to=["plain", "plain"]), r"tunables\[1\]\.values: .*twice"),
        (_set("families", 0, "tunables", 0, "kind", to="float"), r"tunables\[0\]\.kind: .*'float'"),
        (_set("families", 0, "tunables", 2, "when", to="import os"), r"tunables\[2\]\.when: "),
        (
            _set("families", 0, "tunables", 2, "when", to="UNROLL"),
            r"tunables\[2\]\.when: depends on the tunable itself",
        ),
        (
            _set("families", 0, "tunables", 0, "when", to="UNROLL"),
            r"tunables\[0\]\.when: depends on the tunable itself",
        ),
        (_set("families", 0, "derived", to=_DERIVED * 129), r"families\[0\]\.derived: has 129 entries"),
        (_set("families", 0, "starts", 0, "values", to={"TILE": 48}), r"starts\[0\]\.values\.TILE: .*48"),
        (_set("families", 0, "starts", 0, "values", to={"SIZE": 48}), r"starts\[0\]\.values\.SIZE: "),
        (_set("families", 0, "status", "texts", 0, to="duplicate"), r"status\[0\]: 'duplicate'"),
        (_set("families", 0, "code", "places", 0, to=7), r"code\.places\[0\]: is 7"),
        (_set("families", 0, "code", "places", 0, to=-2), r"code\.places\[0\]: .*>= -1"),
        (_set("families", 0, "median_us", 0, to=None), r"median_us\[0\]: impossible times"),
        (_set("families", 0, "median_us", 0, to=0.0), r"median_us\[0\]: impossible times"),
        (_set("families", 0, "median_us", 0, to=float("nan")), r"median_us\[0\]: "),
        (_set("families", 0, "median_us", 0, to=10**400), r"median_us\[0\]: "),
        (_set("families", 0, "high_us", 0, to=float("inf")), r"high_us\[0\]: "),
        (_set("families", 0, "low_us", 0, to=99.0), r"median_us\[0\]: impossible times"),
        (_set("families", 0, "high_us", 0, to="9"), r"high_us\[0\]: "),
        (_set("families", 0, "registers", 0, to=-1), r"registers\[0\]: some resources are known"),
        (_append("families", 0, "registers", value=1), r"registers: has 6 entries, not 5"),
        (_set("families", 0, "compile_s", 0, to=1.7e308), r"compile_s\[0\]: .*<= 1e\+?300"),
        (_set("families", 0, "compile_s", 0, to=-0.5), r"compile_s\[0\]: .*>= 0"),
    ],
)
def test_an_invalid_entry_is_named(tmp_path: Path, change: Any, message: str) -> None:
    document = json.loads(json.dumps(landscape_document(toy())))
    change(document)
    file = tmp_path / "wrong.landscape"
    file.write_text(json.dumps(document))
    with pytest.raises(LandscapeError, match=message) as caught:
        read_landscape(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_repeated_configs_and_failures_with_a_time_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.landscape"
    twice = json.loads(json.dumps(landscape_document(toy())))
    for column in twice["families"][0]["configs"].values():
        column[1] = column[0]
    file.write_text(json.dumps(twice))
    with pytest.raises(LandscapeError, match=r"configs: .*\b1\b.*\b0\b"):
        read_landscape(file)
    failed = json.loads(json.dumps(landscape_document(toy())))
    family = failed["families"][0]
    place = family["status"]["texts"].index("compile_failed")
    first_ok = family["status"]["places"].index(family["status"]["texts"].index("ok"))
    family["status"]["places"][first_ok] = place
    file.write_text(json.dumps(failed))
    with pytest.raises(LandscapeError, match="compile_failed"):
        read_landscape(file)


def test_a_correct_config_without_resources_is_refused(tmp_path: Path) -> None:
    bare = toy([replace(evaluation, resources=None) for evaluation in toy().evaluations])
    file = tmp_path / "bare.landscape.xz"
    file.write_bytes(pack_landscape(bare))
    with pytest.raises(LandscapeError, match="lacks its resources"):
        read_landscape(file)
    file.write_bytes(pack_landscape(replace(bare, problem=None)))
    assert read_landscape(file).problem is None
