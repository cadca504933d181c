"""Where the truth is kept."""
