"""Launch expressions in C++: a C++ compiler's arithmetic must agree with Python's on the same texts."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from evoengine.errors import UsageError
from evoengine.export.expression import AXES, to_cpp
from evoengine.model import Value
from evoengine.space.expression import evaluate

NAMES: dict[str, Value] = {"BLOCK_M": 48, "WARPS_N": 3, "SPLIT": True, "LAYOUT": "swizzle", "head_dim": 64}
TEXTS = (
    "ceil_div(seq_q, BLOCK_M)",
    "heads",
    "batch * kv_heads",
    "round_up(seq_kv, 2 * BLOCK_M) // WARPS_N - 1",
    "min(seq_q, seq_kv, BLOCK_M) + max(1, heads - 3)",
    "ceil_div(seq_q, BLOCK_M) if SPLIT and seq_q > BLOCK_M else 1",
    "seq_q % 7 if LAYOUT == 'swizzle' else 0",
    "2 if heads in (1, 4) else 3",
    "2 if heads not in (1, 4) else 3",
    "5 if not (1 < heads <= kv_heads) else -heads",
    "head_dim * 2",
)
CASES = ((1, 8, 8, 512, 512), (2, 4, 2, 1, 77), (3, 1, 1, 97, 96), (1, 6, 3, 48, 1000))

HELPERS = """
#include <cstdio>
namespace evo_host {
constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }
constexpr long long round_up(long long a, long long b) { return ceil_div(a, b) * b; }
constexpr long long min_of(long long a, long long b) { return a < b ? a : b; }
constexpr long long max_of(long long a, long long b) { return a > b ? a : b; }
}
"""


def test_cpp_agrees_with_python(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    axes = ", ".join(f"long long {axis}" for axis in AXES)
    lines = [
        f"void show({axes}) {{",
        *(f'    std::printf("%lld\\n", (long long)({to_cpp(text, NAMES)}));' for text in TEXTS),
        "}",
        "int main() {",
        *(f"    show({', '.join(map(str, case))});" for case in CASES),
        "}",
    ]
    file = tmp_path / "expressions.cpp"
    file.write_text(HELPERS + "\n".join(lines))
    subprocess.run([compiler, "-std=c++17", str(file), "-o", str(tmp_path / "expressions")], check=True)
    shown = subprocess.run([str(tmp_path / "expressions")], check=True, capture_output=True, text=True).stdout.split()
    expected = [
        int(evaluate(text, {**NAMES, **dict(zip(AXES, case, strict=True))}))
        for case, text in itertools.product(CASES, TEXTS)
    ]
    assert [int(value) for value in shown] == expected


def test_config_values_are_folded() -> None:
    assert to_cpp("ceil_div(seq_q, BLOCK_M * 2)", NAMES) == "evo_host::ceil_div(seq_q, 96)"


def test_text_has_no_cpp_form() -> None:
    with pytest.raises(UsageError, match="no C\\+\\+ form"):
        to_cpp("LAYOUT", NAMES)
