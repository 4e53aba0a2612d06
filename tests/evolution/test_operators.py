"""Operators and edits: what they propose applies to the files, and says what it means."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import PatchError, PatchFileError
from evoengine.evolution.operators.config_moves import ConfigMoves
from evoengine.evolution.operators.random_edits import RandomEdits
from evoengine.evolution.operators.recombination import Crossover, RegionSwap, UnchangedParent
from evoengine.evolution.operators.recorded import SHIPPED, RecordedPatches, load_patch, load_patches
from evoengine.evolution.operators.region_edits import edit_of
from evoengine.evolution.records import Context, RowSummary, VariantSummary
from evoengine.kernel.template.patching import apply_edits, regions_of
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Edit, NewTunable, Patch, Problem, Region, Variant
from evoengine.space.data_dirs import packaged_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target

LIBRARY = TemplateLibrary(packaged_dir("templates"))
FILES = {family: LIBRARY.files(family) for family in ("mma", "scalar", "hopper")}


def context(family: str, mates: tuple[VariantSummary, ...] = (), patch: Patch | None = None) -> Context:
    space = find_space(family)
    target = get_target("l4" if family != "hopper" else "h200")
    values = space.build(Problem(1, 1, 64, 64), target).starts()[0].as_dict()
    return Context(
        problem=Problem(1, 1, 64, 64),
        target=target,
        family=family,
        parent=VariantSummary(family, "", "", 4.0, patch),
        regions=LIBRARY.regions(family),
        space=space,
        best=(RowSummary(1, values, "ok", time_us=4.0),),
        failed=(),
        lines=(),
        resources=None,
        compiler_log="",
        verdict="",
        picks=(),
        rejected=(),
        mates=mates,
    )


@pytest.mark.parametrize("family", FILES)
def test_random_edits_change_the_source_inside_regions(family: str) -> None:
    own, applied, texts = context(family), 0, set()
    for seed in range(60):
        (proposal,) = RandomEdits().propose(own, random.Random(seed))
        again = RandomEdits().propose(own, random.Random(seed))
        assert proposal.patch is not None
        assert again == (proposal,), "the same seed makes the same patch"
        try:
            changed = apply_edits(FILES[family], proposal.patch.edits)
        except PatchError:
            continue
        applied += 1
        assert any(text != FILES[family][file] for file, text in changed.items())
        for file, text in changed.items():
            assert outside(text) == outside(FILES[family][file])
        texts.add(str(sorted(changed.items())))
    assert applied >= 45
    assert len(texts) >= 40


def test_a_number_of_thousands_of_digits_is_not_changed() -> None:
    table = Region("scalar/kernel.cu.jinja", "step", f"x = {'7' * 5000};\ny = {'7' * 5000}.5f;\nz = 12;\n", 1)
    own = replace(context("scalar"), regions=(table,))
    proposals = [RandomEdits().propose(own, random.Random(seed)) for seed in range(60)]
    summaries = [one.patch.summary for (one,) in filter(None, proposals) if one.patch is not None]
    assert any("changed number" in summary for summary in summaries), "the short one"


def outside(text: str) -> str:
    for region in regions_of("file", text):
        text = text.replace(f"#*/\n{region.text}", "#*/\n", 1) if region.text else text
    return text


def test_an_edit_is_short_unique_and_exact() -> None:
    regions = [region for region in LIBRARY.regions("mma") if region.file.endswith("softmax_step.cuh")]
    rng = random.Random(1)
    for region in regions:
        for _ in range(40):
            lines = region.text.splitlines(keepends=True)
            number = rng.randrange(len(lines))
            if "{" in lines[number] or "}" in lines[number]:
                lines.insert(number, "    // changed\n")
            else:
                lines[number] = f"    // {lines[number].strip()}\n"
            if "".join(lines) == region.text or lines[number].count("(") != lines[number].count(")"):
                continue
            edit = edit_of(region, "".join(lines), regions)
            assert edit is not None
            assert len(edit.search) <= len(region.text)
            text = apply_edits({region.file: FILES["mma"][region.file]}, [edit])[region.file]
            assert "".join(lines) in text
    assert edit_of(regions[0], regions[0].text, regions) is None
    twice = replace(regions[0], text="x;\nx;\n")
    assert edit_of(twice, "x;\n", [twice, Region(twice.file, "other", "x;\nx;\n", 1)]) is None


def summary_of(variant: Variant) -> VariantSummary:
    return VariantSummary(variant.name, "s", "recorded", 3.0, variant.patch)


def test_crossover_and_swap_combine_two_variants() -> None:
    by_name = {one.name: one.patch for one in load_patches(SHIPPED)}
    skip = Variant("mma", by_name["softmax-skip-rescale"])
    library = TemplateLibrary(packaged_dir("templates"), variants=(skip,))
    own = context("mma", (summary_of(skip),))
    line = "// ---- mma's own"
    other = Patch((Edit("mma/scores.cuh", "const int chunk = (lane >> 3) & 1;", line),))
    mated = context("mma", (summary_of(skip),), other)
    (crossed,) = Crossover().propose(mated, random.Random(0))
    assert (crossed.parents, crossed.patch and crossed.patch.edits) == (("mma", skip.name), skip.patch.edits)
    both = summary_of(Variant("mma", other.then(skip.patch)))
    assert Crossover().propose(replace(mated, mates=(summary_of(skip), both)), random.Random(0)) == (), "it is known"
    assert Crossover().propose(own, random.Random(0)) == (), "the child would be the mate"
    (swapped,) = RegionSwap(library.regions).propose(own, random.Random(0))
    assert swapped.patch is not None
    assert [one.name for one in swapped.patch.tunables] == ["SKIP_RESCALE"]
    assert apply_edits(FILES["mma"], swapped.patch.edits) == apply_edits(FILES["mma"], skip.patch.edits)
    same = context("mma", (summary_of(skip),), skip.patch)
    assert Crossover().propose(same, random.Random(0)) == ()
    assert RegionSwap(LIBRARY.regions).propose(context("mma"), random.Random(0)) == ()


def test_recorded_patches_are_proposed_once_where_they_fit() -> None:
    patches = load_patches(SHIPPED)
    assert len(patches) >= 6
    assert all(one.patch.summary and one.source for one in patches)
    operator = RecordedPatches(patches)
    found = [operator.propose(context("mma"), random.Random(seed)) for seed in range(4)]
    assert [len(one) for one in found] == [1, 0, 0, 0], "the past improvements are in the templates already"
    assert RecordedPatches(patches).propose(context("scalar"), random.Random(0)) == ()


FILE = """
summary = "s"
[[edits]]
file = "a"
search = "b"
replace = "c"
[[tunables]]
name = "NEW"
values = [1, 2]
default = 1
"""


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('replace = "c"', 'replace = "c"\nreplaces = "d"', "edits[0].replaces"),
        ("default = 1", 'default = 1\nconstaint = "NEW == 1"', "tunables[0].constaint"),
        ('summary = "s"', 'summary = "s"\nauthor = "a"', "author"),
    ],
)
def test_an_unknown_key_of_a_patch_file_is_an_error(tmp_path: Path, old: str, new: str, key: str) -> None:
    path = tmp_path / "patch.toml"
    path.write_text(FILE)
    assert [one.name for one in load_patch(path).patch.tunables] == ["NEW"]
    path.write_text(FILE.replace(old, new))
    with pytest.raises(PatchFileError, match="unknown key: use ") as caught:
        load_patch(path)
    assert caught.value.key == key


def test_a_pipe_among_patch_files_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")  # opening it would wait for its other end
    with pytest.raises(PatchFileError, match=r"a\.toml: is no regular file"):
        load_patches(tmp_path)


def test_a_patch_file_may_have_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"fast-\xff.toml")).write_text(FILE)
    (found,) = load_patches(tmp_path)
    assert found.name.startswith("fast-")
    assert found.name.isprintable()


def test_configs_are_small_changes_of_the_best_one() -> None:
    own = context("mma")
    (proposal,) = ConfigMoves().propose(own, random.Random(3))
    assert proposal.patch is None
    for values in proposal.configs:
        assert 1 <= len(values) <= 3
        assert all(own.space.by_name[name].holds(value) for name, value in values.items())
        assert all(value != own.best[0].config[name] for name, value in values.items())
        assert own.space.check({**own.best[0].config, **values}, own.problem, own.target) == []


def test_the_null_control_returns_the_parent() -> None:
    (proposal,) = UnchangedParent().propose(context("mma"), random.Random(0))
    assert proposal.patch == Patch((), summary=proposal.patch.summary if proposal.patch else "")
    assert apply_edits(FILES["mma"], ()) == {}


def test_a_patch_follows_another() -> None:
    first, second = Patch((), (NewTunable("A", (1, 2), 1),), "one"), Patch((), (NewTunable("B", (1, 2), 1),), "two")
    both = first.then(second)
    assert ([one.name for one in both.tunables], both.summary) == (["A", "B"], "two")
    names = {Variant("mma", patch).name for patch in (first, second, both, replace(both, summary="x"))}
    assert len(names) == 3, "the summary is no part of the hash"
