"""Queries that are asked in the same form again and again."""

from __future__ import annotations

from tools.observe.panels import Panel, Query, Row

_RATE = "$__rate_interval"


def rate(metric: str, by: str, where: str = "") -> str:
    """How often a second, summed over everything but the labels in `by` (empty: over everything)."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate({metric}{_braced(where)}[{_RATE}]))"


def grown(metric: str, where: str = "") -> Query:
    """How much a counter grew since the point before, instance by instance."""
    return Query(f"sum by (instance) (increase({metric}{_braced(where)}[{_RATE}]))", "{{instance}}")


def quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    """A quantile of a histogram, one for each value of the labels in `by`."""
    labels = ", ".join(["le", *([by] if by else [])])
    return (
        f"histogram_quantile({share:g}, sum by ({labels}) (rate({metric}_bucket{_braced(where)}[{_RATE}])))"
    )


def quantiles(metric: str, where: str = "") -> tuple[Query, ...]:
    """The median, the 95th and the 99th percentile of a histogram."""
    return tuple(
        Query(quantile(share, metric, where=where), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)
    )


def processes(job: str) -> Row:
    """What every process tells of itself, whatever it does: the last row of each service's dashboard."""
    here = f'job="{job}", instance=~"$instance"'
    return Row(
        "The processes themselves",
        [
            Panel(
                "CPU",
                "Cores a process uses. A manager or a gateway runs on one: near 1 there is no more to get.",
                (Query(f"rate(process_cpu_seconds_total{{{here}}}[{_RATE}])", "{{instance}}"),),
                width=6,
            ),
            Panel(
                "Memory",
                "Resident memory of each process.",
                (Query(f"process_resident_memory_bytes{{{here}}}", "{{instance}}"),),
                unit="bytes",
                width=6,
            ),
            Panel(
                "Event loop's lag (p99)",
                "How late a process gets to what is due. From a quarter of a second on all of it is slow.",
                (Query(quantile(0.99, "parrot_loop_lag_seconds", "instance", here), "{{instance}}"),),
                unit="s",
                width=6,
                bad=0.25,
            ),
            Panel(
                "NATS",
                "1: connected. Every reconnection is a gap in which text waited.",
                (
                    Query(f"parrot_bus_connected{{{here}}}", "{{instance}} is connected"),
                    Query(
                        f"increase(parrot_bus_reconnects_total{{{here}}}[{_RATE}])", "{{instance}} came back"
                    ),
                ),
                width=6,
            ),
        ],
    )


def _braced(where: str) -> str:
    return f"{{{where}}}" if where else ""
