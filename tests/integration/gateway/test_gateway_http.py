"""The HTTP surface: what is right is accepted, what is wrong is named, and nothing is a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.support.fake_manager import FakeManager
from tests.support.gateway import RunningGateway

from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio

PROMPT = "Say {{x}}: {{y}}"
Y = {"name": "y", "in_out": "out"}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def new_session(http: httpx.AsyncClient) -> str:
    answer = await http.post("/v1/sessions", json={})
    assert answer.status_code == 201
    return f"/v1/sessions/{answer.json()['id']}"


def x(value: str) -> dict[str, Any]:
    return {"name": "x", "in_out": "in", "value": value}


def assert_problem(answer: httpx.Response, kind: errors.Kind, field: str = "") -> dict[str, Any]:
    """That the answer is a problem of this kind, about this field."""
    problem: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["type"]) == (kind.http, f"urn:parrot:problem:{kind.type}"), problem
    assert problem.get("field", "") == field, problem
    assert problem["status"] == kind.http
    return problem


async def test_a_batch_is_accepted_and_its_graph_is_seen(http: httpx.AsyncClient, fake: FakeManager) -> None:
    created = await http.post(
        "/v1/sessions", json={"label": "é", "timeout_s": 0.5}, headers={"traceparent": TRACEPARENT}
    )
    session = created.json()
    assert (session["label"], session["state"], session["trace_id"]) == ("é", "open", TRACEPARENT[3:35])
    assert session["deadline_unix_ms"] - session["created_unix_ms"] == 500
    path = f"/v1/sessions/{session['id']}"
    consumer = {"name": "x", "in_out": "in", "semantic_var_id": "made"}
    body = {
        "variables": [{"semantic_var_id": "doc", "value": "v", "name": "doc"}],
        "calls": [
            {
                "name": "f",
                "model": "sim",
                "prompt": PROMPT,
                "placeholders": [x("hello"), {**Y, "semantic_var_id": "made"}],
            },
            {"prompt": PROMPT, "placeholders": [consumer, Y]},
        ],
    }
    answer = await http.post(f"{path}/calls", json=body)
    assert answer.status_code == 201
    first, second = answer.json()["calls"]
    assert (first["id"], first["name"], second["id"]) == ("c-1", "f", "c-2")
    assert first["placeholders"][1] == {"name": "y", "in_out": "out", "semantic_var_id": "made"}
    graph = (await http.get(path)).json()
    assert graph["calls"][1]["inputs"] == [{"name": "x", "semantic_var_id": "made"}]
    assert {v["id"]: v["state"] for v in graph["variables"]}["doc"] == "ready"
    assert graph["calls"][0]["error"] is None
    assert (await http.delete(path)).json()["state"] == "cancelled"


async def test_a_call_that_is_done_says_where_its_time_went_and_what_made_it(
    http: httpx.AsyncClient, fake: FakeManager
) -> None:
    path = await new_session(http)
    output = {**Y, "semantic_var_id": "made", "sampling": {"logprobs": 2, "guide": {"choice": ["a", "b"]}}}
    await http.post(f"{path}/calls", json={"prompt": PROMPT, "placeholders": [x("a"), output]})
    (before,) = (await http.get(path)).json()["calls"]
    assert before["provenance"] is None
    fake.finish(path.rpartition("/")[2], "made", "a")
    (call,) = (await http.get(path)).json()["calls"]
    assert (call["timings"]["dynamic_prefill_ms"], call["timings"]["static_prefill_tokens"]) == (2.5, 0)
    made = call["provenance"]
    assert (made["engine"], made["dtype"], made["parrot_version"]) == ("e-1", "float32", "0.1")
    sampling = fake.batches[-1].calls[0].segments[-1].output.sampling
    assert (sampling.logprobs, list(sampling.guide.choice.texts)) == (2, ["a", "b"])


async def test_one_call_needs_no_list(http: httpx.AsyncClient) -> None:
    path = await new_session(http)
    answer = await http.post(f"{path}/calls", json={"prompt": PROMPT, "placeholders": [x("a"), Y]})
    assert [call["id"] for call in answer.json()["calls"]] == ["c-1"]


async def test_a_variable_is_set_and_read(http: httpx.AsyncClient) -> None:
    path = await new_session(http)
    for variable, value in (("a", ""), ("b", "pre\0post {{x}} 漢😀"), ("c", " \n")):
        put = await http.put(f"{path}/variables/{variable}", json={"value": value, "name": "n"})
        assert (put.status_code, put.json()["size_bytes"]) == (200, len(value.encode()))
        got = (await http.get(f"{path}/variables/{variable}")).json()
        assert (got["state"], got["value"], got["name"]) == ("ready", value, "n")
    again = await http.put(f"{path}/variables/a", json={"value": "b"})
    assert_problem(again, errors.VARIABLE_ALREADY_SET)


async def test_reading_waits_as_long_as_it_is_told(http: httpx.AsyncClient) -> None:
    path = await new_session(http)
    body = {"prompt": PROMPT, "placeholders": [x("a"), {**Y, "semantic_var_id": "y"}]}
    await http.post(f"{path}/calls", json=body)
    for wait_s in ("0", "0.05"):
        got = await http.get(f"{path}/variables/y", params={"wait_s": wait_s})
        assert (got.status_code, got.json()["state"], got.json()["value"]) == (200, "pending", None)
    for wait_s in ("-1", "301", "nan", "x", ""):
        answer = await http.get(f"{path}/variables/y", params={"wait_s": wait_s})
        assert_problem(answer, errors.INVALID_REQUEST, "wait_s")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"a"', b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b"9" * 5000, b"{} {}"],
)
async def test_a_body_that_is_none_is_a_400(http: httpx.AsyncClient, body: bytes) -> None:
    path = await new_session(http)
    headers = {"content-type": "application/json"}
    for method, target in (("POST", f"{path}/calls"), ("PUT", f"{path}/variables/v")):
        answer = await http.request(method, target, content=body, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["field"] == "body"


async def test_half_a_character_is_named_wherever_it_is(http: httpx.AsyncClient, fake: FakeManager) -> None:
    path = await new_session(http)
    sampling = {"stop": ["ok", "tail \ud83d"]}
    cases: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/sessions", {"label": "\udc00 head"}, "label"),
        ("PUT", f"{path}/variables/v", {"value": "tail \ud83d"}, "value"),
        ("PUT", f"{path}/variables/v", {"value": "", "name": "\ud83d"}, "name"),
        ("POST", f"{path}/calls", {"prompt": "\ud83d", "placeholders": []}, "prompt"),
        (
            "POST",
            f"{path}/calls",
            {"calls": [{"prompt": PROMPT, "placeholders": [x("\ud83d")]}]},
            "calls[0].placeholders[0].value",
        ),
        (
            "POST",
            f"{path}/calls",
            {"prompt": PROMPT, "placeholders": [x("a"), {**Y, "sampling": sampling}]},
            "placeholders[1].sampling.stop[1]",
        ),
        ("POST", f"{path}/calls", {"prompt": PROMPT, "name": "\udfff", "placeholders": []}, "name"),
    ]
    for method, target, body, field in cases:
        answer = await http.request(
            method, target, content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert "U+D" in assert_problem(answer, errors.INVALID_TEXT, field)["detail"]
    assert fake.batches == []


async def test_nul_and_braces_reach_the_manager_as_they_are(
    http: httpx.AsyncClient, fake: FakeManager
) -> None:
    path = await new_session(http)
    value = "\0{{y}} {{'{{'}} {1} <|im_end|> 漢\u2028"
    stop = {**Y, "sampling": {"stop": ["\0"]}}
    answer = await http.post(
        f"{path}/calls", json={"prompt": "a\0" + PROMPT, "placeholders": [x(value), stop]}
    )
    assert answer.status_code == 201
    batch = fake.batches[0]
    assert batch.values[0].value == value
    assert batch.calls[0].segments[0].text == "a\0Say "
    assert list(batch.calls[0].segments[-1].output.sampling.stop) == ["\0"]


@pytest.mark.parametrize("unit", ["lorem-ipsum-0001 ", "漢"])
async def test_a_value_of_any_size_below_the_limit_is_kept(http: httpx.AsyncClient, unit: str) -> None:
    path = await new_session(http)
    sizes = [1_000_000, 1_048_575, 1_048_576, 1_048_577, 5_000_000, limits.VALUE_BYTES]
    for size in sizes:
        value = unit * (size // len(unit.encode())) + "a" * (size % len(unit.encode()))
        put = await http.put(f"{path}/variables/v{size}", json={"value": value})
        assert put.json()["size_bytes"] == size
        assert (await http.get(f"{path}/variables/v{size}")).json()["value"] == value


async def test_what_exceeds_a_limit_is_refused_with_both_numbers(
    http: httpx.AsyncClient, fake: FakeManager
) -> None:
    path = await new_session(http)
    over = limits.VALUE_BYTES + 1
    answer = await http.put(f"{path}/variables/v", json={"value": "a" * over})
    problem = assert_problem(answer, errors.TOO_LARGE, "value")
    assert f"{over:,} bytes" in problem["detail"]
    assert f"{limits.VALUE_BYTES:,} bytes" in problem["detail"]
    call = {"prompt": "a" * limits.TEMPLATE_BYTES + PROMPT, "placeholders": [x("a"), Y]}
    assert_problem(await http.post(f"{path}/calls", json=call), errors.TOO_LARGE, "prompt")
    fits = {"prompt": "a" * 3_000_000 + PROMPT, "placeholders": [x("a"), Y]}
    assert (await http.post(f"{path}/calls", json={"calls": [fits] * 2})).status_code == 201
    batch = {"calls": [fits] * 12}
    whole = "the batch's templates, values, transforms and guides"
    assert_problem(await http.post(f"{path}/calls", json=batch), errors.TOO_LARGE, whole)
    assert len(fake.batches) == 1


async def test_a_body_beyond_the_limit_is_refused_and_the_answer_arrives(http: httpx.AsyncClient) -> None:
    path = await new_session(http)
    headers = {"content-type": "application/json"}
    answer = await http.put(f"{path}/variables/v", content=b" " * (limits.BODY_BYTES + 1), headers=headers)
    assert_problem(answer, errors.TOO_LARGE, "body")


async def test_paths_and_methods_that_are_not_there_are_problems(http: httpx.AsyncClient) -> None:
    path = await new_session(http)
    for target in (
        "/",
        "/v1/sessions/",
        "/v2/x",
        "/v1/sessions/s00-0123456789abcdef",
        "/v1/sessions/%00",
        "/v1/sessions/s99-0123456789abcdef",
        "/v1/sessions/é",
        f"{path}/variables/nobody",
        f"{path}/variables/a%20b",
        f"{path}/variables/nobody/stream",
    ):
        assert_problem(await http.get(target), errors.NOT_FOUND)
    refused = await http.patch("/v1/sessions")
    assert_problem(refused, errors.METHOD_NOT_ALLOWED)
    assert refused.headers["allow"] == "GET, POST"
    refused = await http.post(path, json={})
    assert "DELETE, GET" in assert_problem(refused, errors.METHOD_NOT_ALLOWED)["detail"]
    assert refused.headers["allow"] == "DELETE, GET"
    assert_problem(
        await http.put(f"{path}/variables/a%20b", json={"value": ""}),
        errors.INVALID_REQUEST,
        "semantic_var_id",
    )


@pytest.mark.parametrize("timeout_s", [0, -1, 86_401, "5", True, 10**400])
async def test_a_deadline_out_of_range_is_refused(http: httpx.AsyncClient, timeout_s: object) -> None:
    answer = await http.post("/v1/sessions", json={"timeout_s": timeout_s})
    assert_problem(answer, errors.INVALID_REQUEST, "timeout_s")


async def test_what_the_manager_refuses_reaches_the_client_whole(
    http: httpx.AsyncClient, fake: FakeManager
) -> None:
    path = await new_session(http)
    fake.refuse = Fault(errors.UNKNOWN_MODEL, "there is sim", field="calls[0].model", retry_after_ms=1500)
    answer = await http.post(
        f"{path}/calls", json={"calls": [{"prompt": PROMPT, "placeholders": [x("a"), Y]}]}
    )
    problem = assert_problem(answer, errors.UNKNOWN_MODEL, "calls[0].model")
    assert (problem["detail"], answer.headers["retry-after"]) == ("there is sim", "2")
    fake.refuse = Fault(errors.UNPRODUCED_VARIABLE, "nobody makes it", field="calls[0].x")
    answer = await http.post(f"{path}/calls", json={"prompt": PROMPT, "placeholders": [x("a"), Y]})
    assert_problem(answer, errors.UNPRODUCED_VARIABLE, "placeholders[0].semantic_var_id")


async def test_a_bug_is_a_500_that_tells_nothing(
    http: httpx.AsyncClient,
    fake: FakeManager,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake.bug = True
    problem = assert_problem(await http.post("/v1/sessions", json={}), errors.INTERNAL)
    assert "ZeroDivision" not in json.dumps(problem)
    fake.bug = False
    path = await new_session(http)
    monkeypatch.setattr("parrot_gateway.resources.graph", lambda found: 1 / 0)
    problem = assert_problem(await http.get(path), errors.INTERNAL)
    assert "division" not in json.dumps(problem)
    out, err = capfd.readouterr()
    assert "division by zero" in out + err


async def test_no_log_line_carries_a_text(http: httpx.AsyncClient, capfd: pytest.CaptureFixture[str]) -> None:
    path = await new_session(http)
    await http.put(f"{path}/variables/v", json={"value": "secret-value"})
    await http.post(f"{path}/calls", json={"prompt": "secret-prompt {{x", "placeholders": []})
    await http.get("/secret-path?q=secret-query")
    out, err = capfd.readouterr()
    assert "request" in out + err
    assert "secret" not in out + err


async def test_ready_means_that_manager_and_bus_answer(
    http: httpx.AsyncClient, manager: tuple[FakeManager, str], gateway: RunningGateway
) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ready"}
    manager[0].bug = True
    answer = await http.get("/readyz")
    problem = assert_problem(answer, errors.UNAVAILABLE)
    assert "manager" in problem["detail"]
    assert answer.headers["retry-after"] == "1"


async def test_models_and_engines_are_listed(http: httpx.AsyncClient) -> None:
    models = (await http.get("/v1/models")).json()
    assert (models["object"], models["data"][0]["id"], models["data"][0]["object"]) == (
        "list",
        "sim",
        "model",
    )
    (engine,) = (await http.get("/v1/engines")).json()["engines"]
    assert (engine["state"], engine["backend"], engine["backend_version"]) == ("ready", "sim", "1.2")


async def test_the_api_describes_itself_without_the_internet(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    assert "/v1/sessions/{session_id}/calls" in document["paths"]
    assert "Problem" in document["components"]["schemas"]
    references = json.dumps(document).split('"$ref": "#/components/schemas/')[1:]
    assert {text.partition('"')[0] for text in references} <= set(document["components"]["schemas"])
    page = await http.get("/docs")
    assert page.status_code == 200
    assert "://" not in page.text, "the page works where nothing else can be reached"
    assert "swagger-ui-bundle.js" in page.text
    body = document["paths"]["/v1/sessions/{session_id}/calls"]["post"]["requestBody"]
    path = await new_session(http)
    for example in body["content"]["application/json"]["examples"].values():
        assert (await http.post(f"{path}/calls", json=example["value"])).status_code == 201
