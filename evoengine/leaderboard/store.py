"""The leaderboard: all evaluations, the elites and the champion history in one database.

Every method is one transaction; what it stored survives ``kill -9``. Several processes may use one SQLite file, and
several hosts one database on a PostgreSQL server.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import Connection, bindparam, func, inspect, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.documents.bounds import inflate
from evoengine.errors import StoreError
from evoengine.leaderboard import champions, leases, row_updates
from evoengine.leaderboard.codec import check_kind, check_time, decoding, evaluation_columns, evaluation_from_columns
from evoengine.leaderboard.damage import DamageReport, MalformedDataError
from evoengine.leaderboard.database.connection import database_path
from evoengine.leaderboard.database.protocol import Database, Lock
from evoengine.leaderboard.database.server_url import is_server
from evoengine.leaderboard.database.sqlite import SqliteDatabase
from evoengine.leaderboard.imports import ImportedConfig, add_imports, find_imports
from evoengine.leaderboard.lease_owner import new_owner
from evoengine.leaderboard.lineage import lineage
from evoengine.leaderboard.ranking import (
    first_of_each,
    in_scope,
    matching,
    ranked_rows,
    row_from,
    row_of,
    study_columns,
    study_from,
    study_of,
)
from evoengine.leaderboard.records import (
    Challenge,
    LeaseStatus,
    Record,
    Row,
    RowFilter,
    Scope,
    Study,
    StudyKey,
    utc_now,
)
from evoengine.leaderboard.schema import EVALUATIONS, EVALUATIONS_BY_TRIAL, OPTUNA_JOURNAL, STUDIES
from evoengine.leaderboard.sources import SourceWriter, source_text
from evoengine.leaderboard.transcripts import Transcript, add_transcript, find_transcripts
from evoengine.leaderboard.variants import VariantStore, variant_of
from evoengine.model import Config, Duel, Evaluation, HardwareProfile, Provenance, Status, is_variant

DEFAULT_URL = "sqlite:///leaderboard.db"

_ADD_EVALUATION: Final = insert(EVALUATIONS).on_conflict_do_nothing().returning(EVALUATIONS.c.id)
_ROW_OF_CONFIG: Final = select(EVALUATIONS.c.id).where(
    EVALUATIONS.c.study_id == bindparam("study"), EVALUATIONS.c.config_key == bindparam("key")
)
_MOST_ENTRY_BYTES: Final = 1 << 23
BUSY_TIMEOUT_S = 30.0
"""Longest wait of a transaction for another process."""


@dataclass(frozen=True)
class Stored:
    """A stored evaluation without its source (see :meth:`Leaderboard.get`)."""

    id: int
    trial_number: int | None
    evaluation: Evaluation


@dataclass(frozen=True)
class TrialFacts:
    """Columns of a row that its Optuna trial repeats; times are UTC without a zone."""

    reason: str
    registers: int | None
    spill_bytes: int | None
    started_at: datetime | None
    """When its lease was acquired; None before version 7."""
    recorded_at: datetime


def _stored(study: Study, row: Mapping[Any, Any]) -> Stored:
    with decoding(f"row {row['id']}"):
        check_kind(row, study.key.method, predicted=study.key.device.predicted)
    return Stored(row["id"], row["trial_number"], evaluation_from_columns(row))


def _trial_facts(row: Any) -> tuple[int, TrialFacts]:
    with decoding(f"row {row[0]}"):
        found = row._mapping  # noqa: SLF001 - SQLAlchemy's public name for it
        check_time(found, "created_at")
        if found["started_at"] is not None:
            check_time(found, "started_at")
        return row[0], TrialFacts(*row[1:])


def _count(row: Any) -> tuple[Status, int]:
    with decoding(f"{row[1]} rows with the status {str(row[0])[:40]!r}"):
        return Status(row[0]), row[1]


def open_database(url: str | Path, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Database:
    """Opens the database of a leaderboard, with the current tables.

    Args:
        url: Path of a file, ``sqlite:///FILE`` or ``postgresql+psycopg://…``.
        create: Whether to create what is missing.
        busy_timeout_s: Longest wait for a lock that another process holds.

    Raises:
        StoreError: See :class:`Leaderboard`.
    """
    if isinstance(url, str) and is_server(url):
        from evoengine.leaderboard.database.postgres import PostgresDatabase

        return PostgresDatabase(url, create=create, busy_timeout_s=busy_timeout_s)
    return SqliteDatabase(database_path(url), create=create, busy_timeout_s=busy_timeout_s)


class Leaderboard:
    """The store in one database. Several processes may write; within one process, one thread writes.

    Args:
        url: Path of a file, ``sqlite:///FILE`` or ``postgresql+psycopg://…``.
        create: Whether to create a missing file, or the tables on a server. Without it, a file that cannot be written
            is opened for reading only.
        busy_timeout_s: Longest wait for a lock that another process holds.

    Raises:
        StoreError: The file is missing (without ``create``), foreign, of another version, locked, damaged or not
            writable, or the server cannot be used. Every method raises it too.
    """

    def __init__(
        self, url: str | Path = DEFAULT_URL, *, create: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self._database = open_database(url, create=create, busy_timeout_s=busy_timeout_s)
        self._owner = new_owner()
        self._sources = SourceWriter()
        self._damage = DamageReport(self.name)
        self._has_leases = False
        self.variants = VariantStore(self._read, self._write, self._damage)

    @property
    def name(self) -> str:
        """Path of the file, or address of the server's database without credentials."""
        return self._database.name

    @property
    def url(self) -> str:
        """Text that opens the same leaderboard again; it may hold the password of a server."""
        return self._database.url

    @property
    def path(self) -> Path:
        """Path of the file.

        Raises:
            StoreError: The leaderboard is on a server.
        """
        return database_path(self.url)

    @property
    def on_server(self) -> bool:
        """Whether the leaderboard is on a server, and not in a file."""
        return is_server(self.url)

    def connect(self) -> Any:
        """Opens a connection of the driver, ``sqlite3`` or ``psycopg``, with this leaderboard's settings."""
        return self._database.connect()

    def close(self) -> None:
        """Closes all connections; may be called twice. Leases that are left can be taken over from now on."""
        if self._has_leases:
            self._database.retire(self._owner)
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- studies ------------------------------------------------------------------------------------------------------

    def open_study(self, key: StudyKey) -> Study:
        """Returns the study with this identity; creates it if there is none.

        Raises:
            StoreError: The stored study has the identity, but another device, method, problem or other column of it.
        """
        values = study_columns(key) | {"created_at": utc_now()}
        with self._write() as connection:
            connection.execute(insert(STUDIES).values(values).on_conflict_do_nothing())
            EVALUATIONS_BY_TRIAL.create(connection, checkfirst=True)  # files of earlier versions lack it
            query = select(STUDIES).where(STUDIES.c.identity == key.identity)
            return study_of(connection.execute(query).mappings().one(), key)

    def studies(self) -> list[Study]:
        """Returns all studies, oldest first, without damaged ones."""
        query = select(STUDIES).order_by(STUDIES.c.id)
        with self._read() as connection:
            return list(self._damage.sound(study_from, connection.execute(query).mappings()))

    def has_table(self, name: str) -> bool:
        """Whether the file has a table of this name."""
        with self._read() as connection:
            return inspect(connection).has_table(name)

    def append_journal(self, study: Study, entries: Sequence[bytes]) -> None:
        """Appends entries to the journal of a study's Optuna trials; any thread may call it."""
        columns = OPTUNA_JOURNAL.c
        count = select(func.count()).where(columns.study_id == study.id)
        with self._write(f"journal {study.id}") as connection:
            first = connection.execute(count).scalar_one()
            values = [
                {"study_id": study.id, "number": first + index, "entry_zlib": zlib.compress(entry)}
                for index, entry in enumerate(entries)
            ]
            connection.execute(insert(OPTUNA_JOURNAL), values)

    def journal(self, study: Study, start: int = 0) -> Iterator[bytes]:
        """Yields the entries of a study's journal from a number on, unpacked one by one; any thread may call it."""
        columns = OPTUNA_JOURNAL.c
        query = (
            select(columns.entry_zlib)
            .where(columns.study_id == study.id, columns.number >= start)
            .order_by(columns.number)
        )
        with self._read() as connection:
            packed = connection.execute(query).scalars().all()
        for entry in packed:
            with self._database.errors(), decoding(f"Optuna journal of study {study.id}"):
                unpacked = inflate(entry, _MOST_ENTRY_BYTES)
            yield unpacked

    # -- leases: candidates under way ---------------------------------------------------------------------------------

    def acquire_lease(
        self, study: Study, config: Config, budget: int, number: int | None = None, descent: Provenance | None = None
    ) -> LeaseStatus:
        """Leases a config for evaluation, so that no other search on the study evaluates it too.

        Args:
            study: Study of the evaluation.
            config: Config to evaluate.
            budget: Maximum number of distinct candidates in the study.
            number: Trial number; where another search took it first, the lease gets the next free one.
            descent: Provenance of the config, which the evaluation keeps.
        """
        self._hold()
        with self._write(study.id) as connection:
            return leases.acquire(connection, study, config, budget, self._owner, number, descent)

    def leased(self, study: Study) -> dict[int, Config]:
        """Returns the leases of this leaderboard object in a study, adopted ones included, by trial number.

        Leases with an unknown or repeated number have negative ones.
        """
        with self._read() as connection:
            return leases.held_by(connection, study, self._owner, self._damage)

    def release_leases(self, study: Study) -> None:
        """Ends all leases of this leaderboard object in a study."""
        with self._write(study.id) as connection:
            leases.release(connection, study, self._owner)

    def adopt_orphans(self, study: Study) -> list[Config]:
        """Takes over the leases of dead searches, oldest first; their candidates must be evaluated again."""
        self._hold()
        with self._write(study.id) as connection:
            is_alive = partial(self._database.is_alive, connection)
            return leases.adopt_orphans(connection, study, self._owner, is_alive, self._damage)

    def _hold(self) -> None:
        if not self._has_leases:
            self._database.hold(self._owner)
            self._has_leases = True

    # -- evaluations --------------------------------------------------------------------------------------------------

    def record(self, study: Study, evaluation: Evaluation, trial_number: int | None = None) -> int:
        """Stores an evaluation and ends the lease on its config, whose number, descent and start it keeps.

        Args:
            study: Study of the evaluation.
            evaluation: Evaluation to store.
            trial_number: Trial number of a config without a lease; another one is stored where it is taken.

        Returns:
            Its id. A config that the study already holds is not stored again; then it is the id of the first row.
        """
        values = evaluation_columns(evaluation) | {
            "study_id": study.id,
            "driver": study.key.device.driver,
            "nvrtc": study.key.device.nvrtc,
            "created_at": utc_now(),
        }
        key, source, stored = values["config_key"], evaluation.source, None
        with self._write() as connection:
            if source:  # before a lock, so that other searches do not wait for its compression
                stored = self._sources.add(connection, evaluation.source_hash, source)
            ended = leases.end(connection, study, key)
            number = ended.trial_number
            if number is None and trial_number is not None:  # no lease has reserved one
                self._database.lock(connection, study.id)
                number = leases.free_number(connection, study, trial_number, key)
            values |= {"descent_json": ended.descent_json, "started_at": ended.started_at, "trial_number": number}
            row_id = connection.execute(_ADD_EVALUATION, values).scalar_one_or_none()
            if row_id is None:
                row_id = connection.execute(_ROW_OF_CONFIG, {"study": study.id, "key": key}).scalar_one()
        if stored is not None:
            stored()
        return int(row_id)

    def evaluations(self, study: Study) -> list[Stored]:
        """Returns all evaluations of a study, oldest first, without damaged ones."""
        query = select(EVALUATIONS).where(EVALUATIONS.c.study_id == study.id).order_by(EVALUATIONS.c.id)
        with self._read() as connection:
            return list(self._damage.sound(partial(_stored, study), connection.execute(query).mappings()))

    def trial_facts(self, row_ids: Sequence[int]) -> dict[int, TrialFacts]:
        """Returns the columns that Optuna trials repeat, by row id, for some rows; any thread may call it."""
        columns = EVALUATIONS.c
        query = select(
            columns.id,
            columns.reason,
            columns.registers,
            columns.spill_bytes,
            columns.started_at,
            columns.created_at,
        ).where(columns.id.in_(row_ids))
        with self._read() as connection:
            return dict(self._damage.sound(_trial_facts, connection.execute(query)))

    def evaluated(self, study: Study) -> int:
        """Counts the distinct candidates of a study, as its budget does; duplicates do not count."""
        with self._read() as connection:
            return leases.count_evaluated(connection, study)

    def counts(self, study: Study | None = None) -> dict[Status, int]:
        """Counts evaluations by status, of one study or of all; statuses that do not occur are left out."""
        query = select(EVALUATIONS.c.status, func.count()).group_by(EVALUATIONS.c.status)
        if study is not None:
            query = query.where(EVALUATIONS.c.study_id == study.id)
        with self._read() as connection:
            found = dict(self._damage.sound(_count, connection.execute(query)))
        return {status: found[status] for status in Status if status in found}

    def set_energy(self, row_id: int, energy_uj: float) -> None:
        """Adds the energy of a row's kernel, which is measured after the row is stored.

        Args:
            row_id: Id of the row.
            energy_uj: Microjoules per call.
        """
        with self._write() as connection:
            row_updates.set_energy(connection, row_id, energy_uj)

    def add_note(self, row_id: int, note: str) -> None:
        """Adds a note to a row; a note that it has is not added again.

        Args:
            row_id: Id of the row.
            note: Note of one line.
        """
        with self._write(f"row {row_id}") as connection:
            row_updates.add_note(connection, row_id, note)

    def add_profile(self, row_id: int, profile: HardwareProfile) -> None:
        """Adds hardware counters of a row's kernel; earlier profiles stay in the file."""
        with self._write() as connection:
            row_updates.add_profile(connection, row_id, profile)

    def profiles(self, row_ids: Sequence[int]) -> dict[int, HardwareProfile]:
        """Returns the newest hardware counters by row; rows without a profile are missing."""
        with self._read() as connection:
            return row_updates.newest_profiles(connection, tuple(row_ids), self._damage)

    # -- ranking ------------------------------------------------------------------------------------------------------

    def rows(self, row_filter: RowFilter | None = None) -> list[Row]:
        """Returns rows by scope, best rank first; ranks count within the whole scope, independent of the filter.

        Damaged rows are left out, with a warning.
        """
        wanted = row_filter or RowFilter()
        query = ranked_rows().where(*matching(wanted))
        if wanted.statuses:
            query = query.where(EVALUATIONS.c.status.in_([status.value for status in wanted.statuses]))
        with self._read() as connection:
            found = list(self._damage.sound(row_from, connection.execute(query).mappings()))
        return found if wanted.limit is None else first_of_each(found, wanted.limit)

    def elites(self, scope: Scope | Study, k: int = 10) -> list[Row]:
        """Returns the ``k`` fastest correct rows of a scope, or of a study's scope, with distinct machine code."""
        where = scope.scope if isinstance(scope, Study) else scope
        query = ranked_rows().where(in_scope(where), EVALUATIONS.c.status == Status.OK.value)
        elites: dict[str, Row] = {}
        with self._read() as connection:
            for row in self._damage.sound(row_from, connection.execute(query).mappings()):
                elites.setdefault(row.code_hash or str(row.id), row)
                if len(elites) == k:
                    break
        return list(elites.values())

    def get(self, row_id: int) -> Record:
        """Returns everything about one row, its source included.

        Raises:
            StoreError: The file has no such row, or it is damaged.
        """
        with self._read() as connection:
            columns = connection.execute(ranked_rows().where(EVALUATIONS.c.id == row_id)).mappings().first()
            if columns is None:
                raise StoreError(f"{self.name}: no row {row_id}: 'leaderboard' lists the ids")
            study_row = connection.execute(select(STUDIES).where(STUDIES.c.id == columns["study_id"])).mappings().one()
            row = row_from(columns)
            with decoding(f"row {row_id}"):
                source = source_text(connection, columns["source_hash"])
            return Record(
                row=row,
                study=study_from(study_row),
                evaluation=evaluation_from_columns(columns, source),
                trial_number=columns["trial_number"],
                driver=columns["driver"],
                nvrtc=columns["nvrtc"],
                challenges=champions.history(connection, champions.involving(row_id), self._damage),
                lineage=lineage(connection, row_id, self._damage),
                profile=row_updates.newest_profiles(connection, (row_id,), self._damage).get(row_id),
                variant=variant_of(connection, row.family, self._damage) if is_variant(row.family) else None,
            )

    def records(self, row_ids: Iterable[int]) -> Iterator[Record]:
        """Yields everything about some rows, without damaged ones."""
        for row_id in row_ids:
            try:
                record = self.get(row_id)
            except StoreError as error:
                if not isinstance(error.__cause__, MalformedDataError):
                    raise
                self._damage.add(error.__cause__)
            else:
                yield record

    # -- champions ----------------------------------------------------------------------------------------------------

    def champion(self, scope: Scope) -> Row | None:
        """Returns the champion of a scope; if its row is damaged, the newest sound former champion."""
        with self._read() as connection:
            return self._first_sound(connection, scope, champions.champion_ids(connection, scope))

    def leader(self, scope: Scope) -> Row | None:
        """Returns the row that a challenger must beat: the newest pending row, or else the champion."""
        with self._read() as connection:
            return self._leader(connection, scope)

    def pending(self, scope: Scope) -> list[Row]:
        """Returns the winners of challenges that wait for the end of their inspection, newest first."""
        with self._read() as connection:
            ids = champions.pending_ids(connection, scope)
            return list(self._damage.sound(partial(row_of, connection, scope), ids))

    def record_challenge(
        self, scope: Scope, challenger_id: int, rival_id: int | None, duel: Duel | None, *, pending: bool = False
    ) -> bool:
        """Stores a challenge with its evidence; a winner becomes champion, or pending.

        Args:
            scope: Scope of the challenge.
            challenger_id: Row that challenges.
            rival_id: Leader that was challenged; None if the scope has none.
            duel: Evidence; None only without a rival.
            pending: Whether a winner leads but becomes champion only with :meth:`settle`, after its inspection.

        Returns:
            Whether the challenger leads now. False after a lost duel, and if another process changed the leader in the
            meantime; then nothing is stored, and the challenger may challenge again.

        Raises:
            StoreError: There is a rival but no evidence.
        """
        if duel is None and rival_id is not None:
            raise StoreError(f"{self.name}: row {challenger_id} cannot replace row {rival_id} without evidence")
        won = duel is None or duel.accepted
        with self._write(scope.key) as connection:
            leader = self._leader(connection, scope)
            if (None if leader is None else leader.id) != rival_id:
                return False
            champions.store_challenge(connection, scope, challenger_id, rival_id, duel, pending=pending and won)
        return won

    def settle(self, scope: Scope, row_id: int, *, accepted: bool) -> None:
        """Stores the result of a pending row's inspection.

        Args:
            scope: Scope of the challenge.
            row_id: Id of the row; nothing changes if it is not pending.
            accepted: Whether it passed; then it is champion unless a newer one exists.
        """
        with self._write(scope.key) as connection:
            champions.settle(connection, scope, row_id, accepted=accepted)

    def challenges(self, scope: Scope) -> list[Challenge]:
        """Returns the champion history of a scope, oldest first, refused challengers included."""
        with self._read() as connection:
            return list(champions.history(connection, champions.in_history_of(scope), self._damage))

    def _leader(self, connection: Connection, scope: Scope) -> Row | None:
        return self._first_sound(connection, scope, champions.leader_ids(connection, scope))

    def _first_sound(self, connection: Connection, scope: Scope, row_ids: list[int]) -> Row | None:
        return next(self._damage.sound(partial(row_of, connection, scope), row_ids), None)

    # -- imported configs ---------------------------------------------------------------------------------------------

    def add_imports(self, configs: Sequence[ImportedConfig]) -> int:
        """Stores imported configs apart from all rows; returns the number of new ones."""
        with self._write() as connection:
            return add_imports(connection, configs)

    def imports(self, problem: str | None = None) -> list[ImportedConfig]:
        """Returns imported configs for a problem, by its key, or for all, shortest reported time first."""
        with self._read() as connection:
            return find_imports(connection, problem, self._damage)

    # -- language models ----------------------------------------------------------------------------------------------

    def add_transcript(self, transcript: Transcript) -> int:
        """Stores a request to a language model with its answer; returns its id."""
        with self._write() as connection:
            return add_transcript(connection, transcript)

    def transcripts(self) -> dict[int, Transcript]:
        """Returns all transcripts by id, oldest first, without damaged ones."""
        with self._read() as connection:
            return find_transcripts(connection, self._damage)

    # -- transactions -------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with self._database.errors(), self._database.engine.connect() as connection:
            yield connection

    @contextmanager
    def _write(self, lock: Lock | None = None) -> Iterator[Connection]:
        """Opens a transaction that takes its lock at its start, so that its reads hold until it commits."""
        with self._database.errors(), self._database.engine.connect() as connection:
            self._database.begin(connection)
            if lock is not None:
                self._database.lock(connection, lock)
            yield connection
            connection.commit()
