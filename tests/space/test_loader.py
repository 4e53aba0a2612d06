"""Loader of search-space files: every mistake yields one line with file, key and reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space, load_space, parse_space
from evoengine.target import get_target

GOOD = """
family = "mini"
doc = "two tunables"
[tunables.BLOCK]
kind = "ordinal"
values = [16, 32]
unit = "keys"
doc = "keys per tile"
[tunables.LAYOUT]
kind = "categorical"
values = ["swizzle", "padded"]
unit = "layout"
doc = "rows in shared memory"
[tunables.FAST]
kind = "boolean"
unit = "-"
doc = "a switch"
[derived.BYTES]
expr = "BLOCK * head_dim"
unit = "bytes"
doc = "tile"
[derived.TWICE]
expr = "2 * BYTES"
unit = "bytes"
doc = "two tiles"
[constraints.fits]
rule = "TWICE <= smem_per_block"
reason = "must fit"
[starts.good]
doc = "what was found good"
values = { BLOCK = 32, FAST = true }
"""


HAS = '[tunables.HAS]\nkind = "categorical"\nvalues = '
TWO_CATEGORIES = '["b_c"]\nunit = "-"\ndoc = "-"\n[tunables.HAS_B]\nkind = "categorical"\nvalues = ["c"'


def _write(folder: Path, text: str) -> Path:
    path = folder / "mini.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_valid_file(tmp_path: Path) -> None:
    space = load_space(_write(tmp_path, GOOD))
    assert space.family == "mini"
    assert [(t.name, t.kind, t.values) for t in space.tunables] == [
        ("BLOCK", "ordinal", (16, 32)),
        ("LAYOUT", "categorical", ("swizzle", "padded")),
        ("FAST", "boolean", (False, True)),
    ]
    assert [item.name for item in space.derived] == ["BYTES", "TWICE"]
    assert space.constraints[0].reason == "must fit"
    assert [(start.name, dict(start.values)) for start in space.starts] == [("good", {"BLOCK": 32, "FAST": True})]


CASES = {
    "unknown top key": (('doc = "two', 'author = "me"\ndoc = "two'), "author", "unknown key: use family, doc"),
    "missing family": (('family = "mini"\n', ""), "family", "is missing"),
    "missing doc": (('doc = "two tunables"\n', ""), "doc", "is missing"),
    "empty doc": (('doc = "two tunables"', 'doc = " "'), "doc", "not empty"),
    "family not a name": (('"mini"', '"Mini Space"'), "family", "'Mini Space' is not a lower-case name"),
    "family not text": (('"mini"', "3"), "family", "got an integer 3"),
    "no tunables": ((GOOD[GOOD.index("[tunables.B") :], "[tunables]"), "tunables", "empty"),
    "tunables missing": ((GOOD[GOOD.index("[tunables.B") :], ""), "tunables", "is missing"),
    "tunable not a table": (
        ("[tunables.FAST]", "[tunables]\nODD = 3\n[tunables.FAST]"),
        "tunables.ODD",
        "expected a table",
    ),
    "unknown tunable key": (("values = [16, 32]", "values = [16, 32]\nstep = 2"), "tunables.BLOCK.step", "unknown key"),
    "missing unit": (('unit = "keys"\n', ""), "tunables.BLOCK.unit", "is missing"),
    "missing kind": (('kind = "ordinal"\n', ""), "tunables.BLOCK.kind", "is missing"),
    "unknown kind": (
        ('"ordinal"', '"float"'),
        "tunables.BLOCK.kind",
        "'float': use one of ordinal, categorical, boolean",
    ),
    "kind not text": (('"ordinal"', "[1]"), "tunables.BLOCK.kind", "got a list"),
    "missing values": (("values = [16, 32]\n", ""), "tunables.BLOCK.values", "is missing"),
    "values not a list": (("[16, 32]", "16"), "tunables.BLOCK.values", "expected a list"),
    "empty values": (("[16, 32]", "[]"), "tunables.BLOCK.values", "empty"),
    "too many values": (("[16, 32]", str(list(range(300)))), "tunables.BLOCK.values", "at most 256 entries, not 300"),
    "duplicate values": (("[16, 32]", "[16, 32, 32]"), "tunables.BLOCK.values[2]", "32 is repeated"),
    "unordered values": (("[16, 32]", "[32, 16]"), "tunables.BLOCK.values", "ascend"),
    "huge value": (("[16, 32]", "[16, 4294967296]"), "tunables.BLOCK.values[1]", "must be <= 2147483647"),
    "float in an ordinal": (
        ("[16, 32]", "[16, 1.5]"),
        "tunables.BLOCK.values[1]",
        "expected an integer, got a number 1.5",
    ),
    "bool in an ordinal": (
        ("[16, 32]", "[false, 1]"),
        "tunables.BLOCK.values[0]",
        "expected an integer, got true or false",
    ),
    "int in a categorical": (
        ('["swizzle", "padded"]', '["swizzle", 1]'),
        "tunables.LAYOUT.values[1]",
        "expected a string, got an integer 1",
    ),
    "bad category": (('"padded"]', '"a b"]'), "tunables.LAYOUT.values[1]", "'a b' is not a lower-case name"),
    "values of a boolean": (
        ('kind = "boolean"', 'kind = "boolean"\nvalues = [true]'),
        "tunables.FAST.values",
        "unknown key: use kind, unit, doc, when",
    ),
    "tunable in lower case": (("tunables.FAST", "tunables.fast"), "tunables.fast", "'fast' is not an UPPER_CASE"),
    "tunable not an identifier": (("tunables.FAST", 'tunables."A-B"'), "tunables.A-B", "'A-B' is not an UPPER_CASE"),
    "reserved name": (
        ("tunables.FAST", "tunables.HEAD_DIM"),
        "tunables.HEAD_DIM",
        "'HEAD_DIM' is defined by the prologue",
    ),
    "clash with a category": (
        ("tunables.FAST", "tunables.LAYOUT_PADDED"),
        "tunables.LAYOUT.values",
        "'padded' clashes with the name LAYOUT_PADDED",
    ),
    "clash of a category with the prologue": (
        ('[tunables.LAYOUT]\nkind = "categorical"\nvalues = ["swizzle"', HAS + '["sink"'),
        "tunables.HAS.values",
        "'sink' clashes with the name HAS_SINK",
    ),
    "clash of two categories": (
        ('[tunables.LAYOUT]\nkind = "categorical"\nvalues = ["swizzle"', HAS + TWO_CATEGORIES),
        "tunables.HAS_B.values",
        "'c' clashes with the name HAS_B_C",
    ),
    "derived is a tunable": (("derived.BYTES", "derived.BLOCK"), "derived.BLOCK", "BLOCK is already a tunable"),
    "derived in lower case": (("derived.TWICE", "derived.twice"), "derived.twice", "'twice' is not an UPPER_CASE"),
    "derived without expr": (('expr = "2 * BYTES"\n', ""), "derived.TWICE.expr", "is missing"),
    "expr not text": (('"2 * BYTES"', "2"), "derived.TWICE.expr", "expected a string"),
    "expr does not parse": (("2 * BYTES", "2 * "), "derived.TWICE.expr", "not an expression in `2 *`"),
    "expr forbidden": (("2 * BYTES", "BYTES ** 2"), "derived.TWICE.expr", "** is not allowed"),
    "expr unknown name": (
        ("2 * BYTES", "2 * BITES"),
        "derived.TWICE.expr",
        "BITES is unknown in `2 * BITES`: did you mean BYTES?",
    ),
    "expr uses later": (("BLOCK * head_dim", "TWICE"), "derived.BYTES.expr", "TWICE is defined only later"),
    "expr uses itself": (("BLOCK * head_dim", "BYTES"), "derived.BYTES.expr", "BYTES is defined only later"),
    "unknown derived key": (('expr = "2 * BYTES"', 'expr = "2"\nrule = "1"'), "derived.TWICE.rule", "unknown key"),
    "constraint name": (("constraints.fits", "constraints.Fits"), "constraints.Fits", "'Fits' is not a lower-case"),
    "missing reason": (('reason = "must fit"\n', ""), "constraints.fits.reason", "is missing"),
    "missing rule": (('rule = "TWICE <= smem_per_block"\n', ""), "constraints.fits.rule", "is missing"),
    "rule unknown name": (("smem_per_block", "smem"), "constraints.fits.rule", "smem is unknown in `TWICE <= smem`"),
    "rule does not parse": (("<= smem_per_block", "=< 3"), "constraints.fits.rule", "not an expression"),
    "rule without tunable": (("TWICE <= ", "48 <= "), "constraints.fits.rule", "depends on no tunable"),
    "start without values": (("values = { BLOCK = 32, FAST = true }", ""), "starts.good.values", "is missing"),
    "empty start": (("{ BLOCK = 32, FAST = true }", "{}"), "starts.good.values", "empty"),
    "start of an unknown tunable": (
        ("{ BLOCK = 32,", "{ BLOK = 32,"),
        "starts.good.values.BLOK",
        "file: did you mean BLOCK?",
    ),
    "start at an unknown value": (
        ("{ BLOCK = 32,", "{ BLOCK = 33,"),
        "starts.good.values.BLOCK",
        "33 is not one of its",
    ),
    "number for a boolean in a start": (("FAST = true", "FAST = 1"), "starts.good.values.FAST", "1 is not one of its"),
    "rule is a value": (
        ("TWICE <= smem_per_block", "TWICE - 1"),
        "constraints.fits.rule",
        "is a value, not a condition",
    ),
    "constraints not a table": ((GOOD[GOOD.index("[constraints") :], ""), "constraints", "expected a table"),
}


@pytest.mark.parametrize(("change", "key", "reason"), CASES.values(), ids=CASES.keys())
def test_mistakes_name_file_key_and_reason(tmp_path: Path, change: tuple[str, str], key: str, reason: str) -> None:
    old, new = change
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if key == "constraints":
        text = 'constraints = "none"\n' + text
    path = _write(tmp_path, text)
    with pytest.raises(SearchSpaceError) as caught:
        load_space(path)
    assert caught.value.file == str(path)
    assert caught.value.key == key
    assert reason in caught.value.reason
    assert str(caught.value) == f"{path}: {key}: {caught.value.reason}"
    assert "\n" not in str(caught.value)


CONDITIONS = {
    "not a string": ("FAST", "when = 3", "expected a string"),
    "empty": ("FAST", 'when = " "', "not empty"),
    "does not parse": ("FAST", 'when = "BLOCK >"', "not an expression"),
    "forbidden": ("FAST", 'when = "BLOCK ** 2 > 9"', "** is not allowed"),
    "unknown name": ("FAST", 'when = "BLOK > 16"', "BLOK is unknown in `BLOK > 16`: did you mean BLOCK?"),
    "a value": ("FAST", 'when = "BLOCK - 16"', "is a value, not a condition"),
    "itself": ("FAST", 'when = "FAST and BLOCK > 16"', "depends on the tunable itself"),
    "itself, derived": ("BLOCK", 'when = "TWICE > 9000"', "depends on the tunable itself"),
}


def _with_conditions(**conditions: str) -> str:
    text = GOOD
    for name, line in conditions.items():
        text = text.replace(f"[tunables.{name}]\n", f"[tunables.{name}]\n{line}\n", 1)
    return text


@pytest.mark.parametrize(("name", "line", "reason"), CONDITIONS.values(), ids=CONDITIONS.keys())
def test_wrong_conditions_name_file_key_and_reason(tmp_path: Path, name: str, line: str, reason: str) -> None:
    path = _write(tmp_path, _with_conditions(**{name: line}))
    with pytest.raises(SearchSpaceError) as caught:
        load_space(path)
    assert (caught.value.file, caught.value.key) == (str(path), f"tunables.{name}.when")
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_cyclic_conditions_are_rejected(tmp_path: Path) -> None:
    text = _with_conditions(FAST="when = \"LAYOUT == 'padded'\"", LAYOUT='when = "FAST"')
    with pytest.raises(SearchSpaceError, match=r"tunables\.LAYOUT\.when: "):
        load_space(_write(tmp_path, text))


def test_the_implied_constraint_needs_a_free_name(tmp_path: Path) -> None:
    text = _with_conditions(FAST='when = "BLOCK > 16"').replace("constraints.fits", "constraints.fast_when")
    with pytest.raises(SearchSpaceError, match=r"tunables\.FAST\.when: .*fast_when"):
        load_space(_write(tmp_path, text))


def test_a_condition_implies_a_constraint_with_a_reason(tmp_path: Path) -> None:
    text = _with_conditions(FAST='when = "TWICE > 4096 and head_dim > 32"', LAYOUT='when = "arch_number >= 90"')
    space = load_space(_write(tmp_path, text))
    assert [constraint.name for constraint in space.constraints] == ["fits", "layout_when", "fast_when"]
    assert re.match("LAYOUT .*arch_number >= 90: .*'swizzle'$", space.constraints[1].reason)
    assert space.constraints[2].reason.endswith(" False")


def test_a_derived_name_without_tunables_does_not_count(tmp_path: Path) -> None:
    text = GOOD.replace("BLOCK * head_dim", "16 * head_dim")
    with pytest.raises(SearchSpaceError, match=r"constraints\.fits\.rule: "):
        load_space(_write(tmp_path, text))


def test_not_toml(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match=r"TOML.*line 2"):
        load_space(_write(tmp_path, "doc = ''\nfamily = =\n"))


def test_repeated_key(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match="TOML"):
        load_space(_write(tmp_path, GOOD + '[tunables.BLOCK]\nkind = "boolean"\n'))


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(b"family = '\xff'")
    with pytest.raises(SearchSpaceError, match="is not UTF-8"):
        load_space(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SearchSpaceError, match="No such file"):
        load_space(tmp_path / "none.toml")


def test_find_by_path(tmp_path: Path) -> None:
    assert find_space(str(_write(tmp_path, GOOD))).family == "mini"


def test_find_unknown_family() -> None:
    with pytest.raises(UsageError, match="'nope'"):
        find_space("nope")


def test_every_packaged_space_loads() -> None:
    for path in data_dir("search_spaces").glob("*.toml"):
        assert find_space(path.stem).family == path.stem


def hostile_space(
    count: int, values: Sequence[int], rules: Sequence[str], derived: Mapping[str, str] | None = None
) -> str:
    text = 'family = "x"\ndoc = "d"\n'
    for number in range(count):
        text += f'[tunables.T{number}]\nkind = "ordinal"\nunit = "u"\ndoc = "d"\nvalues = {list(values)}\n'
    for name, expr in (derived or {}).items():
        text += f'[derived.{name}]\nexpr = "{expr}"\nunit = "u"\ndoc = "d"\n'
    for number, rule in enumerate(rules):
        text += f'[constraints.c{number}]\nrule = "{rule}"\nreason = "r"\n'
    return text


CHAIN = {f"D{number}": f"D{number - 1} * D{number - 1}" if number else "T0" for number in range(10)}
LONG_CHAIN = {f"D{number}": f"D{number - 1} + 1" if number else "T0" for number in range(40)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (hostile_space(2, range(2, 200), ["D9 > 0"], CHAIN), r"derived.D\d.expr: .*64 bits"),
        (hostile_space(2, range(2, 200), ["D39 > 0"], LONG_CHAIN), r"derived.D16: "),
        (hostile_space(101, (1, 2), ["T0 == 1"]), "tunables: "),
        (hostile_space(2, (1, 2), ["T0 == 1"] * 300), "constraints: "),
        (hostile_space(100, range(256), ["T0 == 1"]), "constraints: .*64 bits"),
        (hostile_space(2, (1, 2), ["T0 * T1 < 5"], dict.fromkeys([f"D{n}" for n in range(200)], "1")), "derived: "),
    ],
)
def test_a_hostile_space_is_refused(text: str, key: str) -> None:
    with pytest.raises(SearchSpaceError, match=f"x.toml: {key}"):
        parse_space(text, "x.toml").build(Problem(1, 8, 512, 64), get_target("l4"))


def test_building_a_space_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evoengine.space.space_builder.MAX_STEPS", 10**6)
    rules = [f"{'+'.join(f'T{(first + step) % 9}' for step in range(5))} % 7 != {first}" for first in range(9)]
    with pytest.raises(SearchSpaceError, match=r"x\.toml: constraints: .*1,000,000"):
        parse_space(hostile_space(9, range(1, 100), rules), "x.toml").build(Problem(1, 8, 512, 64), get_target("l4"))


def test_a_long_rule_that_numpy_cannot_evaluate_costs_more_steps() -> None:
    """It would be evaluated a million times by Python, 60 us each."""
    long = " or ".join(f"(T0 * T1) % 7 + T0 * {number} == 3001" for number in range(1, 50))
    text = hostile_space(3, range(1, 97), [f"(T0 if T2 > 300 else dtype) == dtype and ({long} or T0 > 0) or T2 > 0"])
    with pytest.raises(SearchSpaceError, match=r"x\.toml: constraints: need more than 200,000,000 steps"):
        parse_space(text, "x.toml").build(Problem(1, 8, 512, 64), get_target("l4"))
