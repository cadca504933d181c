"""Which text is text: one rule for whatever comes in, and for whatever is generated."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.support.rig import BY_TEXT, Rig, call, text_of

pytestmark = pytest.mark.timeout(120)

HALVES = ["tail \ud83d", "\udc00 head", "a \udc00\ud83d b"]
KEPT = ["pre\0post", "😀 whole", "\u2028\u2029\x85\r\n\ufeff", ""]


@pytest.mark.parametrize("text", KEPT)
def test_text_is_kept_exactly(rig: Rig, text: str) -> None:
    session = rig.open()
    assert rig.set(session, "x", text).status_code == 200
    assert rig.read(session, "x")["value"] == text
    assert text_of(list(rig.stream(session, "x", gateway=1))) == text


def refused(answer: httpx.Response, field: str) -> None:
    """It names the field and the place, and nothing of it is kept."""
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (400, "urn:parrot:problem:invalid_text"), problem
    assert problem["field"] == field
    assert "character" in problem["detail"]


def sent(rig: Rig, method: str, path: str, body: Any) -> httpx.Response:
    """The answer to a body whose halves of characters are escapes."""
    content = json.dumps(body).encode()
    return rig.http.request(method, path, content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("half", HALVES)
def test_half_a_character_is_refused_wherever_it_stands(rig: Rig, half: str) -> None:
    session = rig.open()
    out = {"name": "out", "in_out": "out"}
    calls = f"/v1/sessions/{session}/calls"
    refused(sent(rig, "PUT", f"/v1/sessions/{session}/variables/x", {"value": half}), "value")
    refused(sent(rig, "POST", "/v1/sessions", {"label": half}), "label")
    bad: list[tuple[str, dict[str, Any]]] = [
        ("prompt", {"prompt": f"{half} {{{{out}}}}", "placeholders": [out]}),
        ("name", {"prompt": "{{out}}", "placeholders": [out], "name": half}),
        (
            "placeholders[0].sampling.stop[0]",
            {"prompt": "a {{out}}", "placeholders": [out | {"sampling": {"stop": [half]}}]},
        ),
        (
            "placeholders[0].transforms[0]",
            {"prompt": "a {{out}}", "placeholders": [out | {"transforms": [half]}]},
        ),
    ]
    for field, body in bad:
        refused(sent(rig, "POST", calls, body), field)
    refused(
        sent(rig, "POST", calls, {"calls": [], "variables": [{"semantic_var_id": "v", "value": half}]}),
        "variables[0].value",
    )
    assert rig.graph(session)["calls"] == []
    assert rig.http.get(f"/v1/sessions/{session}/variables/x").status_code == 404


def test_names_hold_no_control_characters_and_keys_are_visible_ascii(rig: Rig) -> None:
    answer = sent(rig, "POST", "/v1/sessions", {"label": "a\0b"})
    assert (answer.status_code, answer.json()["field"]) == (400, "label")
    for key in (b"a b", b"\xf0\x9f\x98\x80", b"k" * 201):
        answer = rig.http.post("/v1/sessions", headers={b"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["field"]) == (400, "Idempotency-Key")


def test_generated_text_never_keeps_another_from_being_committed(rig: Rig) -> None:
    rig.upstreams[BY_TEXT].script("zero", {"text": "left\0right"})
    rig.upstreams[BY_TEXT].script("plain", {"text": "plain"})
    session = rig.open()
    prompt = "script:zero {{y}} script:plain {{z}}"
    outs = [{"name": name, "in_out": "out", "semantic_var_id": name} for name in ("y", "z")]
    assert rig.submit(session, {"model": BY_TEXT, "prompt": prompt, "placeholders": outs}).status_code == 201
    assert rig.submit(session, call("plain", "y", output="reader")).status_code == 201
    assert rig.read(session, "y")["value"] == "left\0right"
    assert rig.read(session, "z")["value"] == "plain"
    assert rig.read(session, "reader")["value"] == "plain"
    assert text_of(list(rig.stream(session, "y"))) == "left\0right"
    assert "script:plain left\0right " in rig.upstreams[BY_TEXT].prompts()
