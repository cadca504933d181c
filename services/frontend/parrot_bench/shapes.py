"""The sizes of workloads."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a workload; each uses those that mean something to it.

    Attributes:
        applications: how many of them; of `shared-prompt`, how many system prompts.
        chunks: parts of a document.
        chunk_tokens: of each part; the instruction around it comes on top.
        output_tokens: of each call.
        rate_per_s: of the background's, the chats' or the requests' Poisson arrivals.
        gap_s: between the arrivals of one application and the next.
        queries: requests to each system prompt, chats, or background requests at the most.
        prompt_tokens: of a system prompt, or a chat's prompt.
        files: that a team writes.
        rounds: of review and revision.
        deadline_s: of each measured application; 0: none.
    """

    applications: int = 1
    chunks: int = 16
    chunk_tokens: int = 512
    output_tokens: int = 32
    rate_per_s: float = 0.5
    gap_s: float = 0.0
    queries: int = 0
    prompt_tokens: int = 0
    files: int = 4
    rounds: int = 1
    deadline_s: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = {"int": each.name not in {"queries", "prompt_tokens"}, "float": 0}[str(each.type)]
            if not least <= value < 1e6:
                raise ValueError(f"{each.name} is {value}; it is at least {int(least)}, and below a million")
        if not self.rate_per_s:
            raise ValueError("rate_per_s is 0; it is more than that")
