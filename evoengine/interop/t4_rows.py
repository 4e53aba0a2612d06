"""Rows of one study's ranking and family in the T4 format, by the one writer that there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evoengine import __version__
from evoengine.interop.t4 import t4_document
from evoengine.landscape.landscape import Landscape, LandscapeSource, RecordedFamily
from evoengine.leaderboard.records import Record
from evoengine.model import Status
from evoengine.space.search_space import SearchSpace


def t4_results(records: Sequence[Record], space: SearchSpace) -> dict[str, Any]:
    """Rows as T4 results; duplicates, which were not run, are left out.

    Args:
        records: rows of one family, problem, device and method; at least one.
        space: the family's search space.
    """
    key = records[0].study.key
    evaluations = tuple(one.evaluation for one in records if one.evaluation.status is not Status.DUPLICATE)
    family = RecordedFamily(space, key.space_key, records[0].evaluation.template_hash, len(evaluations), evaluations)
    newest = max(one.row.created_at for one in records)
    provenance = LandscapeSource(
        evoengine=__version__,
        recorded_at=newest.isoformat(timespec="seconds") + "Z",
        command="",
        checks="the parity gate of the search",
        sampling=f"what {key.strategy} proposed",
    )
    landscape = Landscape(key.problem, key.device, {}, key.method, (family,), provenance)
    document = t4_document(landscape, family)
    document["metadata"]["family"] = space.family
    return document
