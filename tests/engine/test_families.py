"""``--family``: all, some or one of the families; those that do not support a problem are left out, with the reason."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.cli.verbs.space import space_lines
from evoengine.engine.families import choose_families, wanted_spaces
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.search_plan import make_plan
from evoengine.engine.subspace import restricted, with_neighbours
from evoengine.errors import ProblemError, UsageError
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, DType, Problem, parse_problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import family_names
from evoengine.target import get_target
from tests.cli.calling import ROOT, Evo

TINY = parse_problem("tiny")
L4 = get_target("l4")


def plan_of(**options: object) -> tuple[str, str]:
    """Family and space key of the study of a search."""
    plan = make_plan(SearchOptions(TINY, device="emulator", **options))  # type: ignore[arg-type]
    return plan.study_key.family, plan.study_key.space_key


def serving(problem: Problem) -> list[str]:
    """The families that support a problem on the emulator's architecture."""
    library = TemplateLibrary(data_dir("templates"))
    return [name for name in family_names() if library.load(name).supports(problem, "sm_89") is None]


def test_the_study_key_depends_on_families_and_spaces(tmp_path: Path) -> None:
    everything = ",".join(serving(TINY))
    assert plan_of()[0] == plan_of(family="auto")[0] == everything
    assert plan_of(family="wmma, mma") == plan_of(family="mma,wmma")
    assert plan_of(family="mma,wmma")[0] == "mma,wmma"
    own = tmp_path / "scalar.toml"
    text = (ROOT / "search_spaces" / "scalar.toml").read_text()
    own.write_text(text)
    assert plan_of(space_file=own) == plan_of(family="scalar") == plan_of(family="scalar", space_file=own)
    own.write_text(text.replace("values = [32, 64, 128, 256, 512]", "values = [64, 128]"))
    assert plan_of(space_file=own)[0] == "scalar"
    identities = [plan_of(), plan_of(family="mma,wmma"), plan_of(family="mma"), plan_of(family="scalar")]
    assert len({*identities, plan_of(space_file=own)}) == 5


def test_the_study_key_of_one_family_is_that_of_version_1() -> None:
    """A tunable's ``when`` is part of its constraint, so it adds nothing to the key."""
    plan = make_plan(SearchOptions(TINY, device="emulator", family="scalar"))
    (family,) = plan.families.taken
    space = family.space
    facts = (family.template_hash, space.tunables, space.derived, space.constraints)
    assert plan.study_key.space_key == hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    assert f"doc={space.tunables[0].doc!r}" in repr(space.tunables[0])


def mixed_problem() -> tuple[Problem, dict[str, str]]:
    """A problem that only some families support, with the objections of the others."""
    library = TemplateLibrary(data_dir("templates"))
    rich = [Problem(1, 1, 32, size) for size in (40, 48, 80, 256)] + [
        Problem(1, 1, 32, 64, softcap=30.0),
        Problem(1, 1, 32, 64, sink=True),
        Problem(1, 1, 32, 64, dtype=DType.BF16),
    ]
    for problem in rich:
        answers = {name: library.load(name).supports(problem, "sm_89") for name in family_names()}
        objections = {name: reason for name, reason in answers.items() if reason is not None}
        if 0 < len(objections) < len(answers):
            return problem, objections
    pytest.skip("every family supports the same problems")


def test_families_that_do_not_support_the_problem_are_left_out_with_the_reason() -> None:
    problem, objections = mixed_problem()
    families = choose_families(wanted_spaces("auto", None), problem, L4)
    assert {entry.name: entry.reason for entry in families.left_out} == objections
    assert {family.name for family in families.taken} == set(family_names()) - objections.keys()
    for name, reason in objections.items():
        with pytest.raises(ProblemError) as caught:
            choose_families(wanted_spaces(name, None), problem, L4)
        assert str(caught.value) == reason


def test_a_problem_without_a_family_is_refused_with_every_reason() -> None:
    with pytest.raises(ProblemError) as caught:
        choose_families(wanted_spaces("auto", None), Problem(1, 1, 32, 264), L4)
    for family in family_names():
        assert f"family {family} " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_family_without_a_valid_config_is_left_out(tmp_path: Path) -> None:
    spaces = wanted_spaces("mma,scalar", None)
    few_registers = replace(L4, max_regs_per_thread=41)
    with pytest.raises(ProblemError, match=r"family mma: .*exclude.*; family scalar: .*exclude"):
        choose_families(spaces, TINY, few_registers)


