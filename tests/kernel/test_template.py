"""Rendering: values that reach the source, values that do not, and error messages."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import RenderError, TemplateError, UsageError
from evoengine.kernel.records import Workspace
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, DType, Problem, Value
from evoengine.space.loader import load_space
from evoengine.target import get_target
from tests.golden import assert_golden
from tests.kernel.families import (
    BF16_CAUSAL,
    DEFAULTS,
    KERNEL,
    META,
    MORE_MEMORY,
    PROBLEM,
    ROOT,
    SPACE,
    TARGET,
    THEN,
    render,
    space_of,
    write_family,
)

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = tuple(path.parent.name for path in sorted((ROOT / "templates").glob("*/template.toml")))


def assert_render(name: str, text: str) -> None:
    """Compares with ``golden/<name>``, except for the template's hash."""
    assert_golden(GOLDEN / name, re.sub(r"(?<=, template )[0-9a-f]{16}", "0" * 16, text, count=1))


@pytest.fixture
def family(tmp_path: Path) -> Path:
    write_family(tmp_path)
    return tmp_path


def test_golden(family: Path) -> None:
    assert_render("copy.cu", render(family).text)


def test_cuda_braces_are_kept_and_jinja_marks_are_removed(family: Path) -> None:
    text = render(family).text
    assert "table = {{{1, 2}, {3, 4}}};" in text
    assert '"mov.b32 %0, {%1, %2};"' in text
    assert "lane + table.a[lane & 1][0] + 1);" in text
    for mark in ("//%", "//#", "/*%", "/*#", "@{", "}@", "is gone", "and this one", "include"):
        assert mark not in text


def test_prologue_states_every_value_once(family: Path) -> None:
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
        "IS_BF16": "true",
        "CAUSAL": "true",
        "HAS_WINDOW_LEFT": "false",
        "HAS_WINDOW_RIGHT": "false",
        "HAS_SOFTCAP": "false",
        "HAS_SINK": "false",
        "HAS_LSE": "false",
        "PACKED": "false",
        "LAUNCH_THREADS": "64",
        "LAUNCH_SMEM_BYTES": "256",
        "PARAM_BYTES": "216",
    }
    assert "static constexpr int PLACE_DIRECT = 0, PLACE_SHARED = 1;" in text
    assert "static constexpr int WARPS = 2;  // warps: warps per CTA" in text


def test_launch_follows_the_config(family: Path) -> None:
    source = render(family, {"WARPS": 4, "REGISTERS": 64})
    assert source.maxrregcount == 64
    plan = source.launch.plan(replace(PROBLEM, seq_q=300, batch=3))
    assert (plan.grid, plan.threads, plan.smem_bytes) == ((3, 2, 3), 128, 512)


def test_a_call_may_have_further_launches_and_memory(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META.replace("[compile]", f"{MORE_MEMORY}{THEN}[compile]"))
    launch = render(tmp_path, {"WARPS": 4}, replace(PROBLEM, lse=True, lengths_q=(64,))).launch
    asked = Problem(3, 2, 300, 64, lse=True, lengths_q=(300, 4, 0))
    first, second = launch.steps(asked)
    assert (first.entry, first.grid, first.threads, first.smem_bytes) == ("evo_attention", (3, 2, 3), 128, 512)
    assert (second.entry, second.grid, second.threads, second.smem_bytes) == ("evo_combine", (304, 2, 1), 256, 64)
    assert launch.entries == ("evo_attention", "evo_combine")
    assert launch.workspace(asked) == Workspace(3 * 304 * 128, 2)
    bare = render(tmp_path, {"WARPS": 4})
    assert bare.launch.workspace(PROBLEM) == Workspace(64 * 128, 0)


def test_launches_whose_condition_is_false_are_left_out(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META.replace("[compile]", f"{THEN}[compile]"))
    problem = replace(PROBLEM, lse=True)
    assert len(render(tmp_path, {"PLACE": "shared"}, problem).launch.then) == 1
    assert render(tmp_path, {"PLACE": "shared"}).launch.then == ()
    assert render(tmp_path, {"PLACE": "direct"}, problem).launch.then == ()
    texts = [render(tmp_path, {"PLACE": place}, problem).text for place in ("direct", "shared")]
    for text in texts:
        assert "static constexpr int EVO_COMBINE_THREADS = 128;" in text
        assert "static constexpr int EVO_COMBINE_SMEM_BYTES = 64;" in text
    assert len({text.count("\n") for text in texts}) == 1


