"""What the manager costs, and what its decisions are worth."""
