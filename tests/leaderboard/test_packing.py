"""Packed sources: whoever knows zlib can read them, and kernels of one family share what they have in common."""

from __future__ import annotations

import zlib

import pytest

from evoengine.leaderboard.packing import pack_text, unpack_text

BODY = "\n\n".join(f"float part_{number}(float x)\n{{\n    return {number}.0f * x;\n}}" for number in range(900))


@pytest.mark.parametrize("text", ["", "a", "\n\n" * 9000, "x" * 4096 + "\n\n", "é" * 5000, BODY, f"// one\n{BODY}\n"])
def test_zlib_reads_it(text: str) -> None:
    assert zlib.decompress(pack_text(text)).decode() == text
    assert unpack_text(pack_text(text)) == text


def test_it_takes_hardly_more_than_without_pieces() -> None:
    assert len(pack_text(BODY)) < 1.5 * len(zlib.compress(BODY.encode(), 3))


def test_what_two_sources_share_is_packed_alike() -> None:
    one, two = (
        pack_text("\n".join(f"int a_{number} = {number * factor % 9973};" for number in range(400)) + f"\n\n{BODY}")
        for factor in (77, 1234)
    )
    checksum = 4
    most = len(pack_text(BODY)) // 2
    assert one != two
    assert one[-most:-checksum] == two[-most:-checksum]
