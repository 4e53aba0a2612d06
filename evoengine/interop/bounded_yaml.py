"""Parser of YAML with bounds, for content of unknown origin; the counterpart of :mod:`evoengine.documents.bounds`."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

from evoengine.documents.bounds import MAX_DEPTH, MAX_INT, BoundsError

MAX_NODES: Final = 20_000
"""Maximum number of scalars, lists and tables of a document."""

_LONGEST_NUMBER: Final = 40
_SHOWN: Final = 200
_ODD_SCALARS: Final = (ValueError, LookupError, TypeError, AttributeError)
"""Errors of PyYAML's constructors: an impossible date, or a tag such as ``!!int`` or ``!!str`` on another value."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def parse_yaml(text: str) -> Any:
    """Parses one YAML document to plain objects.

    Raises:
        BoundsError: Malformed YAML, an alias, a tag other than YAML's own, nesting deeper than
            :data:`~evoengine.documents.bounds.MAX_DEPTH`, too many nodes, a key that occurs twice, an integer beyond 64
            bits, or a number that is not finite.
    """
    try:
        return yaml.load(text, _BoundedLoader)  # noqa: S506 - a subclass of SafeLoader
    except BoundsError:
        raise
    except (yaml.YAMLError, RecursionError, *_ODD_SCALARS) as error:
        raise BoundsError(f"is not YAML: {' '.join(str(error).split())[:_SHOWN]}") from None


class _BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader that counts nodes and refuses aliases, which can expand to exponential size."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes one node; overrides the method that every node passes."""
        if self.check_event(yaml.AliasEvent):
            raise BoundsError("has an alias (*name): write the value out")
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            raise BoundsError(f"is nested deeper than {MAX_DEPTH} levels")
        if self._nodes > MAX_NODES:
            raise BoundsError(f"has more than {MAX_NODES:,} values")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _integer(loader: _BoundedLoader, node: yaml.ScalarNode) -> int:
    """Constructs an integer; a long text is not converted, because base 60 takes quadratic time."""
    if len(node.value) > _LONGEST_NUMBER or abs(number := int(loader.construct_yaml_int(node))) > MAX_INT:
        raise BoundsError("has an integer beyond 64 bits")
    return number


def _number(loader: _BoundedLoader, node: yaml.ScalarNode) -> float:
    if len(node.value) > _LONGEST_NUMBER or not math.isfinite(number := float(loader.construct_yaml_float(node))):
        raise BoundsError("has a number that is not finite, or too long")
    return number


def _text(_loader: _BoundedLoader, node: yaml.ScalarNode) -> str:
    if _CONTROL.search(node.value):
        raise BoundsError("has a text with control characters")
    return str(node.value)


def _mapping(loader: _BoundedLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | None):
            raise BoundsError("has a key that is not a text or a number")
        if key in found:
            raise BoundsError(f"has the key {str(key)[:40]!a} twice in one table")
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_BoundedLoader.add_constructor("tag:yaml.org,2002:int", _integer)
_BoundedLoader.add_constructor("tag:yaml.org,2002:float", _number)
_BoundedLoader.add_constructor("tag:yaml.org,2002:str", _text)
_BoundedLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
