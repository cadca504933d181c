"""Where things stand in the buffer that a plan's lists travel in: a header, the items, the other lists."""

from __future__ import annotations

from typing import Final

from parrot_kernels.plan.planner import ITEM_FIELDS

__all__ = [
    "HEADER", "ITEMS", "ITEM_FIELDS", "LIMITS", "PARTIAL_BEGIN", "PARTIAL_INDEX", "ROWS", "ROW_INDEX",
]  # fmt: skip

HEADER: Final = 8
"""Numbers of the header; items begin behind it."""

# Places in the header: how many there are...
ITEMS: Final = 0
ROWS: Final = 1
# ...and where the lists begin, in the buffer.
ROW_INDEX: Final = 2
LIMITS: Final = 3
PARTIAL_BEGIN: Final = 4
PARTIAL_INDEX: Final = 5
