"""Rendering: what reaches the text, what does not, and how mistakes are told."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import RenderError, TemplateError, UsageError
from evoengine.kernel.template import TemplateLibrary
from evoengine.model import Config, DType, Problem, Value
from evoengine.space.loader import load_space
from evoengine.target import get_target
from tests.kernel.families import (
    BF16_CAUSAL,
    DEFAULTS,
    KERNEL,
    META,
    PROBLEM,
    ROOT,
    TARGET,
    render,
    space_of,
    write_family,
)

GOLDEN = Path(__file__).parent / "golden"
UPDATE = os.environ.get("EVOENGINE_UPDATE_GOLDEN") == "1"
FAMILIES = tuple(path.parent.name for path in sorted((ROOT / "templates").glob("*/template.toml")))


def assert_golden(name: str, text: str) -> None:
    """Compares with ``golden/<name>``, apart from the template's hash; EVOENGINE_UPDATE_GOLDEN=1 rewrites it."""
    text = re.sub(r"(?<=, template )[0-9a-f]{16}", "0" * 16, text, count=1)
    path = GOLDEN / name
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden file {name}: run the tests once with EVOENGINE_UPDATE_GOLDEN=1 and read it"
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def family(tmp_path: Path) -> Path:
    write_family(tmp_path)
    return tmp_path


def test_golden(family: Path) -> None:
    assert_golden("copy.cu", render(family).text)


def test_cuda_braces_survive_and_jinja_does_not(family: Path) -> None:
    text = render(family).text
    assert "table = {{{1, 2}, {3, 4}}};" in text
    assert '"mov.b32 %0, {%1, %2};"' in text
    assert "lane + table.a[lane & 1][0] + 1);" in text
    for mark in ("//%", "//#", "/*%", "/*#", "@{", "}@", "is gone", "and this one", "include"):
        assert mark not in text


def test_prologue_states_every_fact_once(family: Path) -> None:
    text = render(family, {"PLACE": "shared", "SKEWED": True}, BF16_CAUSAL).text
    facts = dict(re.findall(r"static constexpr (?:int|bool) (\w+) = ([^;,]+);", text))
    assert facts == {
        "WARPS": "2",
        "FACTOR": "1",
        "REGISTERS": "0",
        "PLACE": "PLACE_SHARED",
        "SKEWED": "true",
        "THREADS": "64",
        "ROWS": "64",
        "HEAD_DIM": "32",
        "CAUSAL": "true",
        "IS_BF16": "true",
        "LAUNCH_THREADS": "64",
        "LAUNCH_SMEM_BYTES": "256",
        "PARAM_BYTES": "128",
    }
    assert "static constexpr int PLACE_DIRECT = 0, PLACE_SHARED = 1;" in text
    assert "static constexpr int WARPS = 2;  // warps: warps per CTA" in text


def test_launch_follows_the_config(family: Path) -> None:
    source = render(family, {"WARPS": 4, "REGISTERS": 64})
    assert source.maxrregcount == 64
    plan = source.launch.plan(replace(PROBLEM, seq_q=300, batch=3))
    assert (plan.grid, plan.threads, plan.smem_bytes) == ((3, 2, 3), 128, 512)


def test_one_text_serves_every_batch_and_length(family: Path) -> None:
    other = Problem(7, 6, 1000, 64, kv_heads=3, seq_kv=33)
    assert render(family, problem=other) == render(family)


@pytest.mark.parametrize("other", [replace(PROBLEM, causal=True), replace(PROBLEM, dtype=DType.BF16)])
def test_traits_reach_the_text(family: Path, other: Problem) -> None:
    assert render(family, problem=other).source_hash != render(family).source_hash


def test_lines_do_not_shift_between_configs(family: Path) -> None:
    texts = [
        render(family, {"PLACE": place, "WARPS": warps}).text for place in ("direct", "shared") for warps in (1, 4)
    ]
    assert len({text.count("\n") for text in texts}) == 1
    assert len(set(texts)) == 4


def test_rendering_is_deterministic(family: Path) -> None:
    assert render(family) == render(family)
    assert render(family).text.endswith("}\n")


def test_hashes_follow_the_files(family: Path) -> None:
    before = render(family)
    partial = family / "templates" / "partials" / "params.cuh"
    partial.write_text(partial.read_text() + "\n")
    after = render(family)
    assert before.template_hash != after.template_hash
    assert before.source_hash != after.source_hash
    assert render(family, {"REGISTERS": 64}).source_hash != after.source_hash


def test_unknown_name_is_a_render_error_with_its_place(tmp_path: Path) -> None:
    write_family(tmp_path, kernel=KERNEL.replace("@{ FACTOR }@", "@{ FACTR }@"))
    line = 1 + KERNEL[: KERNEL.index("@{ FACTOR }@")].count("\n")
    with pytest.raises(RenderError, match=rf"^copy/kernel\.cu\.jinja:{line}: 'FACTR' is undefined$"):
        render(tmp_path)


