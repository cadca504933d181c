"""The statements that move what is taken of tenants' quotas; they are put together from constants alone.

A row that a transaction added or changed itself has the transaction's own number for its `xmin`: so a
write that is repeated, whose rows were there already, is not counted twice.
"""

# ruff: noqa: S608

from __future__ import annotations

from typing import Final

from sqlalchemy import text

from parrot_manager.core.model import VariableState

_MINE: Final = "xmin = pg_current_xact_id()::xid"
_READY: Final = int(VariableState.READY)
_TENANT: Final = "(SELECT tenant FROM sessions WHERE id = :session)"
_LEFT: Final = """
    least(t.tokens_per_minute, t.token_budget + t.tokens_per_minute / 60.0
        * extract(epoch FROM greatest(statement_timestamp() - t.token_budget_at, interval '0')))
"""
_MOVEMENT: Final = """
    SELECT CAST(:sessions AS bigint) AS sessions, CAST(:calls AS bigint) AS calls,
        CAST(:tokens AS bigint) AS tokens, CAST(:spent_tokens AS bigint) AS spent_tokens,
        CAST(:stored_bytes AS bigint) AS stored_bytes
"""
_MOVED: Final = f"""
    sessions = greatest(0, t.sessions + m.sessions),
    calls = greatest(0, t.calls + m.calls),
    tokens = greatest(0, t.tokens + m.tokens),
    stored_bytes = greatest(0, t.stored_bytes + m.stored_bytes),
    token_budget = CASE t.tokens_per_minute WHEN 0 THEN 0
        ELSE least(t.tokens_per_minute, {_LEFT} - m.spent_tokens) END,
    token_budget_at = greatest(t.token_budget_at, statement_timestamp())
"""
_FITS: Final = f"""
    (t.max_sessions = 0 OR m.sessions <= 0 OR t.sessions + m.sessions <= t.max_sessions)
    AND (t.max_calls = 0 OR m.calls <= 0 OR t.calls + m.calls <= t.max_calls)
    AND (t.max_tokens = 0 OR m.tokens <= 0 OR t.tokens + m.tokens <= t.max_tokens)
    AND (t.max_stored_bytes = 0 OR m.stored_bytes <= 0
        OR t.stored_bytes + m.stored_bytes <= t.max_stored_bytes)
    AND (t.tokens_per_minute = 0 OR m.spent_tokens <= 0 OR m.spent_tokens <= {_LEFT})
"""
_THERE: Final = {
    "session": "EXISTS (SELECT FROM sessions WHERE id = :session{mine})",
    "batch": """
        EXISTS (SELECT FROM calls WHERE session_id = :session AND number = :call{mine})
        OR EXISTS (SELECT FROM variables WHERE session_id = :session AND id = :variable{mine})
        OR EXISTS (SELECT FROM blocks WHERE session_id = :session AND number = :block{mine})
    """,
}
"""Whether a write is there; every write has one of these rows."""
_OF_SESSION: Final = {"session": ":tenant", "batch": _TENANT}

TAKE: Final = {
    kind: text(f"""
        WITH m AS ({_MOVEMENT}), new AS (SELECT {there.format(mine=f" AND {_MINE}")} AS it), taken AS (
            UPDATE tenants AS t SET {_MOVED} FROM m, new
            WHERE new.it AND t.name = {_TENANT} AND {_FITS} RETURNING t.name)
        SELECT new.it AS new, EXISTS (SELECT FROM taken) AS taken FROM new
    """)
    for kind, there in _THERE.items()
}
"""Takes a movement of what is new, if it fits: whether it was new, and was taken."""

GIVE_BACK: Final = text(
    f"WITH m AS ({_MOVEMENT}) UPDATE tenants t SET {_MOVED} FROM m WHERE t.name = {_TENANT}"
)
GIVE_BACK_NAMED: Final = text(
    f"WITH m AS ({_MOVEMENT}) UPDATE tenants t SET {_MOVED} FROM m WHERE t.name = :tenant"
)

