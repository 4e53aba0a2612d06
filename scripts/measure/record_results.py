#!/usr/bin/env python3
"""Records a complete search on this machine; writes docs/results/<name>.json and .md.

    python scripts/measure/record_results.py --problem default --budget 500 --name part-1-default

On a GPU: a search by its command line, SDPA's backends beside the champion, the exported file compiled with nvcc (if
installed), and the same sm_89 sources on the emulator and on the GPU. Without a GPU: the search on the emulator. All
results are from one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import common
import numpy as np

from evoengine.errors import UsageError

AGREEMENT_CONFIGS: Final = 8
"""Random configs, besides the champion, whose outputs are compared between emulator and GPU."""


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "leaderboard.db"
        report = _search(arguments, db)
        if not report["search"]["predicted"]:
            report["sdpa"] = _compare_with_sdpa(arguments, db)
            report["export"] = _run_export(db, Path(folder), report["search"]["champion"])
            report["agreement"] = _compare_with_emulator(arguments, report["search"]["champion"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{arguments.name}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = _markdown(report)
    (arguments.out / f"{arguments.name}.md").write_text(text)
    print(text)
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--problem", default="default", help="Name or shape.")
    parser.add_argument("--causal", action="store_true", help="Apply a causal mask.")
    parser.add_argument("--budget", type=int, default=500, help="Candidates to evaluate.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    parser.add_argument("--device", default="auto", help="Device, as for 'search'.")
    parser.add_argument("--name", required=True, help="Name of the files, without a suffix.")
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="Folder of the files.")
    return parser.parse_args()


# ---- the search by its command line ----------------------------------------------------------------------------------


def _search(arguments: argparse.Namespace, db: Path) -> dict[str, Any]:
    options = [f"--problem={arguments.problem}", f"--budget={arguments.budget}", f"--seed={arguments.seed}"]
    options += ["--causal"] if arguments.causal else []
    options += [] if arguments.device == "auto" else [f"--device={arguments.device}"]
    command = [sys.executable, "-m", "evoengine", "search", *options, f"--db={db}", "--json", "--quiet"]
    sampler = _MemorySampler()
    start = time.perf_counter()
    with subprocess.Popen(command, cwd=common.ROOT, stdout=subprocess.PIPE, text=True) as process:
        output = sampler.watch(process)
    wall_s = time.perf_counter() - start
    if process.returncode != 0:
        raise UsageError(f"the search failed with exit code {process.returncode}")
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "evoengine search " + " ".join(options),
        "machine": {"cores": len(_affinity()), "python": platform.python_version(), "system": platform.system()},
        "wall_s": round(wall_s, 1),
        "peak_memory_mib": round(sampler.peak_bytes / 2**20),
        "search": json.loads(output),
    }


class _MemorySampler:
    """Peak memory of a process tree as proportional set size, which counts shared pages once."""

    def __init__(self) -> None:
        self.peak_bytes = 0

    def watch(self, process: subprocess.Popen[str]) -> str:
        """Samples until the process ends; returns its output."""
        while True:
            try:
                output, _ = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                self.peak_bytes = max(self.peak_bytes, sum(_pss_bytes(pid) for pid in _tree(process.pid)))
                continue
            return output


def _tree(root: int) -> list[int]:
    children = [int(pid) for task in Path(f"/proc/{root}/task").glob("*/children") for pid in _read(task).split()]
    return [root, *(pid for child in children for pid in _tree(child))]


def _pss_bytes(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+) kB", _read(Path(f"/proc/{pid}/smaps_rollup")), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has just ended
        return ""


def _affinity() -> set[int]:
    return os.sched_getaffinity(0)


# ---- beside SDPA -----------------------------------------------------------------------------------------------------


def _session(arguments: argparse.Namespace, kind: str, arch: str, target: str) -> Any:
    from evoengine.model import parse_problem
    from evoengine.search.candidate.device_spec import DeviceSpec
    from evoengine.search.candidate.setup import SetupRequest, prepare

    problem = parse_problem(arguments.problem, causal=arguments.causal)
    return prepare(SetupRequest(problem, DeviceSpec("cuda" if kind == "cuda" else "emulator", target, arch)))


def _builder(arguments: argparse.Namespace, arch: str, target_name: str) -> Any:
    from evoengine.model import parse_problem
    from evoengine.space.loader import family_names, find_space
    from evoengine.target import get_target

    problem = parse_problem(arguments.problem, causal=arguments.causal)
    spaces = tuple(map(find_space, family_names()))
    return common.builder(problem, get_target(target_name).compiled_for(arch), spaces)


def _compare_with_sdpa(arguments: argparse.Namespace, db: Path) -> dict[str, Any]:
    """Times the champion interleaved with the fastest backend, and all backends interleaved."""
    from evoengine.leaderboard.records import RowFilter
    from evoengine.leaderboard.store import Leaderboard
    from evoengine.model import Config
    from evoengine.search.candidate.examiner import Examiner

    with Leaderboard(f"sqlite:///{db}", create=False) as board:
        row = board.rows(RowFilter())[0]
    with closing(Examiner(_session(arguments, "cuda", "", "l4"))) as examiner:
        compilation = _builder(arguments, row.arch, "h200").build(Config.of(row.family, dict(row.config)))
        backends = [asdict(backend) for backend in examiner.baselines()]
        timing = examiner.examine(compilation.candidate).timing
    assert timing is not None, "the champion passed the gate in the search"
    return {
        "champion_us": timing.median_us,
        "baseline": timing.baseline,
        "baseline_us": timing.baseline_us,
        "speedup": timing.speedup,
        "backends": backends,
    }


# ---- the exported file -----------------------------------------------------------------------------------------------


def _run_export(db: Path, folder: Path, champion: dict[str, Any]) -> dict[str, Any]:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return {"skipped": "no nvcc on this machine"}
    source, binary = folder / "best.cu", folder / "best"
    command = [sys.executable, "-m", "evoengine", "export", "--best", "-o", str(source), f"--db={db}"]
    subprocess.run(command, cwd=common.ROOT, check=True, stdout=subprocess.DEVNULL)
    from evoengine.export import nvcc_target

    subprocess.run([nvcc, nvcc_target(champion["arch"]), str(source), "-o", str(binary)], check=True)
    done = subprocess.run([str(binary)], check=False, capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))), "")
    found = re.search(r"median_us=([\d.]+)", line)
    median_us = float(found.group(1)) if found else None
    return {
        "exit_code": done.returncode,
        "line": line,
        "median_us": median_us,
        "against_leaderboard": None if median_us is None else median_us / champion["median_us"] - 1,
    }


# ---- emulator against GPU --------------------------------------------------------------------------------------------


def _compare_with_emulator(arguments: argparse.Namespace, champion: dict[str, Any]) -> list[dict[str, Any]]:
    """Compares outputs of the same sm_89 sources on the same inputs: the emulator against the GPU."""
    from evoengine.model import Config
    from evoengine.search.candidate.device_spec import DeviceSpec, open_device
    from evoengine.space.loader import find_space
    from evoengine.target import get_target

    (setup,) = _session(arguments, "emulator", "sm_89", "l4").parts
    builder = _builder(arguments, "sm_89", "l4")
    valid = find_space("mma").build(setup.problem, get_target("l4"))
    rng = np.random.default_rng(arguments.seed)
    configs = [valid.sample(rng) for _ in range(AGREEMENT_CONFIGS)]
    own = Config.of(champion["family"], champion["config"])
    rows = []
    with (
        closing(open_device(DeviceSpec("emulator", "l4", "sm_89"))) as emulator,
        closing(open_device(DeviceSpec("cuda", "l4", "sm_89"))) as gpu,
    ):
        for config in ([own] if valid.contains(own) else []) + configs:
            kernel = builder.build(config).kernel
            if kernel is None:
                continue
            with closing(emulator.load(kernel)) as here, closing(gpu.load(kernel)) as there:
                rows += [
                    {"config": str(config), "case": case.name}
                    | _difference(here.attention(case.inputs).o, there.attention(case.inputs).o)
                    for case in setup.pool.draw(kernel.source.source_hash).gate
                ]
    return rows


def _difference(emulated: Any, measured: Any) -> dict[str, Any]:
    a, b = (bits.view(np.float16).astype(np.float64) for bits in (emulated, measured))
    return {
        "elements": int(a.size),
        "identical": float(np.mean(emulated == measured)),
        "max_difference": float(np.max(np.abs(a - b))),
        "max_value": float(np.max(np.abs(b))),
    }


# ---- the page --------------------------------------------------------------------------------------------------------


def _markdown(report: dict[str, Any]) -> str:
    search, machine = report["search"], report["machine"]
    best = search["champion"]
    kind = "**predicted**" if search["predicted"] else "measured"
    config = " ".join(f"{name}={value}" for name, value in best["config"].items())
    facts = {
        f"best, {search['method']}": f"**{best['median_us']:.2f} µs** {kind}",
        "configuration": f"`{config}`",
        "registers, spilled bytes": f"{best['registers']}, {best['spill_bytes']}",
        "shared memory": f"{best['smem_bytes']} bytes",
        "wall time, including Python's start-up": f"{report['wall_s']} s",
        "distinct candidates": f"{search['evaluated']} ({search['duplicates']} duplicates besides)",
        "candidates per second": f"{search['candidates_per_s']:.1f}",
        "valid configurations": f"{search['valid_configs']:,}",
        "statuses": ", ".join(f"{count} {status}" for status, count in search["counts"].items()),
        "peak memory of all processes": f"{report['peak_memory_mib']} MiB",
        "overhead (strategy, database)": f"{1000 * search['overhead_s'] / max(1, search['new']):.0f} ms per candidate",
    }
    lines = [
        f"# {search['problem']}, {kind} on {search['device']}",
        "",
        f"{report['when']}, {machine['cores']} cores, Python {machine['python']}. Command:",
        "",
        f"    {report['command']}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in facts.items()),
    ]
    if not search["predicted"]:
        lines += _gpu_lines(report)
    return "\n".join(lines) + "\n"


def _gpu_lines(report: dict[str, Any]) -> list[str]:
    sdpa, export, agreement = report["sdpa"], report["export"], report["agreement"]
    own_us = sdpa["champion_us"]
    rows = [f"| EvoEngine | {own_us:.2f} | 1.00 |"]
    for backend in sdpa["backends"]:
        median_us = backend["median_us"]
        cells = f"{median_us:.2f} | {median_us / own_us:.2f}" if median_us else f"– | {backend['reason']}"
        rows.append(f"| {backend['backend']} | {cells} |")
    return [
        "",
        "Device time per call by graph replay, warm L2, one process:",
        "",
        "| | median µs | times ours |",
        "|---|---|---|",
        *rows,
        "",
        _versus(sdpa),
        "",
        _export_line(export),
        "",
        _agreement_line(agreement),
    ]


def _versus(sdpa: dict[str, Any]) -> str:
    rival = f"{sdpa['baseline']}, {sdpa['baseline_us']:.2f} µs"
    return f"Interleaved with the fastest backend ({rival}): {sdpa['speedup']:.2f} times as fast."


def _export_line(export: dict[str, Any]) -> str:
    if "skipped" in export:
        return f"Exported file: not run; {export['skipped']}."
    off = f", {100 * export['against_leaderboard']:+.1f} % against the leaderboard" if export["median_us"] else ""
    return f"Exported file, compiled with nvcc and run here: `{export['line']}`{off}."


def _agreement_line(agreement: list[dict[str, Any]]) -> str:
    worst = max(agreement, key=lambda row: row["max_difference"])
    same = float(np.mean([row["identical"] for row in agreement]))
    configs = len({row["config"] for row in agreement})
    return (
        f"The same sm_89 sources on the emulator and on this GPU, {len(agreement)} runs of {configs} configurations: "
        f"{100 * same:.1f} % of the elements are identical, the largest difference is {worst['max_difference']:.1e} "
        f"(values up to {worst['max_value']:.1f})."
    )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crashed worker must not fill the disk with core dumps
    common.run(main)
