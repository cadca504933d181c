"""Summarises a document part by part: every call reads the summary so far and the next part."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from openai import OpenAIError

from benchmarks.gateway.plain.chat import ask

PART_CHARS = 2_000
SHORT = 64


def begin(part: str) -> str:
    return ask(f"Summarise in two sentences: {part}", SHORT)


def refine(so_far: str, part: str) -> str:
    prompt = f"""The summary of a text so far: {so_far}
    The text goes on: {part}
    Summarise all of it in two sentences."""
    return ask(prompt, SHORT)


def summarised(parts: list[str]) -> str:
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
        print(summarised(parts), end="", flush=True)
    except OpenAIError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    print(f"\n--- {len(parts)} parts in {time.monotonic() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
