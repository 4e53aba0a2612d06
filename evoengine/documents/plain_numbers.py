"""Numbers in texts that people and other programs write: one spelling, in ASCII.

``int`` and ``float`` also accept ``1_0``, digits of other scripts, surrounding blanks and a leading plus, in which a
typing error or a damaged file goes unnoticed.
"""

from __future__ import annotations

import re
from typing import Final

from evoengine.documents.bounds import MAX_INT

_WHOLE: Final = re.compile(r"-?[0-9]+", re.ASCII)
_LONGEST: Final = len(str(-MAX_INT))
_SHOWN: Final = 40
_NUMBER: Final = re.compile(
    r"-?(?:(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:e[+-]?[0-9]++)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)


def parse_whole(text: str) -> int:
    """Parses a whole number, such as ``5`` or ``-5``.

    Raises:
        ValueError: The text is no such number, or one beyond 64 bits.
    """
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text[:_SHOWN]!a} is not a whole number")
    if len(text) > _LONGEST or abs(number := int(text)) > MAX_INT:
        raise ValueError(f"{text[:_SHOWN]!a} is beyond 64 bits")
    return number


def parse_number(text: str) -> float:
    """Parses a number, such as ``5``, ``-0.5``, ``1e3``, ``inf`` or ``nan``.

    Raises:
        ValueError: The text is no such number.
    """
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text[:_SHOWN]!a} is not a number")
    return float(text)
