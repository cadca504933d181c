"""The prototype's wire API: its shapes, and an answer wherever it had a hang or a 500."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

SAMPLING = {"temperature": 0.9, "top_p": 0.9, "max_gen_length": 6, "n": 1, "logit_bias": None}


class Client:
    """Speaks as the prototype's own client: JSON bodies on every method, 200 or an error."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.session_id = self.ok("POST", "session", api_key="1")["session_id"]

    def send(self, method: str, path: str, **body: Any) -> httpx.Response:
        return self._http.request(method, f"/v1/{path}", json=body)

    def ok(self, method: str, path: str, **body: Any) -> Any:
        response = self.send(method, path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def here(self, method: str, path: str, **body: Any) -> Any:
        """In the session."""
        return self.ok(method, path, session_id=self.session_id, session_auth="1", **body)

    def call(self, template: str, parameters: list[dict[str, Any]], **more: Any) -> Any:
        return self.here("POST", "semantic_call", template=template, parameters=parameters, **more)

    def get(self, var_id: str, criteria: str = "latency") -> str:
        return str(self.here("GET", f"semantic_var/{var_id}", criteria=criteria)["content"])

    def refused(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """The error, whose status is no server's own, with what the prototype's client looks for."""
        response = self.send(method, path, **{"session_id": self.session_id, "session_auth": "1", **body})
        error: dict[str, Any] = response.json()
        assert 400 <= response.status_code < 500, response.text
        assert error["status"] == response.status_code
        assert error["error"].endswith(error["detail"])
        assert error["traceback"] == ""
        return error


@pytest.fixture
def client(http: httpx.Client) -> Client:
    return Client(http)


def output(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "is_output": True, "sampling_config": SAMPLING, **more}


def given(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "is_output": False, "value": value}


def bound(name: str, var_id: str) -> dict[str, Any]:
    return {"name": name, "is_output": False, "var_id": var_id}


def test_a_session_is_an_integer_and_ends(client: Client) -> None:
    assert isinstance(client.session_id, int)
    info = client.here("GET", f"session/{client.session_id}")
    assert (info["session_id"], info["session_auth"], info["state"]) == (client.session_id, "1", "open")
    assert client.ok("GET", f"session/{info['id']}") == info
    assert client.here("DELETE", f"session/{client.session_id}") == {}
    assert client.ok("GET", f"session/{client.session_id}")["state"] == "closed"
    error = client.refused("POST", "semantic_call", template="a {{b}}", parameters=[output("b")])
    assert error["type"].endswith("session_ended")


def test_param_info_has_an_entry_for_each_hole_in_the_templates_order(client: Client) -> None:
    first = client.call("{{a}} and {{b}}", [output("b"), given("a", "x")])
    made = first["param_info"][1]["var_id"]
    second = client.call(
        "{{c}} {{c}} {{d}} {{e}} then {{f}}, rest",
        [output("e"), output("f"), bound("c", made), given("d", "")],
        func_name="f",
        models=[],
        model_type="token_id",
        cache_prefix=True,
        fuse_fill=False,
        unknown="ignored",
    )
    assert [
        tuple(info[k] for k in ("parameter_name", "is_output", "var_name")) for info in second["param_info"]
    ] == [
        ("c", False, "b"),
        ("c", False, "b"),
        ("d", False, "d"),
        ("e", True, "e"),
        ("f", True, "f"),
    ]
    assert second["param_info"][0]["var_id"] == made
    assert second["request_id"] > first["request_id"]
    assert client.get(second["param_info"][4]["var_id"])
    assert client.get(second["param_info"][3]["var_id"], "throughput")


def test_a_call_runs_when_its_output_is_read_or_with_criteria_at_once(
    client: Client, http: httpx.Client
) -> None:
    lazy = client.call("{{a}} {{b}}", [given("a", "x"), output("b")])["param_info"][1]["var_id"]
    eager = client.call("{{a}} {{b}}", [given("a", "x"), output("b")], output_criteria="latency")
    url = f"/v1/sessions/{client.here('GET', f'session/{client.session_id}')['id']}"
    assert client.get(eager["param_info"][1]["var_id"])
    states = {call["outputs"][0]["semantic_var_id"]: call["state"] for call in http.get(url).json()["calls"]}
    assert states[lazy] in {"accepted", "waiting", "ready"}
    assert client.get(lazy)


def test_an_output_may_be_given_a_variable_of_ones_own(client: Client) -> None:
    client.call("{{a}} {{b}}", [given("a", "x"), output("b", var_id="mine")])
    assert client.get("mine")
    error = client.refused(
        "POST", "semantic_call", template="a {{b}}", parameters=[output("b", var_id="mine")]
    )
    assert (error["status"], error["field"]) == (409, "parameters[0].var_id")


def test_a_variable_is_registered_first_and_set_while_calls_wait_for_it(client: Client) -> None:
    var_id = client.here("POST", "semantic_var", var_name="later")["var_id"]
    made = client.call("{{a}}: {{b}}", [bound("a", var_id), output("b")])
    assert made["param_info"][0]["var_name"] == "later"
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(client.get(made["param_info"][1]["var_id"])))
    reader.start()
    assert client.here("POST", f"semantic_var/{var_id}", content="set {{x}} \u0000 later 漢") == {}
    reader.join(60)
    assert read
    assert client.get(var_id) == "set {{x}} \u0000 later 漢"
    # Sent again it changes nothing; with another text it is a conflict.
    assert client.here("POST", f"semantic_var/{var_id}", content="set {{x}} \u0000 later 漢") == {}
    error = client.refused("POST", f"semantic_var/{var_id}", content="other")
    assert error["type"].endswith("variable_already_set")
    error = client.refused("POST", f"semantic_var/{made['param_info'][1]['var_id']}", content="an output's")
    assert error["type"].endswith("duplicate_producer")


def test_of_several_who_set_a_variable_one_does_and_the_others_hear_it(client: Client) -> None:
    for _ in range(3):
        var_id = client.here("POST", "semantic_var", var_name="raced")["var_id"]
        path, session = f"semantic_var/{var_id}", {"session_id": client.session_id}

        def put(text: str, path: str = path, session: dict[str, Any] = session) -> int:
            return client.send("POST", path, **session, content=text).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(put, map(str, range(8))))
        assert sorted(statuses) == [200] + 7 * [409]
        assert client.get(var_id) == str(statuses.index(200))


