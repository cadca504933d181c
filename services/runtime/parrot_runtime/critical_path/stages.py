"""What time goes into."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """A kind of wait, or of work; docs/traces.md says what each holds."""

    CLIENT = "client"
    NETWORK = "network"
    ADMISSION = "admission"
    INPUTS = "inputs"
    QUEUE = "queue"
    STATIC_PREFILL = "static_prefill"
    DYNAMIC_PREFILL = "dynamic_prefill"
    DECODE = "decode"
    TRANSFORMS = "transforms"
    COMMIT = "commit"
    RETRIES = "retries"
    """From a call's first dispatch to its last: attempts that came to nothing, and the waits between them."""
    RUNNING = "running"
    """On an engine that has not said yet what it did."""
    UNEXPLAINED = "unexplained"
