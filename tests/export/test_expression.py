"""Launch expressions in C++ and Python: both must agree with the language of the search-space files."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import UsageError
from evoengine.export.expression import AXES, to_cpp, to_python
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem, Value
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.expression import FUNCTIONS, evaluate, evaluate_int, names_in
from evoengine.space.language.rules import problem_scope
from evoengine.space.loader import find_space
from evoengine.target import get_target

ROOT = Path(__file__).resolve().parents[2]
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
    "rows_q * heads + rows_kv % 5 - memory_batch",
    "window_left // 3 + (window_left - window_right) % 7",
    "ceil_div(window_left + window_right, BLOCK_M) + ceil_div(0 - seq_q, 7)",
    "round_up(window_right - 40, 16)",
)
CASES = (
    (1, 8, 8, 512, 512, 512, 512, 1, -1, -1),
    (2, 4, 2, 1, 77, 2, 100, 1, 128, 0),
    (3, 1, 1, 97, 96, 97, 96, 3, -1, 63),
    (1, 6, 3, 48, 1000, 48, 1000, 1, 0, 1),
)

HELPERS = "#include <cstdio>\n" + (ROOT / "evoengine" / "export" / "arithmetic.cu").read_text()


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
    assert to_cpp("seq_q if WARPS_N > 3 else heads * WARPS_N", NAMES) == "(heads * 3)"


def test_text_has_no_cpp_equivalent() -> None:
    with pytest.raises(UsageError, match="LAYOUT"):
        to_cpp("LAYOUT", NAMES)


def test_python_agrees_with_the_expression_language() -> None:
    """Python texts of every shipped family's launch expressions agree with the expression language."""
    library, rng, compared = TemplateLibrary(data_dir("templates")), np.random.default_rng(5), 0
    for family in library.families():
        meta, valid = library.load(family).meta, find_space(family).build(Problem(2, 8, 100, 64), get_target("h200"))
        texts = [*meta.grid, meta.workspace_bytes, meta.counters, *(text for step in meta.then for text in step.grid)]
        for config in (valid.sample(rng) for _ in range(10)):
            fixed = find_space(family).derive(config.as_dict(), Problem(2, 8, 100, 64), get_target("h200"))
            names: dict[str, Value] = {**config.as_dict(), **fixed, "head_dim": 64}
            for problem in (Problem(1, 8, 512, 64), Problem(3, 8, 1, 64, kv_heads=2, seq_kv=4000)):
                scope = problem_scope(problem)
                for text in texts:
                    python = to_python(text, names)
                    assert eval(python, {"__builtins__": {}}, {**scope, **FUNCTIONS}) == evaluate_int(
                        text, {**names, **scope}
                    )
                    assert names_in(python) <= set(AXES), f"{python} reads a config value"
                    compared += 1
    assert compared > 200
