"""One family of a landscape file: its tunables, and one list per column.

``family``, ``doc``, ``space_hash``, ``template_hash``, ``valid_configs`` (of the whole space), ``tunables``,
``derived``, ``constraints`` and ``starts`` (as in search-space files), then ``count`` configs in columns:

* ``configs``: for each tunable, the places of its values;
* ``status``, ``reason``, ``code``: ``texts`` that occur, and for each config the ``places`` of its own, -1 for none;
* ``registers``, ``spill_bytes``, ``stack_bytes``, ``static_smem_bytes``, ``dynamic_smem_bytes``, ``threads``: -1 where
  the config came to no binary;
* ``median_us``, ``low_us``, ``high_us``: five digits, null where there is no time;
* ``compile_s``, ``parity_s``, ``bench_s``: wall seconds that the stages took, null where unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from evoengine.landscape.checked import Checked
from evoengine.landscape.landscape import RecordedFamily
from evoengine.landscape.tunables import definition_document, read_definition
from evoengine.model import Config, Evaluation, Resources, Status, Timing

_RESOURCES: Final = tuple(item.name for item in fields(Resources))
_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "compile": ("render", "compile"),
    "parity": ("parity", "recheck", "control"),
    "bench": ("load", "bench"),
}
"""What a landscape keeps of the seconds of an evaluation, and what it sums for it."""
_REASON_LENGTH: Final = 160


def family_document(family: RecordedFamily) -> dict[str, Any]:
    """The family as it stands in a file, configs in the order of their values."""
    order = sorted(range(len(family.evaluations)), key=lambda place: family.rows[place].tobytes())
    evaluations = [family.evaluations[place] for place in order]
    rows = family.rows[order]
    timings = [evaluation.timing for evaluation in evaluations]
    return {
        **definition_document(family.space),
        "space_hash": family.space_hash,
        "template_hash": family.template_hash,
        "valid_configs": family.valid_configs,
        "count": len(evaluations),
        "configs": {tunable.name: rows[:, axis].tolist() for axis, tunable in enumerate(family.space.tunables)},
        "status": _indexed(evaluation.status.value for evaluation in evaluations),
        "reason": _indexed(evaluation.reason[:_REASON_LENGTH] for evaluation in evaluations),
        "code": _indexed(evaluation.code_hash for evaluation in evaluations),
        **{name: [_resource(evaluation.resources, name) for evaluation in evaluations] for name in _RESOURCES},
        "median_us": [None if timing is None else _digits(timing.median_us, 5) for timing in timings],
        "low_us": [None if timing is None else _digits(timing.low_us, 5) for timing in timings],
        "high_us": [None if timing is None else _digits(timing.high_us, 5) for timing in timings],
        **{f"{name}_s": [_seconds(evaluation, parts) for evaluation in evaluations] for name, parts in _STAGES.items()},
    }


def read_family(part: Checked, *, predicted: bool, method: str) -> RecordedFamily:
    """Checks a family.

    Args:
        part: the family in its file.
        predicted: whether its times are predictions.
        method: name of the objective.

    Raises:
        LandscapeError: something in it is wrong.
    """
    space = read_definition(part)
    count = part.whole("count", least=1)
    columns = part.part("configs")
    places = [columns.wholes(tunable.name, count, 0, len(tunable.values)) for tunable in space.tunables]
    seen: dict[tuple[int, ...], int] = {}
    configs = []
    for number, row in enumerate(zip(*places, strict=True)):
        if row in seen:
            raise part.error("configs", f"number {number} is number {seen[row]} once more")
        seen[row] = number
        values = {t.name: t.decode(place) for t, place in zip(space.tunables, row, strict=True)}
        configs.append(Config.of(space.family, values))
    template_hash = part.text("template_hash")
    outcomes = zip(
        configs,
        _statuses(part, count),
        _texts(part, "reason", count),
        _texts(part, "code", count),
        _all_resources(part, count),
        _timings(part, count, predicted, method),
        _all_seconds(part, count),
        strict=True,
    )
    evaluations = [
        Evaluation(config, status, reason, "", code, template_hash, "", resources, None, timing, seconds)
        for config, status, reason, code, resources, timing, seconds in outcomes
    ]
    for number, evaluation in enumerate(evaluations):
        if evaluation.ok != (evaluation.timing is not None):
            what = "without" if evaluation.ok else "with"
            raise part.error(f"median_us[{number}]", f"a config that is {evaluation.status.value} {what} a time")
    return RecordedFamily(
        space, part.text("space_hash"), template_hash, part.whole("valid_configs"), tuple(evaluations)
    )


def _indexed(column: Iterable[str]) -> dict[str, Any]:
    known: dict[str, int] = {}
    places = [known.setdefault(text, len(known)) if text else -1 for text in column]
    return {"texts": list(known), "places": places}


def _texts(part: Checked, name: str, count: int) -> list[str]:
    column = part.part(name)
    texts = column.texts("texts")
    return ["" if place < 0 else texts[place] for place in column.wholes("places", count, -1, len(texts))]


def _statuses(part: Checked, count: int) -> Iterator[Status]:
    known = {status.value: status for status in Status if status is not Status.DUPLICATE}
    for number, text in enumerate(_texts(part, "status", count)):
        if text not in known:
            raise part.error(f"status[{number}]", f"'{text}' is none of {', '.join(known)}")
        yield known[text]


def _resource(resources: Resources | None, name: str) -> int:
    return -1 if resources is None else int(getattr(resources, name))


def _all_resources(part: Checked, count: int) -> Iterator[Resources | None]:
    columns = [part.wholes(name, count, -1) for name in _RESOURCES]
    for number, amounts in enumerate(zip(*columns, strict=True)):
        if -1 in amounts and set(amounts) != {-1}:
            raise part.error(f"registers[{number}]", "some resources are known and some are not")
        yield None if -1 in amounts else Resources(*amounts)


def _timings(part: Checked, count: int, predicted: bool, method: str) -> Iterator[Timing | None]:
    columns: list[Sequence[float | None]] = [part.numbers(name, count) for name in ("median_us", "low_us", "high_us")]
    for number, (median, low, high) in enumerate(zip(*columns, strict=True)):
        if median is None and low is None and high is None:
            yield None
        elif median is None or low is None or high is None or not 0 < low <= median <= high:
            raise part.error(f"median_us[{number}]", f"impossible times: {median} between {low} and {high}")
        else:
            yield Timing(float(median), float(low), float(high), predicted, method)


def _seconds(evaluation: Evaluation, parts: tuple[str, ...]) -> float | None:
    taken = [evaluation.stage_seconds[name] for name in parts if name in evaluation.stage_seconds]
    return _digits(sum(taken), 3) if taken else None


def _all_seconds(part: Checked, count: int) -> Iterator[dict[str, float]]:
    columns = [part.numbers(f"{name}_s", count) for name in _STAGES]
    for amounts in zip(*columns, strict=True):
        yield {name: float(amount) for name, amount in zip(_STAGES, amounts, strict=True) if amount is not None}


def _digits(value: float, count: int) -> float:
    """A number with so many significant digits; the order of two numbers never turns."""
    return float(f"{value:.{count}g}")
