"""One landscape of several: parts of one space that were recorded side by side, each on a GPU of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from evoengine.errors import LandscapeError
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.landscape.tunables import definition_document
from evoengine.model import Config, Evaluation


def merged(parts: Mapping[str, Landscape]) -> Landscape:
    """All configs of all parts; what they have in common, once.

    A kernel that two parts measured under different configs has one outcome afterwards, that of the first part: one
    code hash is one kernel.

    Args:
        parts: landscapes by the name of their file; at least one.

    Raises:
        LandscapeError: they differ in what every row depends on, or two hold the same config.
    """
    names, landscapes = list(parts), list(parts.values())
    first = landscapes[0]
    for name, other in parts.items():
        for what, fact in _FACTS.items():
            if fact(other) != fact(first):
                raise LandscapeError(name, what, f"is not that of {names[0]}: they are no parts of one recording")
    _refuse_common_configs(parts)
    families = tuple(
        _merged_family([one.families[place] for one in landscapes]) for place in range(len(first.families))
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
"""What must be the same in all parts, by its key in a file."""


def _refuse_common_configs(parts: Mapping[str, Landscape]) -> None:
    holder: dict[Config, str] = {}
    for name, landscape in parts.items():
        for evaluation in landscape.evaluations:
            if evaluation.config in holder:
                told = f"config {evaluation.config.key} is in {holder[evaluation.config]} too"
                raise LandscapeError(name, "families", told)
        holder |= dict.fromkeys((evaluation.config for evaluation in landscape.evaluations), name)


def _merged_family(parts: Sequence[RecordedFamily]) -> RecordedFamily:
    by_code: dict[str, Evaluation] = {}
    evaluations = []
    for evaluation in chain.from_iterable(part.evaluations for part in parts):
        known = by_code.setdefault(evaluation.code_hash, evaluation) if evaluation.code_hash else evaluation
        evaluations.append(replace(evaluation, status=known.status, reason=known.reason, timing=known.timing))
    return replace(parts[0], evaluations=tuple(evaluations))


def _provenance(parts: Sequence[LandscapeSource]) -> LandscapeSource:
    """Each text once; the date of the last part."""
    texts = {
        item.name: "; ".join(dict.fromkeys(text for part in parts if (text := getattr(part, item.name))))
        for item in fields(LandscapeSource)
    }
    return LandscapeSource(**texts | {"recorded_at": max(part.recorded_at for part in parts)})
