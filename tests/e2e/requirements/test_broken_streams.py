"""A stream that breaks says so: it never ends as if all had been said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.rig import BY_TEXT, Rig, call, text_of

pytestmark = pytest.mark.timeout(120)

PIECES = [{"text": piece} for piece in ("The harbour ", "opens ", "at ", "dawn ", "and ")]
SAID = "The harbour opens at dawn and "
BREAKS: dict[str, list[dict[str, Any]]] = {
    "reset": [*PIECES, {"reset": True}],
    "hang": [*PIECES, {"wait_s": 60}],
    "error": [*PIECES, {"error": {"message": "out of memory", "code": 500}}],
    "closed": [*PIECES, {"close": True}],
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_broken_output_is_told_to_readers_and_to_what_depends_on_it(rig: Rig, kind: str) -> None:
    rig.upstreams[BY_TEXT].script(f"broken-{kind}", *BREAKS[kind])
    rig.upstreams[BY_TEXT].script("never", {"text": "never"})
    session = rig.open()
    calls = [call(f"broken-{kind}", output="first"), call("never", "first", output="second")]
    assert rig.submit(session, *calls).status_code == 201
    events = list(rig.stream(session, "first"))
    assert [event.event for event in events].count("error") == 1
    assert events[-1].event == "error"
    # What was streamed stands; what the break cut off may be missing, and nothing was made up.
    assert SAID.startswith(text_of(events))
    problem = json.loads(events[-1].data)
    first, second = rig.read(session, "first"), rig.read(session, "second")
    assert (first["state"], first["value"]) == ("failed", None)
    assert first["error"]["type"] == problem["type"]
    assert isinstance(problem["may_retry"], bool)
    assert second["error"]["type"].endswith(":upstream_failed")
    assert second["error"]["cause_call_id"] == "c-1"
    assert second["error"]["cause_type"] == problem["type"]
    made, skipped = rig.graph(session)["calls"]
    assert (made["state"], skipped["state"]) == ("failed", "failed")
    assert skipped["usage"]["output_tokens"] == 0
    assert [event.event for event in rig.stream(session, "second")] == ["error"]


def test_before_the_first_word_a_refusal_is_the_calls_failure(rig: Rig) -> None:
    marker = "what-the-upstream-said"
    refusal = {"status": 400, "body": {"error": {"message": f"{marker} " + "x" * 20_000}}}
    rig.upstreams[BY_TEXT].script("refused", refusal)
    session = rig.open()
    rig.submit(session, call("refused", output="out"))
    failed = rig.read(session, "out")
    assert failed["state"] == "failed"
    # A long reason is cut, and still says what it is about.
    assert marker in failed["error"]["detail"]
    assert len(failed["error"]["detail"]) <= 2048
    assert [event.event for event in rig.stream(session, "out")] == ["error"]


def test_an_unknown_variable_is_an_answer_of_its_own_before_any_stream(rig: Rig) -> None:
    with rig.streaming(rig.open(), "nothing") as (answer, _):
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
