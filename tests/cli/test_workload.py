"""``--workload``: the file is read, or refused with file, key and reason; a search over it ranks the mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.engine.options.workload_file import read_workload
from evoengine.errors import WorkloadError
from evoengine.model import DType, Problem
from tests.cli.calling import Evo

FILE = """
name = "mix"
[[problems]]
problem = "mission"
weight = 3
causal = true
window = [128, 0]
softcap = 30
[[problems]]
problem = "2x4x64x128"
kv_heads = 2
seq_kv = 96
dtype = "bf16"
window = ["inf", 5]
sink = true
lse = true
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "w.toml"
    path.write_text(text)
    return path


def test_a_workload_has_its_problems_and_shares(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path, FILE))
    assert workload.problems == (
        Problem(1, 8, 512, 64, causal=True, window_left=128, window_right=0, softcap=30.0),
        Problem(2, 4, 64, 128, 2, 96, dtype=DType.BF16, window_right=5, sink=True, lse=True),
    )
    assert workload.shares == (0.75, 0.25)
    assert workload.key.startswith("workload-mix-")


def test_the_key_depends_on_problems_and_shares(tmp_path: Path) -> None:
    key = read_workload(write(tmp_path, FILE)).key
    first, second = FILE.split("[[problems]]")[1:]
    turned = f'name = "mix"\n[[problems]]{second}\n[[problems]]{first}'
    assert read_workload(write(tmp_path, turned)).key == key, "the order does not matter"
    scaled = FILE.replace("weight = 3", "weight = 6").replace('dtype = "bf16"', 'dtype = "bf16"\nweight = 2')
    assert read_workload(write(tmp_path, scaled)).key == key
    others = [FILE.replace("weight = 3", "weight = 4"), FILE.replace("512", "96"), FILE.replace('"mix"', '"mix2"')]
    others[1] = FILE.replace("seq_kv = 96", "seq_kv = 97")
    assert len({key, *(read_workload(write(tmp_path, text)).key for text in others)}) == 4


def test_packed_sequences_in_a_workload(tmp_path: Path) -> None:
    text = 'name = "p"\n[[problems]]\nproblem = "2x4x64x64"\nlengths = [64, 10]\n[[problems]]\nproblem = "mission"\n'
    assert read_workload(write(tmp_path, text)).problems[0].lengths_q == (64, 10)


def test_the_example_of_the_docs_is_valid(repo_root: Path) -> None:
    assert len(read_workload(repo_root / "docs/examples/workload.toml").problems) == 3


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('name = "mix"', "", "name: is missing"),
        ('name = "mix"', 'name = "M!x"', "M!x"),
        ('name = "mix"', 'name = "mix"\ncolour = "red"', "colour: unknown key"),
        ("[[problems]]", "[[tasks]]", "tasks: unknown key"),
        ("weight = 3", "weight = -1", "-1"),
        ("weight = 3", "weight = inf", "inf"),
        ("weight = 3", 'weight = "3"', "problems[0].weight: "),
        ("causal = true", "causal = 1", "problems[0].causal: "),
        ("causal = true", "casual = true", "problems[0].casual: unknown key"),
        ('problem = "mission"', "", "problems[0].problem: is missing"),
        ('problem = "mission"', 'problem = "big"', "problems[0]: unknown problem 'big'"),
        ("kv_heads = 2", "kv_heads = true", "problems[1].kv_heads: "),
        ('dtype = "bf16"', 'dtype = "fp8"', "problems[1].dtype: unknown value 'fp8'"),
        ("window = [128, 0]", "window = [128]", "problems[0].window: "),
        ('"2x4x64x128"', '"mission"\nx', "is no TOML"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path: Path, old: str, new: str, names: str) -> None:
    path = write(tmp_path, FILE.replace(old, new))
    with pytest.raises(WorkloadError) as caught:
        read_workload(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_problem_and_a_problem_twice_are_refused(tmp_path: Path) -> None:
    once = 'name = "one"\n[[problems]]\nproblem = "mission"\n'
    with pytest.raises(WorkloadError, match="at least two problems"):
        read_workload(write(tmp_path, once))
    with pytest.raises(WorkloadError, match="repeated"):
        read_workload(write(tmp_path, once + '[[problems]]\nproblem = "1x8x512x64"\n'))
    with pytest.raises(WorkloadError, match="No such file"):
        read_workload(tmp_path / "none.toml")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_search_over_a_workload(evo: Evo, tmp_path: Path) -> None:
    """The mean of both problems is ranked under the workload's name: one family and one candidate, on the emulator."""
    first, second = 'problem = "1x1x16x16"\nweight = 3', 'problem = "1x2x16x16"\ncausal = true'
    text = f'name = "two"\n[[problems]]\n{first}\n[[problems]]\n{second}\n'
    file = write(tmp_path, text)
    search = ("search", "--workload", str(file), "--family", "mma", "--device", "emulator", "--budget", "1")
    document = evo(*search, "--json").json()
    assert document["problem"] == read_workload(file).key
    shown = evo("leaderboard", "show", "1", "--json").json()
    timing, parts = shown["timing"], shown["timing"]["parts"]
    assert [(part["problem"], part["share"]) for part in parts] == [
        ("1x1x16x16-fp16", 0.75),
        ("1x2x16x16-fp16-causal", 0.25),
    ]
    assert timing["median_us"] == pytest.approx(0.75 * parts[0]["median_us"] + 0.25 * parts[1]["median_us"])
    assert shown["champion"]
    again = evo(*search)
    assert "the study is complete" in again.out
    assert f"problem   {document['problem']}, the weighted mean of" in again.out
    exported = evo("export", "1", "-o", "-").out
    assert f"{parts[0]['median_us']:.3f} us predicted" in exported, "the file is the first problem's kernel"


def test_a_workload_and_a_problem_exclude_each_other(quick_evo: Evo, tmp_path: Path) -> None:
    done = quick_evo("search", "--workload", str(write(tmp_path, FILE)), "--problem", "long")
    assert done.code == 2
    assert "w.toml" in done.err
    assert "--problem" in done.err
