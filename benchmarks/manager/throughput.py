"""What one manager takes in and sends out, with Postgres and NATS real and an engine that takes no time.

Calls per second: sessions at once, each with one graph of a hundred calls, half of them a chain and half of
them readers of one of its outputs; and the CPU time of each server for one call of them. To dispatch: from
asking for one call to its program's arrival at the engine, nothing else going on. To accept: one batch of a
thousand calls, until the answer.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack

from grpc import aio

from benchmarks.harness import Report, parser, print_table, spread
from benchmarks.manager.instant import InstantEngine
from benchmarks.manager.processes import ask, flag
from benchmarks.stack import Stack, running
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import rpc
from parrot_runtime.values.bus import connected

TENANT = "default"
MODEL = "instant"
GRAPH_CALLS = 100


def call(output: str, *inputs: str) -> pb.NewCall:
    """A call that reads some variables and makes one."""
    segments = [common_pb2.Segment(text="Of these: ")]
    segments += [
        common_pb2.Segment(input=common_pb2.InputHole(name=name, variable_id=name)) for name in inputs
    ]
    segments.append(common_pb2.Segment(output=common_pb2.OutputHole(name=output, variable_id=output)))
    return pb.NewCall(name="work", model=MODEL, segments=segments)


def graph(calls: int) -> list[pb.NewCall]:
    """A chain, and beside each of its calls one that reads what that makes."""
    links = [call(f"v{i}", *([f"v{i - 1}"] if i else [])) for i in range(calls // 2)]
    return [*links, *(call(f"w{i}", f"v{i}") for i in range(calls - calls // 2))]


async def new_session(channel: aio.Channel) -> str:
    """A session's id."""
    answer = await ask(channel, "CreateSession", pb.CreateSessionRequest(tenant=TENANT))
    return str(answer.session.id)


async def submit(channel: aio.Channel, session_id: str, calls: list[pb.NewCall]) -> list[str]:
    """The ids of a batch."""
    request = pb.SubmitCallsRequest(tenant=TENANT, session_id=session_id, calls=calls)
    return list((await ask(channel, "SubmitCalls", request, 120)).call_ids)


async def value(channel: aio.Channel, session_id: str, variable_id: str) -> None:
    """Returns once a variable is ready."""
    request = pb.GetVariableRequest(
        tenant=TENANT, session_id=session_id, variable_id=variable_id, wait_ms=60_000
    )
    answer = await ask(channel, "GetVariable", request, 120)
    assert answer.variable.state == common_pb2.VARIABLE_STATE_READY, answer


async def application(channel: aio.Channel, calls: list[pb.NewCall]) -> None:
    """One graph, to its end."""
    session_id = await new_session(channel)
    await submit(channel, session_id, calls)
    for new in calls[-1], calls[len(calls) // 2 - 1]:
        await value(channel, session_id, new.segments[-1].output.variable_id)
    await ask(channel, "CloseSession", pb.CloseSessionRequest(tenant=TENANT, session_id=session_id))


def cpu_ms(stack: Stack) -> dict[str, float]:
    """What manager and database have computed so far, in ms."""
    found = dict.fromkeys(("parrot_manager", "postgres", "nats-server"), 0.0)
    for name, process in stack.processes().items():
        kind = name.rpartition("-")[0]
        if kind in found:
            times = process.cpu_times()
            found[kind] += (times.user + times.system) * 1e3
    return found


async def calls_per_s(channel: aio.Channel, sessions: int, at_once: int) -> float:
    """Graphs, so many at once."""
    calls = graph(GRAPH_CALLS)
    turns = asyncio.Semaphore(at_once)

    async def run() -> None:
        async with turns:
            await application(channel, calls)

    began = time.monotonic()
    await asyncio.gather(*(run() for _ in range(sessions)))
    return sessions * GRAPH_CALLS / (time.monotonic() - began)


async def dispatch_ms(channel: aio.Channel, engine: InstantEngine, count: int) -> list[float]:
    """From asking to the program's arrival, one call after another."""
    session_id = await new_session(channel)
    found = []
    for number in range(count):
        began = time.monotonic()
        (call_id,) = await submit(channel, session_id, [call(f"d{number}")])
        await value(channel, session_id, f"d{number}")
        found.append((engine.arrived[session_id, call_id] - began) * 1e3)
    return found


async def accept_ms(channel: aio.Channel) -> float:
    """A thousand calls in one batch, until they are stored."""
    session_id = await new_session(channel)
    calls = graph(1000)
    began = time.monotonic()
    await submit(channel, session_id, calls)
    elapsed_ms = (time.monotonic() - began) * 1e3
    await value(channel, session_id, "v499")
    return elapsed_ms


async def measure(stack: Stack, report: Report, *, quick: bool) -> None:
    """Everything, on a warm manager."""
    address = flag(stack, "--manager-address")
    async with AsyncExitStack() as exits:
        bus = await exits.enter_async_context(connected(flag(stack, "--nats-url"), "instant", 10))
        channel = await exits.enter_async_context(rpc.channel(address))
        engine = InstantEngine(bus, "e-instant", MODEL)
        await exits.enter_async_context(engine.attached(address))
        await application(channel, graph(GRAPH_CALLS))
        for _ in range(2 if quick else 5):
            sessions, before = 20 if quick else 60, cpu_ms(stack)
            rate = await calls_per_s(channel, sessions, at_once=8)
            spent = {name: now - before[name] for name, now in cpu_ms(stack).items()}
            report.samples.append(
                {
                    "calls_per_s": rate,
                    **{f"cpu_ms_{name}": ms / (sessions * GRAPH_CALLS) for name, ms in spent.items()},
                }
            )
            report.samples.append({"accept_1000_ms": await accept_ms(channel)})
        for each in await dispatch_ms(channel, engine, 100 if quick else 500):
            report.samples.append({"dispatch_ms": each})


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    report = Report("throughput", {"graph_calls": GRAPH_CALLS})
    with running("--backend", "sim") as stack:
        asyncio.run(measure(stack, report, quick=arguments.quick))
    found = {
        name: [sample[name] for sample in report.samples if name in sample]
        for name in (*report.samples[0], "accept_1000_ms", "dispatch_ms")
    }
    print_table(
        ["measured", "min", "p50", "p99", "max"],
        [[name, *(f"{each:,.2f}" for each in spread(values).values())] for name, values in found.items()],
    )
    report.summary = {
        "calls_per_s": statistics.median(found["calls_per_s"]),
        "cpu_ms_per_call": statistics.median(found["cpu_ms_parrot_manager"]),
        "accept_1000_ms": statistics.median(found["accept_1000_ms"]),
        "dispatch_ms_p50": statistics.median(found["dispatch_ms"]),
        "dispatch_ms_p99": spread(found["dispatch_ms"])["p99"],
    }
    report.show(arguments.json)


if __name__ == "__main__":
    main()
