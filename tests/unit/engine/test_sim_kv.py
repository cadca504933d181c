"""The simulated KV memory: its books add up, and what it says is there is there."""

from __future__ import annotations

import random
from array import array

import pytest

from parrot_engine.backends.base import IntegrityError
from parrot_engine.backends.sim.kv import KvMemory, KvRequest

BLOCKS, SIZE = 12, 4


class World:
    """Requests of random contexts over a small memory, and what is truly computed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.memory = KvMemory(BLOCKS, SIZE)
        self.running: list[KvRequest] = []

    def begin(self) -> None:
        length = self.random.randint(1, BLOCKS * SIZE)
        start = self.random.choice([0, 0, 1])
        tokens = array("I", [start] * (length // 2) + [self.random.randint(0, 1)] * (length - length // 2))
        request = KvRequest(
            f"c{self.random.randint(0, 5)}",
            f"c{self.random.randint(0, 5)}",
            tokens,
            self.random.randint(0, length),
            self.random.choice(["", "a", "b"]),
            reads_cache=self.random.random() < 0.8,
            recomputes=self.random.random() < 0.1,
        )
        if not request.tenant:
            request.public_tokens = length
        if any(one.context_id == request.context_id for one in self.running):
            return
        if self.memory.begin(request, self.random.randint(1, 20)):
            assert request.computed < length
            self.running.append(request)
        else:
            assert self.running, "what fits by itself is taken when nothing runs"
            assert not request.blocks

    def grow(self) -> None:
        request = self.random.choice(self.running)
        tokens = self.random.randint(request.computed, len(request.tokens))
        if self.memory.grow(request, tokens):
            self.memory.compute(request, tokens)

    def end(self) -> None:
        request = self.random.choice(self.running)
        self.running.remove(request)
        self.memory.end(request, hold=self.random.random() < 0.6)
        assert not request.blocks

    def tell(self) -> None:
        context_id = f"c{self.random.randint(0, 5)}"
        told = self.random.choice([self.memory.release, self.memory.forget, self._expect])
        told(context_id)

    def _expect(self, context_id: str) -> None:
        self.memory.expect_use(context_id, self.random.choice([0.0, 1.0, 7.5, float("inf")]))

    def step(self) -> None:
        choices = [self.begin, self.tell] + ([self.grow, self.grow, self.end] if self.running else [])
        self.random.choice(choices)()
        books = self.memory.audit()
        assert books.free_blocks + books.held_blocks + books.request_blocks == BLOCKS


@pytest.mark.parametrize("seed", range(60))
def test_the_books_add_up_whatever_is_done(seed: int) -> None:
    world = World(seed)
    for _ in range(300):
        world.step()
    for request in world.running:
        world.memory.end(request)
    for place in range(6):
        world.memory.forget(f"c{place}")
    books = world.memory.audit()
    assert (books.free_blocks, books.held_contexts) == (BLOCKS, ())
    assert world.memory.free_tokens == BLOCKS * SIZE
    assert world.memory.held_tokens == 0


def request(tokens: bytes, context_id: str = "c", **options: object) -> KvRequest:
    made = KvRequest(context_id, "", array("I", list(tokens)), len(tokens), "")
    for name, value in options.items():
        setattr(made, name, value)
    return made


def run(memory: KvMemory, one: KvRequest, *, hold: bool = False) -> int:
    """Computes all of a request; returns what was there before."""
    assert memory.begin(one, len(one.tokens))
    found = one.computed
    assert memory.grow(one, len(one.tokens))
    memory.compute(one, len(one.tokens))
    memory.end(one, hold=hold)
    return found


def test_a_cached_prompt_loses_its_end_before_its_beginning() -> None:
    memory = KvMemory(4, SIZE)
    run(memory, request(b"aaaabbbbcccc"))
    run(memory, request(b"xxxxyyyy"))
    assert run(memory, request(b"aaaabbbbccccd")) == 8


def test_two_that_compute_the_same_leave_one_in_the_cache() -> None:
    memory = KvMemory(8, SIZE)
    left, right = request(b"aaaabbbb", "l"), request(b"aaaabbbb", "r")
    assert memory.begin(left, 4)
    assert memory.begin(right, 4)
    for one in (left, right):
        assert memory.grow(one, 8)
        memory.compute(one, 8)
    for one in (left, right):
        memory.end(one)
    assert memory.audit().free_blocks == 8
    assert run(memory, request(b"aaaabbbbc")) == 8


def test_a_request_that_fills_the_memory_gives_the_tail_it_might_have_copied_up() -> None:
    memory = KvMemory(4, SIZE)
    run(memory, request(b"aaaabb"), hold=True)
    assert run(memory, request(b"aaaabbccccdddd" + b"ee")) == 4
    assert memory.audit().held_contexts == ()


def test_held_blocks_that_are_shared_count_once() -> None:
    memory = KvMemory(8, SIZE)
    run(memory, request(b"aaaabb", "p"), hold=True)
    run(memory, request(b"aaaabbcc", "q", parent_id="p"), hold=True)
    assert memory.held_tokens == 3 * SIZE


@pytest.mark.parametrize("book", ["_request_owners", "_held_owners", "_in_requests", "_free", "_cached"])
def test_books_that_do_not_add_up_are_found(book: str) -> None:
    memory = KvMemory(8, SIZE)
    run(memory, request(b"aaaabb"), hold=True)
    kept = getattr(memory, book)
    if isinstance(kept, list):
        kept[0] += 1
    elif isinstance(kept, dict):
        kept.popitem()
    else:
        setattr(memory, book, kept + 1)
    with pytest.raises(IntegrityError):
        memory.audit()
