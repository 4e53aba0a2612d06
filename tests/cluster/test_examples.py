"""The examples of clusters: Ray's schema accepts the one, bash the other, and both call options that exist."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from evoengine.engine.options.search import SearchOptions
from tests.cli.calling import ROOT

EXAMPLES = ROOT / "examples"


def test_ray_accepts_its_cluster_file() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="Ray is not installed: pip install '.[ray]'")
    ray = find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    schema = json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    document = yaml.safe_load((EXAMPLES / "ray-cluster.yaml").read_text())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"worker_count": 2}, schema)


def test_bash_accepts_the_job_of_slurm() -> None:
    subprocess.run(["bash", "-n", EXAMPLES / "slurm-cluster.sh"], check=True)


@pytest.mark.parametrize("name", ["ray-cluster.yaml", "slurm-cluster.sh"])
def test_examples_call_options_that_exist(name: str) -> None:
    calls = re.findall(r"evoengine search (.*)", (EXAMPLES / name).read_text())
    assert calls
    options = {word.removeprefix("--") for call in calls for word in call.split() if word.startswith("--")}
    assert "cluster" in options
    assert all(hasattr(SearchOptions(), option.replace("-", "_")) for option in options)
