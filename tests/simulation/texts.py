"""What the simulated model says: a function of the prompt, so that an undisturbed run's text is known.

An output is sampled or greedy. A greedy one is its prompt's alone. A sampled one starts with what
its prompt gives and goes on differently in every attempt: whoever decodes again what was streamed
already says something else, and is seen.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import blake2b

from parrot_proto.manager.v1 import manager_pb2

_ALPHABET = "abcdefghijklmnopqrstuvwxyz    éßΩж漢字😀🜁"
HEAD_CHARS = 8


@dataclass(frozen=True, slots=True)
class Output:
    """How an output is generated."""

    variable_id: str
    pieces: int = 1
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """A call as the simulated engine runs it.

    Attributes:
        outputs: generated one after another; each is part of the next one's prompt.
        fails: the type of error it fails with; empty: none.
        fails_after: pieces of an output that are streamed before it fails; whether of its first or its
            second output, is drawn from that too.
        fails_attempts: so many attempts fail; a large number: all.
        resumable: a later attempt can go on behind what was streamed.
        step_ms: how long a piece takes.
    """

    function: str
    outputs: tuple[Output, ...]
    fails: str = ""
    fails_after: int = 0
    fails_attempts: int = 0
    resumable: bool = True
    step_ms: int = 20

    def encode(self) -> str:
        """As text, for the end of the call's template."""
        return _encoded(self)

    @staticmethod
    @lru_cache(maxsize=4096)
    def decode(data: bytes) -> Spec:
        """The spec of a call as it was submitted: a `manager.v1.NewCall` that ends with it."""
        found = json.loads(manager_pb2.NewCall.FromString(data).segments[-1].text)
        outputs = tuple(Output(**output) for output in found.pop("outputs"))
        return Spec(outputs=outputs, **found)


@lru_cache(maxsize=4096)
def _encoded(spec: Spec) -> str:
    return json.dumps(asdict(spec))


def prompt_of(function: str, inputs: list[str]) -> str:
    """The prompt of a call's first output."""
    return "\x1f".join([function, *inputs])


def head_of(prompt: str, output: str) -> str:
    """What every output of a prompt starts with; no other prompt's does."""
    return _noise(f"{output}\x1e{prompt}", HEAD_CHARS)


def piece_of(prompt: str, output: Output, index: int, attempt: int) -> str:
    """Piece `index` of an output, as an attempt says it."""
    if index == 0:
        return head_of(prompt, output.variable_id)
    salt = attempt if output.sampled else 0
    return _noise(f"{index}\x1e{salt}\x1e{output.variable_id}\x1e{prompt}", 1 + (index * 7) % 11)


def text_of(prompt: str, output: Output) -> str:
    """The whole of a greedy output."""
    return "".join(piece_of(prompt, output, index, 0) for index in range(output.pieces))


def _noise(key: str, chars: int) -> str:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=chars).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest)
