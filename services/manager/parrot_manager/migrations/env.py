"""Runs migrations on the connection that `parrot_manager.store.schema` hands over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import inspect, text

from parrot_manager.store.tables import Base

_ADD: Final = text(
    "INSERT INTO schema_steps (revision, works_with) VALUES (:revision, :works_with) "
    "ON CONFLICT (revision) DO UPDATE SET works_with = excluded.works_with"
)
_REMOVE: Final = text("DELETE FROM schema_steps WHERE revision = :revision")


def note_step(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]
) -> None:
    """Writes beside a step, in its transaction, which code works with what it made: code that is older
    than the step can't know it by itself."""
    connection = ctx.connection
    if connection is None or not inspect(connection).has_table("schema_steps"):
        return
    revision = str(step.up_revision_id)
    if not step.is_upgrade:
        connection.execute(_REMOVE, {"revision": revision})
        return
    script = context.script.get_revision(revision)
    if script is not None:
        connection.execute(_ADD, {"revision": revision, "works_with": script.module.works_with})


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
    on_version_apply=note_step,
)
with context.begin_transaction():
    context.run_migrations()