def test_the_variables_of_a_session_are_listed(client: Client, http: httpx.Client) -> None:
    var_id = client.here("POST", "semantic_var", var_name="a name")["var_id"]
    made = client.call("{{a}}: {{b}}", [bound("a", var_id), output("b")])
    listed = client.here("GET", "semantic_var")["vars"]
    assert {(v["var_id"], v["var_name"], v["state"]) for v in listed} == {
        (var_id, "a name", "pending"),
        (made["param_info"][1]["var_id"], "b", "pending"),
    }
    assert http.get("/v1/semantic_var", params={"session_id": client.session_id}).json()["vars"] == listed


def test_query_parameters_do_as_well_as_bodies(client: Client, http: httpx.Client) -> None:
    made = client.call("{{a}} {{b}}", [given("a", "x"), output("b")])["param_info"][1]["var_id"]
    query = {"session_id": client.session_id, "criteria": "throughput"}
    assert http.get(f"/v1/semantic_var/{made}", params=query).json()["content"] == client.get(made)


def test_what_is_not_to_be_a_hole_is_text_and_a_value_never_is_one(client: Client) -> None:
    info = client.call("{{ a }} {{{a}}} {{c}}", [given("a", "{{c}} {{evil}}"), output("c")])["param_info"]
    assert [entry["parameter_name"] for entry in info] == ["a", "c"]
    assert client.get(info[0]["var_id"]) == "{{c}} {{evil}}"
    assert client.get(info[1]["var_id"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "template"),
        ({"template": 7, "parameters": []}, "template"),
        ({"template": "", "parameters": []}, "template"),
        ({"template": "no holes", "parameters": []}, "template"),
        ({"template": "{{b}} first", "parameters": [output("b")]}, "template"),
        ({"template": "a {{b}}", "parameters": []}, "template"),
        ({"template": "a {{b}} {{b}}", "parameters": [output("b")]}, "template"),
        ({"template": "a {{b}}{{c}}", "parameters": [output("b"), output("c")]}, "template"),
        ({"template": "a {{b}}", "parameters": [output("b"), output("b")]}, "parameters[1].name"),
        ({"template": "a {{b}}", "parameters": [output("b"), given("c", "x")]}, "parameters[1].name"),
        ({"template": "a {{b}}", "parameters": [output("b", value="x")]}, "parameters[0].value"),
        (
            {"template": "{{a}} {{b}}", "parameters": [output("b"), {"name": "a", "is_output": False}]},
            "parameters[1]",
        ),
        (
            {"template": "{{a}} {{b}}", "parameters": [output("b"), {**given("a", "x"), "var_id": "y"}]},
            "parameters[1]",
        ),
        (
            {
                "template": "{{a}} {{b}}",
                "parameters": [{**given("a", "x"), "sampling_config": {}}, output("b")],
            },
            "parameters[0].sampling_config",
        ),
        (
            {"template": "{{a}} {{b}}", "parameters": [bound("a", "unknown"), output("b")]},
            "parameters[0].var_id",
        ),
        (
            {"template": "{{a}} {{b}}", "parameters": [bound("a", "no id!"), output("b")]},
            "parameters[0].var_id",
        ),
        (
            {"template": "a {{b}}", "parameters": [{**output("b"), "sampling_config": {"unknown": 1}}]},
            "parameters[0].sampling_config.unknown",
        ),
        (
            {"template": "a {{b}}", "parameters": [{**output("b"), "sampling_config": {"n": 2}}]},
            "parameters[0].sampling_config.n",
        ),
        (
            {
                "template": "a {{b}}",
                "parameters": [{**output("b"), "sampling_config": {"max_gen_length": 0}}],
            },
            "parameters[0].sampling_config.max_gen_length",
        ),
        ({"template": "a {{b}}", "parameters": [output("b")], "output_criteria": "soon"}, "output_criteria"),
        ({"template": "a {{b}}", "parameters": [output("b")], "model_type": "bytes"}, "model_type"),
        ({"template": "a {{b}}", "parameters": [output("b")], "models": ["no-such-model"]}, "models"),
        ({"template": "a {{b}}", "parameters": [output("b")], "models": "sim"}, "models"),
        ({"template": "a {{b}}", "parameters": [output("b")], "func_name": "a\nb"}, "func_name"),
    ],
)
def test_a_call_that_is_wrong_is_refused_at_the_field(
    client: Client, body: dict[str, Any], field: str
) -> None:
    error = client.refused("POST", "semantic_call", **body)
    assert error["field"] == field
    assert "placeholders" not in error["detail"]
    assert "semantic_var_id" not in error["detail"]


