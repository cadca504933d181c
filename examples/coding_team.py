"""A team that writes a program: an architect, and for each file a coder, a reviewer and a reviser.

    parrot up                                   # in another terminal
    python examples/coding_team.py "a snake game"

How many files there are is known only when the architect is done. The server gives each its coder then,
all at once, and the client asks for nothing in between. What all of them read, the task and the plan, is
computed once for all.
"""
# mypy: disable-error-code="no-untyped-def, valid-type"

from __future__ import annotations

import sys

import parrot as P

FIRST_LINES = r"regex:\A(?:\s*\S.*){1,4}"
notes = P.SamplingConfig(temperature=0, max_gen_length=96)
code = P.SamplingConfig(temperature=0, max_gen_length=160)


@P.semantic_function(chat=True, sampling=notes)
def architect(task: P.Input, plan: P.Output(transforms=FIRST_LINES)):
    """You are a software architect. The task: write {{task}} in Python.
    List its files, one a line and four at the most, each with what it holds. {{plan}}"""


@P.semantic_function(chat=True, sampling=code)
def coder(task: P.Input, plan: P.Input, file: P.Input, program: P.Output):
    """The task: write {{task}} in Python. The plan: {{plan}}
    Write this file, and nothing but code: {{file}} {{program}}"""


@P.semantic_function(chat=True, sampling=notes)
def reviewer(task: P.Input, plan: P.Input, file: P.Input, program: P.Input, review: P.Output):
    """The task: write {{task}} in Python. The plan: {{plan}}
    Of the file {{file}} a colleague wrote this: {{program}}
    Say in three sentences what is wrong with it. {{review}}"""


@P.semantic_function(chat=True, sampling=code)
def reviser(
    task: P.Input, plan: P.Input, file: P.Input, program: P.Input, review: P.Input, revised: P.Output
):
    """The task: write {{task}} in Python. The plan: {{plan}}
    Of the file {{file}} you wrote this: {{program}}
    A colleague says: {{review}}
    Write the file anew, and nothing but code. {{revised}}"""


def team(task: P.SemanticVariable) -> tuple[P.SemanticVariable, P.SemanticVariable]:
    """The plan, and all files it names as they are after their review."""
    plan = architect(task)

    def develop(file: P.SemanticVariable):
        program = coder(task, plan, file)
        return reviser(task, plan, file, program, reviewer(task, plan, file, program))

    files = P.map(develop, plan, lines=True, joined_by="\n\n# ----\n\n", name="develop")
    return plan, files


def main() -> int:
    """The application; 1 when it can't be finished."""
    asked = " ".join(sys.argv[1:]) or "a game of snake"
    try:
        with P.Session(label="coding team") as session:
            plan, files = team(P.variable("task", asked))
            print(f"{plan.get()}\n\n{files.get()}")
            calls = session.info().calls
            tokens = sum(call.prompt_tokens for call in calls)
            cached = sum(call.cached_tokens for call in calls)
            print(f"--- {len(calls)} calls; of {tokens:,} prompt tokens {cached:,} were there already")
    except P.ParrotError as error:
        print(f"the application failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
