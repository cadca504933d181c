"""Which Parrot this is."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def parrot_version() -> str:
    """Parrot's own version, such as `0.1.0`."""
    return importlib.metadata.version("parrot-serve")
