"""Set-up: every requirement is pinned, and scripts report errors on one line."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

SCRIPTS = (
    "scripts/setup",
    "scripts/evoengine",
    "scripts/test",
    "scripts/bundle_wheels",
    "scripts/measure/gpu_checks",
    ".ci/run",
)
PINS = {"cpu": "constraints.txt", "cuda13": "constraints.txt", "cuda12": "constraints-cuda12.txt"}


def pins_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}


@pytest.mark.parametrize(("extra", "file"), PINS.items())
def test_every_requirement_is_pinned_within_its_bounds(repo_root: Path, extra: str, file: str) -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = pins_of(repo_root / file)
    for text in [*project["dependencies"], *extras[extra], *extras["dev"]]:
        requirement = Requirement(text)
        assert pins[requirement.name] in requirement.specifier, text


def test_nvrtc_is_never_newer_than_the_bindings(repo_root: Path) -> None:
    for file, nvrtc in (("constraints.txt", "nvidia-cuda-nvrtc"), ("constraints-cuda12.txt", "nvidia-cuda-nvrtc-cu12")):
        pins = pins_of(repo_root / file)
        major, minor, _ = map(int, pins[nvrtc].split("."))
        limit = tuple(map(int, pins["cuda-bindings"].split(".")[:2]))
        assert (major, minor) <= limit


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_valid_bash(repo_root: Path, script: str) -> None:
    path = repo_root / script
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["scripts/setup", "--foo"], {}, "unknown option '--foo'"),
        (["scripts/bundle_wheels", "--foo"], {}, "unknown option '--foo'"),
        (["scripts/bundle_wheels", "--cuda", "11"], {}, "--cuda must be 13 or 12, not '11'"),
        (["scripts/setup"], {"EVOENGINE_CUDA": "11"}, "EVOENGINE_CUDA must be 13, 12 or none, not '11'"),
        (["scripts/setup"], {"EVOENGINE_CUDA": "12", "EVOENGINE_PYTHON": "nope"}, "nope is not a Python >= 3.11"),
    ],
)
def test_errors_are_one_line(
    repo_root: Path, tmp_path: Path, arguments: list[str], environment: dict[str, str], message: str
) -> None:
    for name in ("pyproject.toml", "constraints.txt", "constraints-cuda12.txt", arguments[0]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((repo_root / name).read_bytes())
    command = ["bash", str(tmp_path / arguments[0]), *arguments[1:]]
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert message in run.stderr
    assert re.fullmatch(r"[^\n]+\n", run.stderr)
    assert not (tmp_path / ".venv").exists()
