"""What gateways send is checked by itself, and without keeping others waiting."""

from __future__ import annotations

import threading

import pytest
from tests.support.manager import call

from parrot_manager import requests
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


def batch_of(*calls: manager_pb2.NewCall) -> manager_pb2.SubmitCallsRequest:
    """A request that submits calls."""
    return manager_pb2.SubmitCallsRequest(calls=calls)


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
    parse = requests.parse

    def note(request: manager_pb2.SubmitCallsRequest) -> requests.Submitted:
        threads.append(threading.current_thread())
        return parse(request)

    monkeypatch.setattr(requests, "parse", note)
    assert len((await requests.parsed(batch_of(*batch))).calls) == len(batch)
    assert (threads == [threading.current_thread()]) is inline


async def test_what_is_wrong_is_told_from_either_place() -> None:
    for size in (limits.GUIDE_BYTES + 1, 4 * limits.GUIDE_BYTES):
        with pytest.raises(Fault) as caught:
            await requests.parsed(batch_of(call("fine", [], ["b"]), guided(size)))
        assert (caught.value.kind, caught.value.field) == (errors.TOO_LARGE, "calls[1].a.guide.grammar")
    wrong = call("one", ["x"], ["a"])
    wrong.segments[1].input.transforms.append("nothing")
    with pytest.raises(Fault) as caught:
        await requests.parsed(batch_of(wrong))
    assert (caught.value.kind, caught.value.field) == (errors.INVALID_REQUEST, "calls[0].x.transforms[0]")


async def test_a_batch_brings_only_so_many_patterns() -> None:
    def patterned(place: int) -> manager_pb2.NewCall:
        made = call("one", [], ["a"])
        made.segments[-1].output.transforms.append(f"regex:a{place % limits.BATCH_PATTERNS}")
        return made

    await requests.parsed(batch_of(*(patterned(place) for place in range(500))))
    last = patterned(0)
    last.segments[-1].output.transforms.append("regex:b")
    with pytest.raises(Fault, match="65 patterns"):
        await requests.parsed(batch_of(*(patterned(place) for place in range(500)), last))


def test_a_sampling_that_says_nothing_is_in_order() -> None:
    made = call("one", [], ["a"])
    made.segments[-1].output.sampling.CopyFrom(common_pb2.Sampling())
    (parsed,) = requests.parse(batch_of(made)).calls
    assert [edge.name for edge in parsed.outputs] == ["a"]
