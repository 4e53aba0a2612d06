"""The leaderboard: every evaluation, the elites, and who was champion when and why.

Every method is one transaction; what it returned survives ``kill -9``. Two processes may use one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection, bindparam, create_engine, func, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.errors import StoreError
from evoengine.leaderboard import champions, leases, row_updates
from evoengine.leaderboard.clock import utc_now
from evoengine.leaderboard.codec import (
    evaluation_columns,
    evaluation_from_columns,
)
from evoengine.leaderboard.connection import connect, database_path, store_errors, stored_version
from evoengine.leaderboard.imports import ImportedConfig, add_imports, find_imports
from evoengine.leaderboard.lease_owner import new_owner
from evoengine.leaderboard.lineage import lineage
from evoengine.leaderboard.packing import pack_text, unpack_text
from evoengine.leaderboard.ranking import (
    first_of_each,
    in_scope,
    matching,
    ranked_rows,
    row_from,
    row_of,
    study_columns,
    study_from,
)
from evoengine.leaderboard.raw_statements import Prepared, raw, time_text, written
from evoengine.leaderboard.records import Challenge, LeaseStatus, Record, Row, RowFilter, Scope, Study, StudyKey
from evoengine.leaderboard.schema import (
    APPLICATION_ID,
    EVALUATIONS,
    METADATA,
    SCHEMA_VERSION,
    SOURCES,
    STUDIES,
)
from evoengine.leaderboard.upgrade import upgrade
from evoengine.model import Config, Duel, Evaluation, HardwareProfile, Provenance, Status

DEFAULT_URL = "sqlite:///leaderboard.db"

_KEEP_SOURCE: Final = Prepared(insert(SOURCES).on_conflict_do_nothing())
_KEEP_EVALUATION: Final = Prepared(insert(EVALUATIONS).on_conflict_do_nothing().returning(EVALUATIONS.c.id))
_ROW_OF_CONFIG: Final = Prepared(
    select(EVALUATIONS.c.id).where(
        EVALUATIONS.c.study_id == bindparam("study"), EVALUATIONS.c.config_key == bindparam("key")
    )
)
BUSY_TIMEOUT_S = 30.0
"""How long a transaction waits for another process before it gives up."""


@dataclass(frozen=True)
class Stored:
    """An evaluation as it lies in a study; its source stays in the file (see :meth:`Leaderboard.get`)."""

    id: int
    trial_number: int | None
    evaluation: Evaluation


class Leaderboard:
    """The store in one SQLite file. Safe to use from one thread of each of several processes.

    Args:
        url: ``sqlite:///FILE``.
        create: make the file if there is none.
        busy_timeout_s: how long to wait for a lock that another process holds.

    Raises:
        StoreError: the file is missing (without ``create``), foreign, of another version, locked or unwritable. Every
            method raises it too.
    """

    def __init__(self, url: str = DEFAULT_URL, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.url = url
        self.path: Path = database_path(url)
        self._busy_timeout_s = busy_timeout_s
        self._owner = new_owner()
        version = stored_version(self.path, busy_timeout_s)
        if version == 0 and not create:
            raise StoreError(
                f"{self.path}: there is no leaderboard yet: run a search first, or name its file with --db"
            )
        self._engine = create_engine(url, creator=self.connect)
        if version == 0:
            self._create_tables()
        elif version < SCHEMA_VERSION:
            with self._write() as connection:
                upgrade(connection)

    def connect(self) -> Any:
        """A raw ``sqlite3`` connection with this leaderboard's settings; Optuna's tables are reached through it."""
        return connect(self.path, self._busy_timeout_s)

    def close(self) -> None:
        """Closes all connections; harmless when called twice."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- studies ------------------------------------------------------------------------------------------------------

    def open_study(self, key: StudyKey) -> Study:
        """The study with this identity, made if there is none."""
        values = study_columns(key) | {"created_at": utc_now()}
        with self._write() as connection:
            connection.execute(insert(STUDIES).values(values).on_conflict_do_nothing())
            query = select(STUDIES.c.id, STUDIES.c.created_at).where(STUDIES.c.identity == key.identity)
            found = connection.execute(query).one()
        return Study(found.id, key, found.created_at)

    def studies(self) -> list[Study]:
        """All studies, oldest first."""
        with self._read() as connection:
            return [study_from(row) for row in connection.execute(select(STUDIES).order_by(STUDIES.c.id)).mappings()]

    # -- claims: what is under way ------------------------------------------------------------------------------------

    def acquire_lease(
        self, study: Study, config: Config, budget: int, number: int | None = None, descent: Provenance | None = None
    ) -> LeaseStatus:
        """Takes a config for evaluation, so that no other search on the study evaluates it too.

        Args:
            study: the study.
            config: what shall be evaluated.
            budget: distinct candidates that the study may hold.
            number: of the trial that it is for.
            descent: where the config came from; the evaluation keeps it.
        """
        with written(self._engine, self.path) as connection:
            return leases.acquire(connection, study, config, budget, self._owner, number, descent)

    def leased(self, study: Study) -> dict[int, Config]:
        """What this leaderboard object holds in a study, adopted claims included, by trial number.

        Claims whose number is not known, or is taken, have negative ones.
        """
        with self._read() as connection:
            return leases.held_by(connection, study, self._owner)

    def release_leases(self, study: Study) -> None:
        """Gives back every claim that this leaderboard object still holds in a study."""
        with self._write() as connection:
            leases.release(connection, study, self._owner)

    def adopt_orphans(self, study: Study) -> list[Config]:
        """Takes over the claims of searches that died, oldest first: their candidates are to be evaluated again."""
        with self._write() as connection:
            return leases.adopt_orphans(connection, study, self._owner)

    # -- evaluations --------------------------------------------------------------------------------------------------

    def record(self, study: Study, evaluation: Evaluation, trial_number: int | None = None) -> int:
        """Stores an evaluation for good and ends the claim on its config, whose descent it keeps.

        Returns:
            Its id. A config that the study already holds is not stored again: the id is that of the first.
        """
        values = evaluation_columns(evaluation) | {
            "study_id": study.id,
            "trial_number": trial_number,
            "driver": study.key.device.driver,
            "nvrtc": study.key.device.nvrtc,
            "created_at": time_text(utc_now()),
        }
        key, source = values["config_key"], evaluation.source
        packed = {"source_hash": evaluation.source_hash, "text_zlib": pack_text(source)} if source else None
        with written(self._engine, self.path) as connection:
            if packed is not None:
                _KEEP_SOURCE.first(connection, packed)
            values["descent_json"] = leases.end(connection, study, key)
            kept = _KEEP_EVALUATION.first(connection, values)
            kept = kept or _ROW_OF_CONFIG.first(connection, {"study": study.id, "key": key})
            assert kept is not None, "a config is stored, or was before"
            return int(kept[0])

    def evaluations(self, study: Study) -> list[Stored]:
        """All evaluations of a study, oldest first."""
        query = select(EVALUATIONS).where(EVALUATIONS.c.study_id == study.id).order_by(EVALUATIONS.c.id)
        with self._read() as connection:
            rows = connection.execute(query).mappings().all()
        return [Stored(row["id"], row["trial_number"], evaluation_from_columns(row)) for row in rows]

    def evaluated(self, study: Study) -> int:
        """Distinct candidates that a study holds, which is what its budget counts: duplicates cost nothing."""
        with self._read() as connection:
            return leases.count_evaluated(raw(connection), study)

    def counts(self, study: Study | None = None) -> dict[Status, int]:
        """Evaluations by status, of one study or of all; statuses that do not occur are left out."""
        query = select(EVALUATIONS.c.status, func.count()).group_by(EVALUATIONS.c.status)
        if study is not None:
            query = query.where(EVALUATIONS.c.study_id == study.id)
        with self._read() as connection:
            found = {Status(status): count for status, count in connection.execute(query)}
        return {status: found[status] for status in Status if status in found}

    def set_energy(self, row_id: int, energy_uj: float) -> None:
        """Adds to a row what one call of its kernel costs, which is measured after the row was stored.

        Args:
            row_id: the row.
            energy_uj: microjoules per call.
        """
        with self._write() as connection:
            row_updates.set_energy(connection, row_id, energy_uj)

    def add_note(self, row_id: int, note: str) -> None:
        """Adds to a row what was found out after it was stored; a note that it has is not added again.

        Args:
            row_id: the row.
            note: one line.
        """
        with self._write() as connection:
            row_updates.add_note(connection, row_id, note)

    def add_profile(self, row_id: int, profile: HardwareProfile) -> None:
        """Adds to a row what hardware counters said of its kernel; what they said before stays in the file."""
        with self._write() as connection:
            row_updates.add_profile(connection, row_id, profile)

    def profiles(self, row_ids: Sequence[int]) -> dict[int, HardwareProfile]:
        """What hardware counters said last, by row; rows that were never counted are missing."""
        with self._read() as connection:
            return row_updates.newest_profiles(connection, tuple(row_ids))

    # -- ranking ------------------------------------------------------------------------------------------------------

    def rows(self, row_filter: RowFilter | None = None) -> list[Row]:
        """Rows scope by scope, best rank first; ranks count within the whole scope, whatever the filter hides."""
        wanted = row_filter or RowFilter()
        query = ranked_rows().where(*matching(wanted))
        if wanted.statuses:
            query = query.where(EVALUATIONS.c.status.in_([status.value for status in wanted.statuses]))
        with self._read() as connection:
            found = [row_from(row) for row in connection.execute(query).mappings()]
        return found if wanted.limit is None else first_of_each(found, wanted.limit)

    def elites(self, scope: Scope | Study, k: int = 10) -> list[Row]:
        """The ``k`` fastest correct rows of a scope (or of a study's scope) with distinct machine code."""
        where = scope.scope if isinstance(scope, Study) else scope
        query = ranked_rows().where(in_scope(where), EVALUATIONS.c.status == Status.OK.value)
        elites: dict[str, Row] = {}
        with self._read() as connection:
            for columns in connection.execute(query).mappings():
                row = row_from(columns)
                elites.setdefault(row.code_hash or str(row.id), row)
                if len(elites) == k:
                    break
        return list(elites.values())

    def get(self, row_id: int) -> Record:
        """Everything about one row.

        Raises:
            StoreError: there is no such id.
        """
        with self._read() as connection:
            columns = connection.execute(ranked_rows().where(EVALUATIONS.c.id == row_id)).mappings().first()
            if columns is None:
                raise StoreError(f"{self.path}: has no row {row_id}: 'leaderboard' lists the ids")
            study_row = connection.execute(select(STUDIES).where(STUDIES.c.id == columns["study_id"])).mappings().one()
            packed = connection.execute(
                select(SOURCES.c.text_zlib).where(SOURCES.c.source_hash == columns["source_hash"])
            ).scalar_one_or_none()
            challenges = champions.history(connection, champions.involving(row_id))
            kin = lineage(connection, row_id)
            counted = row_updates.newest_profiles(connection, (row_id,))
        return Record(
            row=row_from(columns),
            study=study_from(study_row),
            evaluation=evaluation_from_columns(columns, "" if packed is None else unpack_text(packed)),
            trial_number=columns["trial_number"],
            driver=columns["driver"],
            nvrtc=columns["nvrtc"],
            challenges=challenges,
            lineage=kin,
            profile=counted.get(row_id),
        )

    # -- champions ----------------------------------------------------------------------------------------------------

    def champion(self, scope: Scope) -> Row | None:
        """The best accepted row of a scope."""
        with self._read() as connection:
            return row_of(connection, champions.champion_id(connection, scope))

    def leader(self, scope: Scope) -> Row | None:
        """Whom a challenger has to beat: the newest pending row, or else the champion."""
        with self._read() as connection:
            return row_of(connection, champions.leader_id(connection, scope))

    def pending(self, scope: Scope) -> list[Row]:
        """Rows that beat the champion, and then each other, and wait for the end of their inspection; newest first."""
        with self._read() as connection:
            found = [row_of(connection, row_id) for row_id in champions.pending_ids(connection, scope)]
        return [row for row in found if row is not None]

    def crown(
        self, scope: Scope, challenger_id: int, rival_id: int | None, duel: Duel | None, *, pending: bool = False
    ) -> bool:
        """Stores a challenge with its evidence; an accepted challenger becomes champion, or is to.

        Args:
            scope: where the challenge takes place.
            challenger_id: row that asks for the crown.
            rival_id: the leader, which it met; None when the scope has none.
            duel: the evidence; None only where there was nobody to meet.
            pending: a winner leads, but :meth:`settle` makes it champion, when its inspection is complete.

        Returns:
            Whether the challenger leads now: not if the duel was lost, and not if another process crowned someone
            else in the meantime (then nothing is stored, and the challenger may challenge anew).
        """
        if duel is None and rival_id is not None:
            raise StoreError(f"row {challenger_id} cannot dethrone row {rival_id} without the evidence of a duel")
        won = duel is None or duel.accepted
        with self._write() as connection:
            if champions.leader_id(connection, scope) != rival_id:
                return False
            champions.store_challenge(connection, scope, challenger_id, rival_id, duel, pending=pending and won)
        return won

    def settle(self, scope: Scope, row_id: int, *, accepted: bool) -> None:
        """The inspection of a pending row is complete.

        Args:
            scope: where it was to be champion.
            row_id: the row; one that is not pending stays as it is.
            accepted: whether nothing was found. Then it is champion, unless a newer one is already.
        """
        with self._write() as connection:
            champions.settle(connection, scope, row_id, accepted=accepted)

    def challenges(self, scope: Scope) -> list[Challenge]:
        """The champion history of a scope, oldest first, refused challengers included."""
        with self._read() as connection:
            return list(champions.history(connection, champions.in_history_of(scope)))

    # -- what others claim --------------------------------------------------------------------------------------------

    def add_imports(self, configs: Sequence[ImportedConfig]) -> int:
        """Keeps configs of others, apart from all rows; returns how many were not known yet."""
        with self._write() as connection:
            return add_imports(connection, configs)

    def imports(self, problem: str | None = None) -> list[ImportedConfig]:
        """Configs of others for a problem, by its key, or for all; those that claim the least time first."""
        with self._read() as connection:
            return find_imports(connection, problem)

    # -- plumbing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with store_errors(self.path), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        """One transaction that takes the write lock at its start, so that what it reads stays true until it commits."""
        with store_errors(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    def _create_tables(self) -> None:
        with store_errors(self.path), closing(self.connect()):
            pass  # switches the new file to WAL, which cannot be done inside a transaction
        with self._write() as connection:
            METADATA.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
