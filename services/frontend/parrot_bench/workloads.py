"""The workloads, each built from its shape, a seed and real text.

What a round's applications say differs from that of every other round, so that nothing is in a cache which
the round did not bring itself; their graphs and sizes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Final

from parrot_bench.applications import chain, map_reduce, poisson_ms, single, team
from parrot_bench.documents import Documents
from parrot_bench.graphs import Application, Text, Workload
from parrot_bench.shapes import Shape

Build = Callable[[Shape, Documents, Random], list[Application]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a workload is made.

    Attributes:
        shape: what it is by default.
        quick: the same, small enough to try everything out.
    """

    description: str
    build: Build
    shape: Shape
    quick: Shape


def build(name: str, shape: Shape, documents: Documents, seed: int) -> Workload:
    """One round of a workload.

    Args:
        documents: a supply of its own; it is used up.
        seed: of the arrivals.

    Raises:
        KeyError: there is no such workload.
        DocumentError: there is not enough text.
    """
    recipe = WORKLOADS[name]
    applications = recipe.build(shape, documents, Random(seed))  # noqa: S311 - to be repeated
    if shape.deadline_s:
        applications = [_due(application, shape.deadline_s * 1000) for application in applications]
    applications.sort(key=lambda application: application.arrival_ms)
    parameters = used(name, shape) | {"seed": seed}
    return Workload(name, tuple(applications), recipe.description, parameters)


def used(name: str, shape: Shape) -> dict[str, Any]:
    """What of a shape means something to a workload, by name."""
    return {key: value for key, value in asdict(shape).items() if key in USES[name]}


def _due(application: Application, deadline_ms: float) -> Application:
    return replace(application, deadline_ms=deadline_ms) if application.kind == "application" else application


def _chain(shape: Shape, documents: Documents, _: Random) -> list[Application]:
    return [chain(shape, documents)]


def _chains(shape: Shape, documents: Documents, _: Random) -> list[Application]:
    return [
        chain(shape, documents, f"chain_{number}", number * shape.gap_s * 1000)
        for number in range(shape.applications)
    ]


def _chain_loaded(shape: Shape, documents: Documents, dice: Random) -> list[Application]:
    """What is still to come of the background when the chain ends is never sent."""
    found = [chain(shape, documents)]
    for number, arrival_ms in enumerate(poisson_ms(dice, shape.rate_per_s, shape.queries)):
        prompt = (Text(documents.take(shape.prompt_tokens), "text"), Text("\n\nIn short: "))
        found.append(
            single(
                f"background_{number}",
                prompt,
                shape.output_tokens,
                arrival_ms,
                kind="background",
                objective="throughput",
            )
        )
    return found


def _map_reduce(shape: Shape, documents: Documents, _: Random) -> list[Application]:
    return [
        map_reduce(shape, documents, f"map_reduce_{number}", number * shape.gap_s * 1000)
        for number in range(shape.applications)
    ]


def _shared_prompt(shape: Shape, documents: Documents, dice: Random) -> list[Application]:
    """Requests to several products, each with a long system prompt of its own (the paper's section 8.3)."""
    prompts = [documents.take(shape.prompt_tokens) for _ in range(shape.applications)]
    order = [number for number in range(shape.applications) for _ in range(shape.queries)]
    dice.shuffle(order)
    arrivals = poisson_ms(dice, shape.rate_per_s, len(order))
    return [
        single(
            f"request_{place}_to_{number}",
            (
                Text(f"{prompts[number]}\n\nUser: "),
                Text(documents.take(shape.chunk_tokens), "question"),
                Text("\nAssistant: "),
            ),
            shape.output_tokens,
            arrival_ms,
        )
        for place, (number, arrival_ms) in enumerate(zip(order, arrivals, strict=True))
    ]


def _multi_agent(shape: Shape, documents: Documents, _: Random) -> list[Application]:
    return [
        replace(team(shape, documents, f"team_{number}"), arrival_ms=number * shape.gap_s * 1000)
        for number in range(shape.applications)
    ]


