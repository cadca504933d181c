"""What counting for Prometheus costs: services that count against the same ones that don't.

Of each kind two stand side by side, and are asked for the same in turns: of managers (their store in memory,
so that nothing hides the cost) graphs of a hundred calls with an engine that takes no time, of gateways
applications of one call whose text is streamed. Compared is the processor's time of each; those that count
are scraped once a second, which Prometheus does every fifteen.
"""

from __future__ import annotations

import asyncio
import statistics
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import psutil
from grpc import aio

from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.http_client import request, stream
from benchmarks.manager.instant import InstantEngine
from benchmarks.manager.processes import STARTED_WITHIN_S, Service, flag, manager, started
from benchmarks.manager.throughput import GRAPH_CALLS, application, graph
from benchmarks.stack import Stack, free_port, running
from parrot_runtime import rpc
from parrot_runtime.values.bus import connected

SCRAPE_S = 1.0
TOKENS = 100
COUNTED, BARE = "counted", "bare"


@dataclass(frozen=True, slots=True)
class Subject:
    """A service, and what it is asked for once."""

    process: psutil.Process
    once: Callable[[], Awaitable[object]]

    async def cpu_ms(self, count: int) -> float:
        """The processor's time of the service for doing it once, done so many times at once."""
        before = self.process.cpu_times()
        await asyncio.gather(*(self.once() for _ in range(count)))
        after = self.process.cpu_times()
        return (after.user + after.system - before.user - before.system) * 1e3 / count


def _subject(service: Service, once: Callable[[], Awaitable[object]]) -> Subject:
    assert service.process is not None
    return Subject(psutil.Process(service.process.pid), once)


@asynccontextmanager
async def managers(stack: Stack) -> AsyncIterator[dict[str, Subject]]:
    """A manager of each kind, with an engine of its own."""
    monitor = f"127.0.0.1:{free_port()}"
    counted, at = manager(
        stack, "m-counted", "--metrics-address", monitor, module="benchmarks.manager.memory_manager"
    )
    bare, bare_at = manager(stack, "m-bare", module="benchmarks.unmetered")
    bare.flags.insert(0, "manager")
    async with AsyncExitStack() as exits:
        exits.enter_context(started(counted, bare))
        bus = await exits.enter_async_context(connected(flag(stack, "--nats-url"), "instant", 10))
        found = {}
        for name, service, address in ((COUNTED, counted, at), (BARE, bare, bare_at)):
            channel = await exits.enter_async_context(rpc.channel(address))
            await rpc.wait_ready(channel, address, "manager", STARTED_WITHIN_S)
            engine = InstantEngine(bus, f"e-{name}", "instant")
            await exits.enter_async_context(engine.attached(address))

            async def once(channel: aio.Channel = channel) -> None:
                await application(channel, graph(GRAPH_CALLS))

            found[name] = _subject(service, once)
        await exits.enter_async_context(_scraped(monitor))
        yield found


@asynccontextmanager
async def gateways(stack: Stack) -> AsyncIterator[dict[str, Subject]]:
    """A gateway of each kind before the stack's manager and engine."""
    monitor = f"127.0.0.1:{free_port()}"
    common = ["--manager-address", flag(stack, "--manager-address")]
    common += ["--nats-url", flag(stack, "--nats-url"), "--log-level", "warning"]
    ports = {COUNTED: free_port(), BARE: free_port()}
    counted = Service(
        "parrot_gateway", ["--port", str(ports[COUNTED]), "--metrics-address", monitor, *common]
    )
    bare = Service("benchmarks.unmetered", ["gateway", "--port", str(ports[BARE]), *common])
    async with AsyncExitStack() as exits:
        exits.enter_context(started(counted, bare))
        found = {}
        for name, service in ((COUNTED, counted), (BARE, bare)):
            url = f"http://127.0.0.1:{ports[name]}"
            await _answers(url)

            async def once(url: str = url) -> None:
                await streamed_call(url)

            found[name] = _subject(service, once)
        await exits.enter_async_context(_scraped(monitor))
        yield found


async def streamed_call(url: str) -> None:
    """An application of one call, its text read as it comes."""
    session = (await request(url, "POST", "/v1/sessions", {}))["id"]
    hole = {"name": "x", "in_out": "out", "semantic_var_id": "x"}
    body = {
        "prompt": "It began. {{x}}",
        "placeholders": [hole | {"sampling": {"max_tokens": TOKENS, "ignore_eos": True}}],
    }
    await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": [body]})
    await stream(url, f"/v1/sessions/{session}/variables/x/stream")
    await request(url, "DELETE", f"/v1/sessions/{session}")


async def _answers(url: str) -> None:
    async with asyncio.timeout(STARTED_WITHIN_S):
        while True:
            try:
                await request(url, "GET", "/v1/models")
            except (OSError, RuntimeError):
                await asyncio.sleep(0.05)
            else:
                return


@asynccontextmanager
async def _scraped(monitor: str) -> AsyncIterator[None]:
    """What counts is asked for it, for the length of the block."""

    def scrape() -> None:
        with urllib.request.urlopen(f"http://{monitor}/metrics", timeout=10) as answer:
            answer.read()

    async def scrape_on() -> None:
        while True:
            await asyncio.to_thread(scrape)
            await asyncio.sleep(SCRAPE_S)

    scraping = asyncio.create_task(scrape_on())
    try:
        yield
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)


async def in_turns(subjects: dict[str, Subject], rounds: int, count: int) -> list[dict[str, float]]:
    """Each round asks both, who begins changing; the first round is left out."""
    samples = []
    for number in range(rounds + 1):
        order = list(subjects.items())[:: 1 if number % 2 else -1]
        sample = {name: await subject.cpu_ms(count) for name, subject in order}
        if number:
            samples.append(sample)
    return samples


async def measure(stack: Stack, *, quick: bool) -> dict[str, list[dict[str, float]]]:
    """Both kinds of services, one after the other."""
    rounds, graphs, streams = (8, 2, 8) if quick else (40, 5, 16)
    async with managers(stack) as pair:
        of_managers = await in_turns(pair, rounds, graphs)
    async with gateways(stack) as pair:
        of_gateways = await in_turns(pair, rounds, streams)
    return {"manager": of_managers, "gateway": of_gateways}


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    report = Report("metering", {"graph_calls": GRAPH_CALLS, "tokens": TOKENS, "scrape_s": SCRAPE_S})
    with running("--backend", "sim") as stack:
        found = asyncio.run(measure(stack, quick=arguments.quick))
    rows = []
    for service, samples in found.items():
        report.samples += [{"service": service, **sample} for sample in samples]
        for name in (COUNTED, BARE):
            values = spread([sample[name] for sample in samples])
            rows.append([f"{service}, {name}", *(f"{value:.1f}" for value in values.values())])
        ratios = [sample[COUNTED] / sample[BARE] for sample in samples]
        report.summary[f"cpu_ratio_{service}"] = statistics.median(ratios)
        report.summary[f"cpu_ms_{service}"] = statistics.median(sample[COUNTED] for sample in samples)
    print_table(["processor's time in ms", "min", "p50", "p99", "max"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
