"""One family of a landscape file: its definition, and the outcomes of its configs in columns.

A family has the entries ``family``, ``doc``, ``tunables``, ``derived``, ``constraints`` and ``starts`` (as in
search-space files), ``space_hash``, ``template_hash``, ``valid_configs`` (size of the whole space), and ``count``: the
number of configs. Each column has one entry per config:

* ``configs``: one column per tunable with the indices of its values;
* ``status``, ``reason``, ``code``: the distinct ``texts``, and in ``places`` the index of each config's text or -1 for
  an empty one;
* ``registers``, ``spill_bytes``, ``stack_bytes``, ``static_smem_bytes``, ``dynamic_smem_bytes``, ``threads``: -1 for a
  config without a binary;
* ``median_us``, ``low_us``, ``high_us``: five significant digits, null for a config without a time;
* ``compile_s``, ``parity_s``, ``bench_s``: wall seconds of the stages, null where unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from evoengine.documents import Amount, convert_document
from evoengine.errors import LandscapeError
from evoengine.landscape.definition import definition_document, read_definition
from evoengine.landscape.landscape import RecordedFamily
from evoengine.model import Config, Evaluation, Resources, Status, Timing
from evoengine.space.search_space import SearchSpace

_RESOURCES: Final = tuple(item.name for item in fields(Resources))
_STAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "compile": ("render", "compile"),
    "parity": ("parity", "recheck", "control"),
    "bench": ("load", "bench"),
}
"""Stage columns, and the stages of an evaluation whose seconds each of them sums up."""
_STATUSES: Final = {status.value: status for status in Status if status is not Status.DUPLICATE}
_REASON_LENGTH: Final = 160

Count = Annotated[int, Meta(ge=0)]
_Indices = list[Count]
_IndicesOrNone = list[Annotated[int, Meta(ge=-1)]]
_Amounts = list[Amount | None]


class _TextColumn(msgspec.Struct, frozen=True):
    texts: list[str]
    places: _IndicesOrNone


class _ColumnsDocument(msgspec.Struct, frozen=True):
    space_hash: str
    template_hash: str
    valid_configs: Count
    count: Annotated[int, Meta(ge=1)]
    configs: dict[str, _Indices]
    status: _TextColumn
    reason: _TextColumn
    code: _TextColumn
    registers: _IndicesOrNone
    spill_bytes: _IndicesOrNone
    stack_bytes: _IndicesOrNone
    static_smem_bytes: _IndicesOrNone
    dynamic_smem_bytes: _IndicesOrNone
    threads: _IndicesOrNone
    median_us: _Amounts
    low_us: _Amounts
    high_us: _Amounts
    compile_s: _Amounts
    parity_s: _Amounts
    bench_s: _Amounts


def family_document(family: RecordedFamily) -> dict[str, Any]:
    """Returns a family in file format, with its configs sorted by their value indices."""
    order = sorted(range(len(family.evaluations)), key=lambda number: family.rows[number].tobytes())
    evaluations = [family.evaluations[number] for number in order]
    rows = family.rows[order]
    timings = [evaluation.timing for evaluation in evaluations]
    return {
        **definition_document(family.space),
        "space_hash": family.space_hash,
        "template_hash": family.template_hash,
        "valid_configs": family.valid_configs,
        "count": len(evaluations),
        "configs": {tunable.name: rows[:, axis].tolist() for axis, tunable in enumerate(family.space.tunables)},
        "status": _text_column(evaluation.status.value for evaluation in evaluations),
        "reason": _text_column(evaluation.reason[:_REASON_LENGTH] for evaluation in evaluations),
        "code": _text_column(evaluation.code_hash for evaluation in evaluations),
        **{name: [_resource(evaluation.resources, name) for evaluation in evaluations] for name in _RESOURCES},
        "median_us": [None if timing is None else _rounded(timing.median_us, 5) for timing in timings],
        "low_us": [None if timing is None else _rounded(timing.low_us, 5) for timing in timings],
        "high_us": [None if timing is None else _rounded(timing.high_us, 5) for timing in timings],
        **{f"{name}_s": [_seconds(evaluation, parts) for evaluation in evaluations] for name, parts in _STAGES.items()},
    }


def read_family(content: object, file: str, key: str, *, predicted: bool, method: str) -> RecordedFamily:
    """Reads and checks a family.

    Args:
        content: The family, as parsed from JSON.
        file: Name of the document, for messages.
        key: Position of the family in the document.
        predicted: Whether its times are predictions.
        method: Name of the objective.

    Raises:
        LandscapeError: An entry is missing, of the wrong type or inconsistent with another.
    """
    space = read_definition(content, file, key)
    columns = convert_document(content, _ColumnsDocument, file, LandscapeError, key)
    evaluations = tuple(_FamilyReader(columns, space, file, key).evaluations(predicted, method))
    return RecordedFamily(space, columns.space_hash, columns.template_hash, columns.valid_configs, evaluations)


@dataclass(frozen=True)
class _FamilyReader:
    """Turns the columns of one family into evaluations and checks what depends on several entries."""

    columns: _ColumnsDocument
    space: SearchSpace
    file: str
    key: str

    def evaluations(self, predicted: bool, method: str) -> Iterator[Evaluation]:
        """Yields one evaluation per config, in file order."""
        self._check_lengths()
        rows = zip(
            self._configs(),
            self._statuses(),
            self._texts("reason"),
            self._texts("code"),
            self._resources(),
            self._timings(predicted, method),
            self._stage_seconds(),
            strict=True,
        )
        template_hash = self.columns.template_hash
        for number, (config, status, reason, code, resources, timing, seconds) in enumerate(rows):
            one = Evaluation(config, status, reason, "", code, template_hash, "", resources, None, timing, seconds)
            if one.ok != (timing is not None):
                what = "without" if one.ok else "with"
                raise self._error(f"median_us[{number}]", f"a config that is {status.value} {what} a time")
            yield one

    def _error(self, name: str, reason: str) -> LandscapeError:
        return LandscapeError(self.file, f"{self.key}.{name}", reason)

    def _check_lengths(self) -> None:
        columns, count = self.columns, self.columns.count
        lists = {f"{name}.places": getattr(columns, name).places for name in ("status", "reason", "code")}
        names = (*_RESOURCES, "median_us", "low_us", "high_us", *(f"{name}_s" for name in _STAGES))
        for name, entries in (lists | {name: getattr(columns, name) for name in names}).items():
            if len(entries) != count:
                raise self._error(name, f"has {len(entries)} entries, not {count}")

    def _configs(self) -> Iterator[Config]:
        columns = [self._value_indices(tunable.name, len(tunable.values)) for tunable in self.space.tunables]
        seen: dict[tuple[int, ...], int] = {}
        for number, row in enumerate(zip(*columns, strict=True)):
            if row in seen:
                raise self._error("configs", f"config {number} repeats config {seen[row]}")
            seen[row] = number
            values = {
                tunable.name: tunable.decode(index) for tunable, index in zip(self.space.tunables, row, strict=True)
            }
            yield Config.of(self.space.family, values)

    def _value_indices(self, name: str, values: int) -> _Indices:
        if name not in self.columns.configs:
            raise self._error(f"configs.{name}", "is missing")
        indices = self.columns.configs[name]
        if len(indices) != self.columns.count:
            raise self._error(f"configs.{name}", f"has {len(indices)} entries, not {self.columns.count}")
        self._check_below(f"configs.{name}", indices, values)
        return indices

    def _texts(self, name: str) -> list[str]:
        column: _TextColumn = getattr(self.columns, name)
        self._check_below(f"{name}.places", column.places, len(column.texts))
        return ["" if index < 0 else column.texts[index] for index in column.places]

    def _check_below(self, name: str, indices: list[int], limit: int) -> None:
        for number, index in enumerate(indices):
            if index >= limit:
                raise self._error(f"{name}[{number}]", f"is {index}, which must be below {limit}")

    def _statuses(self) -> Iterator[Status]:
        for number, text in enumerate(self._texts("status")):
            if text not in _STATUSES:
                raise self._error(f"status[{number}]", f"'{text}' is unknown: choose one of {', '.join(_STATUSES)}")
            yield _STATUSES[text]

    def _resources(self) -> Iterator[Resources | None]:
        for number, amounts in enumerate(zip(*(getattr(self.columns, name) for name in _RESOURCES), strict=True)):
            if -1 in amounts and set(amounts) != {-1}:
                raise self._error(f"registers[{number}]", "some resources are known and some are not")
            yield None if -1 in amounts else Resources(*amounts)

    def _timings(self, predicted: bool, method: str) -> Iterator[Timing | None]:
        columns = self.columns
        for number, (median, low, high) in enumerate(
            zip(columns.median_us, columns.low_us, columns.high_us, strict=True)
        ):
            if median is None and low is None and high is None:
                yield None
            elif median is None or low is None or high is None or not 0 < low <= median <= high:
                raise self._error(f"median_us[{number}]", f"impossible times: {median} between {low} and {high}")
            else:
                yield Timing(median, low, high, predicted, method)

    def _stage_seconds(self) -> Iterator[dict[str, float]]:
        for amounts in zip(*(getattr(self.columns, f"{name}_s") for name in _STAGES), strict=True):
            yield {name: amount for name, amount in zip(_STAGES, amounts, strict=True) if amount is not None}


def _text_column(column: Iterable[str]) -> dict[str, Any]:
    known: dict[str, int] = {}
    places = [known.setdefault(text, len(known)) if text else -1 for text in column]
    return {"texts": list(known), "places": places}


def _resource(resources: Resources | None, name: str) -> int:
    return -1 if resources is None else int(getattr(resources, name))


def _seconds(evaluation: Evaluation, parts: tuple[str, ...]) -> float | None:
    taken = [evaluation.stage_seconds[name] for name in parts if name in evaluation.stage_seconds]
    return _rounded(sum(taken), 3) if taken else None


def _rounded(value: float, digits: int) -> float:
    """Rounds to significant digits; rounding is monotonic, so it never reverses the order of two numbers."""
    return float(f"{value:.{digits}g}")
