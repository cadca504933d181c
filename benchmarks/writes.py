"""Rows, bytes and transactions that Postgres writes for one call.

Counted by Postgres itself (`pg_stat_database`, `pg_stat_wal`, `pg_stat_user_tables`), before and after
a number of calls of one short application on a simulated engine.
"""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from benchmarks.harness import Report, parser, print_table
from benchmarks.http_client import request
from benchmarks.stack import Stack, running

COUNTS = """
    select (select wal_bytes from pg_stat_wal)::bigint as wal_bytes,
           (select xact_commit from pg_stat_database where datname = current_database()) as commits,
           (select coalesce(sum(n_tup_ins), 0) from pg_stat_user_tables)::bigint as inserted,
           (select coalesce(sum(n_tup_upd), 0) from pg_stat_user_tables)::bigint as updated
"""


def postgres_url(stack: Stack) -> str:
    """Where the stack's manager keeps its rows, read from its command line."""
    for process in stack.processes().values():
        words = process.cmdline()
        if "--postgres-url" in words:
            return words[words.index("--postgres-url") + 1]
    raise RuntimeError("no process of the stack has --postgres-url")


async def counts(url: str) -> dict[str, int]:
    """Postgres' counters, after its processes have reported theirs."""
    connection = await asyncpg.connect(url)
    try:
        # Idle backends report within a second of their last transaction, at the latest.
        await asyncio.sleep(1.5)
        await connection.execute("select pg_stat_clear_snapshot()")
        row = await connection.fetchrow(COUNTS)
        assert row is not None
        return {key: int(value) for key, value in row.items()}
    finally:
        await connection.close()


async def application(url: str, calls: int) -> None:
    """One application: a chain of calls, submitted at once, read at its end."""
    session = (await request(url, "POST", "/v1/sessions", {}))["id"]
    batch = [link(number) for number in range(calls)]
    await request(url, "POST", f"/v1/sessions/{session}/calls", {"calls": batch})
    path = f"/v1/sessions/{session}/variables/v{calls - 1}?wait_s=60"
    assert (await request(url, "GET", path))["state"] == "ready"


def link(number: int) -> dict[str, Any]:
    """A call that continues the call before it."""
    given = {"semantic_var_id": f"v{number - 1}"} if number else {"value": "Once upon a time"}
    made = {"semantic_var_id": f"v{number}", "sampling": {"max_tokens": 32, "ignore_eos": True}}
    return {
        "name": "continue_story",
        "prompt": "Continue this story.\n{{story}}\nAnd then: {{more}}",
        "placeholders": [
            {"name": "story", "in_out": "in", **given},
            {"name": "more", "in_out": "out", **made},
        ],
    }


async def measure(url: str, database: str, applications: int, calls: int) -> dict[str, float]:
    """What one call cost, on average over `applications` chains of `calls`."""
    await application(url, calls)
    before = await counts(database)
    for _ in range(applications):
        await application(url, calls)
    after = await counts(database)
    # The two looks themselves commit a little: one transaction for each statement.
    return {key: (after[key] - before[key]) / (applications * calls) for key in before}


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    applications, calls = (5, 8) if arguments.quick else (50, 8)
    report = Report("writes", {"applications": applications, "calls_per_application": calls})
    with running("--backend", "sim") as stack:
        database = postgres_url(stack)
        for _ in range(1 if arguments.quick else 3):
            report.samples.append(asyncio.run(measure(stack.url, database, applications, calls)))
    for key in report.samples[0]:
        values = sorted(sample[key] for sample in report.samples)
        report.summary[f"{key}_per_call"] = values[len(values) // 2]
    rows = [(name, f"{value:,.1f}") for name, value in report.summary.items()]
    print_table(["of a chain's call", "median"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
