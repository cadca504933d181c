"""How long a dead manager's sessions are without one, and what is generated again for it.

Two managers share a stack's sessions. One of them is killed (SIGKILL) while calls of its sessions stream;
the clock runs from the kill until the other answers for every one of those sessions. The calls then run to
their end, and the tokens of every attempt but a call's first count as generated again.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from typing import Any

from grpc import aio

from benchmarks.harness import Report, parser, print_table
from benchmarks.manager.processes import ask, flag, manager, shards_of, started, until
from benchmarks.stack import Stack, running
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import ids, rpc
from parrot_runtime.errors import Fault

TENANT = "default"
TOKENS = 600
STEP_MS = 10
"""Of a simulated engine, by default."""
ENDED = frozenset({common_pb2.CALL_STATE_DONE, common_pb2.CALL_STATE_FAILED, common_pb2.CALL_STATE_CANCELLED})


async def open_session(channel: aio.Channel, shards: set[int]) -> str:
    """A session in one of some shards, with one long call."""
    while True:
        key = secrets.token_hex(16)
        session_id = ids.session_id_of(TENANT, key)
        if ids.shard_of(session_id) in shards:
            break
    request = pb.CreateSessionRequest(tenant=TENANT, idempotency_key=key)
    await ask(channel, "CreateSession", request)
    output = common_pb2.OutputHole(name="o", variable_id="o")
    output.sampling.max_tokens, output.sampling.ignore_eos = TOKENS, True
    segments = [common_pb2.Segment(text=f"Tell of {key}:"), common_pb2.Segment(output=output)]
    calls = [pb.NewCall(name="tell", segments=segments)]
    await ask(
        channel, "SubmitCalls", pb.SubmitCallsRequest(tenant=TENANT, session_id=session_id, calls=calls)
    )
    return session_id


async def call_of(channel: aio.Channel, session_id: str) -> pb.Call | None:
    """The session's call, if this manager answers for it."""
    try:
        answer = await ask(
            channel, "GetSession", pb.GetSessionRequest(tenant=TENANT, session_id=session_id), 1
        )
    except Fault:
        return None
    call: pb.Call = answer.calls[0]
    return call


async def one_round(stack: Stack, first: aio.Channel, number: int, sessions: int) -> dict[str, float]:
    """One kill."""
    second, address = manager(stack, f"m-killed-{number}")
    with started(second):
        async with rpc.channel(address) as channel:

            async def shared() -> bool:
                return len(await shards_of(first, f"m-killed-{number}")) == ids.SHARDS // 2

            await until(shared)
            shards = await shards_of(first, f"m-killed-{number}")
            names = [await open_session(channel, shards) for _ in range(sessions)]
            await asyncio.gather(*(until(lambda name=name: _runs(channel, name)) for name in names))  # type: ignore[misc]
            second.kill()
        killed = time.monotonic()
        gaps = await asyncio.gather(*(_served(first, name, killed) for name in names))
        ended = await asyncio.gather(*(_ended(first, name) for name in names))
    again = sum(call.usage.output_tokens for call in ended if call.attempt > 1)
    undone = sum(call.state != common_pb2.CALL_STATE_DONE for call in ended)
    assert not undone, ended
    return {"seconds": max(gaps), "seconds_first": min(gaps), "tokens_again": again, "calls": len(ended)}


async def _runs(channel: aio.Channel, session_id: str) -> bool:
    call = await call_of(channel, session_id)
    return call is not None and call.state == common_pb2.CALL_STATE_RUNNING


async def _served(channel: aio.Channel, session_id: str, since: float) -> float:
    async def answers() -> bool:
        return await call_of(channel, session_id) is not None

    await until(answers)
    return time.monotonic() - since


async def _ended(channel: aio.Channel, session_id: str) -> pb.Call:
    found: list[pb.Call] = []

    async def look() -> bool:
        call = await call_of(channel, session_id)
        if call is not None and call.state in ENDED:
            found.append(call)
        return bool(found)

    await until(look, TOKENS * STEP_MS / 1000 + 60)
    return found[0]


async def measure(stack: Stack, rounds: int, sessions: int) -> list[dict[str, Any]]:
    """All rounds."""
    async with rpc.channel(flag(stack, "--manager-address")) as first:
        return [await one_round(stack, first, number, sessions) for number in range(rounds)]


def main() -> None:
    """Measures and reports."""
    arguments: argparse.Namespace = parser(__doc__).parse_args()
    rounds, sessions = (2, 8) if arguments.quick else (10, 24)
    report = Report(
        "takeover", {"rounds": rounds, "sessions": sessions, "tokens": TOKENS, "step_ms": STEP_MS}
    )
    with running("--backend", "sim", "--engines", "2") as stack:
        report.samples += asyncio.run(measure(stack, rounds, sessions))
    seconds = [sample["seconds"] for sample in report.samples]
    report.summary = {
        "seconds_p50": statistics.median(seconds),
        "seconds_max": max(seconds),
        "tokens_decoded_again": sum(sample["tokens_again"] for sample in report.samples),
    }
    rows = [[f"{sample['seconds_first']:.2f}", f"{sample['seconds']:.2f}"] for sample in report.samples]
    print_table(["first session, s", "last session, s"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
