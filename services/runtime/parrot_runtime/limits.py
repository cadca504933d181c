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
SESSION_CALLS: Final = 20_000
"""Calls of one session, ended ones included: as many as whoever takes it over can read within a lease."""

BATCH_BYTES: Final = 32 * MIB
"""All templates, values, transforms and guides of one batch together, in bytes of UTF-8."""

UNIX_MS: Final = 253_402_300_799_999
"""The last moment that can be named: the end of the year 9999."""

LISTED_SESSIONS: Final = 200
"""Sessions of one page of a list."""

PLACEHOLDERS: Final = 1024
"""Placeholders of one call."""

BODY_BYTES: Final = 64 * MIB
"""An HTTP body. Larger than a batch, because JSON may spend six bytes on one of text."""

CHAT_MESSAGES: Final = 2_048
"""Messages of one chat."""

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
STOP_TOKEN_IDS: Final = 64

LOGPROBS: Final = 20
"""Alternatives to a token that can be asked for."""

LOGIT_BIASES: Final = 300
TOKEN_ID: Final = (1 << 31) - 1
"""The largest id of a token."""

GUIDE_BYTES: Final = 64 * KIB
"""What an output must be, in bytes of UTF-8: a JSON schema as compact JSON, a regular expression, a
grammar, or all choices together."""

GUIDE_CHOICES: Final = 512
SCHEMA_DEPTH: Final = 64
"""Objects and lists within one another in a JSON schema."""

TRANSFORMS: Final = 16
"""Transforms of one placeholder."""

CALL_TRANSFORMS: Final = 256
"""Transforms of all placeholders of one call together: each reads a whole value."""

TRANSFORM_BYTES: Final = 1 * KIB

BATCH_PATTERNS: Final = 64
"""Different regular expressions among the transforms of one batch: each takes milliseconds to compile."""

BATCH_BLOCKS: Final = 256

BODY_CALLS: Final = 64
"""Calls in the body of a map or loop."""

MAP_ITEMS: Final = 1000
LOOP_ROUNDS: Final = 100
BLOCK_CALLS: Final = 4096
"""Calls that all instances of a block's body have together."""

SELECT_VARIABLES: Final = 64
"""Variables one is selected from."""

CONDITION_BYTES: Final = 16 * KIB
"""The text a condition compares with, or its JSON schema."""

NATIVE_SOURCE_BYTES: Final = 64 * KIB
"""The source text of a function that runs in a sandbox."""

SANDBOX_S: Final = 60.0
"""The longest a function in a sandbox may ask to run."""

SANDBOX_BYTES: Final = 1024 * MIB
SANDBOX_DEFAULT_BYTES: Final = 64 * MIB
"""Memory a function in a sandbox may ask for, and gets if it doesn't."""

BATCH_SCHEMA_BYTES: Final = 64 * KIB
"""Different JSON schemas among the conditions of one batch: each kibibyte takes ten milliseconds to check."""
