"""Tables of a leaderboard; docs/database.md describes them to readers of the database.

A change of a table needs a new :data:`SCHEMA_VERSION` and a revision in ``database/migrations/versions/``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy import DateTime as SqlDateTime
from sqlalchemy.dialects.sqlite.dml import OnConflictDoNothing
from sqlalchemy.ext.compiler import compiles

APPLICATION_ID: Final = 0x45764F45
"""``EvOE`` in the SQLite header, so that a file of another program is never written to."""

SCHEMA_VERSION: Final = 11
"""Number of the newest revision; SQLite files repeat it as ``PRAGMA user_version``."""

OLDEST_VERSION: Final = 1
"""Oldest version of a SQLite file that can be upgraded."""

REVISION: Final = f"{SCHEMA_VERSION:04d}"
"""Content of ``evo_schema_version``."""

METADATA: Final = MetaData()


class DateTime(TypeDecorator[Any]):
    """Time column. Stored text that is no time is returned unchanged, so that one damaged row does not end a query."""

    impl = SqlDateTime
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Returns the conversion of stored values."""
        convert = super().result_processor(dialect, coltype)
        if convert is None:
            return None

        def tolerant(value: Any) -> Any:
            try:
                return convert(value)
            except (TypeError, ValueError):
                return value

        return tolerant


@compiles(OnConflictDoNothing, "postgresql")
def _do_nothing(*_: Any, **__: Any) -> str:
    """PostgreSQL's text of the clause, so that one statement serves both; its own construct takes 20 ms to import."""
    return "ON CONFLICT DO NOTHING"


_LONG: Final = Integer().with_variant(BigInteger(), "postgresql")  # SQLite's integers have 64 bits anyway
_SORTED_TEXT: Final = String().with_variant(String(collation="C"), "postgresql")  # bytewise, as SQLite sorts

VERSIONS: Final = Table(  # since version 9; the table that Alembic reads and writes
    "evo_schema_version",
    METADATA,
    Column("version_num", String(32), primary_key=True),
)

STUDIES: Final = Table(
    "evo_studies",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("identity", String(64), nullable=False, unique=True),  # hash of the fields that make it the same search
    Column("problem", _SORTED_TEXT, nullable=False),
    Column("problem_json", Text, nullable=False),
    Column("family", String, nullable=False),
    Column("device_kind", _SORTED_TEXT, nullable=False),
    Column("device", _SORTED_TEXT, nullable=False),
    Column("arch", _SORTED_TEXT, nullable=False),
    Column("predicted", Boolean, nullable=False),
    Column("method", _SORTED_TEXT, nullable=False),
    Column("strategy", String, nullable=False),
    Column("seed", _LONG, nullable=False),
    Column("space_key", String, nullable=False),
    Column("workload_json", Text),  # of a workload; then the problem is its first one
    Column("spaces_json", Text),  # texts of custom search spaces by family; NULL for none, and before version 6
    Column("created_at", DateTime, nullable=False),
)

TEMPLATES: Final = Table(  # since version 7
    "evo_templates",
    METADATA,
    Column("body_hash", String(64), primary_key=True),  # SHA-256 of the body
    Column("prologue_zlib", LargeBinary, nullable=False),  # of the first source; dictionary of the others' prologues
    Column("body_zlib", LargeBinary, nullable=False),
)

SOURCES: Final = Table(  # until version 6: source_hash, text_zlib
    "evo_sources",
    METADATA,
    Column("source_hash", String, primary_key=True),
    Column("body_hash", ForeignKey("evo_templates.body_hash"), nullable=False),
    Column("prologue_zlib", LargeBinary, nullable=False),  # compressed with the template's prologue as dictionary
)

