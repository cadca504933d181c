"""What a service tells Prometheus, as Prometheus reads it."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics of one moment."""

    families: tuple[Metric, ...]

    @classmethod
    def of(cls, text: str) -> Scrape:
        """What a text of Prometheus' format says."""
        return cls(tuple(text_string_to_metric_families(text)))

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of a name that have these labels; no sample is 0."""
        found = (sample for family in self.families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in found if labels.items() <= sample.labels.items())

    def labels(self) -> dict[str, set[str]]:
        """The labels each metric has, by its name as it is asked for, without a histogram's own."""
        found: dict[str, set[str]] = {}
        for family in self.families:
            for sample in family.samples:
                if family.type == "histogram":
                    name = family.name
                elif sample.name.endswith("_created"):
                    continue
                else:
                    name = sample.name
                found.setdefault(name, set()).update(sample.labels.keys() - {"le"})
        return found

    def kinds(self) -> dict[str, str]:
        """The type of each metric, by its name as it is asked for."""
        return {
            sample.name if family.type != "histogram" else family.name: family.type
            for family in self.families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


async def scraped(address: str) -> Scrape:
    """What the service says that is monitored at an address."""
    async with httpx.AsyncClient(timeout=10) as http:
        return Scrape.of((await http.get(f"http://{address}/metrics")).raise_for_status().text)


def collected(registry: CollectorRegistry) -> Scrape:
    """What a registry of this process says."""
    return Scrape.of(generate_latest(registry).decode())
