"""Candidates whose code ptxas would slow down end before they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.model import Status
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.target import get_target
from tests.kernel.families import DEFAULTS, META, PROBLEM, space_of, write_family
from tests.kernel.test_tensor_maps import MMA

HEAD = '//% include "prologue.cuh.jinja"\n//% include "params.cuh"\n'


@pytest.mark.parametrize(("called", "status"), [("return", Status.OK), ('printf("x")', Status.RESOURCE_LIMIT)])
def test_serialised_tensor_cores_are_a_resource_limit(tmp_path: Path, called: str, status: Status) -> None:
    kernel = HEAD + MMA.replace("SETMAXNREG", "").replace("CALLED", called)
    templates = write_family(tmp_path, kernel=kernel, meta=META.replace("min_arch = 80", "min_arch = 90"))
    space = space_of(tmp_path)
    setup = BuildSetup((PROBLEM,), get_target("h200"), "sm_90a", (space,), (templates,), None)
    built = Builder(setup).build(space.config(DEFAULTS))
    assert built.status is status
    assert built.reason.startswith("ptxas C7510: " if "x" in called else "")
    assert len(built.binaries) == 1
