"""Summarises a document of any length: every part of it at once, then the summaries together.

All calls travel to the server in one request, which knows from then on what depends on what: the
last call starts there by itself when the last summary it reads is made. The client only watches.

    parrot up                                          # in another terminal
    python examples/map_reduce_summary.py --file FILE

Without a file it reads three chapters of the Python language reference that every Python carries.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import parrot as P

CHARS_PER_TOKEN: Final = 4
"""Of English prose, roughly. The client has no tokenizer, and needs none."""
REDUCE_TOKENS: Final = 512
"""Summaries that one call reads, in tokens; more are summarised in stages. Small models lose their
way in long lists."""

TURN: Final = """<|im_start|>system
{task}<|im_end|>
<|im_start|>user
{text}<|im_end|>
<|im_start|>assistant
{{{{summary}}}}"""
# In the words that the packaged model was taught to summarise by.
MAP_TASK: Final = (
    "Extract and present the main key point of the input text in one very short sentence, including "
    "essential details like dates or locations if necessary."
)
REDUCE_TASK: Final = (
    "Provide a concise, objective summary of the input text in up to three sentences, focusing on key "
    "actions and intentions without using second or third person pronouns."
)
COLUMNS: Final = {
    "name": "call",
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "output_tokens": "output",
    "queue_ms": "queue ms",
    "prefill_ms": "prefill ms",
    "decode_ms": "decode ms",
    "e2e_ms": "end to end ms",
    "engine": "engine",
}


def map_function(sampling: P.SamplingConfig) -> P.Function:
    """The semantic function that summarises one part."""

    def summarise_part(part: P.Input, summary: P.Output(sampling)) -> None: ...  # type: ignore[valid-type]

    summarise_part.__doc__ = TURN.format(task=MAP_TASK, text="{{part}}")
    return P.semantic_function(summarise_part)


def reduce_function(count: int, sampling: P.SamplingConfig) -> P.Function:
    """The semantic function that summarises `count` summaries: its prompt has a hole for each."""

    def combine() -> None: ...

    names = [f"summary_{number}" for number in range(1, count + 1)]
    combine.__doc__ = TURN.format(task=REDUCE_TASK, text="\n".join(f"{{{{{name}}}}}" for name in names))
    kinds = [*((name, P.Input) for name in names), ("summary", P.Output(sampling))]
    parameters = [
        inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=k) for n, k in kinds
    ]
    combine.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return P.semantic_function(combine)


@dataclass(frozen=True, slots=True)
class Application:
    """What one run makes: a variable a part, and the summary of them all."""

    parts: list[P.SemanticVariable]
    summary: P.SemanticVariable

    @classmethod
    def build(cls, chunks: Sequence[str], output_tokens: int) -> Application:
        """Adds all calls to the current session. Nothing is sent yet."""
        sampling = P.SamplingConfig(temperature=0, max_gen_length=output_tokens)
        summarise_part = map_function(sampling)
        parts = [summarise_part(part=chunk) for chunk in chunks]
        fan_in = max(2, REDUCE_TOKENS // (output_tokens + 4))
        level = parts
        while True:
            groups = [level[start : start + fan_in] for start in range(0, len(level), fan_in)]
            level = [reduce_function(len(group), sampling)(*group) for group in groups]
            if len(level) == 1:
                return cls(parts, level[0])


def split(text: str, chunk_tokens: int) -> list[str]:
    """`text` in parts of about `chunk_tokens`, cut between paragraphs or lines where it can be."""
    limit = chunk_tokens * CHARS_PER_TOKEN
    chunks: list[str] = []
    current = ""
    for piece in pieces(text, limit):
        if current and len(current) + len(piece) > limit:
            chunks.append(current)
            current = ""
        current += piece
    chunks.append(current)
    return [chunk.strip("\n") for chunk in chunks if chunk.strip()]


def pieces(text: str, limit: int, separators: tuple[str, ...] = ("\n\n", "\n", " ")) -> Iterator[str]:
    """Pieces of at most `limit` characters; joined, they are `text`."""
    if len(text) <= limit:
        yield text
    elif not separators:
        yield from (text[start : start + limit] for start in range(0, len(text), limit))
    else:
        head, *rest = text.split(separators[0])
        yield from pieces(head, limit, separators[1:])
        for part in rest:
            yield from pieces(separators[0] + part, limit, separators[1:])


class Progress:
    """Says how far it is: on a terminal in one line, elsewhere in a line for every tenth."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._live = sys.stdout.isatty()

    def show(self) -> None:
        """Prints where it is now."""
        seconds = time.monotonic() - self._start
        text = f"parts summarised: {self._done}/{self._total} ({seconds:.0f} s)"
        print(f"\r\x1b[K{text}" if self._live else text, end="" if self._live else "\n", flush=True)

    def advance(self) -> None:
        """One more is done."""
        before = self._done * 10 // self._total
        self._done += 1
        if self._live or self._done * 10 // self._total > before:
            self.show()
        if self._live and self._done == self._total:
            print()


