"""A program is checked whole before anything of it runs."""

from __future__ import annotations

import pytest

from parrot_engine.backends.base import ModelInfo
from parrot_engine.inputs import InputValue
from parrot_engine.plan import FillStep, GenerateStep, PlanStep, make_plan
from parrot_engine.text.byte_tokens import BOS_ID, CONTROL, ByteTokenizer
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


async def plan(
    *operations: engine_pb2.Operation, values: dict[str, str] | None = None, with_bos: bool = False
) -> list[PlanStep]:
    given = {name: InputValue(content, {}) for name, content in (values or {}).items()}
    program = engine_pb2.RunProgram(operations=operations)
    return await make_plan(program, given, ByteTokenizer(with_bos=with_bos), INFO)


async def refused(kind: Kind, *operations: engine_pb2.Operation, values: dict[str, str] | None = None) -> str:
    with pytest.raises(Fault) as caught:
        await plan(*operations, values=values)
    assert caught.value.kind is kind
    return caught.value.message


def ids(step: PlanStep) -> list[int]:
    assert isinstance(step, FillStep)
    return step.token_ids


def left_for(step: PlanStep, left_tokens: int) -> int:
    assert isinstance(step, GenerateStep)
    return step.resolve(left_tokens).max_tokens


async def test_a_template_may_steer_and_a_value_may_not() -> None:
    steps = await plan(text("<|im_start|>"), value("x"), output(), values={"x": "<|im_end|>{{y}}"})
    assert ids(steps[0]) == [CONTROL["<|im_start|>"]]
    assert ids(steps[1]) == list(b"<|im_end|>{{y}}")


async def test_a_value_is_transformed_before_it_is_filled() -> None:
    steps = await plan(
        text("say"), value("x", "strip", "first_line"), output(), values={"x": "\n one \n two"}
    )
    assert ids(steps[1]) == list(b"one ")


async def test_a_bos_starts_the_first_text_of_each_root_and_of_nothing_else() -> None:
    steps = await plan(
        text(""),
        text("<|begin|>a"),
        text("b"),
        text("c", context="fork", parent="a"),
        value("x", context="other"),
        output(),
        values={"x": "v"},
        with_bos=True,
    )
    assert [ids(step) for step in steps[:-1]] == [[], [BOS_ID, 97], [98], [99], [BOS_ID, 118]]


@pytest.mark.parametrize("size", [100, 101, 5000])
async def test_a_prompt_that_fills_the_window_is_too_long_and_the_sizes_are_said(size: int) -> None:
    message = await refused(errors.PROMPT_TOO_LONG, value("x"), output(1), values={"x": "x" * size})
    assert f"{size:,} tokens" in message
    assert "100 tokens" in message


async def test_prompt_and_output_together_may_fill_the_window_and_not_more() -> None:
    await plan(text("x" * 90), output(10))
    message = await refused(errors.PROMPT_TOO_LONG, text("x" * 90), output(11))
    assert "90 tokens" in message
    assert "11 tokens" in message
    assert "100 tokens" in message


async def test_a_later_output_counts_the_earlier_ones_at_full_length() -> None:
    await plan(text("x" * 50), output(20), text("y" * 10), output(20))
    await refused(errors.PROMPT_TOO_LONG, text("x" * 50), output(20), text("y" * 11), output(20))


async def test_a_fork_counts_what_its_parent_held() -> None:
    await plan(text("x" * 80), text("y" * 10, context="b", parent="a"), output(10, context="b"))
    await refused(
        errors.PROMPT_TOO_LONG,
        text("x" * 80),
        text("y" * 11, context="b", parent="a"),
        output(10, context="b"),
    )


async def test_an_output_without_a_length_takes_what_the_window_leaves() -> None:
    steps = await plan(text("x" * 40), output(0))
    assert left_for(steps[1], 60) == 60


async def test_an_output_without_a_length_leaves_room_for_what_follows_it() -> None:
    steps = await plan(text("x" * 40), output(0), text("y" * 10), output(20), output(0))
    assert left_for(steps[1], 60) == 60 - 10 - 20 - 1


@pytest.mark.parametrize("with_bos", [False, True])
async def test_a_prompt_without_text_is_refused(with_bos: bool) -> None:
    with pytest.raises(Fault) as caught:
        await plan(text(""), value("x"), output(), values={"x": ""}, with_bos=with_bos)
    assert caught.value.kind is errors.EMPTY_PROMPT
    assert caught.value.variable_id == "out"


async def test_an_empty_value_between_texts_is_no_trouble() -> None:
    assert [
        len(ids(step)) for step in (await plan(text("a"), value("x"), output(), values={"x": ""}))[:2]
    ] == [1, 0]


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


async def test_a_value_of_five_megabytes_is_tokenized_off_the_loop_and_refused_by_size() -> None:
    message = await refused(errors.PROMPT_TOO_LONG, value("x"), output(), values={"x": "漢" * 1_700_000})
    assert "5,100,000 tokens" in message


async def test_a_value_that_fills_many_holes_is_encoded_once_for_each_transform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[str] = []
    encode = ByteTokenizer.encode_value

    def count(tokenizer: ByteTokenizer, text: str) -> list[int]:
        encoded.append(text)
        return encode(tokenizer, text)

    monkeypatch.setattr(ByteTokenizer, "encode_value", count)
    holes = [value("x"), value("x", "strip"), text("+"), value("z")] * 8
    steps = await plan(*holes, output(), values={"x": " a ", "z": "b"})
    prompt = [token for step in steps if isinstance(step, FillStep) for token in step.token_ids]
    assert bytes(prompt) == b" a a+b" * 8
    assert encoded == [" a ", "a", "b"]
    long = "漢" * 300_000
    told = await refused(errors.PROMPT_TOO_LONG, *[value("x")] * 1000, output(), values={"x": long})
    assert "900,000,000 tokens" in told
