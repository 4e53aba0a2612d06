"""Conversion of documents: every mismatch names file, key and a plain reason."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from evoengine.documents import LowerName, Text, convert_document
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
        ({"title": 3}, "title", "expected a string, got an integer 3"),
        ({"title": " "}, "title", "must be a string that is not empty"),
        ({"shapes": []}, "shapes", "expected a table, got a list"),
        ({"shapes": {"a": {"kind": "disc"}}}, "shapes.a.radius", "is missing"),
        ({"shapes": {"a": {"radius": 1}}}, "shapes.a.kind", "is missing"),
        ({"shapes": {"a": {"kind": "cone"}}}, "shapes.a.kind", "unknown value 'cone': use one of disc, box"),
        ({"shapes": {"a": {"kind": "box", "sides": [1], "z": 2}}}, "shapes.a.z", "unknown key: use kind, sides"),
        ({"shapes": {"a": {"kind": "disc", "radius": 0}}}, "shapes.a.radius", "must be > 0, not 0"),
        ({"shapes": {"a": {"kind": "box", "sides": []}}}, "shapes.a.sides", "must not be empty"),
        ({"shapes": {"a": {"kind": "box", "sides": [1] * 4}}}, "shapes.a.sides", "must have at most 3 entries, not 4"),
        ({"shapes": GOOD["shapes"] | {"C": {}}}, "shapes.C", "'C' is not a lower-case name"),
        (
            {"shapes": GOOD["shapes"] | {"c": {"kind": "box", "sides": [True]}}},
            "shapes.c.sides[0]",
            "expected an integer",
        ),
        ({"colour": "green"}, "colour", "unknown value 'green': use one of red, blue"),
        ({"unit": "km"}, "unit", "unknown value 'km': use one of cm, mm"),
        ({"rows": [{"x": 1, "y": "2"}]}, "rows[0].y", "expected an integer, got a string '2'"),
    ],
)
def test_mismatches_name_the_key(change: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(LandscapeError) as caught:
        convert_document(GOOD | change, Drawing, Path("drawing.json"), LandscapeError)
    assert (caught.value.file, caught.value.key) == ("drawing.json", key)
    assert caught.value.reason.startswith(reason)
    with pytest.raises(LandscapeError) as nested:
        convert_document(GOOD | change, Drawing, Path("drawing.json"), LandscapeError, "pages[2]")
    assert nested.value.key == f"pages[2].{key}"


def test_a_mismatch_of_the_whole_document_has_no_key() -> None:
    with pytest.raises(FileError, match=r"^f: expected a table, got a list$"):
        convert_document([], Drawing, "f", FileError)
