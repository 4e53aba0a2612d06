"""Systematic damage to valid files: bytes, lines, and entries of documents."""

from __future__ import annotations

import copy
import hashlib
import json
import lzma
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tests.fuzz.values import LONG

Steps = tuple[Any, ...]
"""Position in a document: keys and indices."""

_CONTROL: Final = "\x1b[31m\x00\n\u202e\ud800"
_NESTED: Final = 2000
"""Levels of nested lists, more than Python's recursion limit allows."""


# -- bytes ------------------------------------------------------------------------------------------------------------


def byte_damage(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged copies of any content, with the kind of damage."""
    at = rng.randrange(max(1, len(content)))
    yield "empty", b""
    yield "one byte", content[:1]
    yield "cut in half", content[: len(content) // 2]
    yield "cut at the end", content[:-1]
    yield f"cut at {at}", content[:at]
    yield "doubled", content + content
    yield "a byte more", content + b"\xff"
    yield "zeros behind", content + bytes(5000)
    yield "zeros", bytes(len(content))
    yield f"flipped at {at}", flipped(content, at)
    yield "NUL in front", b"\0" + content
    yield "byte-order mark", b"\xef\xbb\xbf" + content
    yield "UTF-16", content.decode("latin-1").encode("utf-16")
    yield "invalid UTF-8", content[:at] + b"\xff\xfe\x80" + content[at:]
    yield "carriage returns", content.replace(b"\n", b"\r")
    yield f"gap at {at}", content[:at] + content[at + 37 :]
    noise = bytes(rng.randrange(256) for _ in range(64))
    yield f"noise at {at}", content[:at] + noise + content[at + 64 :]


def flipped(content: bytes, at: int) -> bytes:
    """Returns content with one bit inverted."""
    if not content:
        return content
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


# -- lines ------------------------------------------------------------------------------------------------------------

_BAD_VALUES: Final = (
    *("-1", "0", "1.5", "nan", "inf", "-inf", "1e999", "9" * 30, "9" * 5000, "true", '""', '"' + "x" * LONG + '"'),
    *("[]", "[[]]", "{}", "[1, 'a']", '["\\u0000"]', '"\\u001b[31m"', "''", "2020-01-01", "0x7fffffffffffffffff"),
    *("[" * _NESTED + "]" * _NESTED, '"(((((1+1)))))"', '"1/0"', '"__import__"', '"a" * 9', "*alias", "&a [*a]"),
    *("!!python/object:os.system {}", "1:30:00", "~", "null"),
)


def line_damage(rng: random.Random, text: str) -> Iterator[tuple[str, str]]:
    """Yields damaged copies of a text of lines such as TOML, YAML, CSV or a template; endless."""
    lines = text.split("\n")
    while True:
        at = rng.randrange(len(lines))
        line = lines[at]
        key, mark, value = line.partition("=") if "=" in line else line.partition(":")
        kind, changed = rng.choice(
            (
                ("without line", []),
                ("line twice", [line, line]),
                ("line renamed", [f"x_{line}"]),
                ("line without its value", [key + mark]),
                ("line without its end", [line[: len(line) // 2]]),
                ("line with blanks in front", [f"        {line}"]),
                ("line with a huge number", [f"{key}{mark} {2**70}"]),
                ("line with control characters", [f'{key}{mark} "\x1b[31m\u202e"']),
                ("line with another value", [f"{key}{mark} {rng.choice(_BAD_VALUES)}"]),
                ("line with another value", [f"{key}{mark} {rng.choice(_BAD_VALUES)}"]),
                ("line with a word more", [f"{line} banana"]),
                ("line in quotes", [json.dumps(line)]),
                ("line with a digit more", [_more_digits(value, key + mark)]),
            )
        )
        yield f"{kind} {at + 1}", "\n".join((*lines[:at], *changed, *lines[at + 1 :]))


def _more_digits(value: str, before: str) -> str:
    return before + "".join(f"9{one}" if one.isdigit() else one for one in value)


# -- documents --------------------------------------------------------------------------------------------------------


def document_damage(rng: random.Random, document: Any) -> Iterator[tuple[str, Any]]:
    """Yields copies of a JSON document with one entry changed; endless."""
    positions = list(_positions(document, ()))
    while True:
        steps = rng.choice(positions)
        kind, change = rng.choice(_CHANGES)
        changed = copy.deepcopy(document)
        holder = _at(changed, steps[:-1])
        change(rng, holder, steps[-1])
        yield f"{'.'.join(map(str, steps))}: {kind}", changed


def _positions(content: Any, steps: Steps) -> Iterator[Steps]:
    """Yields all positions; of a long list, only the first entries."""
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = list(content.items())[:40]
    elif isinstance(content, list):
        items = list(enumerate(content))[:3]
    for key, value in items:
        yield (*steps, key)
        yield from _positions(value, (*steps, key))


def _at(content: Any, steps: Steps) -> Any:
    for step in steps:
        content = content[step]
    return content


def _becomes(value: Any) -> Callable[[random.Random, Any, Any], None]:
    def change(_rng: random.Random, holder: Any, key: Any) -> None:
        holder[key] = copy.deepcopy(value)

    return change


def _removed(_rng: random.Random, holder: Any, key: Any) -> None:
    del holder[key]


def _renamed(_rng: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[f"{key}{_CONTROL}"] = holder.pop(key)
    else:
        holder.insert(0, "banana")


def _swapped(_rng: random.Random, holder: Any, key: Any) -> None:
    """Replaces a value by one of another type that reads the same."""
    value = holder[key]
    if isinstance(value, bool | int | float):
        holder[key] = str(value)
    elif isinstance(value, str):
        holder[key] = [value]
    elif isinstance(value, list):
        holder[key] = dict(enumerate(value))
    elif isinstance(value, dict):
        holder[key] = [list(item) for item in value.items()]
    else:
        holder[key] = 0


def _repeated(_rng: random.Random, holder: Any, key: Any) -> None:
    if isinstance(holder[key], list):
        holder[key] = [*holder[key], *holder[key]]
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = [holder[key], holder[key]]


def _enlarged(_rng: random.Random, holder: Any, key: Any) -> None:
    value = holder[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        holder[key] = 2**80
    else:
        holder[key] = value * 10**30 if isinstance(value, int) else value * 1e300 * 1e300


def _exchanged(rng: random.Random, holder: Any, key: Any) -> None:
    other = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def _nested(_rng: random.Random, holder: Any, key: Any) -> None:
    for _ in range(100):
        holder[key] = [holder[key]]


_CHANGES: Final[tuple[tuple[str, Callable[[random.Random, Any, Any], None]], ...]] = (
    ("removed", _removed),
    ("renamed", _renamed),
    ("of another type", _swapped),
    ("repeated", _repeated),
    ("enlarged", _enlarged),
    ("exchanged", _exchanged),
    ("nested", _nested),
    ("null", _becomes(None)),
    ("minus one", _becomes(-1)),
    ("zero", _becomes(0)),
    ("a fraction", _becomes(0.5)),
    ("2^63", _becomes(2**63)),
    ("2^200", _becomes(2**200)),
    ("4000 digits", _becomes(10**4000)),
    ("NaN", _becomes(float("nan"))),
    ("infinite", _becomes(float("inf"))),
    ("tiny", _becomes(5e-324)),
    ("empty text", _becomes("")),
    ("control characters", _becomes(_CONTROL)),
    ("very long text", _becomes("x" * LONG)),
    ("a word", _becomes("banana")),
    ("a formula", _becomes("=1+1")),
    ("empty list", _becomes([])),
    ("empty table", _becomes({})),
    ("a list of lists", _becomes([[], [[]]])),
    ("true", _becomes(True)),
)


def json_damage(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged copies of a JSON file, its duplicated keys included; endless."""
    for kind, document in document_damage(rng, json.loads(content)):
        text, twice = json.dumps(document), rng.random() < 0.1
        what, text = ("a key twice", _twice(text)) if twice else (kind, text)
        yield what, text.encode("utf-8", "surrogatepass" if rng.random() < 0.2 else "backslashreplace")


def _twice(text: str) -> str:
    """Returns JSON whose first key occurs twice."""
    start = text.index('"')
    end = text.index('"', start + 1)
    return f"{text[:start]}{text[start : end + 1]}: 1, {text[start:]}"


def landscape_damage(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged copies of a compressed landscape; endless."""
    for kind, text in json_damage(rng, lzma.decompress(content)):
        yield kind, lzma.compress(text, preset=0) if rng.random() < 0.3 else text


def lockfile_damage(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields damaged copies of a lockfile, most of them with a digest that fits; endless."""
    for kind, document in document_damage(rng, json.loads(content)):
        if isinstance(document.get("kernels"), list) and rng.random() < 0.8:
            try:
                text = json.dumps(document["kernels"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                document["sha256"] = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            except (TypeError, ValueError):  # keys of several types
                continue
        yield kind, json.dumps(document).encode()
