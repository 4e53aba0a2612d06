"""Expression language: values, rejected syntax, and agreement of vectorised evaluation with Python."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.model import Value
from evoengine.space.language.expression import (
    ExpressionBatch,
    ExpressionError,
    evaluate,
    evaluate_int,
    inline,
    names_in,
)
from evoengine.space.language.vectorized import evaluate_array
from tests.space.random_rules import condition, number

SCOPE: dict[str, Value] = {"A": 7, "B": 2, "ZERO": 0, "FLAG": True, "MODE": "swizzle", "dtype": "fp16"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A + B * 3 - 1", 12),
        ("-A // B", -4),
        ("-A % 4", 1),
        ("ceil_div(A, B)", 4),
        ("round_up(A, 4)", 8),
        ("min(A, B, 1)", 1),
        ("max(A, B)", 7),
        ("A if MODE == 'swizzle' else B", 7),
        ("MODE in ('padded', 'swizzle')", True),
        ("A not in (7, 8)", False),
        ("1 <= B < A", True),
        ("not FLAG or B == 2", True),
        ("ZERO == 0 or A // ZERO > 1", True),
        ("ZERO or B", 2),
        ("(dtype == 'fp16') * 4 + FLAG", 5),
        ("max(\n  A,\n  B\n)", 7),
        ("MODE == 3", False),
    ],
)
def test_value(text: str, value: object) -> None:
    result = evaluate(text, SCOPE)
    assert result == value
    assert type(result) is type(value)


def test_names() -> None:
    assert names_in("ceil_div(seq_q, BLOCK_M) if X in (1, Y) else min(X, 2)") == {"seq_q", "BLOCK_M", "X", "Y"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A + MISSING", "unknown name MISSING"),
        ("A // ZERO", "division by zero"),
        ("A % ZERO", "division by zero"),
        ("ceil_div(A, ZERO)", "division by zero"),
        ("MODE * 2", "cannot calculate with MODE, it holds the text 'swizzle'"),
        ("(A and MODE) * 2", "cannot calculate with MODE"),
        ("min(MODE, 'a')", "cannot calculate with the text 'a'"),
        ("A < MODE", "compares or combines text with a number"),
    ],
)
def test_evaluation_errors(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, SCOPE)
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["FLAG", "A > 1", "MODE"])
def test_evaluate_int_rejects_other_types(text: str) -> None:
    with pytest.raises(ExpressionError, match="not an integer"):
        evaluate_int(text, SCOPE)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "().__class__",
        "A.bit_length()",
        "A.real",
        "A[0]",
        "A ** 9",
        "9 ** 9 ** 9",
        "1 << 99999999",
        "A / B",
        "1.5",
        "1j",
        "None",
        "...",
        "b'x'",
        "'a' * 999999999",
        "'%0999999999d' % 1",
        "99999999999999999999",
        "lambda: 1",
        "[A for A in (1, 2)]",
        "(A := 3)",
        "[1]",
        "{1: 2}",
        "(1, 2)",
        "A == (1, 2)",
        "A in B",
        "A in 'abc'",
        "A is B",
        "~A",
        "A | B",
        "f'{A}'",
        "print(A)",
        "eval('1')",
        "min",
        "min + 1",
        "min(A)",
        "min(*(A, B))",
        "ceil_div(A, b=2)",
        "min(A, B, key=print)",
        "max(A, B, default=C)",
        "min(A, *(A, B))",
        "ceil_div(A)",
        "round_up(A, B, 1)",
        "(min)(A, B)(1)",
        "A; B",
        "A = 1",
        "import os",
        "await A",
        "yield A",
        "A if B",
        "",
        "   ",
        "A\x00",
        "(" * 500,
        "-" * 1900 + "1",
        "A + " * 900 + "A",
    ],
)
def test_forbidden_syntax(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, SCOPE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["min(A, B, key=A)", "min(A, *(A, B))", "max(A, B, **A)"])
def test_only_plain_arguments(text: str) -> None:
    with pytest.raises(ExpressionError, match="takes plain arguments only"):
        names_in(text)


@pytest.mark.parametrize("seed", range(400))
@pytest.mark.every(3)
def test_arrays_agree_with_python(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = condition(rng, 4) if seed % 2 else number(rng, 4)
    domains: dict[str, list[int | str | bool]] = {
        "X": [-2, 0, 1, 5],
        "Y": [0, 3],
        "Z": [1, 2, 7],
        "F": [False, True],
        "T": ["a", "b"],
    }
    grid = dict(zip(domains, np.meshgrid(*domains.values(), indexing="ij", sparse=True), strict=True))
    shape = np.broadcast_shapes(*(array.shape for array in grid.values()))
    expected, failed = np.empty(shape, object), False
    for place in np.ndindex(shape):
        scope = {name: domains[name][index] for name, index in zip(domains, place, strict=True)}
        try:
            expected[place] = evaluate(text, scope)
        except ExpressionError:
            failed = True
    if failed:
        with pytest.raises(ExpressionError):
            evaluate_array(text, grid)
    else:
        np.testing.assert_array_equal(np.broadcast_to(evaluate_array(text, grid), shape).astype(object), expected)


def test_arrays_do_not_overflow() -> None:
    values = np.array([1, 2**31])
    assert evaluate_array("X * X > 5", {"X": values}).tolist() == [False, True]
    with pytest.raises(ExpressionError, match="64 bits"):
        evaluate_array("X * X > 5", {"X": np.array([1, 2**40])})


def test_a_batch_equals_single_expressions() -> None:
    rng, outcomes = np.random.default_rng(3), {True: 0, False: 0}
    for _ in range(400):
        items = [(f"N{place}", f"{number(rng, 2)} + N{place - 1}" if place else number(rng, 2)) for place in range(3)]
        given: dict[str, Value] = {"X": 3, "Y": -2, "Z": 0, "F": bool(rng.integers(2)), "T": "a"}
        expected, works = dict(given), True
        try:
            for name, text in items:
                expected[name] = evaluate(text, expected)
                works = works and not isinstance(expected[name], str)
        except ExpressionError:
            works = False
        scope = dict(given)
        assert ExpressionBatch(items, ("X", "Y", "Z", "F")).run(scope) == works
        if works:
            assert scope == expected
            assert [type(value) for value in scope.values()] == [type(value) for value in expected.values()]
        outcomes[works] += 1
    assert min(outcomes.values()) > 40


@pytest.mark.parametrize(
    ("text", "more"), [("T * 2 == 'aa'", {}), ("T", {}), ("X +", {}), ("MISSING", {}), ("min(X, 2)", {"min": 1})]
)
def test_a_batch_reports_failure(text: str, more: dict[str, Value]) -> None:
    assert not ExpressionBatch([("N", text)], ("X",)).run({"X": 3, "T": "a", **more})


@pytest.mark.parametrize(
    "text",
    [
        "X * X * X",
        "9223372036854775807 + 1",
        "-9223372036854775807 - 2",
        "round_up(X, 9223372036854775807) * 2",
        "X * X * X // X",
        "(X * X * X) > 0",
        "2 ** 99",
        "1 << 99",
        "-" * 500 + "1",
        "+".join("X" * 900),
        "X if X else " * 150 + "1",
        "not " * 400 + "X",
        "min(" * 120 + "X" + ", 1)" * 120,
        "'\\x41' == T",
        "X\x1b == 1",
    ],
)
def test_expressions_are_bounded(text: str) -> None:
    scope: dict[str, Value] = {"X": 2**31 - 1, "T": "a"}
    with pytest.raises(ExpressionError) as caught:
        evaluate(text, scope)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    assert not ExpressionBatch([("N", text)], ["X"]).run({"X": 2**31 - 1})
    with pytest.raises(ExpressionError):
        evaluate_array(text, {"X": np.array([1, 2**31 - 1]), "T": np.array("a")})


def test_definitions_take_the_place_of_names() -> None:
    known = (("A", "x + 1"), ("B", "A * A if A > 2 else -A"))
    text = inline("B - 2 * min(A, y)", known)
    assert names_in(text) == {"x", "y"}
    for x in (0, 5):
        a = x + 1
        assert evaluate(text, {"x": x, "y": 3}) == (a * a if a > 2 else -a) - 2 * min(a, 3)
    assert inline("x  +  y", known) == "x  +  y"


def test_definitions_that_grow_without_bound_are_refused() -> None:
    known = tuple((f"N{i}", f"N{i + 1} + N{i + 1}") for i in range(60))
    with pytest.raises(ExpressionError, match=r"longer than|more than"):
        inline("N0", known)