def test_a_space_file_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match=r"wmma\.toml.*wmma.*'mma'"):
        wanted_spaces("mma", ROOT / "search_spaces" / "wmma.toml")


def test_space_lists_the_families(quick_evo: Evo) -> None:
    listed = quick_evo("space", "--family", "auto", "--json").json()
    assert [entry["family"] for entry in listed["families"]] == serving(parse_problem("mission"))
    for entry in listed["families"]:
        alone = quick_evo("space", "--family", entry["family"], "--json").json()
        assert entry == {name: value for name, value in alone.items() if name != "tunables"}
        assert entry["valid_error"] is None
        assert entry["combinations"] == math.prod(len(tunable["values"]) for tunable in alone["tunables"])
    text = quick_evo("space", "--family", "auto").out
    for entry in listed["families"]:
        assert re.search(rf"^{entry['family']} +{entry['valid']:,} ", text, re.MULTILINE)


@pytest.mark.thorough
def test_a_search_of_some_families(evo: Evo, quick_evo: Evo) -> None:
    problem = ("--problem", "1x1x16x32", "--device", "emulator", "--family", "wmma,scalar")
    command = ("search", *problem, "--budget", "2", "--accept", "1")
    done = evo(*command)
    assert done.code == 0, done
    assert re.search(r"^config +row \d+: (scalar|wmma) ", done.out, re.MULTILINE)
    result = evo(*command, "--json", "--quiet").json()
    assert (result["evaluated"], result["new"]) == (2, 0)
    assert [entry["family"] for entry in result["families"]] == ["scalar", "wmma"]
    assert result["valid_configs"] == sum(entry["valid_configs"] for entry in result["families"])
    rows = quick_evo("leaderboard", "--json", "--status", "all").json()
    assert {row["family"] for row in rows} == {"scalar", "wmma"}, "the first generation has both"
    assert result["champion"]["family"] in {"scalar", "wmma"}


def test_there_is_a_line_per_family() -> None:
    problem, objections = mixed_problem()
    lines = list(space_lines(choose_families(wanted_spaces("auto", None), problem, L4)))
    assert len(lines) == len(family_names()) + (len(family_names()) - len(objections) == 1)
    for name in family_names():
        if name in objections:
            assert f"left out: {objections[name]}" in lines
        else:
            assert any(re.match(rf"space {name}: .* valid of .* combinations$", line) for line in lines)


def test_the_line_of_one_family_has_the_share_of_each_constraint() -> None:
    first, last = space_lines(choose_families(wanted_spaces("scalar", None), parse_problem("mission"), L4))
    assert re.fullmatch("space scalar: 53,952 .*230,400 .*", first)
    assert re.match(r"removed +columns \d+\.\d %, .*shared_memory \d+\.\d %", last)


def test_restrictions_of_one_tunable_are_joined() -> None:
    plan = make_plan(SearchOptions(TINY, device="emulator", family="scalar"))
    assert plan.target is not None, "only a replay has no target"
    for only in (("THREADS=32", "THREADS=64"), ("THREADS=32,64", "THREADS=32")):
        (family,) = restricted(plan.families, plan.problem, plan.target, only).taken
        assert {config["THREADS"] for config in family.valid} == {32, 64}


@pytest.mark.thorough
def test_neighbours_that_the_space_excludes_are_added() -> None:
    """The truth: all combinations of the values, each checked by the rules of the space."""
    plan = make_plan(SearchOptions(TINY, device="emulator", family="scalar"))
    assert plan.target is not None, "only a replay has no target"
    only = ("THREADS=32,64,512", "LANES_PER_KEY=2,16", "KEYS_PER_STEP=1,8")
    families = restricted(plan.families, plan.problem, plan.target, only)
    (family,), (widened,) = families.taken, with_neighbours(families).taken
    tunables, space, valid = family.valid.tunables, family.space, set(family.valid)
    pins = {f"{tunable.name.lower()}_when" for tunable in tunables if tunable.when}
    wanted = set(valid)
    for values in itertools.product(*(tunable.values for tunable in tunables)):
        config = Config.of("scalar", {t.name: value for t, value in zip(tunables, values, strict=True)})
        broken = {rule.name for rule in space.check(config.as_dict(), plan.problem, plan.target)}
        steps = (
            Config.of("scalar", config.as_dict() | {t.name: near})
            for t in tunables
            for near in t.neighbours(config[t.name])
        )
        if not broken & pins and any(step in valid for step in steps):
            wanted.add(config)
    assert wanted > valid
    assert set(widened.valid) == wanted
