"""Conversion of documents: every mismatch names file, key and a plain reason."""

from __future__ import annotations

import ast
import enum
import json
import re
import shlex
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from evoengine.documents import LowerName, Text, UpperName, convert_document, escaping
from evoengine.documents.bounds import MAX_TEXT_BYTES, BoundsError, inflate, parse_json, parse_toml, read_bounded
from evoengine.errors import FileError, LandscapeError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Disc(msgspec.Struct, tag_field="kind", tag="disc", forbid_unknown_fields=True):
    radius: Annotated[float, msgspec.Meta(gt=0)]


class Box(msgspec.Struct, tag_field="kind", tag="box", forbid_unknown_fields=True):
    sides: Annotated[list[int], msgspec.Meta(min_length=1, max_length=3)]


@dataclass(frozen=True)
class Drawing:
    title: Text
    shapes: dict[LowerName, Disc | Box]
    colour: Colour = Colour.RED
    unit: Literal["mm", "cm"] = "mm"
    mark: tuple[int | Literal["end"], Colour] = ("end", Colour.RED)
    rows: tuple[dict[str, int | None], ...] = ()


GOOD: dict[str, Any] = {
    "title": "t",
    "shapes": {"a": {"kind": "disc", "radius": 1.5}, "b": {"kind": "box", "sides": [1]}},
}


def test_a_matching_document_is_converted() -> None:
    drawing = convert_document(GOOD | {"colour": "blue", "rows": [{"x": 1}, {"y": None}]}, Drawing, "f", FileError)
    assert drawing.shapes["b"] == Box([1])
    assert (drawing.colour, drawing.rows) == (Colour.BLUE, ({"x": 1}, {"y": None}))


@pytest.mark.parametrize(
    ("change", "key", "reason"),
    [
        ({"title": 3}, "title", "string.*3"),
        ({"title": " "}, "title", "empty"),
        ({"shapes": []}, "shapes", "table.*list"),
        ({"shapes": {"a": {"kind": "disc"}}}, "shapes.a.radius", "is missing"),
        ({"shapes": {"a": {"radius": 1}}}, "shapes.a.kind", "is missing"),
        ({"shapes": {"a": {"kind": "cone"}}}, "shapes.a.kind", "'cone'.*disc, box"),
        ({"shapes": {"a": {"kind": "box", "sides": [1], "z": 2}}}, "shapes.a.z", "kind, sides"),
        ({"shapes": {"a": {"kind": "disc", "radius": 0}}}, "shapes.a.radius", r"\b0\b"),
        ({"shapes": {"a": {"kind": "box", "sides": []}}}, "shapes.a.sides", "empty"),
        ({"shapes": {"a": {"kind": "box", "sides": [1] * 4}}}, "shapes.a.sides", r"\b3\b.*\b4\b"),
        ({"shapes": GOOD["shapes"] | {"C": {}}}, "shapes.C", "'C'"),
        (
            {"shapes": GOOD["shapes"] | {"c": {"kind": "box", "sides": [True]}}},
            "shapes.c.sides[0]",
            "integer",
        ),
        ({"colour": "green"}, "colour", "'green'.*red, blue"),
        ({"unit": "km"}, "unit", "'km'.*cm, mm"),
        ({"mark": ["start", "red"]}, "mark[0]", "'start'.*end, an integer"),
        ({"mark": [3, "green"]}, "mark[1]", "'green'.*red, blue"),
        ({"rows": [{"x": 1, "y": "2"}]}, "rows[0].y", "integer.*'2'"),
    ],
)
def test_mismatches_name_the_key(change: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(LandscapeError) as caught:
        convert_document(GOOD | change, Drawing, Path("drawing.json"), LandscapeError)
    assert (caught.value.file, caught.value.key) == ("drawing.json", key)
    assert re.search(reason, caught.value.reason)
    with pytest.raises(LandscapeError) as nested:
        convert_document(GOOD | change, Drawing, Path("drawing.json"), LandscapeError, "pages[2]")
    assert nested.value.key == f"pages[2].{key}"


def test_a_mismatch_of_the_whole_document_has_no_key() -> None:
    with pytest.raises(FileError, match=r"^f: .*table.*list$"):
        convert_document([], Drawing, "f", FileError)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested deeper"),
        ("[" + "{}," * (1 << 22) + "0]", "4,194,304 lists and tables"),
        ("[" + "7," * (1 << 24) + "7,7]", "16,777,216 values"),
        ("9" * 100_000, "64 bits"),
        (str(2**63), "64 bits"),
        (f"[-{2**64}]", "64 bits"),
        ("[1e999]", "finite"),
        ("[-1e9999999999]", "finite"),
        ("NaN", "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1, "b": 2, "a": 3}', "'a' twice"),
        (r'["\u0000"]', "NUL"),
        (r'{"\ud800": 1}', "surrogate"),
        (r'["\udfff"]', "surrogate"),
        (b'["\xff"]', "is not JSON: .*UTF-8"),
        (b"[\x00]", "NUL"),
        ("", "is not JSON"),
        ("[1,]", "is not JSON"),
    ],
)
def test_json_beyond_its_bounds_is_refused(text: str | bytes, reason: str) -> None:
    with pytest.raises(BoundsError, match=reason) as caught:
        parse_json(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_json_within_its_bounds_is_parsed() -> None:
    contents: tuple[object, ...] = (
        [[[]]] * 200,
        {"]": "[[[[", "a\\": '"'},
        [2**63 - 1, -(2**63) + 1, 1e300, 1e-300],
        "\U0001f600",
    )
    for content in contents:
        assert parse_json(json.dumps(content)) == content
    assert parse_json(b"\xef\xbb\xbf{}") == {}
    assert parse_json("[NaN, 1e999, " + "9" * 99 + "]", finite=False)[1:] == [float("inf"), float("inf")]
    assert parse_json(r'["\u0000"]', any_text=True) == ["\0"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (".".join("a" * 300_000) + " = 1", "nested deeper"),
        ("[" + ".".join(['"a"'] * 100_000) + "]", "nested deeper"),
        ("a = " + "[" * 100_000, "nested deeper"),
        ("a = " + "[" * 65 + "]" * 65, "nested deeper"),
        ("a = " + "{a = " * 20_000, "nested deeper"),
        ("a = " + "9" * 10_000, "64 bits"),
        ("a = 0x" + "f" * 16, "64 bits"),
        ("a = inf", "the number inf"),
        ("a = [{b = nan}]", "the number nan"),
        ("a = 1\n" + "#" * MAX_TEXT_BYTES, "larger than 1 MiB"),
        ('a = "\\u0000"', "NUL"),
    ],
)
def test_toml_beyond_its_bounds_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BoundsError, match=reason):
        parse_toml(text)


