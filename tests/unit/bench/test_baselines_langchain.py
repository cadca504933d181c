"""An application as a LangChain program: the same calls, in runnables."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.prompts import PromptTemplate

from parrot_bench.graphs import Call, Ref, Segment, Text
from parrot_bench.systems.langchain import composed, independent, template

pytestmark = pytest.mark.anyio


def call(name: str, *reads: str) -> Call:
    """A call that reads others."""
    segments: list[Segment] = [Text(name), *(Ref(read) for read in reads)]
    return Call(name, tuple(segments), 1)


@st.composite
def graphs(draw: st.DrawFn) -> list[Call]:
    """Any graph of up to twelve calls."""
    count = draw(st.integers(1, 12))
    chance = random.Random(draw(st.integers()))
    density = draw(st.floats(0, 1))
    return [call(f"c{n}", *(f"c{m}" for m in range(n) if chance.random() < density)) for n in range(count)]


@given(
    st.text() | st.sampled_from(["{", "}", "{}", "{{x}}", "{a!r}", "{0}", "%s", "${x}", "{a:{b}}", "\x00"]),
    st.text(),
)
def test_a_prompt_is_the_exact_text_whatever_stands_in_it(text: str, value: str) -> None:
    read = Call("c", (Text(f"x{text}"), Ref("a"), Text(text)), 1)
    prompt = PromptTemplate(template=template(read), input_variables=["a"])
    assert prompt.invoke({"a": value, "b": "not read"}).to_string() == read.render({"a": value})


@given(graphs())
def test_parts_read_nothing_of_one_another_and_can_be_parted_no_further(calls: list[Call]) -> None:
    parts = independent(calls)
    place = {each.name: number for number, part in enumerate(parts) for each in part}
    assert sorted(place) == sorted(each.name for each in calls)
    assert all(place[read] == place[each.name] for each in calls for read in each.reads)
    for part in parts:
        together = {part[0].name}
        for _ in part:
            for each in part:
                if together & {each.name, *each.reads}:
                    together |= {each.name, *each.reads}
        assert together == {each.name for each in part}


@given(graphs())
def test_a_program_makes_each_call_once_with_what_it_reads(calls: list[Call]) -> None:
    made: list[str] = []

    async def ask(call: Call, prompt: object) -> str:
        made.append(call.name)
        return f"<{prompt.to_string()}>"  # type: ignore[attr-defined]

    expected: dict[str, str] = {}
    for each in calls:
        expected[each.name] = f"<{each.render(expected)}>"
    assert asyncio.run(composed(calls, ask).ainvoke({})) == expected
    assert sorted(made) == sorted(expected)


async def test_a_long_chain_is_a_program_too() -> None:
    calls = [call("c0"), *(call(f"c{n}", f"c{n - 1}") for n in range(1, 300))]

    async def ask(call: Call, prompt: object) -> str:
        return call.name

    assert len(await composed(calls, ask).ainvoke({})) == 300