SETTLE: Final = text(f"""
    WITH ended AS (
        SELECT count(*) FILTER (WHERE c.block_id = '') AS calls,
            coalesce(sum(c.reserved_tokens) FILTER (WHERE c.block_id = ''), 0) AS tokens,
            coalesce(sum(e.used), 0) AS used
        FROM unnest(CAST(:calls AS integer[]), CAST(:used AS bigint[])) AS e (number, used)
        JOIN calls AS c ON c.session_id = :session AND c.number = e.number
        WHERE c.ended_ms > 0 AND c.{_MINE}
    ), undone AS (
        SELECT coalesce(sum(b.reserved_calls), 0) AS calls, coalesce(sum(b.reserved_tokens), 0) AS tokens
        FROM blocks AS b WHERE b.session_id = :session AND b.number = ANY(CAST(:blocks AS integer[]))
        AND b.ended_ms > 0 AND b.{_MINE}
    ), made AS (
        SELECT coalesce(sum(v.size_bytes), 0) AS stored_bytes FROM variables AS v
        WHERE v.session_id = :session AND v.id = ANY(CAST(:variables AS text[]))
        AND v.state = {_READY} AND v.{_MINE}
    ), its AS (
        SELECT s.tenant, CASE WHEN s.ended_ms > 0 AND s.{_MINE} THEN 1 ELSE 0 END AS ended
        FROM sessions AS s WHERE s.id = :session
    ), m AS (
        SELECT its.tenant, -its.ended AS sessions, -(ended.calls + undone.calls) AS calls,
            -(ended.tokens + undone.tokens) AS tokens,
            ended.used - ended.tokens - undone.tokens AS spent_tokens, made.stored_bytes
        FROM ended, undone, made, its
    )
    UPDATE tenants AS t SET {_MOVED} FROM m WHERE t.name = m.tenant
""")
"""Gives back what is held by what this transaction ended, and takes storage for the values it added."""

LOOK: Final = {
    kind: text(f"""
        SELECT t.*, {_LEFT} AS budget_left, ({there.format(mine="")}) AS there
        FROM tenants AS t WHERE t.name = {_OF_SESSION[kind]}
    """)
    for kind, there in _THERE.items()
}
"""What a tenant has, and whether a write of its is there already."""
SELECT_NAMED: Final = text(f"SELECT t.*, {_LEFT} AS budget_left FROM tenants AS t WHERE t.name = :tenant")
SELECT_ALL: Final = text(f"SELECT t.*, {_LEFT} AS budget_left FROM tenants AS t ORDER BY t.name")

FREE: Final = tuple(
    text(
        f"WITH gone AS (DELETE FROM {table} WHERE session_id = ANY(CAST(:sessions AS text[])) "
        f"RETURNING session_id, {size} AS size) SELECT session_id, sum(size) AS size FROM gone GROUP BY 1"
    )
    for table, size in (
        ("calls", "octet_length(spec)"),
        ("variables", f"CASE state WHEN {_READY} THEN size_bytes ELSE 0 END"),
        ("blocks", "octet_length(spec)"),
    )
)
"""Deletes what sessions hold, and tells how much of it each had."""

LOCK: Final = text("SELECT name FROM tenants WHERE name = :tenant FOR UPDATE")
"""Whoever has changed rows and counted them has ended then, and who counts later waits."""

_HELD: Final = """
    SELECT session_id, sum(calls) AS calls, sum(tokens) AS tokens FROM (
        SELECT session_id, 1 AS calls, reserved_tokens AS tokens FROM calls
            WHERE ended_ms = 0 AND block_id = ''
        UNION ALL
        SELECT session_id, reserved_calls, reserved_tokens FROM blocks WHERE ended_ms = 0
    ) AS unfinished GROUP BY session_id
"""
"""What has not ended, by session. Where it is small, its sessions are looked up one by one, by their key:
a tenant's ended sessions are many, and kept for long."""

MISCOUNTED: Final = text(f"""
    WITH held AS MATERIALIZED ({_HELD}), sized AS (
        SELECT (SELECT tenant FROM sessions WHERE id = held.session_id) AS tenant,
            0 AS sessions, calls, tokens FROM held
        UNION ALL
        SELECT tenant, 1, 0, 0 FROM sessions WHERE ended_ms = 0
    ), n AS (
        SELECT tenant, sum(sessions) AS sessions, sum(calls) AS calls, sum(tokens) AS tokens
        FROM sized GROUP BY tenant
    )
    SELECT t.name FROM tenants AS t LEFT JOIN n ON n.tenant = t.name
    WHERE (t.sessions, t.calls, t.tokens)
        IS DISTINCT FROM (coalesce(n.sessions, 0), coalesce(n.calls, 0), coalesce(n.tokens, 0))
    ORDER BY t.name
""")
"""The tenants that have something else than is counted for them.

No lock is needed: what a transaction changes and what it counts are both in a statement's snapshot, or
neither is.
"""

