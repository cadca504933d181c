"""What the machine itself costs: waking a process that slept, and reading memory.

Run it beside another benchmark: on a shared host both change from hour to hour, and much else with them.
"""

from __future__ import annotations

import os
import time

import numpy as np

from benchmarks.harness import Report, parser, print_table, spread

SLEPT_MS = (0, 20, 100, 800)
READ_MIB = 256


def echo(incoming: int, outgoing: int) -> None:
    """Sends every byte back, until there are no more."""
    while byte := os.read(incoming, 1):
        os.write(outgoing, byte)


def round_trips(rounds: int) -> dict[int, list[float]]:
    """A byte to another process and back, in ms, after both slept for so many ms."""
    (there_out, there_in), (back_out, back_in) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(there_in)
        echo(there_out, back_in)
        os._exit(0)
    found: dict[int, list[float]] = {slept_ms: [] for slept_ms in SLEPT_MS}
    for _ in range(rounds):
        for slept_ms, times in found.items():
            time.sleep(slept_ms / 1e3)  # the idleness whose cost is measured
            started = time.perf_counter()
            os.write(there_in, b"x")
            os.read(back_out, 1)
            times.append((time.perf_counter() - started) * 1e3)
    os.close(there_in)
    os.wait()
    return found


def read_gb_per_s(rounds: int) -> list[float]:
    """How fast one core reads memory that is beyond its caches."""
    data = np.ones(READ_MIB << 18, dtype=np.float32)
    rates = []
    for _ in range(rounds):
        started = time.perf_counter()
        data.sum()
        rates.append(data.nbytes / 1e9 / (time.perf_counter() - started))
    return rates


def main() -> None:
    """Measures and reports."""
    arguments = parser(__doc__).parse_args()
    rounds = 10 if arguments.quick else 50
    report = Report("machine", {"rounds": rounds})
    rows = []
    for slept_ms, times in round_trips(rounds).items():
        of = spread(times)
        report.samples += [{"slept_ms": slept_ms, "round_trip_ms": each} for each in times]
        report.summary[f"round_trip_ms_after_{slept_ms}"] = of["p50"]
        rows.append((f"round trip after {slept_ms} ms, ms", *(f"{of[k]:.2f}" for k in ("min", "p50", "max"))))
    rates = spread(read_gb_per_s(rounds))
    report.summary["read_gb_per_s"] = rates["p50"]
    rows.append(("memory read, GB/s", *(f"{rates[k]:.1f}" for k in ("min", "p50", "max"))))
    print_table(["the machine", "min", "p50", "max"], rows)
    report.show(arguments.json)


if __name__ == "__main__":
    main()
