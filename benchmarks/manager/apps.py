"""Applications to run on a simulated fleet: the paper's mixed workload, and the recorded traces."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from parrot_manager.core.criteria import ObjectiveKind

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
LATENCY, THROUGHPUT = ObjectiveKind.LATENCY, ObjectiveKind.THROUGHPUT

Piece = tuple[str, str, int]
"""("text", its content's name, tokens) or ("in", a variable, 0)."""


@dataclass
class AppCall:
    """A call: its function, its prompt, what it makes and how long that gets."""

    name: str
    pieces: list[Piece]
    output: str
    output_tokens: int
    max_tokens: int


@dataclass
class App:
    """An application: it comes at a time, and its last output is read.

    Attributes:
        values: variables that come with it: their content's name and tokens.
    """

    kind: str
    tenant: str
    arrives_ms: float
    objective: ObjectiveKind
    calls: list[AppCall] = field(default_factory=list)
    values: dict[str, tuple[str, int]] = field(default_factory=dict)

    def call(self, name: str, pieces: list[Piece], output: str, tokens: int, most: int = 1_024) -> str:
        """Adds a call; returns its output."""
        self.calls.append(AppCall(name, pieces, output, max(1, tokens), max(most, tokens)))
        return output

    def value(self, name: str, content: str, tokens: int) -> Piece:
        """A variable that comes with the application, as a piece."""
        self.values[name] = (content, max(1, tokens))
        return ("in", name, 0)


class Mix:
    """The paper's classes, each as often as its weight says."""

    def __init__(self, seed: int, per_minute: float) -> None:
        self._random = random.Random(seed)
        self._gap_ms = 60_000 / per_minute
        self._number = 0

    def __call__(self) -> Iterator[App]:
        now_ms = 0.0
        makers: list[Callable[[App], None]] = [
            self.chat,
            self.search,
            self.map_reduce,
            self.batch,
            self.chain,
            self.agents,
        ]
        while True:
            now_ms += self._random.expovariate(1 / self._gap_ms)
            maker = self._random.choices(makers, (50, 20, 10, 6, 6, 4))[0]
            self._number += 1
            objective = THROUGHPUT if maker == self.batch else LATENCY
            app = App(maker.__name__, f"t-{self._random.randrange(8)}", now_ms, objective)
            maker(app)
            yield app

    def _length(self, mean: float) -> int:
        """Outputs are spread: half of them between 0.6 and 1.3 times the mean."""
        return max(4, int(self._random.lognormvariate(0, 0.5) * mean * 0.88))

    def chat(self, app: App) -> None:
        """One turn: a prompt of its own, a long answer."""
        prompt = app.value("prompt", f"chat-{self._number}", self._random.randrange(50, 1_024))
        app.call("chat", [prompt], "answer", self._length(200))

    def search(self, app: App) -> None:
        """A long system prompt that all share, a question of its own (Bing Copilot)."""
        shared: Piece = ("text", "copilot", 5_107)
        question = app.value("question", f"search-{self._number}", self._random.randrange(100, 1_800))
        app.call("search", [shared, question], "answer", self._length(330))

    def map_reduce(self, app: App) -> None:
        """A document's parts side by side, then all together."""
        parts = self._random.randrange(8, 33)
        made = []
        for part in range(parts):
            text = app.value(f"part{part}", f"doc-{self._number}-{part}", self._random.randrange(800, 1_025))
            made.append(app.call("map", [("text", "map", 60), text], f"sum{part}", self._length(50), 256))
        app.call(
            "reduce",
            [("text", "reduce", 80), *(("in", name, 0) for name in made)],
            "final",
            self._length(100),
        )

    def batch(self, app: App) -> None:
        """The same, but nobody waits for it."""
        self.map_reduce(app)

    def chain(self, app: App) -> None:
        """A document's parts one after another, each with what was made of those before."""
        before: list[Piece] = []
        for part in range(self._random.randrange(5, 13)):
            text = app.value(f"part{part}", f"doc-{self._number}-{part}", 1_024)
            name = app.call(
                "refine", [("text", "refine", 90), text, *before], f"sum{part}", self._length(60), 256
            )
            before = [("in", name, 0)]

    def agents(self, app: App) -> None:
        """An architect, programmers, and two rounds of reviewers and revisers over all the code (MetaGPT)."""
        task = app.value("task", f"task-{self._number}", 250)
        design = app.call("architect", [("text", "architect", 200), task], "design", self._length(600), 2_048)
        files = self._random.choice((4, 8))
        code = [
            app.call(
                "coder",
                [("text", "coder", 150), ("in", design, 0), ("text", f"file{n}", 20)],
                f"code{n}",
                self._length(400),
            )
            for n in range(files)
        ]
        for turn in range(2):
            base: list[Piece] = [("text", "codebase", 60), *(("in", name, 0) for name in code)]
            notes = [
                app.call(
                    "reviewer", [*base, ("text", f"review{n}", 40)], f"note{turn}-{n}", self._length(200)
                )
                for n in range(files)
            ]
            code = [
                app.call(
                    "reviser",
                    [*base, ("in", note, 0), ("text", f"revise{n}", 40)],
                    f"code{turn}-{n}",
                    self._length(400),
                )
                for n, note in enumerate(notes)
            ]
        app.call(
            "summary",
            [("text", "summary", 50), *(("in", name, 0) for name in code)],
            "final",
            self._length(150),
        )


def azure(name: str, per_minute: float, seed: int) -> Iterator[App]:
    """Single calls as a public service got them, at another rate; each seed begins at another minute."""
    with (TRACES / f"azure_2023_{name}.csv").open() as lines:
        rows = [
            (datetime.fromisoformat(r["TIMESTAMP"][:26]), int(r["ContextTokens"]), int(r["GeneratedTokens"]))
            for r in csv.DictReader(lines)
        ]
    seconds = (rows[-1][0] - rows[0][0]).total_seconds()
    scale = len(rows) / (seconds / 60) / per_minute
    rows = rows[seed * len(rows) // 8 :]
    for number, (came, prompt, output) in enumerate(rows):
        app = App(
            f"azure_{name}", f"t-{number % 8}", (came - rows[0][0]).total_seconds() * 1e3 * scale, LATENCY
        )
        text = app.value("prompt", f"azure-{number}", prompt)
        app.call(f"azure_{name}", [text], "answer", output, 2_048)
        yield app


def sessions(per_minute: float, seed: int) -> Iterator[App]:
    """Recorded agents (lmcache): each turn's prompt is the one before and what came since."""
    with (TRACES / "lmcache_agent_sessions.jsonl").open() as lines:
        found = [json.loads(line) for line in lines]
    draw, now_ms = random.Random(seed), 0.0
    for number in range(1_000_000):
        now_ms += draw.expovariate(per_minute / 60_000)
        trace = draw.choice(found)
        app = App("agent", f"t-{number % 8}", now_ms, LATENCY)
        _turns(app, trace, number)
        yield app


def _turns(app: App, trace: dict[str, object], number: int) -> None:
    pieces: list[Piece] = []
    length = 0
    for turn, call in enumerate(islice(trace["calls"], 12)):  # type: ignore[call-overload]
        prompt = min(call["input_tokens"], 16_000)
        if prompt <= length or not call["prefix_tokens"]:
            pieces, length = [], 0
        pieces = [*pieces, app.value(f"said{turn}", f"agent-{number}-{turn}", max(1, prompt - length))]
        output = f"out{turn}"
        app.call(f"{trace['agent']}", list(pieces), output, min(call["output_tokens"], 800), 1_024)
        pieces.append(("in", output, 0))
        length = prompt + call["output_tokens"]
