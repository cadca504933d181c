"""The book of held KV and the table of contexts, without vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_engine.backends.base import ContextError
from parrot_engine.backends.contexts import ContextTable, output_tokens
from parrot_engine.backends.vllm.held import HeldContexts, common_prefix
from parrot_engine.text.byte_tokens import EOS_ID, ByteTokenizer

TOKENS = st.lists(st.integers(0, 2), max_size=60)


@dataclass(eq=False)
class _Block:
    block_id: int
    ref_cnt: int = 1


class _Pool:
    """As much of vLLM's block pool as the book uses."""

    def __init__(self) -> None:
        self.blocks: list[_Block] = []

    def new(self, count: int) -> list[_Block]:
        made = [_Block(len(self.blocks) + index) for index in range(count)]
        self.blocks += made
        return made

    def touch(self, blocks: Iterable[_Block]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Iterable[_Block]) -> None:
        for block in blocks:
            block.ref_cnt -= 1


@given(TOKENS, TOKENS, st.integers(0, 70))
def test_the_common_prefix_is_found_to_the_token(left: list[int], right: list[int], limit: int) -> None:
    length = common_prefix(left, right, limit)
    assert left[:length] == right[:length]
    at_end = length in (limit, len(left), len(right))
    assert at_end or left[length] != right[length]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_what_is_held_is_counted_once_whatever_is_shared(lengths: list[int]) -> None:
    pool = _Pool()
    book = HeldContexts(pool, 4)
    base = pool.new(3)
    for number, length in enumerate(lengths):
        own = pool.new(-(-length // 4))
        book.hold(f"c{number}", list(range(12 + length)), base + own)
    assert book.tokens == 12 + sum(lengths)
    assert book.blocks == 3 + sum(-(-length // 4) for length in lengths)
    book.let_go([f"c{number}" for number in range(len(lengths))])
    assert (book.tokens, book.blocks, len(book)) == (0, 0, 0)
    assert {block.ref_cnt for block in pool.blocks} == {1}


def test_a_hold_replaces_the_former_one_of_the_same_context() -> None:
    pool = _Pool()
    book = HeldContexts(pool, 4)
    old, new = pool.new(2), pool.new(2)
    book.hold("c", [1] * 8, old)
    book.hold("c", [1] * 9, [old[0], *new])
    assert [block.ref_cnt for block in old + new] == [2, 1, 2, 2]
    assert book.tokens == 9


def test_a_failed_use_of_a_context_leaves_its_tokens_and_its_tenant() -> None:
    table = ContextTable()
    with table.use("c", "") as context:
        context.append([1, 2])

    def fail() -> None:
        with table.use("c", "", "a") as context:
            context.append([3], "a")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with table.use("c", "", "b") as context:
        assert (context.tokens, context.tenant, context.public_tokens) == ([1, 2], "", 2)


def test_behind_the_first_private_token_all_are_and_no_other_tenants() -> None:
    table = ContextTable()
    with table.use("c", "") as context:
        context.append([1, 2])
        context.append([3], "a")
        context.append([4])
    with table.use("fork", "c") as fork:
        assert (fork.tokens, fork.tenant, fork.public_tokens) == ([1, 2, 3, 4], "a", 2)
    with pytest.raises(ContextError, match="another tenant"), table.use("c", "", "b"):
        pass
    with pytest.raises(ContextError, match="another tenant"), table.use("new", "c", "b"):
        pass
    assert "new" not in table


def test_a_fork_knows_the_nearest_context_up_the_line_whose_kv_was_held() -> None:
    table = ContextTable()
    with table.use("held", "") as context:
        context.held = True
    for name, parent in (("child", "held"), ("grandchild", "child")):
        with table.use(name, parent) as context:
            assert context.kv_parent_id == "held"


def test_the_token_that_ended_an_output_is_not_kept_even_if_it_is_an_ordinary_one() -> None:
    tokenizer = ByteTokenizer()
    assert output_tokens(tokenizer, [65, 66], "A", "stop") == [65]
    assert output_tokens(tokenizer, [65, EOS_ID], "A", "stop") == [65]
    assert output_tokens(tokenizer, [65, EOS_ID, 66], "AB", "length") == [65, 66]
