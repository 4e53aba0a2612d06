"""Merging of landscapes that hold parts of one space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from evoengine.errors import LandscapeError
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.merging import merged
from evoengine.model import DeviceInfo, Status
from tests.landscape.making import config, timed, toy

FIRST = (timed(config(16, "plain", False), 10.0, "c1"), timed(config(16, "padded", True), 8.0, "c2"))
SECOND = (timed(config(32, "plain", False), 8.3, "c2"), timed(config(64, "plain", False), 12.0, "c3"))


def parts() -> dict[str, Landscape]:
    first, second = toy(FIRST), toy(SECOND)
    later = replace(
        second.provenance, recorded_at="2026-01-02T04:00:00+00:00", sampling="part 2/2", clocks="1980 to 1980 MHz"
    )
    return {"a.xz": first, "b.xz": replace(second, provenance=later)}


def test_each_config_occurs_once_and_a_kernel_has_one_time() -> None:
    whole = merged(parts())
    assert [e.config for e in whole.evaluations] == [e.config for e in (*FIRST, *SECOND)]
    times = {e.code_hash: e.value_us for e in whole.evaluations}
    assert times == {"c1": 10.0, "c2": 8.0, "c3": 12.0}
    assert whole.by_config[config(32, "plain", False)].value_us == 8.0  # 8.3 in its part


def test_failures_without_machine_code_are_not_merged() -> None:
    """Both reasons are kept."""
    failed = [
        replace(timed(which, 1.0, ""), status=Status.COMPILE_FAILED, reason=reason, timing=None)
        for which, reason in ((config(16, "plain", True), "one"), (config(32, "plain", True), "two"))
    ]
    whole = merged({"a.xz": toy((*FIRST, failed[0])), "b.xz": toy((*SECOND, failed[1]))})
    assert [e.reason for e in whole.evaluations if not e.ok] == ["one", "two"]


def test_provenance_names_both_parts() -> None:
    first, second = (landscape.provenance for landscape in parts().values())
    provenance = merged(parts()).provenance
    assert provenance.sampling == f"{first.sampling}; part 2/2"
    assert provenance.checks == first.checks  # the same in both
    assert provenance.clocks == "1980 to 1980 MHz"
    assert provenance.recorded_at == second.recorded_at


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: replace(one, method="graph-cold"), "b.xz: method: differs from a.xz"),
        (
            lambda one: replace(one, device=DeviceInfo("cuda", "NVIDIA L4", "sm_89", predicted=False)),
            "b.xz: device: differs from a.xz",
        ),
        (lambda one: replace(one, problem=replace(one.problem, causal=False)), "b.xz: problem: differs"),
        (
            lambda one: replace(one, families=(replace(one.families[0], template_hash="t2"),)),
            "b.xz: families: differs from a.xz",
        ),
        (lambda one: toy((*SECOND, FIRST[0])), "b.xz: families: config .* is in a.xz too"),
    ],
)
def test_parts_of_different_recordings_are_refused(change: Callable[[Landscape], Landscape], message: str) -> None:
    both = parts()
    with pytest.raises(LandscapeError, match=message):
        merged(both | {"b.xz": change(both["b.xz"])})


def test_parts_that_make_an_unreadable_file_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evoengine.landscape.merging.MAX_CONFIGS", 3)
    with pytest.raises(LandscapeError, match=r"a\.xz: families: with the other parts has 4 configs, more than 3"):
        merged(parts())
