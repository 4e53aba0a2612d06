"""``EVOENGINE_DATA``: the user's families are laid over the shipped ones, file by file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evoengine.engine.families import overlaid
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.search_plan import SearchPlan, make_plan
from evoengine.errors import UsageError
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Problem
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import family_names

ROOT = Path(__file__).resolve().parents[2]
WARP_ROW = ROOT / "docs" / "examples" / "warp_row"
PROBLEM = Problem(1, 2, 128, 64)
SHIPPED = {path.stem for path in (ROOT / "search_spaces").glob("*.toml")}


def plan(data: Path | None, monkeypatch: pytest.MonkeyPatch, family: str = "auto") -> SearchPlan:
    if data is None:
        monkeypatch.delenv("EVOENGINE_DATA", raising=False)
    else:
        monkeypatch.setenv("EVOENGINE_DATA", str(data))
    return make_plan(SearchOptions(PROBLEM, device="emulator", family=family))


def keys(found: SearchPlan) -> dict[str, str]:
    return {family.name: family.key for family in found.families.taken}


def test_auto_takes_the_users_families_and_the_shipped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = plan(None, monkeypatch)
    assert list(overlaid(shipped.families)) == []
    both = plan(WARP_ROW, monkeypatch)
    assert set(family_names()) == SHIPPED | {"warp_row"}
    assert keys(both).keys() - keys(shipped).keys() == {"warp_row"}
    assert keys(shipped).items() <= keys(both).items(), "shipped families are unchanged"
    (line,) = overlaid(both.families)
    assert all(word in line for word in ("template", "search space", "warp_row", str(WARP_ROW)))


def test_a_family_of_the_same_name_replaces_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = keys(plan(None, monkeypatch))
    shutil.copytree(ROOT / "templates" / "scalar", tmp_path / "templates" / "scalar")
    kernel = tmp_path / "templates" / "scalar" / "kernel.cu.jinja"
    kernel.write_text(kernel.read_text() + "// mine\n")
    with_template = plan(tmp_path, monkeypatch)
    assert list(overlaid(with_template.families)) == [f"template of scalar from {tmp_path} instead of EvoEngine's"]
    (tmp_path / "search_spaces").mkdir()
    text = (ROOT / "search_spaces" / "scalar.toml").read_text()
    own = text.replace("values = [32, 64, 128, 256, 512]", "values = [64, 128]")
    assert own != text
    (tmp_path / "search_spaces" / "scalar.toml").write_text(own)
    with_both = plan(tmp_path, monkeypatch)
    (line,) = overlaid(with_both.families)
    assert all(word in line for word in ("template", "search space", "scalar", str(tmp_path), "EvoEngine's"))
    changed = [keys(found) for found in (with_template, with_both)]
    assert len({shipped["scalar"], *(found["scalar"] for found in changed)}) == 3
    for found in changed:
        assert {name: key for name, key in found.items() if name != "scalar"} == {
            name: key for name, key in shipped.items() if name != "scalar"
        }


def test_a_users_partial_does_not_change_shipped_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = keys(plan(None, monkeypatch))
    shutil.copytree(WARP_ROW, tmp_path, dirs_exist_ok=True)
    (tmp_path / "templates" / "partials" / "core").mkdir(parents=True)
    mine = (ROOT / "templates" / "partials" / "core" / "params.cuh").read_text() + "// mine\n"
    (tmp_path / "templates" / "partials" / "core" / "params.cuh").write_text(mine)
    changed, plain = keys(plan(tmp_path, monkeypatch)), keys(plan(WARP_ROW, monkeypatch))
    assert changed["warp_row"] != plain["warp_row"], "it includes the user's partial"
    assert {name: key for name, key in changed.items() if name != "warp_row"} == shipped


def test_dangling_links_and_folders_are_no_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "templates" / "odd" / "template.toml").mkdir(parents=True)
    (tmp_path / "search_spaces" / "odd.toml").mkdir(parents=True)
    (tmp_path / "search_spaces" / ".#mma.toml").symlink_to("user@host.1234")  # as Emacs marks a file that is edited
    monkeypatch.setenv("EVOENGINE_DATA", str(tmp_path))
    assert set(family_names()) == SHIPPED
    assert set(TemplateLibrary(*data_dirs("templates")).families()) == SHIPPED


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_folder_without_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"EVOENGINE_DATA .*{name}.*'templates'"):
        plan(tmp_path / name, monkeypatch)
