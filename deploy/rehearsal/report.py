"""What a rehearsal found, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deploy.rehearsal.load import Record
from deploy.rehearsal.pod import Pod
from deploy.rehearsal.steps import Span


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some runs of applications: from their start to their end, and to their first text."""

    runs: int
    lost: int
    p50_s: float | None
    p99_s: float | None
    longest_s: float | None
    first_text_p99_s: float | None

    @classmethod
    def of(cls, records: Iterable[Record]) -> Figures:
        """Those of these."""
        found = list(records)
        took = sorted(one.ended - one.started for one in found)
        first = sorted(one.first_text_s for one in found if one.first_text_s is not None)
        return cls(
            len(found),
            sum(bool(one.error) for one in found),
            quantile(took, 0.5),
            quantile(took, 0.99),
            took[-1] if took else None,
            quantile(first, 0.99),
        )


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step, and the runs before it, that it touched, and after it."""

    name: str
    title: str
    took_s: float
    before: Figures
    during: Figures
    after: Figures


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest of sorted values that so large a share of them does not exceed."""
    if not values:
        return None
    return values[max(0, -(-len(values) * round(share * 1000) // 1000) - 1)]


def step_reports(spans: Sequence[Span], records: Sequence[Record]) -> list[StepReport]:
    """A report a step. Calm is what lies between it and its neighbours."""
    reports: list[StepReport] = []
    for place, span in enumerate(spans):
        earlier = spans[place - 1].ended if place else 0.0
        later = spans[place + 1].started if place + 1 < len(spans) else float("inf")
        reports.append(
            StepReport(
                span.step.name,
                span.step.title,
                span.ended - span.started,
                Figures.of(one for one in records if earlier < one.started and one.ended < span.started),
                Figures.of(one for one in records if one.started <= span.ended and one.ended >= span.started),
                Figures.of(one for one in records if span.ended < one.started and one.ended < later),
            )
        )
    return reports


def restarts(pods: Iterable[Pod]) -> list[str]:
    """The pods whose container ended when nobody told it to, or had to be killed, with the reason."""
    return [
        f"{pod.name}: {pod.restarts} restarts; {pod.complaint or 'no complaint'}"
        for pod in pods
        if pod.restarts or "killed" in pod.complaint
    ]


def table(reports: Iterable[StepReport]) -> str:
    """The steps as Markdown."""
    head = [
        "| step | took | runs | lost | p50 before, during, after | p99 before, during, after | longest |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*head, *(_row(one) for one in reports)])


def _row(one: StepReport) -> str:
    during = one.during
    cells = [
        one.title,
        f"{one.took_s:.1f} s",
        str(during.runs),
        str(during.lost),
        _three(one, lambda figures: figures.p50_s),
        _three(one, lambda figures: figures.p99_s),
        _seconds(during.longest_s),
    ]
    return f"| {' | '.join(cells)} |"


def _three(one: StepReport, figure: Callable[[Figures], float | None]) -> str:
    return ", ".join(_seconds(figure(figures)) for figures in (one.before, one.during, one.after))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def losses(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The runs that are lost."""
    return [asdict(one) for one in records if one.error]