def _mixed(shape: Shape, documents: Documents, dice: Random) -> list[Application]:
    """Chats that people wait for beside summaries that nobody watches (the paper's section 8.5)."""
    found = [
        map_reduce(shape, documents, f"map_reduce_{number}", number * shape.gap_s * 1000, "throughput")
        for number in range(shape.applications)
    ]
    for number, arrival_ms in enumerate(poisson_ms(dice, shape.rate_per_s, shape.queries)):
        prompt = (Text(documents.take(shape.prompt_tokens), "said"), Text("\n\nAssistant: "))
        found.append(
            single(
                f"chat_{number}",
                prompt,
                CHAT_OUTPUT_TOKENS,
                arrival_ms,
                kind="chat",
                objective="ttft",
                streamed=True,
            )
        )
    return found


CHAT_OUTPUT_TOKENS: Final = 24

_CHUNKS: Final = frozenset({"chunks", "chunk_tokens", "output_tokens", "deadline_s"})
USES: Final[Mapping[str, frozenset[str]]] = {
    "chain": _CHUNKS,
    "chain-loaded": _CHUNKS | {"rate_per_s", "queries", "prompt_tokens"},
    "chains": _CHUNKS | {"applications", "gap_s"},
    "map-reduce": _CHUNKS | {"applications", "gap_s"},
    "shared-prompt": frozenset(
        {
            "applications",
            "queries",
            "prompt_tokens",
            "chunk_tokens",
            "output_tokens",
            "rate_per_s",
            "deadline_s",
        }
    ),
    "multi-agent": frozenset(
        {"applications", "gap_s", "files", "rounds", "prompt_tokens", "output_tokens", "deadline_s"}
    ),
    "mixed": _CHUNKS | {"applications", "gap_s", "rate_per_s", "queries", "prompt_tokens"},
}
"""Which sizes mean something to which workload."""

_QUICK_CHUNKS: Final = Shape(chunks=3, chunk_tokens=48, output_tokens=8)

WORKLOADS: Final[Mapping[str, Recipe]] = {
    "chain": Recipe("one chain: every call reads the one before it", _chain, Shape(), _QUICK_CHUNKS),
    "chain-loaded": Recipe(
        "one chain beside single requests that arrive at random",
        _chain_loaded,
        Shape(queries=120, prompt_tokens=512, rate_per_s=2),
        replace(_QUICK_CHUNKS, rate_per_s=20, queries=4, prompt_tokens=48),
    ),
    "chains": Recipe(
        "several chains at once",
        _chains,
        Shape(applications=6, chunks=8),
        replace(_QUICK_CHUNKS, applications=2),
    ),
    "map-reduce": Recipe(
        "a summary of each part, and one of all summaries", _map_reduce, Shape(), _QUICK_CHUNKS
    ),
    "shared-prompt": Recipe(
        "requests to several products, each with a long system prompt",
        _shared_prompt,
        Shape(applications=6, queries=6, prompt_tokens=1536, chunk_tokens=24, rate_per_s=2),
        Shape(applications=2, queries=2, prompt_tokens=128, chunk_tokens=16, output_tokens=8, rate_per_s=20),
    ),
    "multi-agent": Recipe(
        "an architect, coders, reviewers and revisers",
        _multi_agent,
        # An eighth of the recorded run's lengths, for which two cores would take minutes.
        Shape(prompt_tokens=128, output_tokens=64),
        Shape(files=2, prompt_tokens=24, output_tokens=8),
    ),
    "mixed": Recipe(
        "chats beside map-reduce",
        _mixed,
        Shape(applications=4, gap_s=8, queries=20, prompt_tokens=128),
        replace(_QUICK_CHUNKS, gap_s=0.2, rate_per_s=10, queries=4, prompt_tokens=32),
    ),
}
"""By name, as on the command line."""