def test_an_invalid_launch_is_a_render_error(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META.replace("[compile]", f"{MORE_MEMORY}{THEN}[compile]".replace("ROWS", "(0 - 1)")))
    with pytest.raises(RenderError, match=r"launch.workspace_bytes: .*-64 .*1x2x64x64-fp16"):
        render(tmp_path)
    write_family(tmp_path, meta=META.replace("[launch]", '[launch]\ncounters = "1000000000000"'))
    with pytest.raises(RenderError, match=r"launch.counters: is 1000000000000 for 1x2x64x64-fp16, at most"):
        render(tmp_path)
    for registers in ("REGISTERS - 1", "REGISTERS + 256"):
        write_family(tmp_path, meta=META.replace('"REGISTERS"', f'"{registers}"'))
        with pytest.raises(RenderError, match=r"compile.maxrregcount: is (-1|256), which is not from 0 to 255"):
            render(tmp_path)
    write_family(tmp_path, meta=META.replace("[compile]", f"{THEN}[compile]".replace("rows_q", "window_left")))
    with pytest.raises(RenderError, match=r"grid of evo_combine: is \(-1, 2, 1\) for"):
        render(tmp_path, problem=replace(PROBLEM, lse=True))
    many = replace(PROBLEM, batch=65535)
    assert render(tmp_path, problem=many).launch.steps(many)[0].grid[2] == 65535
    for problem, grid in (
        (replace(PROBLEM, batch=65536), (1, 2, 65536)),
        (replace(PROBLEM, heads=65536), (1, 65536, 1)),
    ):
        with pytest.raises(RenderError, match=rf"grid of evo_attention: is {re.escape(str(grid))} for.*65535"):
            render(tmp_path, problem=problem)


def test_the_text_does_not_depend_on_batch_and_lengths(family: Path) -> None:
    other = Problem(7, 6, 1000, 64, kv_heads=3, seq_kv=33)
    assert render(family, problem=other) == render(family)


def test_the_text_does_not_depend_on_window_sizes_and_softcap(family: Path) -> None:
    some = replace(PROBLEM, window_left=3, window_right=9, softcap=2.0, batch=2, seq_q=9, seq_kv=9, lengths_q=(9, 1))
    other = replace(PROBLEM, window_left=70, window_right=1, softcap=50.0, lengths_q=(64,))
    assert render(family, problem=other) == render(family, problem=some)


@pytest.mark.parametrize(
    "other",
    [
        replace(PROBLEM, causal=True),
        replace(PROBLEM, dtype=DType.BF16),
        replace(PROBLEM, window_left=1),
        replace(PROBLEM, window_right=1),
        replace(PROBLEM, softcap=1.0),
        replace(PROBLEM, sink=True),
        replace(PROBLEM, lse=True),
        replace(PROBLEM, lengths_q=(64,)),
    ],
)
def test_compiled_in_properties_reach_the_text(family: Path, other: Problem) -> None:
    assert render(family, problem=other).source_hash != render(family).source_hash


def test_all_configs_have_equal_line_counts(family: Path) -> None:
    texts = [
        render(family, {"PLACE": place, "WARPS": warps}).text for place in ("direct", "shared") for warps in (1, 4)
    ]
    assert len({text.count("\n") for text in texts}) == 1
    assert len(set(texts)) == 4


def test_rendering_is_deterministic(family: Path) -> None:
    assert render(family) == render(family)
    assert render(family).text.endswith("}\n")


def test_a_source_that_a_leaderboard_could_not_store_is_a_render_error(tmp_path: Path) -> None:
    loops = "//% for a in range(300)\n//% for b in range(3000)\n// a comment\n//% endfor\n//% endfor\n"
    write_family(tmp_path, kernel=KERNEL + loops)
    with pytest.raises(RenderError, match="longer than 2,097,152 characters"):
        render(tmp_path)


