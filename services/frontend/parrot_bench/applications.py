"""Applications of the kinds that workloads are made of, as graphs over real text."""

from __future__ import annotations

from random import Random

from parrot_bench.documents import Documents
from parrot_bench.graphs import Application, Call, Kind, Objective, Ref, Segment, Text
from parrot_bench.shapes import Shape


def chain(shape: Shape, documents: Documents, name: str = "chain", arrival_ms: float = 0.0) -> Application:
    """A summary that goes on from part to part: every call reads the one before it.

    The paper's chain summarisation (Parrot, OSDI 2024, section 8.2).
    """
    calls: list[Call] = []
    for number in range(1, shape.chunks + 1):
        part = Text(documents.take(shape.chunk_tokens), f"part_{number}")
        before: list[Segment] = [Text("\n\nThe summary so far: "), Ref(calls[-1].name)] if calls else []
        prompt = (Text("A part of a document: "), part, *before, Text("\n\nA summary of all of it: "))
        calls.append(Call(f"step_{number}", prompt, shape.output_tokens))
    return Application(name, tuple(calls), (calls[-1].name,), arrival_ms)


def map_reduce(
    shape: Shape,
    documents: Documents,
    name: str = "map_reduce",
    arrival_ms: float = 0.0,
    objective: Objective = "latency",
) -> Application:
    """A summary of each part, and one of all summaries (Parrot, OSDI 2024, section 8.2)."""
    maps = [
        Call(
            f"map_{number}",
            (
                Text("Summarise this part of a document in a sentence.\n\n"),
                Text(documents.take(shape.chunk_tokens), f"part_{number}"),
                Text("\n\nSummary: "),
            ),
            shape.output_tokens,
        )
        for number in range(1, shape.chunks + 1)
    ]
    read = [segment for call in maps for segment in (Ref(call.name), Text("\n"))]
    reduce = Call(
        "reduce",
        (Text("Put these summaries together into one.\n\n"), *read, Text("\nAll in all: ")),
        shape.output_tokens,
    )
    return Application(name, (*maps, reduce), (reduce.name,), arrival_ms, objective)


def single(
    name: str,
    prompt: tuple[Text, ...],
    output_tokens: int,
    arrival_ms: float,
    *,
    kind: Kind = "application",
    objective: Objective = "latency",
    streamed: bool = False,
) -> Application:
    """An application of one call."""
    call = Call("answer", prompt, output_tokens, streamed)
    return Application(name, (call,), (call.name,), arrival_ms, objective, kind)


def team(shape: Shape, documents: Documents, name: str = "team") -> Application:
    """An architect plans, a coder writes each file, then every file is reviewed and revised, in rounds.

    Who reviews or revises reads all files, as in MetaGPT's run that the paper took (section 8.4).
    """
    guide = documents.take(shape.prompt_tokens)
    plan = Call(
        "architect",
        (
            Text("You are a software architect. Plan a program for this: "),
            Text(guide, "task"),
            Text("\nPlan: "),
        ),
        3 * shape.output_tokens // 2,
    )
    calls = [plan]
    code: list[str] = []
    for number in range(1, shape.files + 1):
        prompt = (
            Text("You are a programmer. Write one file of a program.\nIts task: "),
            Text(guide, "task"),
            Text("\nThe plan: "),
            Ref(plan.name),
            Text(f"\nWrite file {number} of {shape.files}, and nothing but code: "),
        )
        calls.append(Call(f"coder_{number}", prompt, shape.output_tokens))
        code.append(calls[-1].name)
    for turn in range(1, shape.rounds + 1):
        seen = _all_files(guide, code)
        reviews = [_review(shape, seen, number, turn) for number in range(1, shape.files + 1)]
        revised = [_revision(shape, seen, review.name, f"{turn}_{n}") for n, review in enumerate(reviews, 1)]
        calls += [*reviews, *revised]
        code = [call.name for call in revised]
    return Application(name, tuple(calls), tuple(code))


def _all_files(guide: str, code: list[str]) -> tuple[Segment, ...]:
    """What everybody of one turn reads, word for word."""
    files = [
        segment for number, name in enumerate(code, 1) for segment in (Text(f"\nFile {number}:\n"), Ref(name))
    ]
    return (Text("A team writes a program. Its task: "), Text(guide, "task"), *files)


def _review(shape: Shape, seen: tuple[Segment, ...], number: int, turn: int) -> Call:
    prompt = (*seen, Text(f"\nYou are a reviewer. What is wrong with file {number}? "))
    return Call(f"reviewer_{turn}_{number}", prompt, max(1, 3 * shape.output_tokens // 4))


def _revision(shape: Shape, seen: tuple[Segment, ...], review: str, place: str) -> Call:
    prompt = (
        *seen,
        Text("\nA reviewer says of your file: "),
        Ref(review),
        Text("\nWrite it anew, and nothing but code: "),
    )
    return Call(f"reviser_{place}", prompt, shape.output_tokens)


def poisson_ms(dice: Random, rate_per_s: float, count: int) -> list[float]:
    """Arrivals of a Poisson process, the first after a gap of its own too."""
    arrivals: list[float] = []
    now_ms = 0.0
    for _ in range(count):
        now_ms += dice.expovariate(rate_per_s) * 1000
        arrivals.append(now_ms)
    return arrivals
