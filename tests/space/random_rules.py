"""Random expressions over the names X, Y, Z (numbers), F (a boolean) and T (a string)."""

from __future__ import annotations

import numpy as np

NUMBERS = ("X", "Y", "Z", "2", "0", "-3")
TEXTS = ("T", "'a'", "'b'")


def number(rng: np.random.Generator, depth: int) -> str:
    """Returns an expression that yields a number or fails."""
    if depth == 0 or rng.random() < 0.2:
        return str(rng.choice(NUMBERS))
    a, b = number(rng, depth - 1), number(rng, depth - 1)
    match rng.integers(5):
        case 0:
            return f"({a} {rng.choice(['+', '-', '*', '//', '%'])} {b})"
        case 1:
            return f"{rng.choice(['ceil_div', 'round_up', 'min', 'max'])}({a}, {b})"
        case 2:
            return f"({a} if {condition(rng, depth - 1)} else {b})"
        case 3:
            return f"({a} {rng.choice(['and', 'or'])} {b})"
    return f"({condition(rng, depth - 1)} * {a})"


def condition(rng: np.random.Generator, depth: int) -> str:
    """Returns an expression that yields a boolean or fails."""
    if depth == 0:
        return str(rng.choice(["F", "X > 1", "T == 'a'"]))
    match rng.integers(5):
        case 0:
            return f"({number(rng, depth - 1)} {rng.choice(['<', '<=', '==', '!=', '>', '>='])} {number(rng, 0)})"
        case 1:
            return f"({condition(rng, depth - 1)} {rng.choice(['and', 'or'])} {condition(rng, depth - 1)})"
        case 2:
            return f"(not {condition(rng, depth - 1)})"
        case 3:
            return f"({number(rng, depth - 1)} {rng.choice(['in', 'not in'])} (1, Y, 'a'))"
    return f"({rng.choice(TEXTS)} {rng.choice(['==', '!=', '<', '>='])} {rng.choice(TEXTS)})"
