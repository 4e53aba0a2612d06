"""A leaderboard from anyone: stored texts leave generated files as they are, planted sources are not used."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import subprocess
import tokenize
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.verbs.exchange import export_rows
from evoengine.cli.verbs.export import run_export
from evoengine.cli.verbs.profile import run_profile
from evoengine.engine.compare import KernelLoader, own_kernel
from evoengine.engine.options.verbs import CompareOptions, ExportOptions, ProfileOptions, RowExportOptions
from evoengine.errors import EvoEngineError, ScreenError, StoreError, UsageError
from evoengine.leaderboard.sources import MOST_BYTES
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Problem
from evoengine.report.facts import MOST_SOURCE_CHARACTERS, gather, gather_all, newest_first
from evoengine.report.page import render_page
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import parse_space
from evoengine.target import get_target
from tests.api.boards import MISSION, Entry, mma, store
from tests.hostile import changed, controls, hostile_copy

FILES = {"cu": "best.cu", "header": "best.h", "torch": "best.py", "ptx": "best.ptx"}
_C_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\d[\w.]*|\s+|.', re.DOTALL
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "plain.db"
    store(path, shared_cache, Entry(MISSION, mma()), Entry(MISSION, mma({"BLOCK_N": 16}), 6.0, crowned=False))
    return path


@pytest.fixture
def hostile(plain: Path, tmp_path: Path) -> Path:
    return hostile_copy(plain, tmp_path)


def c_tokens(text: str) -> list[str]:
    """Tokens of C++ without comments; after line splicing and trigraphs, as the first phases of translation do."""
    spliced = re.sub(r"\\[ \t]*\n", "", text.replace("??/", "\\"))
    found = [token for token in _C_TOKEN.findall(spliced) if not token.isspace() and not token.startswith(("//", "/*"))]
    return ['""' if token.startswith('"') else token for token in found]


def python_tokens(text: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = (token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL))
    return [(token.type, "" if token.type == tokenize.STRING else token.string) for token in kept]


def shape(content: object) -> object:
    """Keys and types of a JSON document."""
    if isinstance(content, dict):
        return {key: shape(value) for key, value in content.items()}
    return [shape(item) for item in content] if isinstance(content, list) else type(content)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.every(2)
def test_stored_texts_do_not_change_the_structure_of_an_export(
    plain: Path, hostile: Path, tmp_path: Path, kind: str
) -> None:
    for db in (plain, hostile):
        folder = tmp_path / db.stem
        folder.mkdir()
        run_export(ExportOptions(str(folder / FILES[kind]), row="1", format=kind, db=str(db)))
    for file in (tmp_path / "plain").iterdir():
        texts = [(tmp_path / name / file.name).read_text() for name in ("plain", "board")]
        tokens: dict[str, Callable[[str], object]] = {
            ".cu": c_tokens,
            ".h": c_tokens,
            ".py": python_tokens,
            ".json": lambda text: shape(json.loads(text)),
        }
        if file.suffix in tokens:
            assert tokens[file.suffix](texts[0]) == tokens[file.suffix](texts[1])
            assert controls(texts[1]) == []


@pytest.mark.slow
def test_an_export_with_hostile_texts_compiles(nvcc: str, hostile: Path, tmp_path: Path) -> None:
    run_export(ExportOptions(str(tmp_path / "best.cu"), row="1", db=str(hostile)))
    command = [nvcc, "-arch=sm_90", "-DEVO_NO_MAIN", "-c", str(tmp_path / "best.cu"), "-o", str(tmp_path / "x.o")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["json", "csv", "t4", "rbk", "robust-kbench"])
def test_exchanged_rows_have_the_same_structure(plain: Path, hostile: Path, tmp_path: Path, kind: str) -> None:
    several = kind in ("rbk", "robust-kbench")
    for db in (plain, hostile):
        export_rows(str(db), RowExportOptions(tmp_path / db.stem, format=kind))
    folders = [tmp_path / name for name in ("plain", "board")]
    for names in zip(*(sorted(f.iterdir()) if several else [f] for f in folders), strict=True):
        texts = [name.read_text() for name in names]
        assert controls(texts[1]) == []
        if names[0].suffix in (".json", ".py", ".cu") or kind in ("json", "t4"):
            reader: Callable[[str], Any] = {".py": python_tokens, ".cu": c_tokens}.get(
                names[0].suffix, lambda text: shape(json.loads(text))
            )
            assert reader(texts[0]) == reader(texts[1])
        elif names[0].suffix == ".md":
            assert [line.count("|") - line.count("\\|") for line in texts[1].splitlines()] == [
                line.count("|") for line in texts[0].splitlines()
            ]
            assert "<script" not in texts[1].replace("\\<", "")
        else:
            lengths = [[len(row) for row in csv.reader(io.StringIO(text))] for text in texts]
            assert lengths[0] == lengths[1]
            assert len(set(lengths[0])) == 1


def test_the_report_escapes_stored_texts(hostile: Path) -> None:
    with Leaderboard(f"sqlite:///{hostile}", create=False) as board:
        page = render_page(gather(board), program="evoengine", written_at="now")
    head = page.partition("<script>/")[0]
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in head
    command = re.search(r'id="study-\d+-command">(.*?)</pre>', page, re.DOTALL)
    assert command is not None
    assert controls(head) == []
    assert "\n" not in command[1]


def test_packed_sources_of_many_rows_are_not_held_at_once(tmp_path: Path, shared_cache: Path) -> None:
    """A leaderboard of some KiB per problem, each with 8 MiB of source."""
    problems = [Problem(1, 8, 512 + number, 64) for number in range(8)]
    store(tmp_path / "plain.db", shared_cache, *(Entry(problem, mma()) for problem in problems))
    body = zlib.compress((b"/" * 127 + b"\n") * (MOST_BYTES // 128))
    db = str(changed(tmp_path / "plain.db", tmp_path, ("UPDATE evo_templates SET body_zlib = ?", (body,))))
    with pytest.raises(UsageError, match="cannot be verified"), held_bytes() as export:
        run_export(ExportOptions(str(tmp_path / "all.h"), every=True, format="header", db=db))
    with held_bytes() as exchange:
        export_rows(db, RowExportOptions(tmp_path / "rbk", format="rbk"))
    with Leaderboard(f"sqlite:///{db}", create=False) as board:
        studies = gather_all(board, newest_first(board))
    assert max(export[0], exchange[0]) < 7 * MOST_BYTES, "one source, its parts and its lines"
    shown = [one.champion.evaluation.source for one in studies if one.champion is not None]
    assert 2 * MOST_BYTES < sum(map(len, shown)) < MOST_SOURCE_CHARACTERS
    assert [one.has_source for one in studies] == [True] * 3 + [False] * 5
    assert len(json.loads((tmp_path / "rbk" / "rbk_report.json").read_text())["results"]) == 8
    text = render_page(*studies[2:4], program="evoengine", written_at="now")
    assert text.count("leaderboard show") == 1
    assert "<code>leaderboard show 5 --source</code>" in text


@contextmanager
def held_bytes() -> Iterator[list[int]]:
    """Yields a list that holds, after the block, the largest number of bytes that the block held at once."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