def test_a_template_is_no_larger_than_people_write(tmp_path: Path) -> None:
    write_family(tmp_path, kernel=KERNEL + "// a line\n" * 110_000)
    with pytest.raises(TemplateError, match=r"kernel\.cu\.jinja: cannot be read: is larger than 1 MiB"):
        render(tmp_path)
    write_family(tmp_path, kernel=KERNEL + '//% include "long.cuh"\n')
    (tmp_path / "templates" / "partials" / "long.cuh").write_text("// a line\n" * 110_000)
    with pytest.raises(TemplateError, match=r"'long\.cuh' cannot be read: is larger than 1 MiB"):
        render(tmp_path)


def test_hashes_depend_on_the_files(family: Path) -> None:
    before = render(family)
    partial = family / "templates" / "partials" / "core" / "params.cuh"
    partial.write_text(partial.read_text() + "\n")
    after = render(family)
    assert before.template_hash != after.template_hash
    assert before.source_hash != after.source_hash
    assert render(family, {"REGISTERS": 64}).source_hash != after.source_hash


def test_unknown_name_is_a_render_error_with_its_line(tmp_path: Path) -> None:
    write_family(tmp_path, kernel=KERNEL.replace("@{ FACTOR }@", "@{ FACTR }@"))
    line = 1 + KERNEL[: KERNEL.index("@{ FACTOR }@")].count("\n")
    message = rf"^copy/kernel\.cu\.jinja:{line}: 'FACTR' is undefined: did you mean FACTOR\?$"
    with pytest.raises(RenderError, match=message):
        render(tmp_path)


def test_unknown_name_in_a_partial_names_the_partial(tmp_path: Path) -> None:
    templates = write_family(tmp_path)
    (templates / "partials" / "params.cuh").write_text("ok\n@{ NOPE }@\n")
    with pytest.raises(RenderError, match=r"^partials/params\.cuh:2: 'NOPE' is undefined$"):
        render(tmp_path)


def test_a_missing_partial_and_bad_syntax_are_template_errors(tmp_path: Path) -> None:
    write_family(tmp_path, kernel='// Purpose.\n//% include "nope.cuh"\n')
    with pytest.raises(TemplateError, match=r"copy/kernel\.cu\.jinja: line 2: .*'nope\.cuh'"):
        render(tmp_path)
    (tmp_path / "templates" / "partials" / "nope.cuh").write_text("one\n//% endif\n")
    with pytest.raises(TemplateError, match=r"nope\.cuh: line 2: Encountered unknown tag 'endif'"):
        render(tmp_path)
    write_family(tmp_path, kernel="one\n//% if WARPS\n")
    with pytest.raises(TemplateError, match=r"kernel\.cu\.jinja: line \d: Unexpected end"):
        render(tmp_path)
    for text, said in (("@{ f(a=1, a=2) }@", "cannot compile it"), ("(" * 300 + "1" + ")" * 300, "nested too deeply")):
        write_family(tmp_path, kernel=text if text[0] == "@" else f"@{{ {text} }}@")
        with pytest.raises(TemplateError, match=rf"kernel\.cu\.jinja: .*{said}"):
            render(tmp_path)


def test_a_missing_partial_names_the_line_that_includes_it_and_the_folders(tmp_path: Path) -> None:
    """The including file is a partial of the user; the missing one has a similar name."""
    templates = write_family(tmp_path, kernel=KERNEL.replace('"params.cuh"', '"own/tile.cuh"'))
    (templates / "partials" / "own").mkdir()
    (templates / "partials" / "own" / "tile.cuh").write_text('// One.\n\n//% include "parms.cuh"\n')
    with pytest.raises(TemplateError) as caught:
        TemplateLibrary(templates).load("copy")
    assert (caught.value.file, caught.value.key) == (str(templates / "partials" / "own" / "tile.cuh"), "line 3")
    for part in ("'parms.cuh'", str(templates / "partials"), str(ROOT / "templates" / "partials" / "core")):
        assert part in caught.value.reason
    assert caught.value.reason.endswith(": did you mean params.cuh?")


def test_a_partial_that_cannot_be_read_names_the_line_that_includes_it(tmp_path: Path) -> None:
    templates = write_family(tmp_path, kernel='// Purpose.\n//% include "bytes.cuh"\n')
    (templates / "partials" / "bytes.cuh").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match=r"kernel\.cu\.jinja: line 2: .*'bytes\.cuh'.*utf-8"):
        TemplateLibrary(templates).load("copy")


