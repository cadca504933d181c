"""One trace a session, through every process; a collector that is not there slows nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from tests.support.up import data_folder, running
from tests.support.waiting import until

import parrot as P

pytestmark = pytest.mark.timeout(120)


@P.semantic_function(sampling=P.SamplingConfig(max_gen_length=40, ignore_tokenizer_eos=True))
def ask(question: P.Input, answer: P.Output) -> None:
    """Question: {{question}} Answer: {{answer}}"""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets: (service, name, trace id, parent?) a span."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, str, str]] = []
        self._lock = threading.Lock()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        with self._lock:
            for resource in request.resource_spans:
                names = {item.key: item.value.string_value for item in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self.spans += [
                        (names["service.name"], span.name, span.trace_id.hex(), span.parent_span_id.hex())
                        for span in scope.spans
                    ]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[tuple[str, str, str, str]]:
        with self._lock:
            return [span for span in self.spans if span[2] == trace_id]


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def silent() -> Iterator[str]:
    """A collector that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_session_is_one_trace_through_every_process() -> None:
    with (
        collecting() as (collector, endpoint),
        data_folder() as folder,
        running(folder, "--backend", "sim", "--otlp-endpoint", endpoint) as up,
    ):
        up.wait_up()
        with P.Session(up.url) as session:
            first = ask("why?")
            ask(first).get()
            trace_id = session.trace_id
        assert up.stop() == 0
        services = {"parrot-gateway", "parrot-manager", "parrot-engine"}
        until(lambda: {service for service, *_ in collector.of(trace_id)} == services)
        names = [name for service, name, *_ in collector.of(trace_id) if service == "parrot-engine"]
        for phase in ("engine.queue", "engine.prefill", "engine.decode"):
            assert names.count(phase) == 2
        # Spans are for calls and phases: 80 tokens were generated, and no token has one.
        assert len(collector.of(trace_id)) < 40
        assert all(parent for *_, parent in collector.of(trace_id))


def test_a_collector_that_never_answers_slows_and_hangs_nothing() -> None:
    with (
        silent() as endpoint,
        data_folder() as folder,
        running(folder, "--backend", "sim", "--otlp-endpoint", endpoint) as up,
    ):
        up.wait_up()
        with P.Session(up.url):
            for _ in range(3):
                assert ask("still there?").get(timeout=10)
        # In order, so no service was killed for not ending: each gives up its last spans by itself.
        assert up.stop() == 0
