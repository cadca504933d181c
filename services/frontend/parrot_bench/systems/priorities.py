"""The priorities a client gives its requests: all that it knows of its applications, in vLLM's one number."""

from __future__ import annotations

from typing import Final

from parrot_bench.graphs import Application, Objective

CLASSES: Final[dict[Objective, int]] = {"ttft": 0, "latency": 1, "throughput": 2}
"""Who reads along goes before who waits for a result, and both before batches."""
_DEPTHS: Final = 1_000
_APPLICATIONS: Final = 1_000_000


def distances(application: Application) -> dict[str, int]:
    """Of each call, how many follow it at most on a way to the application's end; 0 of the last ones."""
    found = dict.fromkeys((call.name for call in application.calls), 0)
    for call in reversed(application.calls):
        for read in call.reads:
            found[read] = max(found[read], found[call.name] + 1)
    return found


def priorities(application: Application, arrived: int) -> dict[str, int]:
    """vLLM's priority of each call: the lower goes first.

    By objective first; then the application that came first, which ends soonest when it is not
    overtaken; within one, the call with the longest way behind it, as in HEFT's upward rank (Topcuoglu et
    al., IEEE TPDS 2002).

    Args:
        arrived: applications that came before.
    """
    of_application = (CLASSES[application.objective] * _APPLICATIONS + arrived % _APPLICATIONS) * _DEPTHS
    return {
        name: of_application + max(0, _DEPTHS - 1 - distance)
        for name, distance in distances(application).items()
    }
