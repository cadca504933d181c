"""The manager's services."""
