"""Measurements of the real system; README.md lists them."""
