"""What the machine remembers of a session's blocks and conditions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from parrot_manager.core.blocks.model import Block
from parrot_manager.core.blocks.questions import Question
from parrot_manager.core.criteria import Objective


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions that are being answered."""

    ask: int
    questions: tuple[Question, ...]


@dataclass(slots=True)
class LiveBlocks:
    """The blocks of a session in memory.

    Attributes:
        all: every block, by id.
        open: those that have not ended.
        idle: those of a lazy session that nobody has asked for yet.
        undecided: calls and blocks whose condition is not known to hold.
        asked: what a call or block waits to be told.
        left: the variables that running instances have still to make, by block.
        objectives: what open blocks are run for, as it was deduced last.
    """

    all: dict[str, Block] = field(default_factory=dict)
    open: dict[str, None] = field(default_factory=dict)
    idle: dict[str, None] = field(default_factory=dict)
    undecided: dict[str, None] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    objectives: dict[str, Objective] = field(default_factory=dict)
    asks: int = 0

    def put(self, block: Block) -> None:
        """Keeps a block's newest snapshot."""
        self.all[block.id] = block
        if block.state.ended:
            self.drop(block.id)
            for kept in (self.open, self.idle, self.left, self.objectives):
                kept.pop(block.id, None)
        else:
            self.open[block.id] = None

    def drop(self, owner_id: str) -> None:
        """A call or block wants to know nothing more."""
        self.undecided.pop(owner_id, None)
        self.asked.pop(owner_id, None)

    def ask(self, owner_id: str, questions: tuple[Question, ...]) -> Asked:
        """Notes what a call or block wants to know; an answer to anything before comes too late."""
        self.asks += 1
        self.asked[owner_id] = Asked(self.asks, questions)
        return self.asked[owner_id]

    def take(self, owner_id: str, ask: int) -> tuple[Question, ...]:
        """The questions that are answered now; none, when nobody waits for these answers."""
        found = self.asked.get(owner_id)
        if found is None or found.ask != ask:
            return ()
        del self.asked[owner_id]
        return found.questions

    def opened(self) -> Iterator[Block]:
        """The blocks that have not ended."""
        return map(self.all.__getitem__, self.open)
