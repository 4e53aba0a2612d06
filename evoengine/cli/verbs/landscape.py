"""The verbs of ``landscape``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from evoengine.cli.exit_codes import INTERRUPTED, OK
from evoengine.cli.output.config_text import config_text
from evoengine.cli.output.console import make_console, print_json
from evoengine.cli.output.progress import observe_on
from evoengine.cli.output.verbosity import say_wrote
from evoengine.cli.verbs.space import space_lines
from evoengine.engine.options.verbs import RecordOptions
from evoengine.engine.recording import recorded_landscape
from evoengine.engine.search_plan import SearchPlan
from evoengine.errors import UsageError
from evoengine.interop.foreign_files import read_foreign
from evoengine.interop.kernel_tuner import cache_document
from evoengine.interop.t4 import t4_document
from evoengine.landscape.file import pack_landscape, read_landscape
from evoengine.landscape.landscape import Landscape, RecordedFamily, median_us
from evoengine.landscape.merging import merged
from evoengine.landscape.packing import json_text
from evoengine.search.settings import SearchResult, StopReason
from evoengine.system.files import refuse_existing, write_file

_NEAR: Final = (0.02, 0.05, 0.10)
"""Distances from the best time for which the share of configs is reported."""
_QUANTILES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


def run_record(options: RecordOptions) -> int:
    """Records a landscape, or continues an unfinished recording.

    Returns:
        The exit code.

    Raises:
        UsageError: The file exists, or options contradict each other.
        NothingFoundError: No config could be evaluated.
        EvoEngineError: The device cannot be used.
    """
    notes = make_console(stderr=True)
    with recorded_landscape(options, observe_on(notes, _announcement)) as done:
        if done.stages:
            notes.print(done.stages, markup=False)
        speed = _speed(done.result)
        if done.stopped:
            where = f"{options.unfinished} holds it: the same command resumes"
            notes.print(f"{speed}; {where}", markup=False)
        if done.landscape is None:
            return INTERRUPTED if done.result.stop is StopReason.INTERRUPTED else OK
        content = pack_landscape(done.landscape)
        write_file(options.output, content)
    notes.print(f"{speed}; wrote {options.output}, {len(content) / 1024:.0f} KiB", markup=False)
    return OK


def _announcement(plan: SearchPlan) -> Iterator[str]:
    kind = "PREDICTED" if plan.device.predicted else "measured"
    yield f"problem   {plan.problem.key}, {kind} on {plan.device.name}"
    yield from space_lines(plan.families)


def _speed(result: SearchResult) -> str:
    progress = result.progress
    rate = f"{progress.new} new in {progress.elapsed_s:.0f} s, {progress.rate:.1f} per second"
    return f"{progress.evaluated} distinct kernels, {rate}, {progress.duplicates} duplicates"


def show_landscape(path: Path, *, json_output: bool) -> None:
    """Prints the origin of a landscape and the distribution of its times.

    Raises:
        LandscapeError: The file is malformed.
    """
    landscape = read_landscape(path)
    if json_output:
        print_json(_document(landscape))
        return
    console = make_console()
    for label, text in _lines(landscape):
        console.print(f"{label:<9} {text}", markup=False)


def merge_landscapes(paths: Sequence[Path], output: Path, *, force: bool) -> None:
    """Joins landscapes that hold the parts of one space.

    Raises:
        UsageError: The output exists, there is only one part, or a part is named twice.
        LandscapeError: A file is malformed, or the parts do not belong together.
    """
    refuse_existing([output], force=force)
    if len(paths) < 2:
        raise UsageError("nothing to merge: give at least two landscapes")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"{', '.join(map(str, paths))}: a landscape is named twice: give each part once")
    landscape = merged({str(path): read_landscape(path) for path in paths})
    content = pack_landscape(landscape)
    write_file(output, content)
    say_wrote(output, f"wrote {output}: {len(landscape.evaluations)} configs, {len(content) / 1024:.0f} KiB")


def import_landscape(path: Path, output: Path, format_: str, *, force: bool) -> None:
    """Writes a landscape from another tuner's file.

    Raises:
        UsageError: The format is unknown, or the output exists.
        LandscapeError: The file is malformed.
    """
    refuse_existing([output], force=force)
    landscape = read_foreign(path, format_)
    content = pack_landscape(landscape)
    write_file(output, content)
    statuses = ", ".join(f"{count:,} {status.value}" for status, count in landscape.counts.items())
    configs = f"{len(landscape.evaluations):,} configs ({statuses})"
    say_wrote(output, f"wrote {output}: {configs} of {landscape.device.kind} results, {len(content) / 1024:.0f} KiB")


def export_landscape(path: Path, output: Path, format_: str, family: str | None, *, force: bool) -> None:
    """Writes one family of a landscape for other tuners.

    Raises:
        UsageError: The format is unknown, the output exists, or none of several families is chosen.
        LandscapeError: The file is malformed.
    """
    documents = {"kernel-tuner": cache_document, "t4": t4_document}
    if format_ not in documents:
        raise UsageError(f"unknown format '{format_}': choose {' or '.join(documents)}")
    refuse_existing([output], force=force)
    landscape = read_landscape(path)
    chosen = _family(landscape, family, path)
    write_file(output, json_text(documents[format_](landscape, chosen)))
    say_wrote(output, f"wrote {output}: {len(chosen.evaluations)} configs of {chosen.name}")


def _family(landscape: Landscape, name: str | None, path: Path) -> RecordedFamily:
    known = {family.name: family for family in landscape.families}
    if name is None and len(known) == 1:
        return landscape.families[0]
    if name is None or name not in known:
        raise UsageError(f"{path} holds {', '.join(known)}: choose one with --family")
    return known[name]


def _times_us(landscape: Landscape) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([median_us(evaluation) for evaluation in landscape.evaluations if evaluation.ok])


def _lines(landscape: Landscape) -> list[tuple[str, str]]:
    device, source = landscape.device, landscape.provenance
    kind = "PREDICTED for" if device.predicted else "measured on" if device.kind == "cuda" else f"{device.kind}:"
    versions = ", ".join(
        f"{name} {text}" for name, text in (("driver", device.driver), ("NVRTC", device.nvrtc)) if text
    )
    problem = "none: a kernel of another tuner" if landscape.problem is None else landscape.problem.key
    lines = [
        ("problem", problem),
        ("device", f"{kind} {device.name} {device.arch}, {landscape.method}{', ' if versions else ''}{versions}"),
        (
            "recorded",
            f"{source.recorded_at} by EvoEngine {source.evoengine}: {source.command}" if source.command else "no",
        ),
        ("sampling", source.sampling),
        ("checks", source.checks),
        ("clocks", source.clocks or "not known"),
        ("baseline", source.baseline or "none"),
        ("key", landscape.key),
    ]
    for family in landscape.families:
        codes = len({evaluation.code_hash for evaluation in family.evaluations if evaluation.code_hash})
        text = (
            f"{family.name}: {len(family.evaluations):,} of {family.valid_configs:,} valid configs, {codes:,} kernels"
        )
        lines.append(("family", text))
    lines.append(("statuses", ", ".join(f"{count:,} {status.value}" for status, count in landscape.counts.items())))
    times = _times_us(landscape)
    if len(times):
        quartiles = " / ".join(f"{us:.4g}" for us in np.quantile(times, _QUANTILES))
        near = ", ".join(f"{share:.2%} within {limit:.0%}" for limit, share in _near(landscape).items())
        lines.append(("times us", f"{quartiles} (best, quartiles, worst); {near} of the best"))
        lines.append(("best", f"{landscape.best.config.family}: {config_text(landscape.best.config.values)}"))
    return lines


def _near(landscape: Landscape) -> dict[float, float]:
    """Share of all configs, failed ones included, that are correct and within each distance of the best."""
    times = _times_us(landscape)
    total = len(landscape.evaluations)
    return {limit: float((times <= times.min() * (1 + limit)).sum() / total) for limit in _NEAR}


def _document(landscape: Landscape) -> dict[str, Any]:
    device, times = landscape.device, _times_us(landscape)
    source = landscape.provenance
    return {
        "key": landscape.key,
        "problem": None if landscape.problem is None else landscape.problem.key,
        "device": device.name,
        "device_kind": device.kind,
        "arch": device.arch,
        "driver": device.driver,
        "nvrtc": device.nvrtc,
        "predicted": device.predicted,
        "method": landscape.method,
        "recorded_at": source.recorded_at,
        "evoengine": source.evoengine,
        "command": source.command,
        "sampling": source.sampling,
        "checks": source.checks,
        "clocks": source.clocks,
        "baseline": source.baseline,
        "configs": len(landscape.evaluations),
        "families": {family.name: len(family.evaluations) for family in landscape.families},
        "valid_configs": {family.name: family.valid_configs for family in landscape.families},
        "counts": {status.value: count for status, count in landscape.counts.items()},
        "quantiles_us": [float(us) for us in np.quantile(times, _QUANTILES)] if len(times) else [],
        "near_best": {str(limit): share for limit, share in _near(landscape).items()} if len(times) else {},
        "best": landscape.best.config.as_dict() if len(times) else None,
    }
