"""Answers a question, and improves the answer until a judge is content."""

from __future__ import annotations

import json
import sys

from openai import OpenAIError

from benchmarks.gateway.plain.chat import ask

ROUNDS = 4
BRIEF = 64
VERDICT = {"type": "object", "properties": {"good": {"enum": ["yes", "no"]}}, "required": ["good"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": VERDICT}}


def answer(question: str) -> str:
    return ask(f"Answer in two sentences: {question}", BRIEF)


def rewrite(question: str, draft: str) -> str:
    prompt = f"""The question: {question}
    An answer to it: {draft}
    Write the answer more clearly and more exactly, in two sentences."""
    return ask(prompt, BRIEF)


def judge(question: str, text: str) -> str:
    prompt = f"""The question: {question}
    An answer to it: {text}
    Is the answer right, and clear to a child? Say yes or no, as JSON."""
    return str(json.loads(ask(prompt, BRIEF, response_format=FORMAT))["good"])


def improved(question: str, draft: str) -> tuple[str, int]:
    """The answer once the judge is content, and after how many rounds."""
    for number in range(1, ROUNDS + 1):
        draft = rewrite(question, draft)
        if judge(question, draft) == "yes":
            return draft, number
    return draft, ROUNDS


def main() -> int:
    """The application; 1 when it can't be finished."""
    asked = " ".join(sys.argv[1:]) or "Why is the sea salty?"
    try:
        draft = answer(asked)
        print(draft, end="", flush=True)
        final, rounds = improved(asked, draft)
        print(f"\n--- improved:\n{final}")
        print(f"--- after {rounds} of {ROUNDS} rounds")
    except OpenAIError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