@pytest.mark.parametrize(
    ("old", "new", "key", "reason"),
    [
        (
            'threads = "THREADS"',
            'threads = "THREDS"',
            "launch.threads",
            r"^THREDS .*\bTHREADS\?",
        ),
        (
            "seq_q, ROWS",
            "seq_k, ROWS",
            "launch.grid[0]",
            r"^seq_k .*\bseq_kv\?",
        ),
        (
            "THREADS * 4",
            "threads * 4",
            "launch.smem_bytes",
            r"^threads .*\bTHREADS\?",
        ),
        ('"THREADS * 4"', '"3 * QQQ"', "launch.smem_bytes", r"^QQQ "),
        (
            "THREADS * 4",
            "smem_per_block",
            "launch.smem_bytes",
            r"^smem_per_block .*derived",
        ),
        ("THREADS * 4", "TILES * 4", "launch.smem_bytes", r"^TILES .*lengths"),
        (
            '"heads", "batch"]',
            '"heads", "TILED"]',
            "launch.grid[2]",
            r"^TILED .*\bTILES\?",
        ),
        ("batch * rows_q * ROWS", "batch * ROWSS", "launch.workspace_bytes", "ROWSS is unknown"),
        (
            "heads if packed",
            "heads if packd",
            "launch.counters",
            r"^packd .*\bpacked\?",
        ),
        (
            "PLACE == ",
            "PLASE == ",
            "then[0].when",
            r"^PLASE .*\bPLACE\?",
        ),
        ('"rows_q", "heads", "memory', '"row_q", "heads", "memory', "then[0].grid[0]", "row_q is unknown"),
        ("THREADS * 2", "THREAD * 2", "then[0].threads", "THREAD is unknown"),
        ('"head_dim"', '"hed_dim"', "then[0].smem_bytes", r"^hed_dim .*\bhead_dim\?"),
        (
            '"REGISTERS"',
            '"REGISTER"',
            "compile.maxrregcount",
            r"^REGISTER .*\bREGISTERS\?",
        ),
    ],
)
def test_unknown_names_in_template_toml_are_refused_at_load(
    tmp_path: Path, old: str, new: str, key: str, reason: str
) -> None:
    meta = META.replace("[compile]", f"{MORE_MEMORY}{THEN}[compile]")
    assert old in meta
    library = TemplateLibrary(write_family(tmp_path, meta=meta))
    library.load_for(space_of(tmp_path))
    library = TemplateLibrary(write_family(tmp_path, meta=meta.replace(old, new)))
    with pytest.raises(TemplateError) as caught:
        library.load_for(space_of(tmp_path))
    assert (Path(caught.value.file).name, caught.value.key) == ("template.toml", key)
    assert re.search(reason, caught.value.reason)


def test_launches_may_use_derived_values_of_the_lengths(tmp_path: Path) -> None:
    """They follow every problem of the binary, not that of the rendering alone."""
    meta = META.replace('"heads", "batch"]', '"heads", "TILES + 1"]').replace("[compile]", f"{MORE_MEMORY}[compile]")
    meta = meta.replace("batch * rows_q * ROWS", "8 * BYTES")
    more = '[derived.BYTES]\nexpr = "TILES * TILES * batch"\nunit = "bytes"\ndoc = "memory"\n[constraints.any]'
    library = TemplateLibrary(write_family(tmp_path, meta=meta, space=SPACE.replace("[constraints.any]", more)))
    space = space_of(tmp_path)
    launch = library.load_for(space).render(space.config(DEFAULTS), PROBLEM, space, TARGET).launch
    for seq_q, tiles in ((1, 1), (64, 1), (65, 2), (300, 5)):
        problem = replace(PROBLEM, batch=3, seq_q=seq_q)
        assert launch.plan(problem).grid[2] == tiles + 1
        assert launch.workspace(problem).bytes == 8 * tiles * tiles * 3


RESIDENT = '[derived.RESIDENT]\nexpr = "{}"\nunit = "CTAs"\ndoc = "resident CTAs"\n[constraints.any]'


