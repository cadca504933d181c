"""The SDK's parts: event parsing, batches, trace context, the cost of importing it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parrot as P
from parrot import trace
from parrot.batch import BATCH_BYTES, BATCH_CALLS, Pending, requests
from parrot.nodes import Call
from parrot.sse import Event, Parser

STREAM = (
    ": alive\n\nid: v:3\nevent: delta\ndata: é漢\n\r\n: alive\r\n\r\n"
    "data: two\ndata: lines\n\nretry: 5\nevent: dropped\n\nevent: done\ndata:{}\n\nevent: cut\ndata: off"
).encode()
EVENTS = [Event("delta", "é漢", "v:3"), Event("message", "two\nlines", "v:3"), Event("done", "{}", "v:3")]


@given(st.lists(st.integers(1, len(STREAM)), max_size=20))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    parser, found, start = Parser(), list[Event](), 0
    for end in [*sorted(cuts), len(STREAM)]:
        found += parser.feed(STREAM[start:end])
        start = end
    assert found == EVENTS


def make(
    pending: Pending, session: Any, output: str, **inputs: str | P.SemanticVariable
) -> P.SemanticVariable:
    """A call of one output."""
    made = P.variable(output)
    pending.add(Call("f", "", "template", inputs, {"y": made}, {"y": {}}), session)
    return made


def test_a_batch_carries_each_known_value_once() -> None:
    pending, session = Pending(), object()
    text = P.variable("doc", "long")
    first = make(pending, session, "a", x=text)
    make(pending, session, "b", x=text, z=first)
    calls, values = pending.take()
    (request,) = requests(calls, values)
    assert request.body["variables"] == [{"semantic_var_id": text.id, "value": "long", "name": "doc"}]
    assert [len(call["placeholders"]) for call in request.body["calls"]] == [2, 3]
    pending.confirm(request.values)
    make(pending, session, "c", x=text)
    calls, values = pending.take()
    assert (len(calls), values) == (1, [])


def test_calls_wait_for_variables_that_nobody_set() -> None:
    pending, session = Pending(), object()
    question = P.variable("question")
    held = make(pending, session, "a", x=question)
    after = make(pending, session, "b", x=held)
    free = make(pending, session, "c", x="text")
    calls, _ = pending.take()
    assert [call.outputs["y"] for call in calls] == [free]
    assert pending.missing_for(after) is held
    assert pending.missing_for(held) is question
    question.set("why?")
    calls, values = pending.take()
    assert [call.outputs["y"] for call in calls] == [held, after]
    assert values == [question]


def test_calls_are_taken_as_they_were_made_and_never_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "__eq__", lambda call, other: pytest.fail("comparing is quadratic"))
    pending, session = Pending(), object()
    made = [make(pending, session, "0", x="text")]
    for place in range(1, 200):
        made.append(make(pending, session, str(place), x=made[place // 2]))
    calls, _ = pending.take()
    assert [call.outputs["y"].id for call in calls] == [output.id for output in made]
    assert pending.empty


def test_variables_stay_in_their_session_and_have_one_producer() -> None:
    pending, session = Pending(), object()
    made = make(pending, session, "a", x="text")
    with pytest.raises(P.SessionError, match="another session"):
        make(Pending(), object(), "b", x=made)
    again = Call("f", "", "t", {}, {"y": made}, {"y": {}})
    with pytest.raises(P.SessionError, match="call that makes it"):
        pending.add(again, session)  # type: ignore[arg-type]
    twin = P.variable()
    twice = Call("f", "", "t", {}, {"y": twin, "z": twin}, {"y": {}, "z": {}})
    with pytest.raises(P.SessionError, match="two outputs"):
        pending.add(twice, session)  # type: ignore[arg-type]
    with pytest.raises(P.SessionError, match="output of a call"):
        made.set("text")


def test_what_exceeds_a_request_travels_in_several() -> None:
    pending, session = Pending(), object()
    for _ in range(BATCH_CALLS + 1):
        make(pending, session, "y", x="a")
    assert [len(request.calls) for request in requests(*pending.take())] == [BATCH_CALLS, 1]
    shared = P.variable(content="b" * (BATCH_BYTES // 2))
    for _ in range(3):
        make(pending, session, "y", x="c" * (BATCH_BYTES // 3), z=shared)
    batch = list(requests(*pending.take()))
    assert [(r.method, len(r.calls), len(r.values)) for r in batch] == [
        ("PUT", 0, 1),
        ("POST", 2, 0),
        ("POST", 1, 0),
    ]


def test_a_session_has_one_trace_and_each_request_a_span_of_its_own() -> None:
    found = trace.start()
    first, second = found.traceparent().split("-"), found.traceparent().split("-")
    assert first[:2] == second[:2] == ["00", found.trace_id]
    assert first[2] != second[2]
    assert [len(part) for part in first] == [2, 32, 16, 2]


def test_an_application_that_traces_is_the_parent() -> None:
    from opentelemetry import trace as otel

    context = otel.SpanContext(trace_id=0xA, span_id=0xB, is_remote=False, trace_flags=otel.TraceFlags(0))
    with otel.use_span(otel.NonRecordingSpan(context)):
        found = trace.start()
    assert found.traceparent() == f"00-{0xA:032x}-{0xB:016x}-00"


def test_importing_it_is_cheap_and_brings_no_service() -> None:
    code = (
        "import sys, time; t = time.process_time(); import parrot; d = time.process_time() - t\n"
        "bad = {'httpx', 'torch', 'vllm', 'pydantic', 'grpc', 'nats', 'opentelemetry', 'fastapi',"
        " 'parrot_runtime', 'parrot_proto', 'parrot_gateway'} & set(sys.modules)\n"
        "print(d, sorted(bad))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds = min(float(run.stdout.split(" ", 1)[0]) for run in runs)
    assert runs[0].stdout.split(" ", 1)[1] == "[]\n"
    assert seconds < 0.2


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://a", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://127"):
        P.Session(url)
