"""Answers a question, and improves the answer on the server until a judge is content.

    parrot up                                   # in another terminal
    python examples/verifier_loop.py "Why is the sea salty?"

The loop is part of the graph: no round trip lies between its rounds, and it goes on when the client,
or a manager, dies. `parrot graph last` shows how many rounds there were.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import sys
from typing import Literal

import parrot as P

ROUNDS = 4
brief = P.SamplingConfig(temperature=0, max_gen_length=64)


@P.semantic_function(chat=True, sampling=brief)
def answer(question: P.Input, text: P.Output):
    """Answer in two sentences: {{question}} {{text}}"""


@P.semantic_function(chat=True, sampling=brief)
def rewrite(question: P.Input, draft: P.Input, better: P.Output):
    """The question: {{question}}
    An answer to it: {{draft}}
    Write the answer more clearly and more exactly, in two sentences. {{better}}"""


@P.semantic_function(chat=True)
def judge(question: P.Input, text: P.Input, verdict: P.Output[Literal["yes", "no"]]):
    """The question: {{question}}
    An answer to it: {{text}}
    Is the answer right, and clear to a child? Say yes or no. {{verdict}}"""


def improve(question: P.SemanticVariable):
    """A round of the loop: what goes on to the next, and when there is none."""

    def body(draft: P.SemanticVariable):
        better = rewrite(question, draft)
        return better, P.when(judge(question, better), equals="yes")

    return body


def main() -> int:
    """The application; 1 when it can't be finished."""
    asked = " ".join(sys.argv[1:]) or "Why is the sea salty?"
    try:
        with P.Session(label="verifier loop") as session:
            question = P.variable("question", asked)
            draft = answer(question)
            final = P.loop(improve(question), draft, max_rounds=ROUNDS, name="improve")
            for piece in draft.stream():
                print(piece, end="", flush=True)
            print(f"\n--- improved:\n{final.get()}")
            (loop,) = session.info().blocks
            print(f"--- after {loop.instances} of {ROUNDS} rounds")
    except P.ParrotError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