@pytest.mark.parametrize(
    ("expr", "kernel", "few"),
    [
        ("2 * sms", KERNEL, 4),
        ("2 * sms", KERNEL.replace("p.o_row_stride]", "p.o_row_stride + 0 * Cfg::RESIDENT]"), None),
        ("sms // 4", KERNEL, None),
        ("smem_per_block // 1024", KERNEL, None),
    ],
    ids=["launch only", "compiled in", "no CTA on few SMs", "another limit"],
)
def test_a_launch_is_known_for_few_sms_if_nothing_else_depends_on_them(
    tmp_path: Path, expr: str, kernel: str, few: int | None
) -> None:
    meta = META.replace('"heads", "batch"]', '"heads", "RESIDENT"]')
    space = SPACE.replace("[constraints.any]", RESIDENT.format(expr))
    write_family(tmp_path, meta=meta, space=space, kernel=kernel)
    launch = render(tmp_path).launch
    fewer = launch.on_few_sms
    if few is None:
        assert fewer is None
        return
    assert fewer is not None
    assert fewer.plan(PROBLEM).grid == (*launch.plan(PROBLEM).grid[:2], few)
    assert launch.plan(PROBLEM).grid[2] == 2 * TARGET.sms


def test_a_derived_value_that_reads_a_limit_cannot_follow_the_lengths(tmp_path: Path) -> None:
    meta = META.replace('"heads", "batch"]', '"heads", "TILES"]')
    space = SPACE.replace("ceil_div(seq_q, ROWS)", "ceil_div(seq_q, sms)")
    library = TemplateLibrary(write_family(tmp_path, meta=meta, space=space))
    with pytest.raises(TemplateError, match=r"launch\.grid\[2\].*\bsms\b.*`TILES`"):
        library.load_for(space_of(tmp_path))


@pytest.mark.parametrize("name", FAMILIES)
def test_shipped_families_use_known_names_only(name: str) -> None:
    library = TemplateLibrary(ROOT / "templates")
    assert library.load_for(load_space(ROOT / "search_spaces" / f"{name}.toml")).family == name


