"""Every size limit of the system, in one place.

The gateway refuses what exceeds them before anything is stored; below them every plane carries
everything, in both directions: the RPC limit holds a whole batch, and values larger than a bus
message travel in parts.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

VALUE_BYTES: Final = 8 * MIB
"""A variable's value, in bytes of UTF-8."""

TEMPLATE_BYTES: Final = 4 * MIB
"""One call's prompt template, in bytes of UTF-8."""

BATCH_CALLS: Final = 4096
BATCH_BYTES: Final = 32 * MIB
"""All templates and values of one batch together, in bytes of UTF-8."""

PLACEHOLDERS: Final = 1024
"""Placeholders of one call."""

BODY_BYTES: Final = 64 * MIB
"""An HTTP body. Larger than a batch, because JSON may spend six bytes on one of text."""

RPC_BYTES: Final = 80 * MIB
"""A gRPC message: a whole batch and its framing."""

PART_BYTES: Final = 512 * KIB
"""A part of a value on the bus, whose servers take messages of 1 MiB."""

ERROR_TEXT_BYTES: Final = 2 * KIB
"""An error's message; longer ones are cut. Fits in the metadata a gRPC peer accepts."""

NAME_CHARS: Final = 200
"""A label, a function's name, a model's id."""

STOP_TEXTS: Final = 16
STOP_BYTES: Final = 1 * KIB
