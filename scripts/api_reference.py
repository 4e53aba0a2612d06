#!/usr/bin/env python3
"""Writes docs/api.md: the public names of EvoEngine, from their signatures and docstrings.

    python scripts/api_reference.py            # writes the page
    python scripts/api_reference.py --check    # prints the difference and exits with 1 if the page is stale

With --check, nothing is written.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
MODULES = ("evoengine", "evoengine.emulator", "evoengine.errors")
HEAD = """# API reference

What other programs may import; the rest of the package is free to change. How to use it: [python.md](python.md),
[emulator.md](emulator.md). Made from the docstrings by `scripts/api_reference.py`; a test fails when it is stale.
"""
MOST_LINES = 120
"""Maximum number of lines of a difference that ``--check`` prints."""
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
ITEM = re.compile(r"^(\*{0,2}[\w., ]+?)(?: \([^)]*\))?: (.*)$")


def reference() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        links = ", ".join(f"[`{public}`](#{anchor(name, public)})" for public in public_names(module))
        parts += [f"## {name}", prose(inspect.getdoc(module) or ""), links]
        for public in public_names(module):
            parts += [f'<a id="{anchor(name, public)}"></a>', f"### `{name}.{public}`"]
            parts += described(inspect.unwrap(getattr(module, public)))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def anchor(module: str, name: str) -> str:
    return f"{module}.{name}".replace(".", "-").lower()


def public_names(module: ModuleType) -> list[str]:
    """``__all__``, or the public classes defined in the module, in source order."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("__")]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def described(value: Any) -> Iterator[str]:
    """Yields signature and docstring; for a class, its fields and public methods too."""
    if inspect.isclass(value) and issubclass(value, Exception):
        yield f"Is a `{value.__bases__[0].__name__.lstrip('_')}`."
        yield prose(inspect.getdoc(value) or "")
        return
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield prose(inspect.getdoc(value) or "")
        yield table("member", "value", [(f"`{one.name}`", f"`{one.value}`") for one in value])
        return
    if not (dataclasses.is_dataclass(value) and inspect.isclass(value)):
        yield f"```python\n{signature(value)}\n```"
    yield prose(inspect.getdoc(value) or "")
    if not inspect.isclass(value):
        return
    if dataclasses.is_dataclass(value):
        notes = field_notes(value)
        hints = get_type_hints(value, include_extras=True)
        rows = [
            (f"`{one.name}`", *typed(one, hints[one.name], notes.get(one.name, "")))
            for one in dataclasses.fields(value)
            if not one.name.startswith("_")
        ]
        yield table("field", "type", rows)
    for name, member in vars(value).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            call = name if isinstance(member, property) else signature(member)
            yield f"**`{value.__name__}.{call}`**" if "\n" not in call else f"```python\n{call}\n```"
            yield prose(inspect.getdoc(member) or "")


def signature(value: Any) -> str:
    """Signature as source code, on several lines if longer than 100 columns."""
    made = inspect.signature(value)
    items = [parameter(item) for name, item in made.parameters.items() if name != "self"]
    kinds = [item.kind for name, item in made.parameters.items() if name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        items.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if inspect.isclass(value) else f" -> {str(made.return_annotation).strip(chr(39))}"
    line = f"{value.__name__}({', '.join(items)}){result}"
    return line if len(line) <= 100 else f"{value.__name__}(\n    " + ",\n    ".join(items) + f",\n){result}"


def parameter(item: inspect.Parameter) -> str:
    """A parameter as ``name: type = default``."""
    stars = "**" if item.kind is item.VAR_KEYWORD else "*" if item.kind is item.VAR_POSITIONAL else ""
    typed = "" if item.annotation is item.empty else f": {item.annotation}"
    return f"{stars}{item.name}{typed}" + ("" if item.default is item.empty else f" = {item.default!r}")


def typed(field: dataclasses.Field[Any], hint: Any, note: str) -> tuple[str, str]:
    """Type and note of a field; the help text of an option is its note."""
    if get_origin(hint) is not Annotated:
        return f"`{field.type}`", note
    kind, option, *_ = get_args(hint)
    return f"`{inspect.formatannotation(kind)}`", note or marked(getattr(option, "help", ""))


def field_notes(value: type) -> dict[str, str]:
    """Docstrings of a dataclass's fields, by name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(body, ast.ClassDef)
    notes = {}
    for field, note in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(note, ast.Expr) and isinstance(note.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            notes[field.target.id] = marked(" ".join(str(note.value.value).split()))
    return notes


def prose(text: str) -> str:
    """Converts a Google-style docstring to Markdown: sections become lists, Sphinx roles become code."""
    out: list[str] = []
    lines = iter(text.splitlines())
    section, literal = "", False
    for line in lines:
        if SECTION.match(line):
            section = line.rstrip(":")
            out += [*([""] if out and out[-1] else []), f"**{section}**", ""]
        elif literal and (line.startswith("    ") or not line):
            out.append(line[4:] if line else "")
        elif section and line.startswith("    "):
            out.append(item(line[4:]) if section != "Returns" else marked(line[4:]))
        else:
            if literal:
                out.append("```\n")
            section, literal = "", False
            literal = line.endswith("::")
            out += [marked(line.removesuffix("::") + ":" if literal else line)]
            out += ["", "```text"] if literal else []
            if literal:
                next(lines, None)
    if literal:
        out.append("```")
    return "\n".join(out).strip("\n")


def item(line: str) -> str:
    """Converts a line of a section: a new entry or a continuation."""
    found = ITEM.match(line)
    if found and not line.startswith(" "):
        return f"- `{found[1]}`: {marked(found[2])}"
    return f"  {marked(line.strip())}"


def marked(text: str) -> str:
    """Converts Sphinx roles and double backticks to Markdown code."""
    text = re.sub(r":mod:`([^`]+)`", r"`\1`", text)
    text = re.sub(r":\w+:`(?:[^`<]*<)?[~.]*([^`>]+)>?`", lambda role: f"`{role[1].split('.')[-1]}`", text)
    return text.replace("``", "`")


def table(*cells: Any) -> str:
    """A Markdown table; the last argument holds the rows, the others the column heads."""
    rows = cells[-1]
    if not rows:
        return ""
    width = len(rows[0])
    head = [*cells[:-1], "meaning"][:width]
    lines = [head, ["---"] * width, *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str]) -> int:
    text = reference()
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    page, name = PAGE.read_text(encoding="utf-8") if PAGE.exists() else "", str(PAGE.relative_to(ROOT))
    if page == text:
        return 0
    lines = list(
        difflib.unified_diff(page.splitlines(), text.splitlines(), f"{name} (golden)", f"{name} (now)", lineterm="")
    )
    print(*lines[:MOST_LINES], sep="\n", file=sys.stderr)
    print(f"{name} is stale: run python scripts/api_reference.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
