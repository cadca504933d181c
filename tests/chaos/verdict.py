"""What must hold after a storm, read from the database and from what readers read."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
from tests.chaos.applications import Record
from tests.chaos.transcripts import Transcript

from parrot_proto.common.v1 import common_pb2

READY: Final = common_pb2.VARIABLE_STATE_READY
DONE: Final = common_pb2.CALL_STATE_DONE
ENDED: Final = frozenset(
    {common_pb2.CALL_STATE_DONE, common_pb2.CALL_STATE_FAILED, common_pb2.CALL_STATE_CANCELLED}
)
STORE_WORDS: Final = (
    "asyncpg",
    "sqlalchemy",
    "postgres",
    "deadlock",
    "serializ",
    "sqlstate",
    "connection",
    "nats:",
)
"""Of a store's or a bus's own troubles, which are nobody's output's failure."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the database holds of the sessions in question."""

    calls: list[asyncpg.Record]
    variables: list[asyncpg.Record]
    attempts: list[asyncpg.Record]


async def read_rows(postgres_url: str, session_ids: Iterable[str]) -> Rows:
    """The sessions' rows."""
    wanted = list(session_ids)
    connection = await asyncpg.connect(postgres_url)
    try:
        calls, variables, attempts = [
            await connection.fetch(f"select * from {table} where session_id = any($1)", wanted)  # noqa: S608
            for table in ("calls", "variables", "attempts")
        ]
        return Rows(calls, variables, attempts)
    finally:
        await connection.close()


def violations(record: Record, rows: Rows) -> list[str]:
    """Every promise that was broken."""
    found = [*record.complaints, *(f"{session_id}: its readers wait" for session_id in record.unfinished)]
    found += _lost_calls(record, rows)
    found += _commits(rows)
    found += _failures(rows)
    found += _texts(record.transcripts, rows)
    return found


def summary(record: Record, rows: Rows) -> dict[str, Any]:
    """What the storm went over."""
    attempts = Counter(common_pb2.AttemptState.Name(row["state"]) for row in rows.attempts)
    return {
        "sessions": len(record.accepted),
        "calls": len(rows.calls),
        "not_done": sum(row["state"] != DONE for row in rows.calls),
        "transcripts": len(record.transcripts),
        "connections": sum(transcript.connections for transcript in record.transcripts),
        "attempts": {name.removeprefix("ATTEMPT_STATE_").lower(): count for name, count in attempts.items()},
    }


def _lost_calls(record: Record, rows: Rows) -> list[str]:
    found: list[str] = []
    stored: dict[str, dict[str, int]] = defaultdict(dict)
    for row in rows.calls:
        stored[row["session_id"]][f"c-{row['number']}"] = row["state"]
    for session_id, call_ids in record.accepted.items():
        if sorted(stored[session_id]) != sorted(call_ids):
            found.append(f"{session_id}: accepted {call_ids}, stored {sorted(stored[session_id])}")
        found += [
            f"{session_id}/{call_id}: it never ended"
            for call_id, state in stored[session_id].items()
            if state not in ENDED
        ]
    return found


def _commits(rows: Rows) -> list[str]:
    done = Counter(
        (row["session_id"], row["call_number"])
        for row in rows.attempts
        if row["state"] == common_pb2.ATTEMPT_STATE_DONE
    )
    found = [f"{ref}: committed {count} times" for ref, count in done.items() if count > 1]
    for row in rows.calls:
        count = done[row["session_id"], row["number"]]
        if (row["state"] == DONE) != (count == 1):
            found.append(
                f"{row['session_id']}/c-{row['number']}: state {row['state']}, {count} attempts done"
            )
    return found


def _failures(rows: Rows) -> list[str]:
    """A call of these applications has no reason to fail but the storm, which is none."""
    found: list[str] = []
    for row in [*rows.calls, *rows.variables]:
        if row["failure"] is None:
            continue
        failure = json.loads(row["failure"]) if isinstance(row["failure"], str) else row["failure"]
        name = row.get("number", row.get("id"))
        found.append(f"{row['session_id']}/{name} failed: {failure}")
        text = json.dumps(failure).lower()
        found += [f"a failure speaks of {word}: {text}" for word in STORE_WORDS if word in text]
    return found


def _texts(transcripts: list[Transcript], rows: Rows) -> list[str]:
    found: list[str] = []
    values = {
        (row["session_id"], row["id"]): bytes(row["value"]) for row in rows.variables if row["state"] == READY
    }
    for transcript in transcripts:
        name = transcript.session_id, transcript.variable_id
        found += [f"{name}: {fault}" for fault in transcript.faults]
        value = values.get(name)
        if transcript.state == "ready" and value != bytes(transcript.data):
            found.append(f"{name}: read {bytes(transcript.data)!r}, stored {value!r}")
        if (transcript.state == "ready") != (value is not None):
            found.append(f"{name}: its reader heard {transcript.state!r}, stored {value is not None}")
    return found
