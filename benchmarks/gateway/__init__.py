"""What the front door costs."""
