"""Programs: what the manager sends, run as micro-tasks over contexts."""
