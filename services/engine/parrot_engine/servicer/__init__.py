"""The engine's side of its contracts with other services."""