async def watch(application: Application) -> str:
    """Shows the parts as they are done, then the summary as it is generated; the summary."""
    progress = Progress(len(application.parts))
    progress.show()
    for done in asyncio.as_completed([part.aget() for part in application.parts]):
        await done
        progress.advance()
    print("\nSummary:")
    text = ""
    async for piece in application.summary.astream():
        print(piece, end="", flush=True)
        text += piece
    print("\n")
    return text


async def run(document: str, chunk_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Runs the application, and tells of it what `--json` writes."""
    chunks = split(document, chunk_tokens)
    print(f"{len(document):,} characters in {len(chunks)} parts of about {chunk_tokens} tokens")
    async with P.Session(label="map-reduce summary") as session:
        start = time.monotonic()
        summary = await watch(Application.build(chunks, output_tokens))
        e2e_ms = (time.monotonic() - start) * 1000
        info = await session.ainfo()
        calls = [{name: getattr(call, name) for name in COLUMNS} for call in info.calls]
        return {"session_id": session.id, "e2e_ms": round(e2e_ms, 1), "summary": summary, "calls": calls}


def print_table(calls: Sequence[dict[str, Any]]) -> None:
    """A row a call, and what they add up to."""
    rows = [list(COLUMNS.values())]
    rows += [[cell(call[name]) for name in COLUMNS] for call in calls]
    totals = [cell(sum(call[name] for call in calls)) for name in COLUMNS if name.endswith("_tokens")]
    rows.append(["all", *totals, *[""] * (len(COLUMNS) - 1 - len(totals))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())


def cell(value: object) -> str:
    """A table's cell."""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def default_document() -> str:
    """The chapter "Data model" of the Python language reference: more than 20,000 tokens."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in ("objects", "types", "specialnames"))


def arguments() -> argparse.Namespace:
    """What was asked for; ends the program when it makes no sense."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--file", type=Path, help="the document, UTF-8 text")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="of a part, about (default: 512)")
    parser.add_argument("--output-tokens", type=int, default=48, help="of a summary, at most (default: 48)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write session, summary and calls there")
    options = parser.parse_args()
    if options.chunk_tokens < 16 or options.output_tokens < 1:
        parser.error("a part has at least 16 tokens, a summary at least 1")
    try:
        options.document = options.file.read_text("utf-8") if options.file else default_document()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--file {options.file}: {error}")
    if not options.document.strip():
        parser.error(f"--file {options.file}: the document is empty")
    return options


def main() -> int:
    """The application; 1 when it can't be finished."""
    options = arguments()
    try:
        result = asyncio.run(run(options.document, options.chunk_tokens, options.output_tokens))
    except P.ParrotError as error:
        print(f"\nthe application failed: {error}", file=sys.stderr)
        return 1
    print_table(result["calls"])
    print(f"\nsession {result['session_id']}, {result['e2e_ms'] / 1000:.1f} s")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
