"""Summarises a document part by part: every call reads the summary so far and the next part.

    parrot up                                   # in another terminal
    python examples/chain_summary.py FILE

All calls are on the server before the first of them has run, and each starts there the moment the one
before it is done: the client's distance does not count. Without a file it reads a chapter of Python's
own reference.
"""
# mypy: disable-error-code="no-untyped-def, no-any-return"

from __future__ import annotations

import sys
import time
from pathlib import Path

import parrot as P

PART_CHARS = 2_000
short = P.SamplingConfig(temperature=0, max_gen_length=64)


@P.semantic_function(chat=True, sampling=short)
def begin(part: P.Input, summary: P.Output):
    """Summarise in two sentences: {{part}} {{summary}}"""


@P.semantic_function(chat=True, sampling=short)
def refine(so_far: P.Input, part: P.Input, summary: P.Output):
    """The summary of a text so far: {{so_far}}
    The text goes on: {{part}}
    Summarise all of it in two sentences. {{summary}}"""


def summarised(parts: list[str]) -> P.SemanticVariable:
    """The chain over all parts: the summary of the last call."""
    summary = begin(parts[0])
    for part in parts[1:]:
        summary = refine(summary, part)
    return summary


def document(arguments: list[str]) -> str:
    """What is summarised."""
    if arguments:
        return Path(arguments[0]).read_text("utf-8")
    from pydoc_data.topics import topics

    return str(topics["exceptions"] + topics["try"])


def main() -> int:
    """The application; 1 when it can't be finished."""
    try:
        text = document(sys.argv[1:])
    except (OSError, UnicodeDecodeError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)] or [""]
    began = time.monotonic()
    try:
        with P.Session(label="chain summary"):
            for piece in summarised(parts).stream():
                print(piece, end="", flush=True)
    except P.ParrotError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    print(f"\n--- {len(parts)} parts in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
