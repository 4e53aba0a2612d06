"""Page of a study: one HTML file without external references."""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jinja2

from evoengine import __version__
from evoengine.documents.escaping import printable_lines
from evoengine.errors import MissingDependencyError
from evoengine.leaderboard.lineage import changes
from evoengine.leaderboard.records import Challenge, Record, Row
from evoengine.model import Status
from evoengine.report.command import search_command
from evoengine.report.counters import counters_note, counters_table
from evoengine.report.facts import StudyFacts, reigns, rejections, status_counts
from evoengine.report.figure import Table, number
from evoengine.report.figures import best_so_far, energy_plot, rejection_bars, roofline
from evoengine.report.influence import influences


def render_page(facts: StudyFacts, *, program: str, written_at: str) -> str:
    """Renders the page of a study as HTML.

    Args:
        facts: Data of the study.
        program: Command that starts EvoEngine, for the command that repeats the study.
        written_at: Time in the footer.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise MissingDependencyError(
            f"the report needs Plotly: {sys.executable} -m pip install 'plotly>=6,<8' (the extra 'report')"
        )
    from plotly.offline import get_plotlyjs

    found = rejections(facts.rows)
    families = influences(facts)
    single = {"progress": best_so_far(facts), "rejected": rejection_bars(found)}
    single |= {"energy": energy_plot(facts), "roof": roofline(facts)}
    figures = [figure for figure in single.values() if figure is not None]
    figures += [figure for family in families for figure in family.figures]
    counts = status_counts(facts.rows)
    return _environment().get_template("page.html.jinja").render(
        title=f"{facts.subject} on {facts.study.scope.device}",
        facts=facts,
        summary=list(_summary(facts, counts)),
        champion=None if facts.champion is None else list(_champion(facts.champion, facts)),
        source=None if facts.champion is None else facts.champion.evaluation.source,
        history=_history(facts),
        refused=sum(not challenge.accepted for challenge in facts.challenges),
        lineage=_lineage(facts),
        elites=_elites(facts),
        counters=counters_table(facts),
        counted_by=counters_note(facts),
        single=single,
        families=families,
        environment=list(_environment_facts(facts)),
        command=search_command(facts.study, _budget(counts), program),
        plots=script_json({figure.name: figure.plot for figure in figures}),
        style=_text("page.css"),
        script=_text("page.js"),
        plotly=get_plotlyjs() if figures else "",
        version=__version__,
        written_at=written_at,
    )  # fmt: skip


def _environment() -> jinja2.Environment:
    """Returns the environment, which escapes all values; only the package's own texts are marked safe."""
    loader = jinja2.PackageLoader("evoengine.report", ".")
    return jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: Any) -> Any:
    """Escapes control characters of a value, bidirectional ones included; marked-up text stays."""
    return printable_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _text(name: str) -> str:
    return (importlib.resources.files("evoengine.report") / name).read_text(encoding="utf-8")


