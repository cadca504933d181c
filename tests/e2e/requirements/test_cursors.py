"""Event ids are a cursor: on any gateway, what follows an id is what was not read yet."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.support.rig import BY_TEXT, Rig, call, text_of

pytestmark = pytest.mark.timeout(120)

WORDS = "".join(f"w{number:03d} " for number in range(500))


@pytest.fixture(scope="module")
def streamed(rig: Rig) -> str:
    """A session with a variable of 500 chunks that came without delay."""
    rig.upstreams[BY_TEXT].script("words", {"text": "w{n:03d} ", "repeat": 500})
    session = rig.open()
    rig.submit(session, call("words", output="words", sampling={"max_tokens": 600}))
    assert rig.read(session, "words")["value"] == WORDS
    rig.set(session, "other", "another text")
    return session


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 498, 499])
def test_a_reader_that_is_cut_goes_on_at_the_other_gateway(rig: Rig, count: int) -> None:
    name = f"slow-{count}"
    rig.upstreams[BY_TEXT].script(name, {"text": "w{n:03d} ", "repeat": 500})
    session = rig.open()
    assert rig.submit(session, call(name, output="words", sampling={"max_tokens": 600})).status_code == 201
    first = list(islice(rig.stream(session, "words"), count))
    last_id = first[-1].id if first else ""
    rest = list(rig.stream(session, "words", last_id, gateway=1))
    assert text_of(first) + text_of(rest) == WORDS
    assert rest[-1].event == "done"


def test_an_id_of_the_end_delivers_the_end_at_once(rig: Rig, streamed: str) -> None:
    end = list(rig.stream(streamed, "words"))[-1]
    for gateway in (0, 1):
        assert [event.event for event in rig.stream(streamed, "words", end.id, gateway)] == ["done"]


@pytest.mark.parametrize(
    "given", ["-1", "9999999", "abc", "words:", "words:-1", "words:1e3", "words:9999999"]
)
def test_what_is_no_id_of_the_stream_is_refused(rig: Rig, streamed: str, given: str) -> None:
    for gateway in (0, 1):
        with rig.streaming(streamed, "words", given, gateway) as (answer, _):
            problem = answer.read()
            assert answer.status_code == 400, problem
            assert b"Last-Event-ID" in problem


def test_an_id_of_another_stream_is_refused(rig: Rig, streamed: str) -> None:
    elsewhere = rig.open()
    rig.set(elsewhere, "words", WORDS)
    of_another_variable = list(rig.stream(streamed, "other"))[-1].id
    of_another_session = list(rig.stream(elsewhere, "words"))[-1].id
    for foreign in (of_another_variable, of_another_session):
        for gateway in (0, 1):
            with rig.streaming(streamed, "words", foreign, gateway) as (answer, _):
                assert answer.status_code == 400
