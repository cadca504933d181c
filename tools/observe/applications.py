"""What applications get: how many in time, how long they take, and what seeing their graph is worth."""

from __future__ import annotations

from typing import Final

from tools.observe.asking import quantile, quantiles, rate
from tools.observe.panels import Dashboard, Panel, Query, Row

_MET: Final = rate("parrot_manager_deadlines_total", "", 'met="yes"')
_DEADLINES: Final = rate("parrot_manager_deadlines_total", "")


def _tokens(kind: str) -> str:
    return rate("parrot_engine_tokens_total", "", f'kind="{kind}"')


_ENDS: Final = Row(
    "Applications",
    [
        Panel(
            "Goodput",
            "Sessions a second that got all they asked for, in time, beside all that ended.",
            (
                Query(rate("parrot_manager_sessions_good_total", ""), "good"),
                Query(rate("parrot_manager_sessions_ended_total", "outcome"), "{{outcome}}"),
            ),
            unit="cps",
        ),
        Panel(
            "Duration of applications",
            "From a session being opened to its end.",
            quantiles("gen_ai_workflow_duration_seconds", 'error_type=""'),
            unit="s",
        ),
        Panel(
            "Deadlines met",
            "Of the outputs that somebody wanted by a time.",
            (Query(f"{_MET} / {_DEADLINES}", "met"),),
            unit="percentunit",
            bad=0.99,
            few_are_bad=True,
        ),
    ],
)

_CALLS: Final = Row(
    "Calls",
    [
        Panel(
            "Time to the first token (p95)",
            "From a call's inputs being there, by the model it asks for.",
            (
                Query(
                    quantile(0.95, "gen_ai_server_time_to_first_token_seconds", "gen_ai_request_model"),
                    "{{gen_ai_request_model}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Time per output token (p95)",
            "Behind the first, each call's mean.",
            (
                Query(
                    quantile(0.95, "gen_ai_server_time_per_output_token_seconds", "gen_ai_request_model"),
                    "{{gen_ai_request_model}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Time in the queue, by objective (p95)",
            "Latency calls are to wait least. Throughput calls fill what is left.",
            (Query(quantile(0.95, "parrot_manager_queue_seconds", "objective"), "{{objective}}"),),
            unit="s",
        ),
    ],
)

_WORTH: Final = Row(
    "What seeing the graph is worth",
    [
        Panel(
            "Prompt tokens that were there already",
            "shared: in a context that programs share. cache: found by the engine's cache of prefixes.",
            (
                Query(f"{_tokens('shared')} / {_tokens('prompt')}", "shared"),
                Query(f"({_tokens('cached')} - {_tokens('shared')}) / {_tokens('prompt')}", "cache"),
            ),
            unit="percentunit",
            stacked=True,
        ),
        Panel(
            "Streamed inputs that were prefilled before their end",
            "What calls did not wait for, though their inputs came late.",
            (Query(f"{_tokens('dynamic_prefill')} / {_tokens('streamed')}", "hidden"),),
            unit="percentunit",
        ),
        Panel(
            "Failovers",
            "Calls a second that went on after an attempt was lost with its engine.",
            (Query(rate("parrot_manager_failovers_total", ""), "failovers"),),
            unit="cps",
            width=4,
        ),
        Panel(
            "Unfairness",
            "Tokens that a waiting tenant was served more than another that waits for the same, at most.",
            (Query("max(parrot_manager_tenant_lead_tokens)", "lead"),),
            width=4,
        ),
    ],
)

APPLICATIONS: Final = Dashboard(
    "parrot-applications",
    "Parrot: applications",
    "What applications get, and what seeing their graph is worth.",
    [],
    [_ENDS, _CALLS, _WORTH],
)
