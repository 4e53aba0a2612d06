#!/usr/bin/env python3
"""Compiles random valid configs and says what ptxas needs for them: registers, spills, CTAs per SM. No GPU is needed.

    .venv/bin/python scripts/measure/sample_resources.py --problem mission --count 120 --target h200

It answers whether anything is left to prune between the constraints of a search space and the first run of a kernel.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.resources import occupancy, resource_gate
from evoengine.kernel.spilling import SPILL_LIMIT_BYTES
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import parse_problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space
from evoengine.target import get_target


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problem", default="mission")
    parser.add_argument("--family", default="mma")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    problem, target = parse_problem(arguments.problem), get_target(arguments.target)
    space = find_space(arguments.family)
    valid = space.build(problem, target)
    template = TemplateLibrary(data_dir("templates")).load(arguments.family)
    compiler, rng = Compiler(None), np.random.default_rng(arguments.seed)
    spills, ctas, refused = [], Counter[int](), 0
    for _ in range(arguments.count):
        source = template.render(valid.sample(rng), problem, space, target)
        binary = compiler.compile(source, target.arch)
        launch = source.launch
        needs = replace(binary.resources, threads=launch.threads, dynamic_smem_bytes=launch.smem_bytes)
        spills.append(needs.spill_bytes)
        ctas[occupancy(needs, target).blocks_per_sm] += 1
        refused += resource_gate(binary, launch, target) is not None
    spilling = sorted(filter(None, spills))
    print(f"{arguments.count} random valid configs of {arguments.family}, {problem.key}, {target.name} ({target.arch})")
    print(f"refused by the resource gate: {refused}")
    print(f"spilling: {len(spilling)}, bytes per thread {spilling}, limit {SPILL_LIMIT_BYTES}")
    print(f"CTAs per SM: {', '.join(f'{count} have {blocks}' for blocks, count in sorted(ctas.items()))}")


if __name__ == "__main__":
    main()