def test_a_config_without_a_value_names_family_tunable_and_file(family: Path) -> None:
    template = TemplateLibrary(family / "templates").load("copy")
    config = Config.of("copy", {name: value for name, value in DEFAULTS.items() if name != "FACTOR"})
    with pytest.raises(RenderError) as caught:
        template.render(config, PROBLEM, space_of(family), TARGET)
    assert re.search(rf"family copy: .*tunable FACTOR .*{family / 'copy.toml'}", str(caught.value))


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
        ("min_arch = 80\n", "", "min_arch"),
        ("min_arch = 80", "min_arch = true", "min_arch: "),
        ("min_arch = 80", "min_arch = 0", "min_arch: .*>= 1"),
        ("min_arch = 80", "min_arch = 80\nmax_arch = 90", "max_arch"),
        ("min_arch = 80", "min_arch = 80\nonly_arch = 90", "only_arch: "),
        ("min_arch = 80", "min_arch = 80\nonly_arch = 'hopper'", r"only_arch: .*sm_"),
        ('doc = "Copies."', 'doc = " "', "doc: "),
        ('["fp16", "bf16"]', '["fp8"]', r"dtypes\[0\]: .*'fp8'"),
        ("[32, 64]", "[]", "head_dims: "),
        ("[32, 64]", "[32, 0]", r"head_dims\[1\]: .*>= 1"),
        ("[32, 64]", "{ multiple_of = 8 }", "head_dims.*max"),
        ("[32, 64]", "{ multiple_of = 8, max = 100 }", "head_dims.max: must be a multiple of 8, not 100"),
        ("[32, 64]", "{ multiple_of = 0, max = 8 }", "head_dims.multiple_of: .*>= 1"),
        ("[launch]", 'features = ["dropout"]\n[launch]', r"features\[0\]: .*'dropout'"),
        ("[launch]", 'features = "lse"\n[launch]', "features: "),
        ("[launch]", '[launch]\nworkspace_bytes = "seq_q *"', "launch.workspace_bytes: not an expression"),
        ("[launch]", "[launch]\ncounters = 3", "launch.counters: "),
        ("[launch]", "then = 1\n[launch]", "then: "),
        ("[compile]", THEN.replace("then", "later") + "[compile]", "later"),
        ("[compile]", THEN.replace("evo_combine", "evo_attention") + "[compile]", r"then\[0\].entry: is evo_attention"),
        ("[compile]", THEN.replace("evo_combine", "two words") + "[compile]", r"then\[0\].entry: "),
        ("[compile]", THEN.replace("threads =", "warps =") + "[compile]", r"then\[0\].*(threads|warps)"),
        ("[compile]", THEN.replace("has_lse", "seq_q > 1") + "[compile]", r"then\[0\].when: must not use seq_q"),
        (
            "[compile]",
            THEN.replace("head_dim", "window_left") + "[compile]",
            r"then\[0\].smem_bytes: must not use window_left",
        ),
        ("[compile]", THEN.replace(', "memory_batch"', "") + "[compile]", r"then\[0\].grid: .*3"),
        ("[compile]", THEN + THEN + "[compile]", "then: names an entry twice"),
        (', "batch"]', "]", "launch.grid: .*3"),
        ('family = "copy"', 'family = "other"', "family: is 'other' but the folder is named 'copy'"),
        ("[launch]", "[launch", "cannot be read"),
        ("[compile]", "[compile]\nflags = 1", "compile.*flags"),
    ],
)
def test_mistakes_in_template_toml(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in META
    write_family(tmp_path, meta=META.replace(old, new))
    with pytest.raises(TemplateError) as caught:
        TemplateLibrary(tmp_path / "templates").load("copy")
    assert re.search(message, str(caught.value))
    assert "template.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_launch_that_depends_on_lengths_through_a_derived_value_is_an_error(tmp_path: Path) -> None:
    write_family(tmp_path, meta=META.replace('"THREADS * 4"', '"TILES * 4"'))
    with pytest.raises(RenderError, match=r"launch.smem_bytes: unknown name TILES"):
        render(tmp_path)


def test_unknown_family(family: Path) -> None:
    library = TemplateLibrary(family / "templates")
    assert library.families() == ("copy",)
    with pytest.raises(TemplateError, match="families are copy"):
        library.load("nope")


@pytest.mark.parametrize(
    ("problem", "arch", "part"),
    [
        (PROBLEM, "sm_89", None),
        (PROBLEM, "sm_90a", None),
        (PROBLEM, "sm_75", "sm_80"),
        (replace(PROBLEM, head_dim=96), "sm_89", "supports head_dim 32, 64, not 96"),
        (replace(PROBLEM, causal=True), "sm_89", None),
        (replace(PROBLEM, window_right=3), "sm_89", "family copy does not do window"),
        (replace(PROBLEM, softcap=3.0, lengths_q=(64,)), "sm_89", "family copy does not do softcap or packed"),
    ],
)
def test_supports(family: Path, problem: Problem, arch: str, part: str | None) -> None:
    reason = TemplateLibrary(family / "templates").load("copy").supports(problem, arch)
    assert reason is None if part is None else part in str(reason)


def test_features_and_head_dims_by_rule(tmp_path: Path) -> None:
    meta = META.replace("[32, 64]", "{ multiple_of = 8, max = 256 }")
    meta = meta.replace("[launch]", 'features = ["window", "softcap", "sink", "lse", "packed"]\n[launch]')
    library = TemplateLibrary(write_family(tmp_path, meta=meta))
    everything = replace(PROBLEM, head_dim=72, window_left=1, softcap=1.0, sink=True, lse=True, lengths_q=(64,))
    assert library.load("copy").supports(everything, "sm_80") is None
    for head_dim in (4, 100, 264):
        reason = library.load("copy").supports(replace(PROBLEM, head_dim=head_dim), "sm_80")
        assert re.findall(r"\d+", reason or "") == ["8", "256", str(head_dim)]


def test_an_unknown_architecture_is_a_usage_error(family: Path) -> None:
    with pytest.raises(UsageError, match="'ampere'"):
        TemplateLibrary(family / "templates").load("copy").supports(PROBLEM, "ampere")


@pytest.mark.parametrize("name", FAMILIES)
def test_shipped_families_are_golden(name: str) -> None:
    space = load_space(ROOT / "search_spaces" / f"{name}.toml")
    problem = Problem(1, 8, 512, 64)
    values: dict[str, Value] = {item.name: item.values[0] for item in space.tunables}
    source = (
        TemplateLibrary(ROOT / "templates").load(name).render(space.config(values), problem, space, get_target("l4"))
    )
    assert_render(f"{name}.cu", source.text)


def test_template_hashes_are_golden() -> None:
    """Stored rows are rebuilt only if the template hash is unchanged, so a change of it must be deliberate."""
    library = TemplateLibrary(ROOT / "templates")
    assert_render("template_hashes.txt", "".join(f"{name} {library.load(name).template_hash}\n" for name in FAMILIES))
