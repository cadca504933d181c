"""Runs migrations on the connection that `parrot_manager.store.schema` hands over."""

from __future__ import annotations

from alembic import context

from parrot_manager.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