RECOUNT: Final = text(f"""
    WITH held AS MATERIALIZED ({_HELD}), n AS (
        SELECT (SELECT count(*) FROM sessions WHERE tenant = :tenant AND ended_ms = 0) AS sessions,
            coalesce(sum(calls), 0) AS calls, coalesce(sum(tokens), 0) AS tokens
        FROM held WHERE (SELECT tenant FROM sessions WHERE id = held.session_id) = :tenant
    )
    UPDATE tenants AS t SET sessions = n.sessions, calls = n.calls, tokens = n.tokens
    FROM n WHERE t.name = :tenant
    AND (t.sessions, t.calls, t.tokens) IS DISTINCT FROM (n.sessions, n.calls, n.tokens)
    RETURNING t.name
""")
"""Counts what has not ended; a row for a count that was wrong."""

MEASURE: Final = text(f"""
    WITH mine AS (SELECT id FROM sessions WHERE tenant = :tenant)
    UPDATE tenants SET stored_bytes =
        (SELECT coalesce(sum(octet_length(c.spec)), 0) FROM calls AS c JOIN mine ON mine.id = c.session_id)
        + (SELECT coalesce(sum(octet_length(b.spec)), 0) FROM blocks AS b JOIN mine ON mine.id = b.session_id)
        + (SELECT coalesce(sum(v.size_bytes), 0) FROM variables AS v JOIN mine ON mine.id = v.session_id
            WHERE v.state = {_READY})
    WHERE name = :tenant
""")
"""Sums up what a tenant has stored: reads all of it."""

LIMIT: Final = text("""
    INSERT INTO tenants AS t (name, max_sessions, max_calls, max_tokens, tokens_per_minute,
        requests_per_second, max_stored_bytes, token_budget, request_budget)
    VALUES (:tenant, :sessions, :calls, :tokens, CAST(:tokens_per_minute AS bigint),
        CAST(:requests_per_second AS bigint), :stored_bytes,
        CAST(:tokens_per_minute AS bigint), CAST(:requests_per_second AS bigint))
    ON CONFLICT (name) DO UPDATE SET max_sessions = excluded.max_sessions, max_calls = excluded.max_calls,
        max_tokens = excluded.max_tokens, tokens_per_minute = excluded.tokens_per_minute,
        requests_per_second = excluded.requests_per_second, max_stored_bytes = excluded.max_stored_bytes,
        token_budget = CASE t.tokens_per_minute WHEN 0 THEN excluded.tokens_per_minute
            ELSE least(t.token_budget, excluded.tokens_per_minute) END,
        request_budget = least(t.request_budget, excluded.requests_per_second)
    RETURNING xmax = 0 AS fresh
""")
"""Whether the tenant had no limits before. Then nobody waits for the new row: nobody sees it yet."""
UNLIMIT: Final = text("DELETE FROM tenants WHERE name = :tenant")

LEASE_REQUESTS: Final = text("""
    WITH old AS (
        SELECT name, requests_per_second AS rate, least(requests_per_second * CAST(:burst AS bigint),
            request_budget + CAST(:returned AS bigint) + requests_per_second
            * extract(epoch FROM greatest(statement_timestamp() - request_budget_at, interval '0'))) AS budget
        FROM tenants WHERE name = :tenant FOR UPDATE
    ), new AS (
        SELECT name, rate, budget,
            CASE rate WHEN 0 THEN wanted ELSE floor(greatest(0, least(budget, wanted))) END AS granted
        FROM old, (SELECT CAST(:wanted AS bigint) AS wanted) AS asked
    )
    UPDATE tenants AS t SET request_budget = CASE n.rate WHEN 0 THEN 0 ELSE n.budget - n.granted END,
        request_budget_at = greatest(t.request_budget_at, statement_timestamp())
    FROM new AS n WHERE t.name = n.name RETURNING n.granted, n.rate, n.budget
""")
