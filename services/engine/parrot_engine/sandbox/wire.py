"""What stands before each message between an engine and the processes that run code."""

from __future__ import annotations

import struct
from typing import Final

LENGTH: Final = struct.Struct("!I")
"""How many bytes of JSON follow."""
