"""An engine without a manager: a backend, a bus, and programs that a benchmark sends and times."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from benchmarks.stack import free_port
from parrot_engine.backends.base import Backend, Sampling, Step
from parrot_engine.backends.vllm import VllmOptions, arguments
from parrot_engine.models import find_model
from parrot_engine.programs.outputs import Press
from parrot_engine.programs.table import VERSION, Programs
from parrot_engine.programs.tools import Features, Tools
from parrot_engine.settings import default_cache_dir
from parrot_engine.shared import KEEP_S, SharedContexts
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import ids
from parrot_runtime.values.bus import Bus, connected
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter

TEXT = "\n".join(topics[name] for name in sorted(topics))
"""Half a megabyte of real English: the language reference."""
ENDS = ("done", "failed", "cancelled")
TENANT = "default"


@dataclass
class Trace:
    """When one output's tokens came, by the monotonic clock."""

    asked_s: float
    tokens_s: list[float] = field(default_factory=list)


class Watch:
    """Notes when each context's tokens come, where the backend hands them over."""

    def __init__(self, backend: Backend) -> None:
        self.traces: dict[str, Trace] = {}
        self._generate = backend.generate
        backend.generate = self._timed  # type: ignore[method-assign]

    async def _timed(
        self, sampling: Sampling, context_id: str, *arguments: Any, **settings: Any
    ) -> AsyncGenerator[Step, None]:
        trace = self.traces[context_id] = Trace(time.monotonic())
        async with aclosing(self._generate(sampling, context_id, *arguments, **settings)) as steps:
            async for step in steps:
                trace.tokens_s += [time.monotonic()] * len(step.token_ids)
                yield step


