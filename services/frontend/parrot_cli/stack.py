"""Which components a stack has, and the order they start in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from parrot_cli import nats_server, postgres_server
from parrot_cli.components import Addresses, Probe, Services
from parrot_cli.crew import Crew
from parrot_cli.datadir import DataDir, held
from parrot_cli.options import UpOptions, free_port
from parrot_cli.postgres_server import Postgres
from parrot_cli.report import Report
from parrot_runtime.settings import ServiceSettings
from parrot_runtime.tls import Tls
from parrot_runtime.values import bus

READY_WITHIN_S: Final = 60.0
ENGINE_READY_WITHIN_S: Final = 900.0
"""An engine may have to convert and load a large model first."""
NATS_TIMEOUT_S: Final = 5.0
NO_KEYS: Final = (
    "DEVELOPMENT: no keys are asked for, so that whoever can reach this machine's loopback can use it and "
    "read every session"
)


async def run_stack(options: UpOptions, report: Report) -> int:
    """Runs `parrot up` until it is asked to stop or a component dies; its exit code.

    Raises:
        UpError: something can't be started, or another stack holds the data folder.
        Fault: a server that was named can't be used.
    """
    options.check()
    with held(options.data_dir, options.url, lambda text: report.event("waiting", text)) as data:
        postgres = None if options.postgres_url else postgres_server.locate(data.postgres)
        try:
            if options.nats_url:
                await _check_nats(options.nats_url)
            crew = Crew(data.logs, report, [data.lock_fd])
            stack = Stack(options, data, crew, report, postgres)
            try:
                return 0 if await crew.run(stack.start) else 1
            finally:
                await stack.close()
        finally:
            if postgres is not None:
                postgres.clean_up()


async def _check_nats(url: str) -> None:
    async with bus.connected(url, "parrot-up", NATS_TIMEOUT_S, tls=_tls()):
        return


def _tls() -> Tls | None:
    """The certificate that services find in the environment, which is then one for all roles."""
    return Tls.of(ServiceSettings.load([]))


class Stack:
    """The components of one data folder, not yet started."""

    def __init__(
        self, options: UpOptions, data: DataDir, crew: Crew, report: Report, postgres: Postgres | None
    ) -> None:
        self._options = options
        self._data = data
        self._crew = crew
        self._report = report
        self._postgres = postgres
        self._probe: Probe | None = None

    async def close(self) -> None:
        """Asks the components nothing more."""
        if self._probe is not None:
            await self._probe.close()

    async def start(self) -> None:
        """Starts everything, and says so.

        Raises:
            UpError: a component was not ready in time.
            ComponentDiedError: the schema could not be brought up to date.
        """
        start = time.monotonic()
        async with asyncio.TaskGroup() as together:
            nats_url = together.create_task(self._start_nats())
            postgres_url = together.create_task(self._start_postgres())
        managers = {manager_id: f"127.0.0.1:{free_port()}" for manager_id in self._options.manager_ids}
        addresses = Addresses(managers, nats_url.result(), postgres_url.result())
        services = Services(self._options, addresses)
        await self._crew.complete(services.migrations())
        # A manager that is started again is asked whether it is ready at any time later.
        probe = self._probe = Probe(list(managers.values()), self._options.url, _tls())
        await self._start_services(services, probe, managers)
        self._announce(sorted({engine.model for engine in await probe.engines()}), addresses, start)

    async def _start_nats(self) -> str:
        if self._options.nats_url:
            return self._options.nats_url
        port = free_port()
        url = f"nats://127.0.0.1:{port}"

        async def is_ready() -> str | None:
            version = await nats_server.version_at(port)
            return version and f"{url}, version {version}"

        await self._crew.launch(nats_server.spec(self._data.nats, port), is_ready, READY_WITHIN_S)
        return url

    async def _start_postgres(self) -> str:
        postgres = self._postgres
        if postgres is None:
            return self._options.postgres_url
        init = postgres.init_spec()
        if init is not None:
            postgres.prepare_init()
            await self._crew.complete(init)
            postgres.finish_init()

        async def is_ready() -> str | None:
            return str(postgres.sockets) if postgres.is_ready() else None

        await self._crew.launch(postgres.spec(), is_ready, READY_WITHIN_S)
        return postgres.url

    async def _start_services(self, services: Services, probe: Probe, managers: Mapping[str, str]) -> None:
        # All at once: each waits by itself for those it needs.
        async with asyncio.TaskGroup() as together:
            for manager_id, address in managers.items():
                ready = partial(probe.manager, address)
                spec = services.manager(manager_id)
                together.create_task(self._crew.launch(spec, ready, READY_WITHIN_S, revived=True))
            together.create_task(self._crew.launch(services.gateway(), probe.gateway, READY_WITHIN_S))
            for engine_id in self._options.engine_ids:
                together.create_task(self._start_engine(services, probe, engine_id))

    async def _start_engine(self, services: Services, probe: Probe, engine_id: str) -> None:
        async def is_ready() -> str | None:
            return await probe.engine(engine_id)

        await self._crew.launch(services.engine(engine_id), is_ready, ENGINE_READY_WITHIN_S)

    def _announce(self, models: list[str], addresses: Addresses, start: float) -> None:
        what = ", ".join(models) or "no model (no engine yet)"
        seconds = time.monotonic() - start
        door = "API keys are asked for" if self._options.keys else NO_KEYS
        self._data.announce(addresses.manager_address)
        self._report.event(
            "up",
            f"Parrot serves {what} at {self._options.url} after {seconds:.1f} s\n"
            f"  API: {self._options.url}/docs   logs: {self._data.logs}   Ctrl-C stops it\n  {door}",
            keys=self._options.keys,
            url=self._options.url,
            models=models,
            manager_address=addresses.manager_address,
            nats_url=addresses.nats_url,
            seconds=round(seconds, 3),
            logs=str(self._data.logs),
        )