# -- planted sources --------------------------------------------------------------------------------------------------

RENAMED = "UPDATE evo_evaluations SET family = ?, config_key = ? WHERE id = 1"
INJECTED = "A\n#include <x>"
PLANT = '\n#include <cstdlib>\nstatic int owned = std::system("id");\n'


def planted(
    plain: Path,
    folder: Path,
    *more: tuple[str, tuple[object, ...]],
    change: Callable[[str], str] = lambda text: text + PLANT,
) -> Path:
    """A copy whose first row has a changed source: by default, with an initialiser."""
    with closing(sqlite3.connect(plain)) as file:
        packed = file.execute("SELECT body_zlib FROM evo_templates").fetchone()[0]
    before = zlib.decompress(packed).decode()
    assert change(before) != before
    body = zlib.compress(change(before).encode())
    return changed(plain, folder, ("UPDATE evo_templates SET body_zlib = ?", (body,)), *more)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.every(3)
def test_a_planted_source_is_not_exported_without_consent(plain: Path, tmp_path: Path, kind: str, older: bool) -> None:
    more = [("UPDATE evo_evaluations SET template_hash = 'older', code_hash = ''", ())] * older
    db, output = planted(plain, tmp_path, *more), tmp_path / "out" / FILES[kind]
    output.parent.mkdir()
    with pytest.raises(UsageError, match=r"row 1 .*--trust-source"):
        run_export(ExportOptions(str(output), best=True, format=kind, db=str(db)))
    with pytest.raises(UsageError, match="row 1 "):
        run_profile(ProfileOptions("1", db=str(db), ptx=True), json_output=False)
    with pytest.raises(UsageError, match="row 1 "):
        export_rows(str(db), RowExportOptions(output.parent, format="robust-kbench"))
    assert list(output.parent.iterdir()) == []


@pytest.mark.parametrize("trusts", [False, True])
def test_a_planted_source_is_not_compared(plain: Path, tmp_path: Path, trusts: bool) -> None:
    info = DeviceInfo("cuda", "NVIDIA L4", "sm_89", predicted=False)
    with Leaderboard(f"sqlite:///{plain}", create=False) as board:
        wanted = board.get(1).evaluation.source
    options = CompareOptions(db=str(planted(plain, tmp_path)), row="1", trust_source=trusts)
    ours = own_kernel(options, MISSION, info, get_target("l4"), "graph-warm")
    assert isinstance(ours.load, KernelLoader)
    assert ours.load.kernel.source.text == wanted, "the installed template's, whatever the file says"


