"""`parrot-engine`: serves one model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from parrot_engine.backends.base import Backend, BackendError
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.meters import Meters
from parrot_engine.metrics import Gauges
from parrot_engine.programs.execution import Execution
from parrot_engine.programs.outputs import Press
from parrot_engine.programs.table import Programs, Running
from parrot_engine.programs.tools import Features, Tools
from parrot_engine.servicer.control import Control
from parrot_engine.servicer.link import GOODBYE_S
from parrot_engine.servicer.shards import Shards
from parrot_engine.settings import EngineSettings
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, rpc
from parrot_runtime.errors import Fault
from parrot_runtime.lifecycle import Stop, run_service
from parrot_runtime.monitor import Monitor, monitored
from parrot_runtime.tls import Tls
from parrot_runtime.values.bus import connected
from parrot_runtime.values.finals import Finals
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.writer import DeltaWriter

log = structlog.get_logger()


def main(argv: list[str] | None = None) -> None:
    """The `parrot-engine` command."""
    settings = EngineSettings.load(argv)

    async def serve_until(stop: Stop) -> None:
        await serve(settings, make_backend(settings), stop)

    run_service("engine", settings, serve_until, instance=settings.engine_id)


def make_backend(settings: EngineSettings) -> Backend:
    """The backend the settings ask for, not started yet."""
    if settings.backend == "sim":
        return _sim(settings)
    if settings.backend == "openai":
        return _openai(settings)
    if settings.backend == "sandbox":
        return _sandbox(settings)
    from parrot_engine.backends.vllm import VllmBackend

    return VllmBackend(vllm_options(settings))


def vllm_options(settings: EngineSettings) -> VllmOptions:
    """What vLLM is started with."""
    return VllmOptions(
        model=settings.model,
        model_name=settings.model_name,
        cache_dir=settings.cache_dir,
        dtype=settings.dtype,
        capacity=settings.capacity or 64,
        context_window_tokens=settings.context_window_tokens,
        kv_cache_bytes=settings.kv_cache_mib << 20,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        tensor_parallel_size=settings.tensor_parallel_size,
        attention=settings.attention,
        batch_invariant=settings.batch_invariant,
        enforce_eager=settings.enforce_eager,
        step_tokens=settings.step_tokens,
        threads=settings.threads,
    )


def _sim(settings: EngineSettings) -> Backend:
    from parrot_engine.backends.sim import SimBackend, SimOptions

    return SimBackend(
        SimOptions(
            model=settings.model_name or "sim",
            capacity=settings.capacity or 64,
            context_window_tokens=settings.context_window_tokens or 32_768,
            kv_tokens=settings.sim_kv_tokens,
            step_ms=settings.sim_step_ms,
            prefill_tokens_per_s=settings.sim_prefill_tokens_per_s,
            seed=settings.sim_seed,
            varied=settings.sim_varied,
        )
    )


def _openai(settings: EngineSettings) -> Backend:
    from parrot_engine.backends.openai import OpenAIBackend, OpenAIOptions

    def path(text: str) -> Path | None:
        return Path(text) if text else None

    return OpenAIBackend(
        OpenAIOptions(
            base_url=settings.openai_base_url,
            api_key_file=path(settings.openai_api_key_file),
            tokenizer_dir=path(settings.openai_tokenizer),
            model=settings.model,
            model_name=settings.model_name,
            capacity=settings.capacity or 64,
            context_window_tokens=settings.context_window_tokens,
            start_timeout_s=settings.connect_timeout_s,
            silence_timeout_s=settings.openai_timeout_s,
        )
    )


def _sandbox(settings: EngineSettings) -> Backend:
    from parrot_engine.sandbox.backend import SandboxBackend, SandboxOptions

    return SandboxBackend(
        SandboxOptions(
            capacity=settings.capacity or 4,
            timeout_s=settings.sandbox_timeout_s,
            memory_bytes=settings.sandbox_memory_mib << 20,
        )
    )


def _execution(settings: EngineSettings) -> type[Running]:
    """What programs are on this engine."""
    if settings.backend != "sandbox":
        return Execution
    from parrot_engine.sandbox.execution import CodeExecution

    return CodeExecution


async def serve(settings: EngineSettings, backend: Backend, stop: Stop) -> None:
    """Starts the backend, attaches, and serves until told to stop or the backend dies.

    Raises:
        Fault: a peer can't be reached, the model can't be loaded, or the backend died.
    """
    async with monitored(settings.metrics_address, "engine") as monitor:
        await _serve(settings, backend, stop, monitor)


async def _serve(settings: EngineSettings, backend: Backend, stop: Stop, monitor: Monitor) -> None:
    engine_id, timeout_s = settings.engine_id, settings.connect_timeout_s
    tls = Tls.of(settings)
    meters = Meters(monitor.registry)
    monitor.starting("NATS is not connected yet")
    async with (
        connected(settings.nats_url, engine_id, timeout_s, tls=tls, role="engine") as bus,
        DeltaWriter(bus, engine_id, settings.stream_interval_ms / 1000) as writer,
    ):
        monitor.watch_bus(bus)
        if stop.is_set():
            # The NATS client takes a cancellation that comes while it connects for an answer.
            return
        addresses = rpc.addresses_of(settings.manager_address)
        monitor.starting("no manager answers yet")
        await rpc.wait_any_ready(addresses, "manager", timeout_s, tls)
        monitor.starting("the model is not loaded yet")
        try:
            await _start(backend)
            stop.begun()
            shards = Shards()
            press = Press(Finals(bus), writer, Feeds(bus, forget_ended=True), shards.report)
            tools = Tools.of(engine_id, backend, press, _features(settings), meters)
            programs = Programs(tools, _execution(settings))
            control = Control(addresses, tools, programs, shards, tls)
            monitor.registry.register(Gauges(engine_id, programs, tools))
            monitor.ready_when(lambda: _reasons(control, stop))
            await Engine(control, programs, shards, backend).run(stop, settings.drain_s)
        finally:
            await backend.stop()


async def _reasons(control: Control, stop: Stop) -> list[str]:
    """Why calls do not come here."""
    reasons = ["it is told to stop: what runs here ends, and nothing more is taken"] if stop.is_set() else []
    if not control.attached:
        reasons.append("no manager has this engine registered")
    return reasons


def _features(settings: EngineSettings) -> Features:
    return Features(
        static_prefill=settings.static_prefill,
        dynamic_prefill=settings.dynamic_prefill,
        prefix_sharing=settings.prefix_sharing,
    )


async def _start(backend: Backend) -> None:
    try:
        await backend.start()
    except BackendError as error:
        raise Fault(errors.ENGINE_ERROR, str(error)) from error
    info = backend.info
    log.info(
        "engine ready", model=info.model, window_tokens=info.context_window_tokens, capacity=info.capacity
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """A backend that is attached to its managers."""

    control: Control
    programs: Programs
    shards: Shards
    backend: Backend

    async def run(self, stop: Stop, drain_s: float) -> None:
        """Serves until told to stop, and then until what runs has ended, `drain_s` at most.

        Raises:
            Fault: `engine_lost`, when the backend died; or what the manager refuses the engine with.
        """
        attached = asyncio.create_task(self.control.run(), name="control")
        dying = asyncio.create_task(self.backend.wait_dead(), name="backend-death")
        draining = asyncio.create_task(self._drain(stop, drain_s), name="drain")
        try:
            await asyncio.wait((attached, dying, draining), return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                await asyncio.wait((attached, dying), timeout=GOODBYE_S, return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                raise Fault(errors.ENGINE_LOST, f"the backend died: {dying.result()}")
            if attached.done():
                attached.result()
        finally:
            for task in (attached, dying, draining):
                task.cancel()
            await asyncio.gather(attached, dying, draining, return_exceptions=True)
            await self.programs.abandon()

    async def _drain(self, stop: Stop, drain_s: float) -> None:
        await stop.wait()
        log.info("draining", running=self.programs.running, waiting=self.programs.waiting, drain_s=drain_s)
        self.shards.report(engine_pb2.AttachRequest(draining=engine_pb2.Draining()))
        await self.programs.drain(drain_s)
        self.shards.drain()
