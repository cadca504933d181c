"""A program is checked whole before anything of it runs."""

from __future__ import annotations

import pytest

from parrot_engine.backends.base import ModelInfo
from parrot_engine.programs.script import FillStep, GenerateStep, Script, read_script
from parrot_engine.programs.window import check_window, reserves, resolve
from parrot_engine.text.byte_tokens import CONTROL, ByteTokenizer
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault, Kind

pytestmark = pytest.mark.anyio

INFO = ModelInfo(
    model="sim",
    context_window_tokens=100,
    backend="sim",
    version="1",
    dtype="none",
    kv_tokens=1000,
    block_tokens=32,
    capacity=4,
)


def text(content: str, context: str = "a", parent: str = "") -> engine_pb2.Operation:
    fill = engine_pb2.Fill(context_id=context, parent_context_id=parent, template_text=content)
    return engine_pb2.Operation(fill=fill)


def value(variable_id: str, *transforms: str, context: str = "a") -> engine_pb2.Operation:
    source = engine_pb2.VariableSource(variable_id=variable_id, transforms=transforms)
    return engine_pb2.Operation(fill=engine_pb2.Fill(context_id=context, variable=source))


def output(
    max_tokens: int = 10, *transforms: str, context: str = "a", parent: str = "", **sampling: object
) -> engine_pb2.Operation:
    made = common_pb2.Sampling(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    sink = engine_pb2.VariableSink(variable_id="out", transforms=transforms)
    return engine_pb2.Operation(
        generate=engine_pb2.Generate(context_id=context, parent_context_id=parent, sampling=made, output=sink)
    )


async def check(
    *operations: engine_pb2.Operation, values: dict[str, str] | None = None, with_bos: bool = False
) -> Script:
    """The script of a program, checked with the values that are known."""
    tokenizer = ByteTokenizer(with_bos=with_bos)
    script = await read_script(engine_pb2.RunProgram(operations=operations), tokenizer)
    check_window(script, sizes(script, values), tokenizer, INFO)
    return script


def sizes(script: Script, values: dict[str, str] | None) -> dict[bytes, int]:
    known = values or {}
    return {
        part.key: len(known[part.source.variable_id].encode())
        for part in script.parts()
        if part.source is not None and part.source.variable_id in known
    }


async def refused(kind: Kind, *operations: engine_pb2.Operation, values: dict[str, str] | None = None) -> str:
    with pytest.raises(Fault) as caught:
        await check(*operations, values=values)
    assert caught.value.kind is kind
    return caught.value.message


def longest(script: Script, place: int, left_tokens: int) -> int:
    step = script.steps[place]
    assert isinstance(step, GenerateStep)
    return resolve(step, left_tokens, reserves(script, {})[place]).max_tokens


@pytest.mark.parametrize("size", [100, 101, 5000])
async def test_a_prompt_that_fills_the_window_is_too_long_and_the_sizes_are_said(size: int) -> None:
    message = await refused(errors.PROMPT_TOO_LONG, value("x"), output(1), values={"x": "x" * size})
    assert f"{size:,} tokens" in message
    assert "100 tokens" in message


async def test_prompt_and_output_together_may_fill_the_window_and_not_more() -> None:
    await check(text("x" * 90), output(10))
    message = await refused(errors.PROMPT_TOO_LONG, text("x" * 90), output(11))
    assert "90 tokens" in message
    assert "11 tokens" in message
    assert "100 tokens" in message


async def test_a_later_output_counts_the_earlier_ones_at_full_length() -> None:
    await check(text("x" * 50), output(20), text("y" * 10), output(20))
    await refused(errors.PROMPT_TOO_LONG, text("x" * 50), output(20), text("y" * 11), output(20))


async def test_a_fork_counts_what_its_parent_held() -> None:
    await check(text("x" * 80), text("y" * 10, context="b", parent="a"), output(10, context="b"))
    await refused(
        errors.PROMPT_TOO_LONG,
        text("x" * 80),
        text("y" * 11, context="b", parent="a"),
        output(10, context="b"),
    )


@pytest.mark.parametrize("with_bos", [False, True])
async def test_a_prompt_without_text_is_refused(with_bos: bool) -> None:
    with pytest.raises(Fault) as caught:
        await check(text(""), value("x"), output(), values={"x": ""}, with_bos=with_bos)
    assert caught.value.kind is errors.EMPTY_PROMPT
    assert caught.value.variable_id == "out"


async def test_a_transform_nobody_knows_is_refused_on_inputs_and_outputs() -> None:
    await refused(errors.TRANSFORM_FAILED, text("a"), value("x", "rot13"), output(), values={"x": "v"})
    assert "strip" in await refused(errors.TRANSFORM_FAILED, text("a"), output(10, "rot13"))


async def test_a_sampling_out_of_range_is_refused_before_anything_runs() -> None:
    assert "top_p" in await refused(errors.INVALID_SAMPLING, text("a"), output(10, top_p=1.5))
    assert "min_tokens" in await refused(errors.INVALID_SAMPLING, text("a"), output(10, min_tokens=11))


async def test_a_program_that_is_not_well_formed_is_refused() -> None:
    await refused(errors.ENGINE_ERROR, text("a", parent="nowhere"), output())
    await refused(errors.ENGINE_ERROR, engine_pb2.Operation())
    await refused(errors.ENGINE_ERROR, engine_pb2.Operation(fill=engine_pb2.Fill(context_id="a")), output())


async def test_only_constant_text_is_public_and_may_steer() -> None:
    script = await check(text("<|im_start|>"), value("x"), output(), values={"x": "v"})
    template, hole = script.parts()
    assert (template.token_ids, template.private) == ((CONTROL["<|im_start|>"],), False)
    assert (hole.token_ids, hole.private) == ((), True)


async def test_an_output_without_a_length_takes_what_the_window_leaves() -> None:
    assert longest(await check(text("x" * 40), output(0)), 1, 60) == 60


async def test_an_output_without_a_length_leaves_room_for_what_follows_it() -> None:
    script = await check(text("x" * 40), output(0), text("y" * 10), output(20), output(0))
    assert longest(script, 1, 60) == 60 - 10 - 20 - 1


async def test_what_is_not_known_yet_counts_nothing_and_is_no_empty_prompt() -> None:
    script = await check(value("x"), output(10))
    assert sizes(script, {"x": "v" * 91}) == {next(iter(script.parts())).key: 91}
    await refused(errors.PROMPT_TOO_LONG, value("x"), output(10), values={"x": "v" * 91})
    await refused(errors.EMPTY_PROMPT, value("x"), output(10), values={"x": ""})


async def test_a_bos_counts_once_for_each_root_and_only_where_there_is_text() -> None:
    await check(text(""), text("x" * 89), output(10), with_bos=True)
    await check(text("<|begin|>" + "x" * 89), output(10), with_bos=True)
    for first in (text("x" * 90), text("<|begin|>" + "x" * 90)):
        with pytest.raises(Fault) as caught:
            await check(text(""), first, output(10), with_bos=True)
        assert caught.value.kind is errors.PROMPT_TOO_LONG


async def test_an_output_whose_context_is_used_later_is_marked() -> None:
    script = await check(
        text("a"), output(5), text("b"), output(5), text("c", context="b", parent="a"), output(5, context="b")
    )
    marks = [step.continued for step in script.steps if isinstance(step, GenerateStep)]
    assert marks == [True, True, False]


async def test_what_was_streamed_before_counts_against_the_length() -> None:
    operation = output(10, stop=["x"])
    operation.generate.streamed_text = "already"
    script = await check(text("a"), operation)
    step = script.steps[1]
    assert isinstance(step, GenerateStep)
    assert bytes(step.resumed) == b"already"
    sampling = resolve(step, 50, 0)
    assert (sampling.max_tokens, sampling.resumed) == (3, "already")


@pytest.mark.parametrize(
    "sampling", [{"temperature": 1.0, "seed": 1}, {"presence_penalty": 0.5}, {"repetition_penalty": 1.2}]
)
async def test_what_cannot_go_on_as_it_would_have_is_refused_openly(sampling: dict[str, object]) -> None:
    operation = output(10, **sampling)  # type: ignore[arg-type]
    operation.generate.streamed_text = "already"
    assert "can't go on" in await refused(errors.NOT_RESUMABLE, text("a"), operation)
    operation.generate.streamed_text = ""
    await check(text("a"), operation)


async def test_sampling_reaches_the_backend_as_it_was_asked_for() -> None:
    asked = output(
        10,
        min_p=0.1,
        logit_bias={7: -1.5},
        stop_token_ids=[3],
        logprobs=0,
        guide=common_pb2.Guide(choice=common_pb2.Choice(texts=["a", "b"])),
    )
    script = await check(text("a"), asked)
    step = script.steps[1]
    assert isinstance(step, GenerateStep)
    sampling = resolve(step, 50, 0)
    assert (sampling.min_p, dict(sampling.logit_bias), sampling.stop_token_ids) == (0.1, {7: -1.5}, (3,))
    assert (sampling.logprobs, sampling.prompt_logprobs) == (0, None)
    assert sampling.guide is not None
    assert sampling.guide.choices == ("a", "b")


async def test_chat_is_filled_in_segments_whose_template_is_public() -> None:
    chat = engine_pb2.Chat(
        messages=[
            engine_pb2.ChatMessage(role="system", constant="Be brief. <|im_end|>"),
            engine_pb2.ChatMessage(role="user", text="Hi <|im_end|>"),
        ],
        add_generation_prompt=True,
    )
    operation = engine_pb2.Operation(fill=engine_pb2.Fill(context_id="a", chat=chat))
    script = await read_script(engine_pb2.RunProgram(operations=[operation, output()]), ByteTokenizer())
    step = script.steps[0]
    assert isinstance(step, FillStep)
    contents = [
        part for part in step.parts if bytes(token % 256 for token in part.token_ids).endswith(b"end|>")
    ]
    assert [part.private for part in contents] == [False, True]
    assert all(CONTROL["<|im_end|>"] not in part.token_ids for part in contents)
    assert CONTROL["<|im_start|>"] in step.parts[0].token_ids
