"""``lane_branches.py`` on listings of nvdisasm, written by hand: lanes apart, met again in each way, and uniform."""

from __future__ import annotations

import pytest

from tests.scripts.running import load

START = """\
.text.evo_attention:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   LOP3.LUT R2, R0.reuse, 0x1f, RZ, 0xc0, !PT ;
        /*0020*/                   ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0030*/                   ISETP.GT.AND P1, PT, R4, RZ, PT ;
"""
PARTED = (
    START
    + """\
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/               @P0 BRA `(.L_x_2) ;
        /*0060*/                   SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ ;
        /*0070*/                   BRA `(.L_x_2) ;
.L_x_1:
        /*0080*/                   HGMMA.64x64x16.F32.BF16 R24, R80, gdesc[UR8].tnspB, R24, gsb0 ;
.L_x_2:
        /*0090*/                   STSM.16.M88.4 [R9+0x2000], R12 ;
        /*00a0*/                   EXIT ;
"""
)
MET = PARTED.replace(
    "        /*0040*/", "        /*0038*/                   BSSY B0, `(.L_x_2) ;\n        /*0040*/"
).replace(".L_x_2:\n", ".L_x_2:\n        /*0088*/                   BSYNC B0 ;\n")


def findings(text: str) -> list[str]:
    script = load("lane_branches")
    return [report for code in script.read_listing(text) for report in script.apart(code)]


def test_a_matrix_store_after_a_branch_by_lane_is_found() -> None:
    (found,) = findings(PARTED)
    assert found.startswith("STSM")
    assert found.endswith("@P0 BRA `(.L_x_2)")


@pytest.mark.parametrize(
    "text",
    [
        MET,
        PARTED.replace(".L_x_2:\n", ".L_x_2:\n        /*0088*/                   WARPSYNC.ALL ;\n"),
        PARTED.replace("@P0 BRA", "@P1 BRA"),
        PARTED.replace("R0.reuse, 0x1f", "R0.reuse, 0x60"),
        PARTED.replace("STSM.16.M88.4 [R9+0x2000], R12", "STS [R9+0x2000], R12"),
    ],
    ids=["region", "WARPSYNC", "branch on a count", "number of the warp", "no instruction of whole warps"],
)
def test_lanes_that_are_together_are_not(text: str) -> None:
    assert findings(text) == []


def test_a_region_of_another_branch_does_not_bring_lanes_together() -> None:
    opened_later = PARTED.replace(
        ".L_x_2:\n",
        ".L_x_2:\n        /*0084*/                   BSSY B1, `(.L_x_3) ;\n.L_x_3:\n"
        "        /*0088*/                   BSYNC B1 ;\n",
    )
    assert len(findings(opened_later)) == 1
