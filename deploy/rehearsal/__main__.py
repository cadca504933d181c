"""Runs the manifests' pods as a cluster would, disturbs them under load, and says what became of that."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from deploy.rehearsal.clients import Clients, ClientsFailed, make_key, running_clients
from deploy.rehearsal.cluster import Cluster, running_cluster
from deploy.rehearsal.controllers import JobFailed
from deploy.rehearsal.images import ROOT
from deploy.rehearsal.manifests import Manifests, NotPlayed
from deploy.rehearsal.network import NetworkError, NoNamespaces, check
from deploy.rehearsal.report import Figures, losses, restarts, step_reports, table
from deploy.rehearsal.steps import STEPS, Span, Step, StepFailed, carry_out, pods

RENDERED: Final = ROOT / "k8s" / "rendered" / "rehearsal.yaml"
STARTED_WITHIN_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is rehearsed.

    Attributes:
        calm_s: before the first step, and after each.
        at_once: applications.
    """

    steps: Sequence[Step]
    calm_s: float
    at_once: int


async def rehearse(options: Options, folder: Path) -> dict[str, Any]:
    """Starts the cluster, carries the steps out, and returns what was found.

    Raises:
        StepFailed: the cluster did not start.
        ClientsFailed: the clients don't work.
    """
    async with running_cluster(Manifests.read(RENDERED), folder) as cluster:
        started = time.monotonic()
        await start(cluster)
        start_s = time.monotonic() - started
        say(f"all pods are ready after {start_s:.1f} s: {pods(cluster)}")
        key = await make_key(cluster)
        async with running_clients(cluster, key, options.at_once, folder / "logs" / "clients.log") as clients:
            await clients.ready()
            say("every application has run once, undisturbed")
            spans: list[Span] = []
            failed = await disturb(cluster, clients, options, spans)
            await clients.stop()
        reports = step_reports(spans, clients.records)
        return {
            "failed": failed,
            "start_s": round(start_s, 1),
            "all": asdict(Figures.of(clients.records)),
            "steps": [asdict(one) for one in reports],
            "runs": [asdict(one) for one in clients.records],
            "losses": losses(clients.records),
            "restarts": restarts(cluster.pods),
            "history": cluster.history,
            "table": table(reports),
        }


async def start(cluster: Cluster) -> None:
    """Returns when all pods are ready.

    Raises:
        StepFailed: they don't get ready.
    """
    try:
        async with asyncio.timeout(STARTED_WITHIN_S):
            await cluster.apply()
    except TimeoutError:
        raise StepFailed(f"not all pods were ready after {STARTED_WITHIN_S:g} s: {pods(cluster)}") from None


async def disturb(cluster: Cluster, clients: Clients, options: Options, spans: list[Span]) -> str:
    """Carries the steps out, with calm around each, and notes when; what failed, where one did."""
    await asyncio.sleep(options.calm_s)
    for step in options.steps:
        before = len(clients.records)
        try:
            span = await carry_out(cluster, step)
        except StepFailed as error:
            return str(error)
        spans.append(span)
        await asyncio.sleep(options.calm_s)
        runs = clients.records[before:]
        if not runs:
            return f"{step.title}: no application ran meanwhile, and so nothing was tried"
        lost = sum(bool(one.error) for one in runs)
        say(f"{step.title}: {span.ended - span.started:.1f} s, lost {lost} of {len(runs)} runs")
    return ""


def say(text: str) -> None:
    """For whoever watches."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)  # noqa: T201 - a command


def reasons(group: BaseExceptionGroup[Exception]) -> list[str]:
    """What went wrong."""
    found: list[str] = []
    for error in group.exceptions:
        found += reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found


def arguments() -> argparse.Namespace:
    """What was asked for."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(prog="python -m deploy.rehearsal", description=(__doc__ or "").strip())
    parser.add_argument("--steps", type=_steps, default=STEPS, help=f"of {','.join(names)}; default: all")
    parser.add_argument("--calm-s", type=float, default=20.0, help="around each step (default: 20)")
    parser.add_argument("--at-once", type=int, default=6, help="applications at once (default: 6)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what was found there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the pods' logs there")
    return parser.parse_args()


def _steps(text: str) -> list[Step]:
    known = {step.name: step for step in STEPS}
    try:
        return [known[name] for name in text.split(",")]
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no step {error}; there are {', '.join(known)}") from None


def main() -> int:
    """0: nothing was lost. 1: something was. 2: it can't be rehearsed here."""
    options = arguments()
    wanted = Options(options.steps, options.calm_s, options.at_once)
    try:
        check()
    except NoNamespaces as error:
        say(f"no rehearsal here: {error}")
        return 2
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        found: dict[str, Any] = {}
        try:
            found = asyncio.run(rehearse(wanted, folder))
        except* (NotPlayed, StepFailed, ClientsFailed, JobFailed, NetworkError) as group:
            for line in reasons(group):
                say(line)
        finally:
            if options.logs is not None:
                shutil.copytree(folder / "logs", options.logs, dirs_exist_ok=True)
    if not found:
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(found.pop("table"))  # noqa: T201 - a command
    for lost in [*found["losses"], *found["restarts"]]:
        print(lost)  # noqa: T201
    if found["failed"]:
        say(found["failed"])
    overstayed = any("was killed" in one for one in found["restarts"])
    return 1 if found["losses"] or found["failed"] or overstayed else 0


if __name__ == "__main__":
    raise SystemExit(main())
