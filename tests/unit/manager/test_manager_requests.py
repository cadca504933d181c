"""What gateways send is checked by itself, and without keeping others waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from tests.support.manager import call

from parrot_manager import requests
from parrot_manager.core.admission import NewCall
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


def guided(size: int) -> manager_pb2.NewCall:
    """A call whose output has a guide of so many bytes."""
    made = call("one", [], ["a"])
    made.segments[-1].output.sampling.guide.grammar = "a" * size
    return made


@pytest.mark.parametrize(
    ("batch", "inline"),
    [([guided(10)], True), ([guided(40_000)], True), ([guided(40_000)] * 2, False)],
)
async def test_what_takes_long_to_check_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, batch: list[manager_pb2.NewCall], inline: bool
) -> None:
    threads: list[threading.Thread] = []
    parse = requests.parse_calls

    def note(messages: Sequence[manager_pb2.NewCall]) -> list[NewCall]:
        threads.append(threading.current_thread())
        return parse(messages)

    monkeypatch.setattr(requests, "parse_calls", note)
    assert len(await requests.parsed_calls(batch)) == len(batch)
    assert (threads == [threading.current_thread()]) is inline


async def test_what_is_wrong_is_told_from_either_place() -> None:
    for size in (limits.GUIDE_BYTES + 1, 4 * limits.GUIDE_BYTES):
        with pytest.raises(Fault) as caught:
            await requests.parsed_calls([call("fine", [], ["b"]), guided(size)])
        assert (caught.value.kind, caught.value.field) == (errors.TOO_LARGE, "calls[1].a.guide.grammar")
    wrong = call("one", ["x"], ["a"])
    wrong.segments[1].input.transforms.append("nothing")
    with pytest.raises(Fault) as caught:
        await requests.parsed_calls([wrong])
    assert (caught.value.kind, caught.value.field) == (errors.INVALID_REQUEST, "calls[0].x.transforms[0]")


async def test_a_batch_brings_only_so_many_patterns() -> None:
    def patterned(place: int) -> manager_pb2.NewCall:
        made = call("one", [], ["a"])
        made.segments[-1].output.transforms.append(f"regex:a{place % limits.BATCH_PATTERNS}")
        return made

    await requests.parsed_calls([patterned(place) for place in range(500)])
    last = patterned(0)
    last.segments[-1].output.transforms.append("regex:b")
    with pytest.raises(Fault, match="65 patterns"):
        await requests.parsed_calls([*(patterned(place) for place in range(500)), last])


def test_a_sampling_that_says_nothing_is_in_order() -> None:
    made = call("one", [], ["a"])
    made.segments[-1].output.sampling.CopyFrom(common_pb2.Sampling())
    (parsed,) = requests.parse_calls([made])
    assert [edge.name for edge in parsed.outputs] == ["a"]
