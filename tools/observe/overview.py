"""The first page: what applications get, and whether it is well."""

from __future__ import annotations

from typing import Final

from tools.observe.asking import quantile, quantiles, rate
from tools.observe.panels import Choice, Dashboard, Panel, Query, Row

from parrot_runtime import errors

_ENDED: Final = "parrot_manager_calls_ended_total"
_MODEL: Final = 'model=~"$model"'
SYSTEMS_FAULT: Final = "|".join(sorted(kind.type for kind in errors.KINDS.values() if 500 <= kind.http < 504))
"""How a call ends by the system's fault: by no mistake of the caller's, and by no deadline."""
_LOST: Final = rate(_ENDED, "", f'outcome=~"{SYSTEMS_FAULT}"')
_ANSWERS: Final = rate("parrot_gateway_requests_total", "")
_FAILED: Final = rate("parrot_gateway_requests_total", "", 'status=~"5.."')

_AT_A_GLANCE: Final = Row(
    "Is it well?",
    [
        Panel(
            "Calls done",
            "Calls that ended well, a second.",
            (Query(rate(_ENDED, "", 'outcome="done"')),),
            unit="cps",
            kind="stat",
            width=4,
        ),
        Panel(
            "Calls lost",
            "Calls that failed by the system's fault, a second: no engine came, or it erred, and the like.",
            (Query(f"{_LOST} or vector(0)"),),
            unit="cps",
            kind="stat",
            width=4,
            bad=0.01,
        ),
        Panel(
            "HTTP answers with 5xx",
            "Share of the API's answers that are the server's fault.",
            (Query(f"({_FAILED} or vector(0)) / {_ANSWERS}"),),
            unit="percentunit",
            kind="stat",
            width=4,
            bad=0.001,
        ),
        Panel(
            "Oldest waiting call",
            "How long the call that waits longest for an engine has been ready. At 30 s it fails.",
            (Query("max(parrot_manager_queue_oldest_seconds)"),),
            unit="s",
            kind="stat",
            width=4,
            bad=15,
        ),
        Panel(
            "Engines that serve",
            "Engines that take calls, as the manager that sees most of them sees it.",
            (Query('sum(max by (model) (parrot_manager_engines{state="serving"}))'),),
            kind="stat",
            width=4,
            bad=1,
            few_are_bad=True,
        ),
        Panel(
            "Alerts",
            "Alerts that fire now; docs/operate.md says what to do about each.",
            (Query('count(ALERTS{alertstate="firing", alertname=~"Parrot.*"}) or vector(0)'),),
            kind="stat",
            width=4,
            bad=1,
        ),
    ],
)

_APPLICATIONS: Final = Row(
    "Applications",
    [
        Panel(
            "Calls by how they ended",
            "A second. `done` is well; the callers' own mistakes are here too, by their type.",
            (Query(rate(_ENDED, "outcome"), "{{outcome}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Calls that have not ended",
            "waiting: for an input. queued: for an engine. running: on one.",
            (Query("sum by (state) (parrot_manager_calls)", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Sessions",
            "Sessions that are held, over all managers.",
            (Query("sum(parrot_manager_sessions)", "sessions"),),
        ),
    ],
)

_WAITING: Final = Row(
    "Waiting for an engine",
    [
        Panel(
            "Time in the queue",
            "From a call being ready to its being on its way to an engine.",
            quantiles("parrot_manager_queue_seconds", _MODEL),
            unit="s",
        ),
        Panel(
            "Time in the queue by model (p95)",
            "A model whose line grows needs more engines.",
            (Query(quantile(0.95, "parrot_manager_queue_seconds", "model", _MODEL), "{{model}}"),),
            unit="s",
        ),
        Panel(
            "Calls in the queue",
            "Ready calls without an engine, by model.",
            (Query(f"sum by (model) (parrot_manager_queued_calls{{{_MODEL}}})", "{{model}}"),),
            stacked=True,
        ),
    ],
)

_EDGE: Final = Row(
    "The API",
    [
        Panel(
            "Answers by status",
            "A second. 4xx are callers' mistakes and quotas.",
            (Query(rate("parrot_gateway_requests_total", "status"), "{{status}}"),),
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Open streams",
            "Readers that are connected now, by what they read.",
            (Query("sum by (kind) (parrot_gateway_streams)", "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Text sent in streams",
            "Bytes a second, over all gateways.",
            (Query(rate("parrot_gateway_stream_bytes_total", ""), "sent"),),
            unit="Bps",
        ),
    ],
)

_CAPACITY: Final = Row(
    "Engines",
    [
        Panel(
            "Engines by state",
            "serving: takes calls. draining: ends what it has. silent: nobody hears it.",
            (
                Query(
                    f"max by (model, state) (parrot_manager_engines{{{_MODEL}}})",
                    "{{model}} {{state}}",
                ),
            ),
        ),
        Panel(
            "Tokens",
            "Tokens a second of programs that are done; cached ones are among the prompt's.",
            (
                Query(
                    rate("parrot_engine_tokens_total", "kind", 'kind=~"prompt|cached|output"'),
                    "{{kind}}",
                ),
            ),
        ),
        Panel(
            "KV memory in use",
            "Near 100 % contexts are put aside and computed again.",
            (Query("parrot_engine_kv_used_fraction", "{{instance}}"),),
            unit="percentunit",
            bad=0.95,
        ),
    ],
)

OVERVIEW: Final = Dashboard(
    "parrot-overview",
    "Parrot: overview",
    "What applications get of the whole system.",
    [Choice("model", "parrot_manager_queued_calls")],
    [_AT_A_GLANCE, _APPLICATIONS, _WAITING, _EDGE, _CAPACITY],
)
