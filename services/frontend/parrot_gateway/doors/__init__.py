"""What a request passes before its route: its key, its tenant's rate, and how long it may take to come."""
