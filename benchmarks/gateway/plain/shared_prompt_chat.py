"""A chat with a long system prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAIError

from benchmarks.gateway.plain.chat import MODEL, client

RULES = (
    "greet only once",
    "answer in one or two sentences",
    "know that the harbour's museum opens at nine and closes at five, on Sundays at three",
    "know that a ticket costs eight euros, and four for children and students",
    "know that the lighthouse may be climbed in groups of ten, every full hour",
    "know that dogs wait outside, and that bicycles stand behind the boathouse",
    "send whoever is lost to the blue door beside the crane",
    "never speak of politics, of prices elsewhere, or of the weather",
    "say that you do not know where you do not know",
)
SYSTEM = "You are the guide of a small museum in a harbour. These are your rules:\n" + "\n".join(
    f"{number}. Always {rule}." for number, rule in enumerate(RULES, start=1)
)
BRIEF = 48


@dataclass
class Chat:
    """One conversation. What was said is sent with every message."""

    said: list[Any] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])

    def say(self, words: str) -> Iterator[str]:
        """The assistant's reply, as it is generated."""
        self.said.append({"role": "user", "content": words})
        reply = ""
        stream = client.chat.completions.create(
            model=MODEL,
            messages=self.said,
            max_completion_tokens=BRIEF,
            temperature=0,
            stream=True,
        )
        for chunk in stream:
            piece = chunk.choices[0].delta.content or ""
            reply += piece
            yield piece
        self.said.append({"role": "assistant", "content": reply})


def asked() -> Iterator[str]:
    """What is typed, line by line."""
    while True:
        try:
            yield input("you: ")
        except EOFError:
            print()
            return


def main() -> int:
    """The application."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--say", action="append", metavar="WORDS", help="instead of typing; may be repeated")
    options = parser.parse_args()
    words: Iterable[str] = options.say or asked()
    try:
        chat = Chat()
        for line in words:
            print("guide: ", end="")
            for piece in chat.say(line):
                print(piece, end="", flush=True)
            print()
    except OpenAIError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