@pytest.mark.parametrize("session_id", [0, 7, 10**30, -1, "abc", "", "s00-0123456789abcdef", None, True, [1]])
def test_an_unknown_session_is_not_found(client: Client, session_id: object) -> None:
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "semantic_call", {"template": "a {{b}}", "parameters": [output("b")]}),
        ("POST", "semantic_var", {"var_name": "x"}),
        ("POST", "semantic_var/x", {"content": "y"}),
        ("GET", "semantic_var/x", {"criteria": "latency"}),
        ("GET", "semantic_var", {}),
    ]
    for method, path, body in requests:
        error = client.refused(method, path, **body, session_id=session_id)
        assert error.get("field") == "session_id" or error["status"] == 404


def test_what_hung_or_broke_is_answered(client: Client) -> None:
    assert client.refused("GET", "semantic_var/nobody-makes-it", criteria="latency")["status"] == 404
    made = client.call("{{a}} {{b}}", [given("a", "x"), output("b")])["param_info"][1]["var_id"]
    assert client.refused("GET", f"semantic_var/{made}", criteria="soon")["field"] == "criteria"
    for criteria in ("TTFT", "TPOT"):
        assert client.get(made, criteria)
    assert client.refused("POST", "semantic_var", var_name="x" * 201)["field"] == "var_name"
    assert client.refused("POST", "semantic_var/x", content="y" * (8 << 20 | 1))["status"] == 413
    assert client.refused("POST", "py_native_call", func_name="f", func_code="4wAA")["field"] == "func_code"
    assert client.send("GET", "session/0").status_code == 404
    assert client.send("DELETE", "session/0").status_code == 404


def test_a_failed_call_is_the_answer_of_whoever_reads_it(client: Client) -> None:
    too_long = "x" * 200_000  # More than the model's window.
    info = client.call("{{a}} {{b}}", [given("a", too_long), output("b")])["param_info"]
    after = client.call("{{a}} {{b}}", [bound("a", info[1]["var_id"]), output("b")])["param_info"]
    assert client.refused("GET", f"semantic_var/{info[1]['var_id']}")["status"] == 422
    assert client.refused("GET", f"semantic_var/{after[1]['var_id']}")["status"] == 424


def test_bodies_that_are_no_objects_are_refused(http: httpx.Client) -> None:
    for raw in (b"[]", b"7", b"{", b"\xff", b'{"session_id": "\\ud800"}', b'{"session_id": {"a": 1}}'):
        for method, path in [
            ("GET", "/v1/semantic_var/x"),
            ("DELETE", "/v1/session/0"),
            ("POST", "/v1/semantic_call"),
        ]:
            response = http.request(method, path, content=raw, headers={"Content-Type": "application/json"})
            assert 400 <= response.status_code < 500, (method, raw, response.text)
            assert json.loads(response.text)["traceback"] == ""


def test_a_post_that_is_sent_again_with_its_key_is_done_once(http: httpx.Client) -> None:
    keys = {"Idempotency-Key": "one-session"}
    session = http.post("/v1/session", json={}, headers=keys).json()
    assert http.post("/v1/session", json={}, headers=keys).json() == session
    bodies: dict[str, dict[str, Any]] = {
        "semantic_call": {"template": "{{a}} {{b}}", "parameters": [given("a", "x"), output("b")]},
        "semantic_var": {"var_name": "later"},
    }
    for path, body in bodies.items():
        body["session_id"] = session["session_id"]
        first = http.post(f"/v1/{path}", json=body, headers={"Idempotency-Key": path})
        assert first.status_code == 200
        assert http.post(f"/v1/{path}", json=body, headers={"Idempotency-Key": path}).json() == first.json()
    http.delete(f"/v1/session/{session['session_id']}")
