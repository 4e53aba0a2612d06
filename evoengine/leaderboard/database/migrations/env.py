"""Environment that Alembic executes for each command: it runs on the connection of the caller."""

from alembic import context

from evoengine.leaderboard.schema import VERSIONS

context.configure(connection=context.config.attributes["connection"], version_table=VERSIONS.name, render_as_batch=True)
context.run_migrations()
