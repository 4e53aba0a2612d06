"""``leaderboard`` and ``leaderboard show``: prints rankings and single rows."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from operator import attrgetter
from typing import Any

from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.cli.output.echo import echo_lines
from evoengine.cli.output.ranking_table import ranking_table
from evoengine.cli.output.row_lines import row_lines
from evoengine.cli.output.verbosity import note
from evoengine.cli.verbs.profile_ncu import profile_document
from evoengine.documents.escaping import printable
from evoengine.engine.options.verbs import RowChoice, RowQuery
from evoengine.engine.rows.queries import find_record, find_rows, stored_rankings
from evoengine.engine.rows.space import starting_config_of
from evoengine.errors import UsageError
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.lineage import Kin
from evoengine.leaderboard.records import Challenge, Record, Row
from evoengine.leaderboard.store import Leaderboard


def list_rows(db: str, query: RowQuery, *, json_output: bool) -> None:
    """Prints rows as tables, one per ranking, or as a JSON array.

    Raises:
        StoreError: There is no leaderboard.
    """
    with Leaderboard(database_url(db), create=False) as board:
        rows = find_rows(board, query)
        counts = board.counts()
        searched = "" if rows else stored_rankings(board)
    if json_output:
        print_json([row_document(row) for row in rows])
        return
    console = make_console()
    if not rows:
        stored = ", ".join(f"{count} {status.value}" for status, count in counts.items()) or "no rows"
        with_energy = " with an energy, which a search on a GPU measures for its elites" if query.pareto else ""
        console.print(
            f"{database_name(db)}: no row{with_energy} matches: it holds {stored}; searched: {searched or 'nothing'}",
            markup=False,
        )
        return
    for _, ranking in groupby(rows, key=attrgetter("scope")):
        print_table(console, ranking_table(tuple(ranking), console.width))


def row_document(row: Row) -> dict[str, Any]:
    """One row as a JSON object."""
    return {
        "id": row.id,
        "rank": row.rank,
        "status": row.status.value,
        "median_us": row.median_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "predicted": row.predicted,
        "method": row.method,
        "device": row.device,
        "device_kind": row.device_kind,
        "arch": row.arch,
        "problem": row.problem,
        "family": row.family,
        "config": dict(row.config),
        "registers": row.registers,
        "spill_bytes": row.spill_bytes,
        "smem_bytes": row.smem_bytes,
        "max_error": row.max_error,
        "speedup": row.speedup,
        "champion": row.champion,
        "pending": row.pending,
        "energy_uj": row.energy_uj,
        "reason": row.reason,
        "code_hash": row.code_hash,
        "study_id": row.study_id,
        "created_at": row.created_at.isoformat(timespec="seconds") + "Z",
    }


def show_row(db: str, choice: RowChoice, *, source: bool, json_output: bool) -> None:
    """Prints one row on one screen, or its source alone.

    Raises:
        UsageError: JSON and the source are requested together, or the row has no source.
        StoreError: There is no such leaderboard or row.
        NothingFoundError: There is no correct row, or none with this rank.
    """
    if source and json_output:
        raise UsageError("--json has the source: give --source alone to print only that")
    with Leaderboard(database_url(db), create=False) as board:
        found = find_record(board, choice, db)
    record = found.record
    note(found.note)
    if json_output:
        print_json(record_document(record))
    elif source:
        _print_source(record)
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in row_lines(record, starting_config_of(record)):
            table.add_row(name, printable(value))
        print_table(make_console(), table)


def _print_source(record: Record) -> None:
    """Prints the source as it is: a wrapped line would not compile."""
    text = record.evaluation.source
    if not text:
        raise UsageError(f"row {record.row.id} ended as {record.row.status.value} and has no source")
    echo_lines(text.removesuffix("\n"))


def record_document(record: Record) -> dict[str, Any]:
    """Everything about one row as a JSON object."""
    evaluation = record.evaluation
    return {
        **row_document(record.row),
        "strategy": record.study.key.strategy,
        "seed": record.study.key.seed,
        "trial_number": record.trial_number,
        "driver": record.driver,
        "nvrtc": record.nvrtc,
        "template_hash": evaluation.template_hash,
        "source_hash": evaluation.source_hash,
        "duplicate_of": evaluation.duplicate_of,
        "resources": None if evaluation.resources is None else dataclasses.asdict(evaluation.resources),
        "verdict": None if evaluation.verdict is None else dataclasses.asdict(evaluation.verdict),
        "timing": None if evaluation.timing is None else dataclasses.asdict(evaluation.timing),
        "stage_seconds": dict(evaluation.stage_seconds),
        "notes": list(evaluation.notes),
        "challenges": [_challenge_document(challenge) for challenge in record.challenges],
        "lineage": [_kin_document(kin) for kin in record.lineage if kin.descent is not None],
        "hardware": None if record.profile is None else profile_document(record.profile),
        "source": evaluation.source,
    }


def _challenge_document(challenge: Challenge) -> dict[str, Any]:
    return {
        "evaluation_id": challenge.evaluation_id,
        "champion_id": challenge.champion_id,
        "accepted": challenge.accepted,
        "pending": challenge.pending,
        "duel": None if challenge.duel is None else dataclasses.asdict(challenge.duel),
        "created_at": challenge.created_at.isoformat(timespec="seconds") + "Z",
    }


def _kin_document(kin: Kin) -> dict[str, Any]:
    return {
        "id": kin.id,
        "generation": kin.generation,
        "median_us": kin.median_us,
        "move": None if kin.descent is None else kin.descent.move,
        "parents": list(kin.parents),
    }