def script_json(document: Mapping[str, Any]) -> str:
    """Encodes JSON for a script element: all characters with a meaning in HTML are escaped."""
    text = json.dumps(document, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _budget(counts: Mapping[Status, int]) -> int:
    return max(1, sum(count for status, count in counts.items() if status is not Status.DUPLICATE))


def _summary(facts: StudyFacts, counts: Mapping[Status, int]) -> Iterator[tuple[str, str]]:
    key = facts.study.key
    yield "problem" if key.workload is None else "workload", facts.subject
    kind = "emulated" if facts.study.scope.device_kind == "emulator" else key.device.kind
    yield "device", f"{key.device.name} ({kind}), {key.device.arch}"
    yield "times", f"{'PREDICTED' if facts.predicted else 'measured'} by {key.method}"
    yield "search", f"{key.strategy}, seed {key.seed}, families {key.family.replace(',', ', ')}"
    yield from _outcome(facts)
    ended = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    yield "candidates", f"{len(facts.rows)} stored: {ended}" if facts.rows else "none yet"
    if facts.rows:
        first, last = facts.rows[0].created_at, facts.rows[-1].created_at
        seconds = f"{(last - first).total_seconds():,.0f} s"
        yield "between", f"{first:%Y-%m-%d %H:%M:%S} and {last:%Y-%m-%d %H:%M:%S} UTC, {seconds}"


def _outcome(facts: StudyFacts) -> Iterator[tuple[str, str]]:
    """Yields the champion in one line."""
    if facts.champion is None or facts.champion.row.median_us is None:
        return
    row = facts.champion.row
    faster = "" if row.speedup is None else f", {row.speedup:.2f} times as fast as SDPA"
    yield "champion", f"row {row.id} of family {row.family}: {row.median_us:.3f} {facts.unit}{faster}"


def _champion(record: Record, facts: StudyFacts) -> Iterator[tuple[str, str]]:
    row, evaluation = record.row, record.evaluation
    timing, verdict, resources = evaluation.timing, evaluation.verdict, evaluation.resources
    yield "row", f"{row.id}, of study {row.study_id}" + (", this one" if row.study_id == facts.study.id else "")
    if timing is not None:
        interval = "" if row.predicted else f", 95 % interval {timing.low_us:.3f} to {timing.high_us:.3f}"
        yield "time per call", f"{timing.median_us:.3f} {facts.unit}{interval}"
        if timing.baseline_us is not None:
            yield (
                "against SDPA",
                f"{timing.baseline} took {timing.baseline_us:.3f} µs: {timing.speedup:.2f} times as long",
            )
        for part in timing.parts:
            yield f"on {part.problem}", f"{part.median_us:.3f} {facts.unit}, {part.share:.0%} of the calls"
    if row.energy_uj is not None:
        yield "energy per call", f"{row.energy_uj:.1f} µJ"
    yield "family", row.family
    yield "config", ", ".join(f"{name}={value}" for name, value in row.config.items())
    if verdict is not None:
        outcome = "passed" if verdict.passed else "FAILED"
        bound = f"max error {verdict.max_error:.2e} within {verdict.tolerance:.2e}"
        yield "parity", f"{outcome} in {verdict.cases} cases, {bound}; closest to its bound: {verdict.worst_case}"
    if resources is not None:
        memory = f"{resources.spill_bytes} bytes spilled, {resources.smem_bytes} bytes shared memory"
        yield "resources", f"{resources.registers} registers, {memory}, {resources.threads} threads"
    for note in evaluation.notes:
        yield "note", note
    yield "hashes", f"template {evaluation.template_hash}, source {evaluation.source_hash}, code {evaluation.code_hash}"


def _history(facts: StudyFacts) -> Table:
    rows = []
    for reign in reigns(facts):
        row = reign.row
        before = "–" if reign.before is None else f"row {reign.before.id}"
        evidence = _evidence(reign.challenge, predicted=facts.predicted)
        rows.append((f"row {row.id}", number(row.median_us), before, evidence, "; ".join(reign.changed) or "–"))
    head = ("champion", f"time, {facts.unit}", "replaced", "evidence", "changes")
    return Table(head, rows, frozenset({1}))


def _evidence(challenge: Challenge, *, predicted: bool) -> str:
    duel = challenge.duel
    led = "; led, but its inspection was not completed" if challenge.pending else ""
    if duel is None:
        return f"first correct kernel{led}"
    if predicted:
        return f"{duel.gain:.1%} less time (predicted){led}"
    pairs = len(duel.challenger_us)
    return f"{duel.gain:.1%} less time in {pairs} fresh pairs, at least {duel.low_gain:.1%} with 95 % confidence{led}"


def _elites(facts: StudyFacts) -> Table:
    head = ("rank", "row", "family", f"time, {facts.unit}", "speed-up", "registers", "shared memory", "config")
    rows = [
        (
            f"{number(row.rank, 'd')}{' ★' if row.champion else ''}",
            str(row.id),
            row.family,
            number(row.median_us),
            "–" if row.speedup is None else f"{row.speedup:.2f}×",
            number(row.registers, "d"),
            "–" if row.smem_bytes is None else f"{row.smem_bytes / 1024:.0f} KiB",
            _config(row, facts.elites[0]),
        )
        for row in facts.elites
    ]
    return Table(head, rows, frozenset({0, 1, 3, 4, 5, 6}))


def _config(row: Row, first: Row) -> str:
    """Returns a config; for the same family as the first row, only the differences."""
    if row.family == first.family and row.id != first.id:
        return f"as rank {first.rank}, but {', '.join(changes(first, row)) or 'built differently'}"
    return " ".join(f"{name}={value}" for name, value in row.config.items())


def _lineage(facts: StudyFacts) -> Table:
    """Returns the champion and its ancestors; no rows if the search did not record them."""
    kin = () if facts.champion is None else facts.champion.lineage
    by_id = {one.id: one for one in kin}
    rows = [
        (
            f"row {one.id}",
            str(one.generation),
            number(one.median_us),
            one.origin,
            "; ".join(changes(by_id[one.parents[0]], one)) if one.parents else "–",
        )
        for one in kin
        if one.origin
    ]
    head = ("row", "generations back", f"time, {facts.unit}", "move", "changes")
    return Table(head, rows, frozenset({1, 2}))


def _environment_facts(facts: StudyFacts) -> Iterator[tuple[str, str]]:
    key, champion = facts.study.key, facts.champion
    yield "device", key.device.name
    yield "compiled for", key.device.arch
    if champion is not None:
        yield "driver", champion.driver or "none (no GPU)"
        yield "NVRTC", champion.nvrtc or "unknown"
        telemetry = champion.evaluation.timing.telemetry if champion.evaluation.timing else None
        if telemetry is not None:
            reading = telemetry.after
            seen: dict[str, tuple[float | None, str]] = {"SM clock": (reading.sm_mhz, "MHz")}
            seen["memory clock"] = (reading.memory_mhz, "MHz")
            seen |= {"temperature": (reading.temperature_c, "°C"), "power": (reading.power_w, "W")}
            yield from ((name, f"{value} {unit}") for name, (value, unit) in seen.items() if value is not None)
            yield "throttled", "yes" if telemetry.throttled else "no"
    if facts.target is not None:
        target = facts.target
        rates = f"{target.dram_gbps:.0f} GB/s, {target.fp16_tensor_tflops:.0f} TFLOP/s"
        yield "data sheet", f"{target.marketing_name}: {target.sms} SMs, {target.boost_clock_mhz} MHz, {rates}"
    yield "space", f"{key.space_key[:16] or 'unknown'} (hash of search spaces and templates)"
    yield "study", facts.study.title
    yield "page", f"EvoEngine {__version__}"
