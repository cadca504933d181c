"""Managers: what they decide, what they own, and what they stand on."""

from __future__ import annotations

from typing import Final

from tools.observe.asking import grown, processes, quantile, quantiles, rate
from tools.observe.panels import Choice, Dashboard, Panel, Query, Row

_HERE: Final = 'instance=~"$instance"'

_WORK: Final = Row(
    "Work",
    [
        Panel(
            "Calls that ended, by manager",
            "A second. Each manager has the calls of the sessions it owns.",
            (Query(rate("parrot_manager_calls_ended_total", "instance", _HERE), "{{instance}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Calls that have not ended, by state",
            "waiting: for an input. queued: for an engine. running: on one.",
            (Query(f"sum by (state) (parrot_manager_calls{{{_HERE}}})", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a decision",
            "What the core takes to decide after an event; all of it is CPU.",
            quantiles("parrot_manager_decision_seconds", _HERE),
            unit="s",
        ),
    ],
)

_OWNERSHIP: Final = Row(
    "Who owns what",
    [
        Panel(
            "Shards by manager",
            "Together always the same number: less are sessions that nobody serves.",
            (Query(f"parrot_manager_shards{{{_HERE}}}", "{{instance}}"),),
            stacked=True,
        ),
        Panel(
            "Lease",
            "1: the manager has told Postgres in time that it lives. 0: its sessions go to the others.",
            (Query(f"parrot_manager_lease_valid{{{_HERE}}}", "{{instance}}"),),
        ),
        Panel(
            "Takeovers",
            "Shards taken over from another manager. In peace there are none.",
            (grown("parrot_manager_takeovers_total", _HERE),),
        ),
    ],
)

_STORE: Final = Row(
    "Postgres and what is still to be told",
    [
        Panel(
            "Time in the store, by operation (p95)",
            "What a manager waits for Postgres.",
            (Query(quantile(0.95, "parrot_manager_store_seconds", "operation", _HERE), "{{operation}}"),),
            unit="s",
            bad=0.5,
        ),
        Panel(
            "Errors of the store",
            "A second. While there are any, nothing new is accepted there.",
            (Query(rate("parrot_manager_store_errors_total", "instance", _HERE), "{{instance}}"),),
            unit="cps",
        ),
        Panel(
            "News that wait to be told",
            "What was committed and is not yet on the bus, and the age of the oldest.",
            (
                Query(f"sum(parrot_manager_outbox_waiting{{{_HERE}}})", "waiting"),
                Query(f"max(parrot_manager_outbox_oldest_seconds{{{_HERE}}})", "age of the oldest, s"),
            ),
        ),
    ],
)

_ENGINES: Final = Row(
    "Engines, as managers see them",
    [
        Panel(
            "Engines by state",
            "Of the manager that sees most.",
            (Query(f"max by (model, state) (parrot_manager_engines{{{_HERE}}})", "{{model}} {{state}}"),),
        ),
        Panel(
            "Engines lost",
            "Engines that went without a word.",
            (grown("parrot_manager_engines_lost_total", _HERE),),
        ),
        Panel(
            "Calls tried again",
            "A second: on another engine, or later.",
            (Query(rate("parrot_manager_retries_total", "instance", _HERE), "{{instance}}"),),
            unit="cps",
        ),
    ],
)

_RPC: Final = Row(
    "What managers are asked",
    [
        Panel(
            "Requests by method",
            "A second, by gateways and engines.",
            (Query(rate("parrot_manager_rpc_seconds_count", "method", _HERE), "{{method}}"),),
            unit="reqps",
        ),
        Panel(
            "Time by method (p95)",
            "Methods that wait for something are as slow as what they wait for.",
            (Query(quantile(0.95, "parrot_manager_rpc_seconds", "method", _HERE), "{{method}}"),),
            unit="s",
        ),
        Panel(
            "Refused, by type",
            "A second: mistakes, quotas, and sessions of another manager.",
            (Query(rate("parrot_manager_refused_total", "type", _HERE), "{{type}}"),),
            unit="reqps",
            stacked=True,
        ),
    ],
)

MANAGERS: Final = Dashboard(
    "parrot-managers",
    "Parrot: managers",
    "What managers decide, own and wait for.",
    [Choice("instance", "parrot_manager_shards")],
    [_WORK, _OWNERSHIP, _STORE, _ENGINES, _RPC, processes("parrot-manager")],
)