@dataclass
class Client:
    """Sends programs to an engine of one set of features, and waits for their ends."""

    backend: Backend
    tools: Tools
    programs: Programs
    ends: dict[str, asyncio.Future[engine_pb2.AttachRequest]] = field(default_factory=dict)
    session: SessionSubjects = field(default_factory=lambda: SessionSubjects(TENANT, ids.new_session_id()))
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def send(self, name: str, *operations: engine_pb2.Operation) -> str:
        """Sends a program; the context it works in.

        Where the first fill is shared, it has a context of its own, and the rest goes into a fork of it.
        """
        call_id = f"{name}-{next(self._numbers)}"
        context_id = f"{self.session.session_id}/{call_id}"
        prefix = operations[0].fill
        shared_id = f"shared/{prefix.shared.prefix_hash}" if prefix.HasField("shared") else ""
        for operation in operations:
            kind = str(operation.WhichOneof("kind"))
            task = getattr(operation, kind)
            task.context_id, task.parent_context_id = context_id, shared_id
        if shared_id:
            prefix.context_id, prefix.parent_context_id = shared_id, ""
        self.ends[context_id] = asyncio.get_running_loop().create_future()
        ref = engine_pb2.AttemptRef(session_id=self.session.session_id, call_id=call_id, attempt=1)
        self.programs.start(
            engine_pb2.RunProgram(version=VERSION, ref=ref, tenant=TENANT, name=name, operations=operations)
        )
        return context_id

    async def end(self, context_id: str) -> engine_pb2.AttemptDone:
        """What a program that is done reported.

        Raises:
            RuntimeError: it ended otherwise.
        """
        event = await self.event(context_id)
        if event.WhichOneof("event") != "done":
            raise RuntimeError(f"{context_id}: {event}")
        return event.done

    async def event(self, context_id: str) -> engine_pb2.AttachRequest:
        """How a program ended."""
        try:
            return await self.ends[context_id]
        finally:
            del self.ends[context_id]

    def take(self, event: engine_pb2.AttachRequest) -> None:
        """Hears what the engine reports."""
        kind = str(event.WhichOneof("event"))
        if kind in ENDS:
            ref = getattr(event, kind).ref
            waiter = self.ends.get(f"{ref.session_id}/{ref.call_id}")
            # A cancel that comes too late is answered too.
            if waiter is not None and not waiter.done():
                waiter.set_result(event)

    async def fail(self, variable_id: str) -> None:
        """Says on the bus that a variable has no value, as a manager does."""
        record = FinalRecord(variable_id, failure=common_pb2.Failure(type="cancelled"))
        await self.tools.press.finals.publish(self.session.final(variable_id), record)

    def text(self, content: str) -> engine_pb2.Operation:
        """Fills constant text."""
        return engine_pb2.Operation(fill=engine_pb2.Fill(template_text=content))

    def variable(self, variable_id: str, expected_tokens: int = 0) -> engine_pb2.Operation:
        """Fills a variable that may still be produced."""
        source = engine_pb2.VariableSource(
            variable_id=variable_id,
            final_subject=self.session.final(variable_id),
            pending=True,
            expected_tokens=expected_tokens,
        )
        return engine_pb2.Operation(fill=engine_pb2.Fill(variable=source))

    def output(self, variable_id: str, tokens: int) -> engine_pb2.Operation:
        """Generates exactly so many tokens, greedily."""
        sink = engine_pb2.VariableSink(
            variable_id=variable_id,
            delta_subject=self.session.delta,
            final_subject=self.session.final(variable_id),
        )
        sampling = common_pb2.Sampling(max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        return engine_pb2.Operation(generate=engine_pb2.Generate(sampling=sampling, output=sink))


@contextmanager
def nats() -> Iterator[str]:
    """A NATS server of its own; its URL."""
    port = free_port()
    binary = Path(sys.executable).with_name("nats-server")
    with tempfile.TemporaryDirectory(prefix="parrot-bench-") as folder:
        command = [str(binary), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


@asynccontextmanager
async def bus() -> AsyncIterator[Bus]:
    """A bus of its own."""
    with nats() as url:
        async with connected(url, "benchmark", 10) as made:
            yield made


@asynccontextmanager
async def client(
    backend: Backend, made: Bus, features: Features | None = None, *, shared_keep_s: float = KEEP_S
) -> AsyncIterator[Client]:
    """Programs over a started backend."""
    async with DeltaWriter(made, "e-bench") as writer:
        press = Press(Finals(made), writer, Feeds(made, forget_ended=True), lambda event: found.take(event))  # noqa: PLW0108  (it is made below)
        tools = Tools.of("e-bench", backend, press, features or Features())
        tools = replace(tools, shared=SharedContexts(backend, press.report, keep_s=shared_keep_s))
        found = Client(backend, tools, Programs(tools))
        try:
            yield found
        finally:
            await found.programs.abandon()


@asynccontextmanager
async def started(backend: Backend) -> AsyncIterator[Backend]:
    """The backend, running within the block."""
    try:
        await backend.start()
        yield backend
    finally:
        await backend.stop()


def options(**given: Any) -> VllmOptions:
    """Options of vLLM with the real model, unless another is given."""
    defaults: dict[str, Any] = {
        "model": "smollm2",
        "cache_dir": default_cache_dir(),
        "context_window_tokens": 4096,
    }
    return VllmOptions(**{**defaults, **given})


@asynccontextmanager
async def bare_vllm(chosen: VllmOptions) -> AsyncIterator[Any]:
    """vLLM's own `AsyncLLM` with its own scheduler, and otherwise what our backend starts it with."""

    def load() -> Any:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        os.environ.update(arguments.environment(chosen))
        folder = find_model(chosen.model, chosen.cache_dir, print)
        given = arguments.engine_arguments(chosen, folder.path, folder.name, on_cpu=True)
        # As many at once as ours has outputs; the room for fills is ours alone.
        config = AsyncEngineArgs(**given | {"max_num_seqs": chosen.capacity}).create_engine_config()
        return AsyncLLM.from_vllm_config(config, stat_loggers=[])

    llm = await asyncio.to_thread(load)
    try:
        yield llm
    finally:
        await asyncio.to_thread(llm.shutdown)


def english(backend: Backend, tokens: int, place: int) -> str:
    """Real text of about so many tokens, another one for each `place`."""
    start = place * 7919 % (len(TEXT) // 2)
    text = f"Text {place}. {TEXT[start : start + 6 * tokens]}"
    return backend.tokenizer.decode(backend.tokenizer.encode_value(text)[:tokens])
