"""The schema's history, one module a step; `parrot_manager.store.schema` runs it."""
