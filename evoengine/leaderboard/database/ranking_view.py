"""The SQL view ``ranking``: correct rows with plain columns, for programs that read the database themselves.

EvoEngine creates the view and never reads it, so that a view in a file from elsewhere cannot change what it reads. Its
ranks and champions are those of :func:`evoengine.leaderboard.ranking.ranked_rows`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

NAME: Final = "ranking"

_CREATE: Final = """\
CREATE VIEW ranking AS
WITH timed AS (
    SELECT e.*, s.problem, s.device_kind, s.device, s.arch, s.strategy, s.seed,
        s.predicted AS is_predicted, s.method AS objective,
        min(e.median_us) OVER kernel AS best_us, min(e.id) OVER kernel AS first_id
    FROM evo_evaluations AS e JOIN evo_studies AS s ON s.id = e.study_id
    WHERE e.status = 'ok' AND typeof(e.median_us) IN ('real', 'integer')
        AND e.median_us > 0 AND e.median_us <= 1.7976931348623157e308
    WINDOW kernel AS (
        PARTITION BY s.problem, s.device_kind, s.device, s.arch, s.predicted, s.method, e.code_hash
    )
), champions AS (
    SELECT evaluation_id FROM evo_champions WHERE id IN (
        SELECT max(id) FROM evo_champions WHERE accepted AND pending IS NOT 1 GROUP BY scope
    )
)
SELECT
    problem, device, family,
    dense_rank() OVER (
        PARTITION BY problem, device_kind, device, arch, is_predicted, objective ORDER BY best_us, first_id
    ) AS rank,
    median_us, is_predicted AS predicted,
    id IN (SELECT evaluation_id FROM champions) AS champion,
    config_json AS tunables, id, low_us, high_us, baseline_us, baseline, energy_uj, registers, spill_bytes,
    static_smem_bytes + dynamic_smem_bytes AS smem_bytes, threads, max_error, tolerance, device_kind, arch,
    objective AS method, code_hash, study_id, strategy, seed, created_at
FROM timed
ORDER BY problem, device_kind, device, arch, predicted, method, rank, median_us, id"""

_IN_POSTGRESQL: Final = (
    ("typeof(e.median_us) IN ('real', 'integer')\n        AND ", ""),  # a column holds values of its type only
    ("pending IS NOT 1", "pending IS NOT TRUE"),
    ("is_predicted AS predicted", "CAST(is_predicted AS integer) AS predicted"),
    (
        "id IN (SELECT evaluation_id FROM champions) AS champion",
        "CAST(id IN (SELECT evaluation_id FROM champions) AS integer) AS champion",
    ),
)
"""Parts of the text that PostgreSQL writes in another way."""

KNOWN_VIEWS: Final = frozenset({(NAME, _CREATE)})
"""Name and text of each view that EvoEngine has created, as SQLite stores them; a changed text stays listed here."""


def create_view(connection: Connection) -> None:
    """Creates the view in a database with the current tables, in place of that of an older version."""
    text = _CREATE
    if connection.dialect.name == "postgresql":
        for part, other in _IN_POSTGRESQL:
            text = text.replace(part, other)
    connection.exec_driver_sql(f"DROP VIEW IF EXISTS {NAME}")
    connection.exec_driver_sql(text)
