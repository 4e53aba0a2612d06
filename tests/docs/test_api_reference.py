"""docs/api.md: it is that of the code, and every public name is told of in full."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import ROOT, environment
from tests.warm import WarmPython

SCRIPT, PAGE = ROOT / "scripts" / "api_reference.py", ROOT / "docs" / "api.md"


def public() -> list[tuple[str, Any]]:
    """The names that the page is to hold, found without the script that writes it."""
    found = []
    for module in ("evoengine", "evoengine.emulator"):
        names = importlib.import_module(module).__all__
        values = (inspect.unwrap(getattr(importlib.import_module(module), name)) for name in names)
        found += [(f"{module}.{name}", value) for name, value in zip(names, values, strict=True)]
    errors = vars(importlib.import_module("evoengine.errors"))
    found += [(f"evoengine.errors.{name}", value) for name, value in errors.items() if inspect.isclass(value)]
    return [(name, value) for name, value in found if "._" not in name and name != "evoengine.errors.Path"]


def test_the_page_is_that_of_the_code(warm: WarmPython, shared_cache: Path) -> None:
    update = [] if os.environ.get("EVOENGINE_UPDATE_GOLDEN") else ["--check"]
    done = warm.run(str(SCRIPT), update, ROOT, environment(shared_cache))
    assert done.code == 0, done.err


def test_a_stale_page_is_noticed(tmp_path: Path, warm: WarmPython, shared_cache: Path) -> None:
    """The control: the same script beside a page that lacks a line."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "evoengine").symlink_to(ROOT / "evoengine")
    (tmp_path / "scripts" / SCRIPT.name).write_text(SCRIPT.read_text())
    lines = PAGE.read_text().splitlines(keepends=True)
    (tmp_path / "docs" / "api.md").write_text("".join(lines[:-1]))
    done = warm.run(str(tmp_path / "scripts" / SCRIPT.name), ["--check"], tmp_path, environment(shared_cache))
    assert (done.code, "scripts/api_reference.py" in done.err) == (1, True)


def test_every_public_name_is_there_with_a_docstring() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^### `([\w.]+)`\n\n(.+)", text, re.MULTILINE)
    assert [name for name, _ in headings] == [name for name, _ in public()]
    assert all(below.strip() for _, below in headings)
    links = set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert links == set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_docstrings_describe_every_parameter(name: str, value: Any) -> None:
    documented = [value] if not inspect.isclass(value) else [value, *_methods(value)]
    for item in documented:
        text = inspect.getdoc(item) or ""
        assert text, f"{name}: {item} has no docstring"
        if inspect.isclass(item):
            continue  # each field has its own docstring, and exceptions take a message
        if "Args:" not in text and inspect.isfunction(value) and inspect.signature(value).parameters:
            pytest.fail(f"{name} does not describe its parameters")
        for parameter in inspect.signature(item).parameters:
            if parameter != "self" and "Args:" in text:
                assert re.search(rf"^ *\*{{0,2}}{parameter}(?:,| \(|:)", text, re.MULTILINE), (name, item, parameter)


def _methods(value: type) -> list[Any]:
    return [one for key, one in vars(value).items() if inspect.isfunction(one) and not key.startswith("_")]