def test_toml_within_its_bounds_is_parsed() -> None:
    assert parse_toml("a" + ".a" * 20 + " = 1")
    assert parse_toml('doc = """' + "a.b. " * 1000 + '"""')["doc"].startswith("a.b. ")


def test_files_and_compressed_data_have_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"0" * 11)
    assert read_bounded(file, 11) == b"0" * 11
    with pytest.raises(BoundsError, match="larger"):
        read_bounded(file, 10)
    packed = zlib.compress(b"0" * (1 << 25))
    assert len(inflate(packed, 1 << 25)) == 1 << 25
    for data, reason in (
        (packed, "more than 1 MiB"),
        (packed[:-1], "complete"),
        (packed + b"x", "complete"),
        (b"x", "zlib"),
    ):
        with pytest.raises(BoundsError, match=reason):
            inflate(data, (1 << 25) if reason == "complete" else 1 << 20)


# -- escaping ---------------------------------------------------------------------------------------------------------

HARD = ["*/ x", "/* x", "a\\", "??/", '"""', "'", "\0", "\x1b[31m", "\u202e", "\u2028", "\r\n", "\x85", "\ud800", "µ"]


@pytest.mark.parametrize("text", [*HARD, "".join(HARD), "".join(reversed(HARD))])
def test_escaped_texts_stay_inside_their_construct(text: str) -> None:
    line = escaping.comment(text)
    assert line.isprintable()
    assert not any(sign in line for sign in ("*/", "/*", "\\", '"', "??"))
    literal = escaping.c_string(text)
    assert literal.isascii()
    assert re.fullmatch(r'"([^"\\?\n]|\\[0-7]{3})*"', literal)
    octets = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), literal[1:-1].encode())
    assert octets == text.encode("utf-8", "backslashreplace")
    assert ast.literal_eval(escaping.python_string(text)) == text
    assert escaping.python_string(text).isascii()
    for shown in (escaping.printable(text), escaping.shell_word(text), escaping.markdown(text)):
        assert shown.isprintable()
    assert shlex.split(escaping.shell_word(text)) == [escaping.printable(text)]
    assert all(part.isprintable() for part in re.split("[\n\t]", escaping.printable_lines(text)))


def test_plain_texts_are_unchanged() -> None:
    text = "NVIDIA H200, 1x8x512x64-fp16: 5 µs (95 % CI)"
    assert escaping.comment(text) == escaping.printable(text) == escaping.markdown(text) == text
    assert escaping.c_string("a b") == '"a b"'


def test_a_name_with_a_line_end_is_no_name() -> None:
    for kind, name in ((LowerName, "abc\n"), (UpperName, "ABC\n")):
        with pytest.raises(FileError):
            convert_document([name], list[kind], "x.toml", FileError)  # type: ignore[valid-type]


def test_errors_are_short_and_printable() -> None:
    for content in ({"\x1b" + "k" * 5000: 1}, {"radius": "\x1b" + "v" * 5000}, {"radius": 1, "x\n" * 3000: 1}):
        with pytest.raises(LandscapeError) as caught:
            convert_document({"kind": "disc", **content}, Disc, "x", LandscapeError)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("place", ["$.none", "$[7]", "$.radius.x", "$.kind[7]", "key` in `$.none", "key` in `$.radius"])
def test_a_key_that_imitates_the_position_of_an_error_is_reported_without_one(place: str) -> None:
    content = {"kind": "disc", "radius": 1, f"x\n` - at `{place}": 1}
    with pytest.raises(LandscapeError) as caught:
        convert_document(content, Disc, "f", LandscapeError)
    assert caught.value.key == ""
    assert "unknown field" in caught.value.reason
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_record_with_another_tag_names_its_own() -> None:
    with pytest.raises(LandscapeError) as caught:
        convert_document({"kind": "cone", "radius": 1}, Disc, "f", LandscapeError)
    assert caught.value.key == "kind"
    assert re.search("'cone'.*disc", caught.value.reason)
