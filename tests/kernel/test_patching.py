"""Patches of templates: only marked regions change, and nothing in a region can act outside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.errors import PatchError, SearchSpaceError, TemplateError
from evoengine.kernel.template.patching import apply_edits, regions_of, without_markers
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Edit, NewTunable, Patch, Problem, Value, Variant, base_family, is_variant
from evoengine.space.data_dirs import packaged_dir
from evoengine.space.loader import find_space, variant_text
from evoengine.target import get_target

TEMPLATES = packaged_dir("templates")
STEP = "partials/flash/softmax_step.cuh"
LINE = "                if constexpr (!SUM_ON_TENSOR) acc.sum[atom][2 * half] += score;\n"
FILE = """before();
/*# region one #*/
a = 1;
b = 2;
/*# endregion #*/
between();
    /*# region two #*/
    c = 3;
    /*# endregion #*/
after(); a = 1; }
"""


def variant(replacement: str, *tunables: NewTunable, family: str = "mma") -> Variant:
    return Variant(family, Patch((Edit(STEP, LINE, replacement),), tunables))


def render(found: Variant | None, **values: Value) -> str:
    library = TemplateLibrary(TEMPLATES, variants=() if found is None else (found,))
    name = "mma" if found is None else found.name
    space = find_space(name, () if found is None else (found,))
    problem, target = Problem(1, 2, 128, 64), get_target("l4")
    config = space.build(problem, target).starts()[0]
    return library.load_for(space).render(space.config({**config.as_dict(), **values}), problem, space, target).text


@pytest.mark.parametrize("family", [path.parent.name for path in sorted(TEMPLATES.glob("*/template.toml"))])
def test_markers_are_well_formed_and_no_part_of_the_template(family: str) -> None:
    library = TemplateLibrary(TEMPLATES)
    for file, text in library.files(family).items():
        for region in regions_of(file, text):
            assert region.text.strip()
            line = region.text.splitlines()[0]
            assert text.splitlines()[region.first_line - 1] == line
            unchanged = Edit(file, region.text, region.text + "// note\n")
            assert apply_edits({file: text}, [unchanged])[file] == text.replace(region.text, region.text + "// note\n")
    kernel = (TEMPLATES / family / "kernel.cu.jinja").read_text()
    outside = kernel
    for region in regions_of("kernel", kernel):
        outside = outside.replace(region.text, "")
    for fixed in ('extern "C"', "__launch_bounds__", "//% include", "AttentionParams p)"):
        assert outside.count(fixed) == kernel.count(fixed), "entries, bounds and includes cannot be changed"


def test_a_variant_is_its_family_with_the_text_replaced() -> None:
    found = variant(LINE.replace("+= score", "+= 2.0f * score"))
    base, patched = render(None).splitlines(), render(found).splitlines()
    assert (base_family(found.name), is_variant(found.name), is_variant("mma")) == ("mma", True, False)
    assert patched[0].startswith(f"// EvoEngine, family {found.name}, template ")
    assert base[0].split(",")[2] != patched[0].split(",")[2], "it has a template hash of its own"
    assert [line.replace("2.0f * score", "score") for line in patched[1:]] == base[1:]
    assert "region" not in "".join(patched)


def test_a_patch_may_add_a_tunable_with_a_constraint() -> None:
    added = NewTunable("SKIP", (1, 2, 4), 2, "how often", "SKIP <= BLOCK_N // 32", "tiles are short")
    found = variant(LINE.replace("+= score", "+= score / Cfg::SKIP"), added)
    space, base = find_space(found.name, (found,)), find_space("mma")
    assert [one.name for one in space.tunables] == [*(one.name for one in base.tunables), "SKIP"]
    assert (space.family, space.starts) == (found.name, base.starts)
    assert [(one.rule, one.reason) for one in space.constraints if one not in base.constraints] == [
        ("SKIP <= BLOCK_N // 32", "tiles are short")
    ]
    assert "SKIP = 4;  // value: how often" in render(found, SKIP=4)
    assert 'family = "mma"' not in variant_text(found)


@pytest.mark.parametrize(
    ("tunable", "error"),
    [
        (NewTunable("lower", (1, 2), 1), PatchError),
        (NewTunable("ONE", (1,), 1), PatchError),
        (NewTunable("MIXED", (1, "a"), 1), PatchError),
        (NewTunable("DEFAULT", (1, 2), 3), PatchError),
        (NewTunable("COMMENT", (1, 2), 1, "a comment that goes on \\"), PatchError),
        (NewTunable("BLOCK_N", (1, 2), 1), SearchSpaceError),
        (NewTunable("CAUSAL", (False, True), False), SearchSpaceError),
        (NewTunable("RULE", (1, 2), 1, "", "UNKNOWN > RULE"), SearchSpaceError),
        (NewTunable("RULE", (1, 2), 1, "", "__import__('os')"), SearchSpaceError),
        (NewTunable("TEXT", ('"]\nx = 1', "b"), "b"), SearchSpaceError),
    ],
)
def test_an_invalid_tunable_is_refused(tunable: NewTunable, error: type[Exception]) -> None:
    with pytest.raises(error):
        find_space(variant(LINE.replace(";", " ;"), tunable).name, (variant(LINE.replace(";", " ;"), tunable),))


def test_edits_apply_in_order_and_exactly_once() -> None:
    first, second = Edit("f", "a = 1;\nb", "a = 5;\nb"), Edit("f", "a = 5;", "a = 6;")
    assert apply_edits({"f": FILE}, [first, second])["f"] == FILE.replace("a = 1;\nb", "a = 6;\nb")
    for edit in (
        second,  # not there yet
        Edit("f", "a = 1;", "a = 2;"),  # twice in the file, once in a region
        Edit("f", "before();", "after();"),  # outside
        Edit("f", "b = 2;\n/*# endregion #*/\nbetween", "x"),  # across the end
        Edit("f", "b = 2;", "b = 2;"),  # nothing changes
        Edit("f", "  ", "x"),
        Edit("g", "a = 1;", "a = 2;"),
        Edit("../f", "a = 1;", "a = 2;"),
    ):
        with pytest.raises(PatchError):
            apply_edits({"f": FILE}, [edit])
    assert without_markers(FILE) == "before();\na = 1;\nb = 2;\nbetween();\n    c = 3;\nafter(); a = 1; }\n"


HOSTILE = (
    "@{ ''.__class__.__mro__[1].__subclasses__() }@",
    "/*% set x = 1 %*/",
    "//% include 'mma/shape.cuh'",
    "/*# endregion #*/",
    "/*# region x #*/\n/*# endregion #*/",
    "#define evo_attention evil",
    '#include "/etc/hostname"',
    "/**/ #include <stdio.h>",
    "%:define X",
    '_Pragma("once")',
    "/* open",
    "*/",
    "// a comment that goes on \\\n",
    "??=define X",
    'R"x(})x"',
    "} __device__ void own() {",
    "%> __device__ void own() <%",
    "(",
    "x = 'a;\n}",
    "x += 0 * '/*';\n#define return return 7;\nx += 0 * '*/';",
    "x += 'a\"' * 0 + 1; return x; } __device__ int unused(int x) { x += '\"b' * 0 + 1;",
    '[[x(0x1\'a\'"\'" ")]]; } void g() { f(1); h = "" ")]] // ";',
    "\x1b[2J",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_leaves_its_region(text: str) -> None:
    with pytest.raises(PatchError):
        apply_edits({"f": FILE}, [Edit("f", "b = 2;", f"b = 2; {text}")])


def test_two_edits_cannot_join_to_a_construct() -> None:
    for parts in (("x = y /", "*% set z %*/"), ("@", "{ 7 }@"), ("/", "* z = 3;")):
        edits = [Edit("f", "b = 2;", f"b = 2;\n{parts[0]}HERE"), Edit("f", "HERE", parts[1])]
        with pytest.raises(PatchError):
            apply_edits({"f": FILE}, edits)


def test_harmless_text_of_these_kinds_is_accepted() -> None:
    for text in (
        "#pragma unroll 4\nfor (;;) { f(); }",
        "// it's a comment {",
        '/* { */ asm("mov %0;" : "=r"(x));',
        "'{';",
    ):
        assert text in apply_edits({"f": FILE}, [Edit("f", "b = 2;", f"\n{text}\n")])["f"]


@pytest.mark.parametrize(
    "text", ["/*# region a #*/\nx\n", "/*# endregion #*/\n", FILE.replace("/*# endregion #*/\nbet", "bet")]
)
def test_malformed_markers_are_reported(text: str) -> None:
    with pytest.raises(PatchError):
        regions_of("f", text)


def test_unknown_variants_are_no_families(tmp_path: Path) -> None:
    with pytest.raises(TemplateError):
        TemplateLibrary(TEMPLATES).load("mma~00000000")
    with pytest.raises(PatchError):
        TemplateLibrary(TEMPLATES, variants=(bad := Variant("scalar", Patch((Edit(STEP, LINE, "x"),))),)).load(bad.name)
