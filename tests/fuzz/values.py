"""Texts that no option expects: wrong types and sizes, control characters, odd encodings, odd paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

LONG: Final = 100_000
"""Characters of a very long text; the kernel limits one argument to 128 KiB."""

NUMBERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "zero": "0",
        "minus one": "-1",
        "minus zero": "-0",
        "2^31": str(2**31),
        "2^63": str(2**63),
        "2^200": str(2**200),
        "minus 2^200": str(-(2**200)),
        "5000 digits": "9" * 5000,
        "nan": "nan",
        "inf": "inf",
        "minus inf": "-inf",
        "1e400": "1e400",
        "1e-400": "1e-400",
        "1e308": "1e308",
        "fraction": "1.5",
        "hexadecimal": "0x10",
        "underscore": "1_000",
        "unicode digits": "٣٤",
        "full-width digits": "１２",
        "superscript": "²",
    }
)
TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "empty": "",
        "blank": " ",
        "dash": "-",
        "two dashes": "--",
        "word": "banana",
        "true": "True",
        "ANSI colour": "\x1b[31mred\x1b[0m",
        "terminal title": "\x1b]0;owned\x07",
        "line feed": "a\nb",
        "carriage return": "a\rerror: b",
        "tab": "a\tb",
        "backspace": "a\x08\x7fb",
        "C1 control": "a\x9b31mb",
        "line separator": "a\u2028b",
        "right-to-left": "a\u202eb",
        "lone surrogate": "a\udcffb",
        "invalid UTF-8": os.fsdecode(b"\xff\xfe\x80"),
        "noncharacter": "a\ufffe\uffff",
        "emoji": "🦊",
        "combining marks": "e" + "\u0301" * 500,
        "very long": "x" * LONG,
        "long words": "no such thing " * 5000,
        "format string": "%s %n {0} {x!r} ${HOME} @{ 7*7 }@",
        "markup": "[bold red]x[/] <b>&amp;</b>",
        "formula": "=HYPERLINK(1)",
        "quotes": "'\"`$(id)\\",
        "commas": ",,1,,",
        "equals": "a=b=c",
        "question mark": "x?y=1&z",
        "class": "os:system",
        "regex": "(((((a*)*)*)*)*)*$",
        "null text": "null",
    }
)
PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "folder": ".",
        "folder with suffix": "folder.db",
        "file below a file": "notes.txt/x.db",
        "missing folder": "missing/deep/x.db",
        "missing file": "missing.db",
        "parent of root": "../" * 50 + "missing/x",
        "dangling link": "dangling",
        "loop of links": "loop",
        "unreadable": "unreadable",
        "too long name": "n" * 300 + ".db",
        "too long path": "a/" * 3000,
        "/dev/null": "/dev/null",
        "/dev/full": "/dev/full",
        "/dev/zero": "/dev/zero",
        "/proc/self/mem": "/proc/self/mem",
        "/dev/fd/999": "/dev/fd/999",
        "empty file": "empty",
        "binary file": "binary",
        "text file": "notes.txt",
        "another program's database": "foreign.db",
        "leaderboard": "board.db",
        "home": "~",
        "home of an unknown user": "~no-such-user/x",
        "URL": "https://example.org/x.db",
        "SQLite URL": "sqlite:///",
        "SQLite URL with parameters": "sqlite:///board.db?mode=ro",
        "in-memory database": ":memory:",
        "replay of nothing": "replay:",
        "replay of a folder": "replay:.",
        "replay with an odd option": "replay:land.xz?noise=nan&seed=²",
        "replay with a huge seed": "replay:land.xz?seed=" + "9" * 5000,
        "GPU out of range": "cuda:999999999999999999999",
        "negative GPU": "cuda:-1",
        "repeated GPU": "cuda:0,0",
        "emulated GPUs": "emulator:0,0,-1",
    }
)
FORMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "shape of 5000 digits": f"1x1x{'9' * 5000}x64",
        "shape of unicode digits": "١x١x٣٢x٦٤",
        "shape of five sizes": "1x1x32x64x1",
        "shape of zeros": "0x0x0x0",
        "shape of 2^31": f"1x1x{2**31}x64",
        "shape beyond all memory": "1048576x1048576x1048576x64",
        "list of 50,000 numbers": "1," * 50_000 + "1",
        "list of zeros": "0,0",
        "list of huge numbers": "99999999999,99999999999",
        "list of three": "1,2,3",
        "list with nan": "nan,inf",
        "part 0 of 0": "0/0",
        "part 1 of 0": "1/0",
        "part of a huge number": "1/" + "9" * 5000,
        "part of unicode digits": "١/٢",
        "tunable without a name": "=1",
        "unknown tunable": "NOPE=1",
        "tunable without a value": "BLOCK_M=",
        "tunable of 5000 digits": "BLOCK_M=" + "9" * 5000,
        "strategy without options": "evolution:",
        "strategy with nan": "evolution:elites=nan",
        "strategy with a huge number": "evolution:elites=" + "9" * 5000,
        "strategy with an unknown option": "tpe:=,=,x",
        "class of no module": "no.such.module:Class",
        "class without a name": "os:",
        "class that is none": "os:path",
        "relative module": "..x:Y",
        "architecture of 5000 digits": "sm_" + "9" * 5000,
        "architecture of unicode digits": "sm_٨٩",
        "architecture 0": "sm_0",
        "architecture with a word": "sm_90ax",
    }
)
"""Texts that look like what an option expects."""
EVERY: Final[Mapping[str, str]] = MappingProxyType({**NUMBERS, **TEXTS, **PATHS, **FORMS})


def in_words(value: str) -> str:
    """The start of a value in printable ASCII, for reports."""
    text = ascii(value)[1:-1]
    return text if len(text) <= 40 else f"{text[:30]}… ({len(value)} characters)"