def test_consent_exports_the_source_with_a_warning(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = planted(plain, tmp_path)
    run_export(ExportOptions(str(tmp_path / "best.cu"), best=True, trust_source=True, db=str(db)))
    assert "std::system" in (tmp_path / "best.cu").read_text()
    assert "row 1 is not verified" in capsys.readouterr().err


CLOCK = "    extern __shared__ __align__(128) unsigned char smem[];\n"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("include: line", lambda text: text + PLANT),
        ("register: PTX line", lambda text: text.replace(CLOCK, CLOCK + "    if (clock() == 7) return;\n")),
    ],
)
def test_consent_compiles_only_what_passes_the_screens(
    plain: Path, tmp_path: Path, rule: str, change: Callable[[str], str]
) -> None:
    db = planted(plain, tmp_path, change=change)
    for kind in ("torch", "ptx"):
        with pytest.raises(ScreenError, match=rule):
            run_export(
                ExportOptions(str(tmp_path / FILES[kind]), best=True, format=kind, trust_source=True, db=str(db))
            )
        assert not (tmp_path / FILES[kind]).exists()
    for ptx in (True, False):
        with pytest.raises(ScreenError, match=rule):
            run_profile(ProfileOptions("1", db=str(db), trust_source=True, ptx=ptx), json_output=False)


def own_space(edit: Callable[[str], str]) -> str:
    text = edit((data_dir("search_spaces") / "mma.toml").read_text())
    parse_space(text, "own.toml")
    return text


@pytest.mark.parametrize(
    ("statement", "values", "reason"),
    [
        ("UPDATE evo_studies SET arch = ?", ("sm_90; id",), "is not an architecture"),
        (RENAMED, ("../../etc/mma", Config.of("../../etc/mma", mma().as_dict()).key), "unknown family"),
        (RENAMED, ("/tmp/x.toml", Config.of("/tmp/x.toml", mma().as_dict()).key), "unknown family"),
        (
            "UPDATE evo_evaluations SET config_json = ?, config_key = ? WHERE id = 1",
            (json.dumps({INJECTED: 1}), Config.of("mma", {INJECTED: 1}).key),
            "has no tunable A",
        ),
        (
            "UPDATE evo_studies SET problem_json = ?",
            ('{"batch": 1, "heads": "8", "seq_q": 5, "head_dim": 4}',),
            "study",
        ),
        (
            "UPDATE evo_studies SET problem_json = ?",
            ('{"batch": 1, "heads": 8, "seq_q": 1e30, "head_dim": 4}',),
            "study",
        ),
    ],
)
def test_a_hostile_row_is_refused_in_one_line(
    plain: Path, tmp_path: Path, statement: str, values: tuple[object, ...], reason: str
) -> None:
    db = changed(plain, tmp_path, (statement, values))
    with pytest.raises(EvoEngineError, match=reason) as caught:
        run_export(ExportOptions(str(tmp_path / "best.cu"), row="1", db=str(db)))
    assert str(caught.value).isprintable()
    assert not (tmp_path / "best.cu").exists()


def test_a_stored_space_may_not_change_derived_values(plain: Path, tmp_path: Path) -> None:
    def edit(text: str) -> str:
        return re.sub(r'(\[derived\.\w+\]\nexpr = ")', r"\g<1>1 * ", text, count=1)

    own = json.dumps({"mma": own_space(edit)})
    db = changed(plain, tmp_path, ("UPDATE evo_studies SET spaces_json = ?", (own,)))
    with pytest.raises(UsageError, match="derived"):
        run_export(ExportOptions(str(tmp_path / "best.cu"), row="1", db=str(db)))


def test_a_comment_of_a_stored_space_stays_a_comment(plain: Path, tmp_path: Path) -> None:
    own = own_space(lambda text: re.sub(r'doc = "[^"]*"', r"doc = 'text \\'", text))
    db = changed(plain, tmp_path, ("UPDATE evo_studies SET spaces_json = ?", (json.dumps({"mma": own}),)))
    with pytest.raises(UsageError, match="cannot be verified"):  # rendered again, the comments differ
        run_export(ExportOptions(str(tmp_path / "best.cu"), row="1", db=str(db)))
    from evoengine.kernel.template.prologue import comment_of

    assert not comment_of("bytes", "text \\").endswith("\\")
    assert comment_of("bytes", "a\n#include <x>") == "  // bytes: a #include <x>"


# -- damaged rows -----------------------------------------------------------------------------------------------------


def test_the_best_sound_row_is_exported(
    plain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    db = changed(plain, tmp_path, ("UPDATE evo_sources SET prologue_zlib = x'00' WHERE rowid = 1", ()))
    run_export(ExportOptions(str(tmp_path / "best.cu"), best=True, db=str(db)))
    assert "row 2," in capsys.readouterr().out
    assert "row 1" in caplog.text
    with pytest.raises(StoreError, match="row 1"):
        run_export(ExportOptions(str(tmp_path / "one.cu"), row="1", db=str(db)))
