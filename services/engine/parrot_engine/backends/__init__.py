"""What computes: one interface, one file an implementation."""