OPTUNA_JOURNAL: Final = Table(  # since version 7; before, Optuna's own tables were in the file
    "evo_optuna_journal",
    METADATA,
    Column("study_id", ForeignKey("evo_studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),  # 0, 1, … within a study
    Column("entry_zlib", LargeBinary, nullable=False),  # JSON of one operation of Optuna's journal
)

EVALUATIONS: Final = Table(
    "evo_evaluations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("evo_studies.id"), nullable=False),
    Column("config_key", String, nullable=False),
    Column("family", String, nullable=False, server_default=""),  # a study may hold several
    Column("config_json", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("source_hash", String, nullable=False),
    Column("code_hash", String, nullable=False),
    Column("template_hash", String, nullable=False),
    Column("duplicate_of", String, nullable=False),
    Column("registers", Integer),
    Column("spill_bytes", Integer),
    Column("stack_bytes", Integer),
    Column("static_smem_bytes", Integer),
    Column("dynamic_smem_bytes", Integer),
    Column("threads", Integer),
    Column("parity_passed", Boolean),
    Column("max_error", Float),
    Column("tolerance", Float),
    Column("relative_l2", Float),
    Column("parity_cases", Integer),
    Column("worst_case", String),
    Column("parity_reason", Text),
    Column("inputs_seed", BigInteger),
    Column("median_us", Float),
    Column("low_us", Float),
    Column("high_us", Float),
    Column("predicted", Boolean),
    Column("method", String),
    Column("samples_json", Text),
    Column("baseline_us", Float),
    Column("baseline", String),
    Column("telemetry_json", Text),
    Column("energy_uj", Float),
    Column("parts_json", Text),  # each problem's time, of a workload
    Column("stage_seconds_json", Text, nullable=False),
    Column("notes_json", Text),  # NULL for none
    Column("trial_number", Integer),
    Column("descent_json", Text),  # NULL if the strategy does not report it, and before version 4
    Column("driver", String, nullable=False),
    Column("nvrtc", String, nullable=False),
    Column("started_at", DateTime),  # when its lease was acquired; NULL before version 7
    Column("created_at", DateTime, nullable=False),
    UniqueConstraint("study_id", "config_key"),
)
Index("evo_evaluations_by_code", EVALUATIONS.c.study_id, EVALUATIONS.c.code_hash)
EVALUATIONS_BY_TRIAL: Final = Index(
    "evo_evaluations_by_trial", EVALUATIONS.c.study_id, EVALUATIONS.c.trial_number
)  # not unique: concurrent searches of earlier versions stored numbers twice
Index("evo_evaluations_by_time", EVALUATIONS.c.study_id, EVALUATIONS.c.status, EVALUATIONS.c.median_us)

CHALLENGES: Final = Table(
    "evo_champions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("scope", String, nullable=False),
    Column("evaluation_id", ForeignKey("evo_evaluations.id"), nullable=False),
    Column("champion_id", ForeignKey("evo_evaluations.id")),  # row that it challenged; NULL for the first of a scope
    Column("accepted", Boolean, nullable=False),
    Column("pending", Boolean),  # until its inspection is complete; NULL before version 5
    Column("duel_json", Text),
    Column("created_at", DateTime, nullable=False),
)
Index("evo_champions_by_scope", CHALLENGES.c.scope, CHALLENGES.c.accepted, CHALLENGES.c.id)

LEASES: Final = Table(  # the names in the file date from version 1
    "evo_claims",
    METADATA,
    Column("study_id", ForeignKey("evo_studies.id"), primary_key=True),
    Column("config_key", _SORTED_TEXT, primary_key=True),
    Column("family", String, nullable=False, server_default=""),
    Column("config_json", Text, nullable=False),
    Column("owner", String, nullable=False),
    Column("trial_number", Integer),
    Column("descent_json", Text),  # copied to the evaluation when the lease ends
    Column("created_at", DateTime, nullable=False),
)

PROFILES: Final = Table(  # since version 6
    "evo_profiles",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("evaluation_id", ForeignKey("evo_evaluations.id"), nullable=False),
    Column("gpu", String, nullable=False),
    Column("tool", String, nullable=False),
    Column("code_hash", String, nullable=False),
    Column("launches_json", Text, nullable=False),
    Column("counted_at", DateTime, nullable=False),
)
Index("evo_profiles_by_evaluation", PROFILES.c.evaluation_id)

IMPORTS: Final = Table(  # configs from elsewhere, never ranked
    "evo_imports",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("problem", String, nullable=False),
    Column("family", String, nullable=False),
    Column("config_key", String, nullable=False),
    Column("config_json", Text, nullable=False),
    Column("claimed_us", Float, nullable=False),
    Column("claimed_predicted", Boolean, nullable=False),
    Column("claimed_device", String, nullable=False),
    Column("origin", String, nullable=False),
    Column("imported_at", DateTime, nullable=False),
    UniqueConstraint("problem", "config_key"),
)

VARIANTS: Final = Table(  # since version 10
    "evo_variants",
    METADATA,
    Column("name", _SORTED_TEXT, primary_key=True),  # family and content hash: mma~1a2b3c4d
    Column("family", String, nullable=False),
    Column("patch_json", Text, nullable=False),
    Column("operator", String, nullable=False),
    Column("origin", String, nullable=False),
    Column("created_at", DateTime, nullable=False),
)

VARIANT_PARENTS: Final = Table(
    "evo_variant_parents",
    METADATA,
    Column("variant", ForeignKey("evo_variants.name"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("parent", String, nullable=False),  # a family or another variant
)

ATTEMPTS: Final = Table(
    "evo_attempts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("scope", String, nullable=False),
    Column("operator", String, nullable=False),
    Column("parent", String, nullable=False),
    Column("island", Integer, nullable=False),
    Column("stage", String, nullable=False),
    Column("summary", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("variant", String),  # NULL where the patch did not apply
    Column("parent_us", Float),
    Column("best_us", Float),
    Column("row_id", Integer),
    Column("features_json", Text),
    Column("text_hash", String, nullable=False),
    Column("code_hash", String, nullable=False),
    Column("candidates", Integer, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("origin", String, nullable=False),
    Column("created_at", DateTime, nullable=False),
)
Index("evo_attempts_by_scope", ATTEMPTS.c.scope, ATTEMPTS.c.id)

TRANSCRIPTS: Final = Table(  # since version 11; requests to language models and their answers
    "evo_transcripts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("purpose", String, nullable=False),
    Column("url", String, nullable=False),
    Column("model", String, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("request_zlib", LargeBinary, nullable=False),
    Column("reply_zlib", LargeBinary, nullable=False),
    Column("request_hash", String(64), nullable=False),  # SHA-256 of the JSON that was sent
    Column("reply_hash", String(64), nullable=False),  # SHA-256 of the body that was received
    Column("prompt_tokens", Integer, nullable=False),
    Column("reply_tokens", Integer, nullable=False),
    Column("tokens_reported", Boolean, nullable=False),
    Column("price", Float),
    Column("seconds", Float, nullable=False),
    Column("created_at", DateTime, nullable=False),
)
