"""A page parsed into its elements, found by tag, class, id and section."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "img", "br", "hr", "link", "input"}


@dataclass
class Element:
    """One element with its children in order."""

    tag: str
    attrs: dict[str, str | None] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def all(self, *tags: str, kind: str = "") -> list[Element]:
        """Returns the elements below this one with one of the tags and with the class ``kind``, in document order."""
        return [one for one in self.walk() if (not tags or one.tag in tags) and (not kind or kind in one.classes)]

    def walk(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    @property
    def classes(self) -> list[str]:
        return (self.attrs.get("class") or "").split()

    @property
    def text(self) -> str:
        """Visible text."""
        return " ".join(" ".join(self.texts()).split())

    @property
    def raw(self) -> str:
        """Text of an element without child elements, as it is."""
        return "".join(child for child in self.children if isinstance(child, str))

    def texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.tag not in ("script", "style"):
                yield from child.texts()

    def facts(self) -> dict[str, str]:
        """Returns the lists of facts below this element: term to description."""
        terms, values = (iter([one.text for one in self.all(tag)]) for tag in ("dt", "dd"))
        return dict(zip(terms, values, strict=True))

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Returns head and rows of each table below this element."""
        return [
            (
                [cell.text for cell in table.all("th")],
                [[cell.text for cell in row.all("td")] for body in table.all("tbody") for row in body.all("tr")],
            )
            for table in self.all("table")
        ]


class Page(HTMLParser):
    """Parsed page; asserts that all elements close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("root")
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    def shown(self) -> str:
        """Returns the visible text."""
        return self.root.text

    def attributes(self, name: str) -> list[str]:
        """Returns all values of an attribute."""
        values = (one.attrs.get(name) for one in self.root.walk())
        return [value for value in values if value is not None]

    def sections(self) -> dict[str, Element]:
        """Returns the sections of the first study by the name in their heading's id."""
        found = {}
        for one in self.root.all("article")[0].all("section"):
            found[(one.attrs["aria-labelledby"] or "").partition("-h-")[2]] = one
        return found

    def section(self, name: str) -> Element:
        return self.sections()[name]

    def tiles(self) -> dict[str, tuple[str, list[float]]]:
        """Returns the large figures of the first study: label to value and the numbers of its note."""
        return {
            tile.all("span", kind="label")[0].text: (
                tile.all("strong")[0].text,
                numbers(tile.all("span", kind="note")[0].text),
            )
            for tile in self.section("verdict").all("li")
        }

    def plots(self) -> dict[str, Any]:
        """Returns the data of all plots of the first study by name."""
        script = next(one for one in self.root.all("script") if "data-study" in one.attrs)
        found: dict[str, Any] = json.loads(script.raw)
        return {name.removeprefix(f"{script.attrs['data-study']}-"): plot for name, plot in found.items()}


def numbers(text: str) -> list[float]:
    """Returns all numbers of a text that are not part of a word."""
    return [float(one) for one in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)]
