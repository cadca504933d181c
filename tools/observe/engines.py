"""Engines: programs, tokens, KV memory, and where the time goes."""

from __future__ import annotations

from typing import Final

from tools.observe.asking import processes, quantile, rate
from tools.observe.panels import Choice, Dashboard, Panel, Query, Row

_HERE: Final = 'instance=~"$instance"'

_CACHED: Final = rate("parrot_engine_tokens_total", "", f'{_HERE}, kind="cached"')
_PROMPT: Final = rate("parrot_engine_tokens_total", "", f'{_HERE}, kind="prompt"')

_PROGRAMS: Final = Row(
    "Programs",
    [
        Panel(
            "Programs that are here",
            "waiting: for room. paused: their KV was given to others, and is computed again.",
            (Query(f"sum by (state) (parrot_engine_programs_now{{{_HERE}}})", "{{state}}"),),
            stacked=True,
        ),
        Panel(
            "Programs by how they ended",
            "A second. engine_error is the engine's fault: its log has the error.",
            (Query(rate("parrot_engine_programs_total", "outcome", _HERE), "{{outcome}}"),),
            unit="cps",
            stacked=True,
        ),
        Panel(
            "Running, by engine",
            "Engines of a model should be about equally busy.",
            (Query(f'parrot_engine_programs_now{{{_HERE}, state="running"}}', "{{instance}}"),),
        ),
    ],
)

_TOKENS: Final = Row(
    "Tokens",
    [
        Panel(
            "Output tokens, by engine",
            "Tokens a second of programs that are done.",
            (
                Query(
                    rate("parrot_engine_tokens_total", "instance", f'{_HERE}, kind="output"'), "{{instance}}"
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Prompt tokens",
            "A second, and how many of them came out of the cache of prefixes.",
            (
                Query(
                    rate("parrot_engine_tokens_total", "kind", f'{_HERE}, kind=~"prompt|cached"'), "{{kind}}"
                ),
            ),
        ),
        Panel(
            "Share of the prompt that was cached",
            "What shared prefixes save.",
            (Query(f"{_CACHED} / {_PROMPT}", "cached"),),
            unit="percentunit",
        ),
    ],
)

_TIME: Final = Row(
    "Where the time goes",
    [
        Panel(
            "Time by phase (p95)",
            "Of programs that are done. queue: for room in the batch.",
            (Query(quantile(0.95, "parrot_engine_phase_seconds", "phase", _HERE), "{{phase}}"),),
            unit="s",
        ),
        Panel(
            "Time of a step",
            "Of steps that only decode, lately. It grows with the batch, and on a GPU that is shared or hot.",
            (Query(f"parrot_engine_step_seconds{{{_HERE}}}", "{{instance}}"),),
            unit="s",
        ),
        Panel(
            "The batch",
            "Outputs and fills that run together.",
            (Query(f"parrot_engine_batch{{{_HERE}}}", "{{instance}}"),),
        ),
    ],
)

_MEMORY: Final = Row(
    "KV memory",
    [
        Panel(
            "In use",
            "Near 100 % contexts are put aside and computed again.",
            (Query(f"parrot_engine_kv_used_fraction{{{_HERE}}}", "{{instance}}"),),
            unit="percentunit",
            bad=0.95,
        ),
        Panel(
            "Tokens held, and room for more",
            "Of contexts that stay between calls, over all engines.",
            (
                Query(f"sum(parrot_engine_held_tokens{{{_HERE}}})", "held"),
                Query(f"sum(parrot_engine_free_tokens{{{_HERE}}})", "room"),
            ),
            stacked=True,
        ),
        Panel(
            "Contexts",
            "Their KV held or not.",
            (Query(f"parrot_engine_contexts{{{_HERE}}}", "{{instance}}"),),
        ),
    ],
)

ENGINES: Final = Dashboard(
    "parrot-engines",
    "Parrot: engines",
    "Programs, tokens and KV memory of engines.",
    [Choice("instance", "parrot_engine_batch")],
    [_PROGRAMS, _TOKENS, _TIME, _MEMORY, processes("parrot-engine")],
)
