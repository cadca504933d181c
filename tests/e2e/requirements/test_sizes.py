"""One size limit, known at the door; below it everything works through every plane."""

from __future__ import annotations

import pytest
from tests.support.rig import BY_TEXT, Rig, call, text_of

from parrot_runtime import limits

pytestmark = pytest.mark.timeout(180)

MARK = "lorem-ipsum-0001 "
SIZES = (1_000_000, 1_048_575, 1_048_576, 1_048_577, 5_000_000)


def text(unit: str, size_bytes: int) -> str:
    """So many bytes of a repeated text; a rest that is no character is made of dots."""
    width = len(unit.encode())
    whole = unit * (size_bytes // width)
    return whole + "." * (size_bytes - len(whole.encode()))


@pytest.mark.parametrize("unit", [MARK, "漢"])
@pytest.mark.parametrize("size", SIZES)
def test_a_value_below_the_limit_reaches_its_reader_whole(rig: Rig, unit: str, size: int) -> None:
    rig.upstreams[BY_TEXT].script("taken", {"text": "taken"})
    session = rig.open()
    value = text(unit, size)
    assert rig.set(session, "x", value).status_code == 200
    assert rig.submit(session, call("taken", "x", output="out")).status_code == 201
    assert rig.read(session, "out", wait_s=60)["value"] == "taken"
    assert rig.upstreams[BY_TEXT].prompts()[-1] == f"script:taken {value} "
    assert rig.read(session, "x")["value"] == value


def test_a_value_above_the_limit_is_refused_at_once_and_nothing_of_it_is_kept(rig: Rig) -> None:
    session = rig.open()
    answer = rig.set(session, "x", "x" * (limits.VALUE_BYTES + 1))
    problem = answer.json()
    assert (answer.status_code, problem["field"]) == (413, "value")
    assert f"{limits.VALUE_BYTES + 1:,}" in problem["detail"]
    assert f"{limits.VALUE_BYTES:,}" in problem["detail"]
    assert rig.set(session, "x", "x" * limits.VALUE_BYTES).status_code == 200


def test_a_batch_beyond_the_rpcs_usual_limit_is_taken_whole(rig: Rig) -> None:
    rig.upstreams[BY_TEXT].script("one-of-many", {"text": "done"})
    session = rig.open()
    long = text(MARK, 15_000)
    calls = [call("one-of-many", output=f"out_{number}") for number in range(400)]
    for each in calls:
        each["prompt"] = long + each["prompt"]
    assert sum(len(each["prompt"]) for each in calls) > 6_000_000
    assert rig.submit(session, *calls).status_code == 201
    assert {rig.read(session, f"out_{number}", wait_s=60)["value"] for number in range(400)} == {"done"}
    assert {each["state"] for each in rig.graph(session)["calls"]} == {"done"}


def test_an_output_beyond_a_bus_message_comes_whole(rig: Rig) -> None:
    piece = text(MARK, 1_000)
    rig.upstreams[BY_TEXT].script("much", *({"text": piece} for _ in range(1_500)))
    rig.upstreams[BY_TEXT].script("taken", {"text": "taken"})
    session = rig.open()
    calls = [call("much", output="long", sampling={"max_tokens": 2_000}), call("taken", "long", output="out")]
    assert rig.submit(session, *calls).status_code == 201
    assert text_of(list(rig.stream(session, "long"))) == piece * 1_500
    assert rig.read(session, "out", wait_s=60)["value"] == "taken"
    assert rig.upstreams[BY_TEXT].prompts()[-1] == f"script:taken {piece * 1_500} "


def test_no_log_carries_a_text(rig: Rig) -> None:
    assert MARK.strip() not in rig.logs()
