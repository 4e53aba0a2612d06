"""Merges landscapes that hold parts of one space, each recorded on a GPU of the same model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from evoengine.errors import LandscapeError
from evoengine.landscape.definition import definition_document
from evoengine.landscape.landscape import MAX_CONFIGS, Landscape, LandscapeSource, RecordedFamily
from evoengine.model import Config, Evaluation


def merged(parts: Mapping[str, Landscape]) -> Landscape:
    """Merges parts into one landscape with the configs of all of them.

    One code hash is one kernel: if two parts measured the same kernel under different configs, the outcome of the first
    part replaces the other.

    Args:
        parts: Landscapes by file name; at least one.

    Raises:
        LandscapeError: The parts differ in an entry that must be equal, two of them hold the same config, or they are
            too large together.
    """
    names, landscapes = list(parts), list(parts.values())
    first = landscapes[0]
    for name, other in parts.items():
        for what, fact in _FACTS.items():
            if fact(other) != fact(first):
                raise LandscapeError(name, what, f"differs from {names[0]}: merge parts of one recording only")
    _refuse_common_configs(parts)
    total = sum(len(landscape.evaluations) for landscape in landscapes)
    if total > MAX_CONFIGS:
        reason = f"with the other parts has {total:,} configs, more than {MAX_CONFIGS:,}"
        raise LandscapeError(names[0], "families", reason)
    families = tuple(
        _merged_family([one.families[index] for one in landscapes]) for index in range(len(first.families))
    )
    return replace(first, families=families, provenance=_provenance([one.provenance for one in landscapes]), key="")


_FACTS: Mapping[str, Callable[[Landscape], Any]] = {
    "problem": lambda landscape: landscape.problem,
    "device": lambda landscape: landscape.device,
    "limits": lambda landscape: dict(landscape.limits),
    "method": lambda landscape: landscape.method,
    "provenance.evoengine": lambda landscape: landscape.provenance.evoengine,
    "families": lambda landscape: [
        (definition_document(family.space), family.space_hash, family.template_hash, family.valid_configs)
        for family in landscape.families
    ],
}
"""Facts that must be equal in all parts, by their keys in a landscape file."""


def _refuse_common_configs(parts: Mapping[str, Landscape]) -> None:
    holder: dict[Config, str] = {}
    for name, landscape in parts.items():
        for evaluation in landscape.evaluations:
            if evaluation.config in holder:
                reason = f"config {evaluation.config.key} is in {holder[evaluation.config]} too"
                raise LandscapeError(name, "families", reason)
        holder |= dict.fromkeys((evaluation.config for evaluation in landscape.evaluations), name)


def _merged_family(parts: Sequence[RecordedFamily]) -> RecordedFamily:
    by_code: dict[str, Evaluation] = {}
    evaluations = []
    for evaluation in chain.from_iterable(part.evaluations for part in parts):
        known = by_code.setdefault(evaluation.code_hash, evaluation) if evaluation.code_hash else evaluation
        evaluations.append(replace(evaluation, status=known.status, reason=known.reason, timing=known.timing))
    return replace(parts[0], evaluations=tuple(evaluations))


def _provenance(parts: Sequence[LandscapeSource]) -> LandscapeSource:
    """Joins the distinct texts of each field; the date is that of the last part."""
    texts = {
        item.name: "; ".join(dict.fromkeys(text for part in parts if (text := getattr(part, item.name))))
        for item in fields(LandscapeSource)
    }
    return LandscapeSource(**texts | {"recorded_at": max(part.recorded_at for part in parts)})
