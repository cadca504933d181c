"""From a producer's last token to its consumer's first one, in steps that only decode.

One pair alone, for outputs of several lengths, with dynamic prefill on and off in turn; then eight
pairs at once, and what streaming costs the whole batch.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import uvloop

from benchmarks.engine.rig import Client, Watch, bus, client, english, options, started
from benchmarks.harness import Report, parser, print_table
from parrot_engine.backends.vllm import VllmBackend
from parrot_engine.programs.tools import Features

LENGTHS = (32, 128, 512, 1024)
STATIC_TOKENS = 256
ASK = "\n\nIn one sentence, what is this text about?\n"
CONSUMER_TOKENS = 8
PAIRS = 8
PAIR_TOKENS = 256


class Bench:
    """Runs pairs on one engine, with dynamic prefill on or off."""

    def __init__(self, watch: Watch, on: Client, off: Client) -> None:
        self._watch = watch
        self._clients = {"on": on, "off": off}
        self._place = 0

    async def pair(self, switch: str, tokens: int) -> dict[str, Any]:
        """One producer and its consumer, alone or beside others."""
        sender = self._clients[switch]
        self._place += 1
        variable_id = f"x{self._place}"
        consumer = sender.send(
            "consumer",
            sender.text(english(sender.backend, STATIC_TOKENS, self._place)),
            sender.variable(variable_id, expected_tokens=tokens),
            sender.text(ASK),
            sender.output(f"y{self._place}", CONSUMER_TOKENS),
        )
        producer = sender.send(
            "producer",
            sender.text(english(sender.backend, 64, 1000 + self._place)),
            sender.output(variable_id, tokens),
        )
        await sender.end(producer)
        done = await sender.end(consumer)
        made = self._watch.traces[producer].tokens_s
        steps = [after - before for before, after in zip(made[-21:], made[-20:], strict=False)]
        step_ms = statistics.median(steps) * 1000
        gap_ms = (self._watch.traces[consumer].tokens_s[0] - made[-1]) * 1000
        return {
            "switch": switch,
            "tokens": tokens,
            "gap_ms": gap_ms,
            "step_ms": step_ms,
            "gap_steps": gap_ms / step_ms,
            "hidden": done.timings.dynamic_prefill_tokens / tokens,
        }

    async def batch(self, switch: str) -> tuple[float, list[dict[str, Any]]]:
        """Eight pairs at once; the seconds until all are done."""
        began = time.monotonic()
        pairs = await asyncio.gather(*(self.pair(switch, PAIR_TOKENS) for _ in range(PAIRS)))
        return time.monotonic() - began, list(pairs)


async def measure(lengths: Sequence[int], rounds: int, batches: int) -> Report:
    """The whole benchmark."""
    report = Report("engine/gap", {"rounds": rounds, "static_tokens": STATIC_TOKENS, "pairs": PAIRS})
    async with (
        bus() as made,
        started(VllmBackend(options(kv_cache_bytes=1 << 30, capacity=2 * PAIRS))) as backend,
        client(backend, made) as on,
        client(backend, made, Features(dynamic_prefill=False)) as off,
    ):
        bench = Bench(Watch(backend), on, off)
        await bench.pair("on", 32)
        for tokens in lengths:
            for _ in range(rounds):
                for switch in ("on", "off"):
                    report.samples.append(await bench.pair(switch, tokens))
        took: dict[str, list[float]] = {"on": [], "off": []}
        for _ in range(batches):
            for switch in ("on", "off"):
                seconds, pairs = await bench.batch(switch)
                took[switch].append(seconds)
                report.samples += [{"batch": True, **pair} for pair in pairs]
    summarise(report, lengths, took)
    return report


def summarise(report: Report, lengths: Sequence[int], took: dict[str, list[float]]) -> None:
    """Medians by length, and the batch's."""
    alone = [sample for sample in report.samples if "batch" not in sample]
    rows = []
    for tokens in lengths if alone else ():
        for switch, suffix in (("on", ""), ("off", "_off")):
            found = [s for s in alone if (s["tokens"], s["switch"]) == (tokens, switch)]
            steps = sorted(s["gap_steps"] for s in found)
            report.summary[f"gap_steps_{tokens}{suffix}"] = statistics.median(steps)
            rows.append(
                (
                    f"{tokens} tokens, dynamic prefill {switch}",
                    f"{statistics.median(s['gap_ms'] for s in found):.0f}",
                    f"{statistics.median(steps):.2f}",
                    f"{steps[0]:.2f}-{steps[-1]:.2f}",
                    f"{statistics.median(s['step_ms'] for s in found):.1f}",
                )
            )
    print_table(["one pair", "gap ms", "gap steps", "spread", "step ms"], rows)
    for tokens in lengths if alone else ():
        hidden = [s["hidden"] for s in alone if (s["tokens"], s["switch"]) == (tokens, "on")]
        report.summary[f"hidden_fraction_{tokens}"] = statistics.median(hidden)
        report.summary["hidden_fraction"] = report.summary[f"hidden_fraction_{tokens}"]
    for switch, suffix in (("on", ""), ("off", "_off")):
        together = [s["gap_steps"] for s in report.samples if "batch" in s and s["switch"] == switch]
        if together:
            report.summary[f"batch_gap_steps{suffix}"] = statistics.median(together)
            report.summary[f"batch_s{suffix}"] = statistics.median(took[switch])
    pairs = [on / off - 1 for on, off in zip(took["on"], took["off"], strict=True)]
    if pairs:
        report.summary["batch_cost"] = statistics.median(pairs)


def main() -> None:
    """Measures and reports."""
    made = parser(__doc__)
    made.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the producer's output"
    )
    made.add_argument("--rounds", type=int, default=7, help="single pairs of each length and kind; 0: none")
    made.add_argument("--batches", type=int, default=3, help="batches of each kind")
    given = made.parse_args()
    lengths, rounds, batches = given.lengths, given.rounds, given.batches
    if given.quick:
        lengths, rounds, batches = LENGTHS[:2], 3, 0
    # On the loop that the engine runs on.
    uvloop.run(measure(lengths, rounds, batches)).show(given.json)


if __name__ == "__main__":
    main()
