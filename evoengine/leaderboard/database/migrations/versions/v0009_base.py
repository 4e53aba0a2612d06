"""Version 9: all tables and the view ``ranking``.

The definitions are a copy that never changes, while those of :mod:`evoengine.leaderboard.schema` are the newest.
"""

from __future__ import annotations

from typing import Final

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from evoengine.leaderboard.database.ranking_view import create_view

revision = "0009"
down_revision = None

TABLES: Final = MetaData()

_LONG: Final = Integer().with_variant(BigInteger(), "postgresql")
_SORTED_TEXT: Final = String().with_variant(String(collation="C"), "postgresql")

Table(
    "evo_studies",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("identity", String(64), nullable=False, unique=True),
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
    Column("workload_json", Text),
    Column("spaces_json", Text),
    Column("created_at", DateTime, nullable=False),
)

Table(
    "evo_templates",
    TABLES,
    Column("body_hash", String(64), primary_key=True),
    Column("prologue_zlib", LargeBinary, nullable=False),
    Column("body_zlib", LargeBinary, nullable=False),
)

Table(
    "evo_sources",
    TABLES,
    Column("source_hash", String, primary_key=True),
    Column("body_hash", ForeignKey("evo_templates.body_hash"), nullable=False),
    Column("prologue_zlib", LargeBinary, nullable=False),
)

Table(
    "evo_optuna_journal",
    TABLES,
    Column("study_id", ForeignKey("evo_studies.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("entry_zlib", LargeBinary, nullable=False),
)

_EVALUATIONS = Table(
    "evo_evaluations",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("evo_studies.id"), nullable=False),
    Column("config_key", String, nullable=False),
    Column("family", String, nullable=False, server_default=""),
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
    Column("parts_json", Text),
    Column("stage_seconds_json", Text, nullable=False),
    Column("notes_json", Text),
    Column("trial_number", Integer),
    Column("descent_json", Text),
    Column("driver", String, nullable=False),
    Column("nvrtc", String, nullable=False),
    Column("started_at", DateTime),
    Column("created_at", DateTime, nullable=False),
    UniqueConstraint("study_id", "config_key"),
)
Index("evo_evaluations_by_code", _EVALUATIONS.c.study_id, _EVALUATIONS.c.code_hash)
Index("evo_evaluations_by_trial", _EVALUATIONS.c.study_id, _EVALUATIONS.c.trial_number)
Index("evo_evaluations_by_time", _EVALUATIONS.c.study_id, _EVALUATIONS.c.status, _EVALUATIONS.c.median_us)

_CHALLENGES = Table(
    "evo_champions",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("scope", String, nullable=False),
    Column("evaluation_id", ForeignKey("evo_evaluations.id"), nullable=False),
    Column("champion_id", ForeignKey("evo_evaluations.id")),
    Column("accepted", Boolean, nullable=False),
    Column("pending", Boolean),
    Column("duel_json", Text),
    Column("created_at", DateTime, nullable=False),
)
Index("evo_champions_by_scope", _CHALLENGES.c.scope, _CHALLENGES.c.accepted, _CHALLENGES.c.id)

Table(
    "evo_claims",
    TABLES,
    Column("study_id", ForeignKey("evo_studies.id"), primary_key=True),
    Column("config_key", _SORTED_TEXT, primary_key=True),
    Column("family", String, nullable=False, server_default=""),
    Column("config_json", Text, nullable=False),
    Column("owner", String, nullable=False),
    Column("trial_number", Integer),
    Column("descent_json", Text),
    Column("created_at", DateTime, nullable=False),
)

_PROFILES = Table(
    "evo_profiles",
    TABLES,
    Column("id", Integer, primary_key=True),
    Column("evaluation_id", ForeignKey("evo_evaluations.id"), nullable=False),
    Column("gpu", String, nullable=False),
    Column("tool", String, nullable=False),
    Column("code_hash", String, nullable=False),
    Column("launches_json", Text, nullable=False),
    Column("counted_at", DateTime, nullable=False),
)
Index("evo_profiles_by_evaluation", _PROFILES.c.evaluation_id)

Table(
    "evo_imports",
    TABLES,
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


def upgrade() -> None:
    """Creates everything in an empty database."""
    connection = op.get_bind()
    TABLES.create_all(connection)
    create_view(connection)