def test_unknown_name_in_a_partial_names_the_partial(tmp_path: Path) -> None:
    templates = write_family(tmp_path)
    (templates / "partials" / "params.cuh").write_text("ok\n@{ NOPE }@\n")
    with pytest.raises(RenderError, match=r"^partials/params\.cuh:2: 'NOPE' is undefined$"):
        render(tmp_path)


def test_a_missing_partial_and_bad_syntax_are_template_errors(tmp_path: Path) -> None:
    write_family(tmp_path, kernel='//% include "nope.cuh"\n')
    with pytest.raises(TemplateError, match=r"nope\.cuh: no such partial"):
        render(tmp_path)
    (tmp_path / "templates" / "partials" / "nope.cuh").write_text("one\n//% endif\n")
    with pytest.raises(TemplateError, match=r"nope\.cuh: line 2: Encountered unknown tag 'endif'"):
        render(tmp_path)
    write_family(tmp_path, kernel="one\n//% if WARPS\n")
    with pytest.raises(TemplateError, match=r"kernel\.cu\.jinja: line \d: Unexpected end"):
        render(tmp_path)


def test_a_config_of_another_space_is_a_render_error(family: Path) -> None:
    template = TemplateLibrary(family / "templates").load("copy")
    config = Config.of("copy", {**DEFAULTS, "WARPS": 3})
    with pytest.raises(RenderError, match=r"WARPS cannot be 3"):
        template.render(config, PROBLEM, space_of(family), TARGET)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"THREADS"', '"seq_q"', "launch.threads: must not use seq_q"),
        ('"THREADS * 4"', '"THREADS *"', "launch.smem_bytes: not an expression"),
        ("min_arch = 80\n", "", "min_arch: is missing"),
        ("min_arch = 80", "min_arch = true", "min_arch: must be a whole number above 0"),
        ("min_arch = 80", "min_arch = 80\nmax_arch = 90", "max_arch: is unknown"),
        ('["fp16", "bf16"]', '["fp8"]', "dtypes: 'fp8' is unknown"),
        ("[32, 64]", "[]", "head_dims: must be a list that is not empty"),
        (', "batch"]', "]", "launch.grid: must have three expressions, not 2"),
        ('family = "copy"', 'family = "other"', "family: is 'other' but the folder is named 'copy'"),
        ("[launch]", "[launch", "cannot be read"),
        ("[compile]", "[compile]\nflags = 1", "compile.flags: is unknown"),
    ],
)
def test_mistakes_in_template_toml(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in META
    write_family(tmp_path, meta=META.replace(old, new))
    with pytest.raises(TemplateError) as caught:
        TemplateLibrary(tmp_path / "templates").load("copy")
    assert message in str(caught.value)
    assert "template.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_launch_that_follows_the_length_is_refused_through_a_derived_value(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META.replace('"THREADS * 4"', '"TILES * 4"'))
    with pytest.raises(RenderError, match=r"launch.smem_bytes: unknown name TILES"):
        render(tmp_path)


def test_unknown_family(family: Path) -> None:
    library = TemplateLibrary(family / "templates")
    assert library.families() == ("copy",)
    with pytest.raises(TemplateError, match="there is no such family: the families are copy"):
        library.load("nope")


@pytest.mark.parametrize(
    ("problem", "arch", "part"),
    [
        (PROBLEM, "sm_89", None),
        (PROBLEM, "sm_90a", None),
        (PROBLEM, "sm_75", "needs sm_80 or newer, not sm_75"),
        (replace(PROBLEM, head_dim=96), "sm_89", "supports head_dim 32, 64, not 96"),
    ],
)
def test_supports(family: Path, problem: Problem, arch: str, part: str | None) -> None:
    reason = TemplateLibrary(family / "templates").load("copy").supports(problem, arch)
    assert reason is None if part is None else part in str(reason)


def test_an_architecture_that_is_none(family: Path) -> None:
    with pytest.raises(UsageError, match="'ampere' is not an architecture"):
        TemplateLibrary(family / "templates").load("copy").supports(PROBLEM, "ampere")


@pytest.mark.parametrize("name", FAMILIES)
def test_shipped_families_are_golden(name: str) -> None:
    space = load_space(ROOT / "search_spaces" / f"{name}.toml")
    problem = Problem(1, 8, 512, 64)
    values: dict[str, Value] = {item.name: item.values[0] for item in space.tunables}
    source = (
        TemplateLibrary(ROOT / "templates").load(name).render(space.config(values), problem, space, get_target("l4"))
    )
    assert_golden(f"{name}.cu", source.text)
