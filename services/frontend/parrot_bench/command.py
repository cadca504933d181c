"""`parrot bench` from what was asked to what is shown."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from parrot_bench import ablations, plotting, registry, report, usage
from parrot_bench.documents import (
    ByteTokenizer,
    ModelTokenizer,
    Tokenizer,
    model_folder,
    read_documents,
)
from parrot_bench.figures import summary
from parrot_bench.progress import Progress
from parrot_bench.running import Outcomes, Plan, run
from parrot_bench.shapes import Shape
from parrot_bench.systems.base import Settings, Unavailable
from parrot_bench.workloads import USES, WORKLOADS, used
from parrot_cli.screen import console, plain, print_table

QUICK_REPEAT: Final = 1
REPEAT: Final = 3


class WrongUse(ValueError):
    """What was asked for makes no sense; says what and how to mend it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says.

    Attributes:
        settings: without a folder for logs, which is made here.
        systems: empty: those that make sense for the workload.
        sizes: what differs from the workload's own shape, by its names.
        repeat: 0: what is usual.
        out: where to write everything as JSON.
        plot: where to draw it.
    """

    workload: str
    settings: Settings
    systems: tuple[str, ...] = ()
    ablate: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 0
    seed: int = 0
    quick: bool = False
    together: bool = False
    timeout_s: float = 900.0
    data: Path | None = None
    out: Path | None = None
    plot: Path | None = None


def bench(asked: Asked) -> bool:
    """Runs it, shows it, and writes what is to be written.

    Returns:
        Whether all systems that were asked for by name, and Parrot, ran without a failure.

    Raises:
        WrongUse: what was asked for makes no sense.
        Unavailable: something is missing that all systems need.
        DocumentError: there is no text, or not enough of it.
        OSError: what is to be written can't be.
    """
    systems = _systems(asked)
    shape = shape_of(asked.workload, asked.quick, asked.sizes)
    _check_files(asked)
    plan = Plan(
        workload=asked.workload,
        shape=shape,
        texts=list(read_documents(asked.data).values()),
        tokenizer=_tokenizer(asked.settings),
        systems=systems,
        settings=asked.settings,
        repeat=asked.repeat or (QUICK_REPEAT if asked.quick else REPEAT),
        seed=asked.seed,
        together=asked.together,
        timeout_s=asked.timeout_s,
    )
    machine = usage.machine()
    outcomes = _run(plan)
    _show(plan, outcomes)
    _write(asked, plan, outcomes, machine)
    return _is_fine(asked, outcomes)


def shape_of(workload: str, quick: bool, sizes: Mapping[str, Any]) -> Shape:
    """The sizes of a workload: its own, small ones if it is to be quick, and what was asked for otherwise.

    Raises:
        WrongUse: a size means nothing to it, or is out of range.
    """
    recipe = WORKLOADS[workload]
    for name in sizes:
        if name not in USES[workload]:
            known = ", ".join(sorted(map(flag, USES[workload])))
            raise WrongUse(f"{flag(name)} means nothing to {workload}; it takes {known}")
    try:
        return replace(recipe.quick if quick else recipe.shape, **sizes)
    except ValueError as error:
        raise WrongUse(str(error)) from None


def flag(size: str) -> str:
    """A size as the command line names it."""
    return "--" + size.removesuffix("_per_s").replace("_", "-")


def _run(plan: Plan) -> Outcomes:
    """Runs it; what servers logged stays where something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="parrot-bench-"))
    # Postgres, where this is root, runs as a user that must enter it.
    folder.chmod(0o755)
    plan = replace(plan, settings=replace(plan.settings, folder=folder))
    kept = False
    try:
        with Progress(plan.repeat * len(plan.systems)) as progress:
            outcomes = asyncio.run(run(plan, progress))
            kept = bool(outcomes.lost or outcomes.failures())
            if kept:
                progress.say_once(f"what the servers logged is in {folder}")
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return outcomes


def _systems(asked: Asked) -> list[str]:
    try:
        ablated = ablations.names(asked.ablate)
        chosen = list(asked.systems) or registry.defaults(asked.workload, asked.settings.engines)
        if ablated and not asked.systems:
            chosen = [registry.OURS]
        systems = chosen + [name for name in ablated if name not in chosen]
        registry.check(systems)
    except ValueError as error:
        raise WrongUse(str(error)) from None
    return systems


def _check_files(asked: Asked) -> None:
    """Finds what can't be written before hours are spent on it."""
    for path in (asked.out, asked.plot):
        if path is not None and not path.parent.is_dir():
            raise WrongUse(f"{path} can't be written: there is no folder {path.parent}")
    if asked.plot is not None:
        if asked.plot.suffix not in plotting.SUFFIXES:
            raise WrongUse(f"--plot {asked.plot}: the name ends in {', '.join(plotting.SUFFIXES)}")
        plotting.check()


def _tokenizer(settings: Settings) -> Tokenizer:
    if settings.backend == "sim":
        return ByteTokenizer()
    return ModelTokenizer(model_folder(settings.model))


def _show(plan: Plan, outcomes: Outcomes) -> None:
    heads, rows = report.rows(outcomes.rounds)
    screen = console()
    screen.print(f"\n{plan.workload}: {WORKLOADS[plan.workload].description}; {_sizes(plan)}\n")
    print_table(heads, rows)
    screen.print()
    for line in report.remarks(outcomes.rounds, outcomes, plan.settings):
        screen.print(plain(line), soft_wrap=True)
    screen.print()
    print_table(
        ["METRIC", "#VALUE"],
        [[name, f"{value:,.3f}"] for name, value in summary(outcomes.rounds).items()],
    )


def _sizes(plan: Plan) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in sorted(used(plan.workload, plan.shape).items()))
    return f"{sizes}; engines {plan.settings.engines}, rtt {plan.settings.rtt_ms:g} ms, seed {plan.seed}"


def _write(asked: Asked, plan: Plan, outcomes: Outcomes, machine: Mapping[str, Any]) -> None:
    if asked.out is not None:
        report.write(asked.out, report.content(plan, outcomes, machine))
        console().print(f"\nwritten to {asked.out}", soft_wrap=True)
    if asked.plot is not None:
        try:
            plotting.draw(asked.plot, outcomes.rounds, f"{plan.workload}: {_sizes(plan)}")
        except ValueError as error:
            raise Unavailable(f"{asked.plot} was not drawn: {error}") from None
        console().print(f"drawn in {asked.plot}", soft_wrap=True)


def _is_fine(asked: Asked, outcomes: Outcomes) -> bool:
    """A baseline that nobody asked for by name may be missing; nothing may have failed."""
    asked_for = {registry.OURS, *asked.systems, *ablations.names(asked.ablate)}
    return not outcomes.failures() and not asked_for & set(outcomes.lost)
