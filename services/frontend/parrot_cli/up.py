"""`parrot up`: the whole system on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parrot_cli.datadir import default_data_dir
from parrot_cli.options import PACKAGED_MODEL, Backend, Dtype, LogLevel, UpOptions

if TYPE_CHECKING:
    from parrot_cli.report import Report


def up(
    *,
    model: Annotated[
        str,
        typer.Option(metavar="DIR|smollm2", help="A Hugging Face model's folder, or the packaged model."),
    ] = PACKAGED_MODEL,
    backend: Annotated[Backend, typer.Option(help="What engines generate with.")] = Backend.VLLM,
    engines: Annotated[int, typer.Option(min=0, max=64, help="How many engines.")] = 1,
    managers: Annotated[int, typer.Option(min=1, max=16, help="How many managers share the work.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="The model's arithmetic.")] = Dtype.BFLOAT16,
    host: Annotated[str, typer.Option(help="Where the gateway listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the gateway listens.")] = 8080,
    nats: Annotated[str, typer.Option(metavar="URL", help="A NATS server to use; none is started.")] = "",
    postgres: Annotated[str, typer.Option(metavar="URL", help="A Postgres to use; none is started.")] = "",
    keys: Annotated[
        bool, typer.Option("--keys", help="Ask for API keys; `parrot keys create` makes one.")
    ] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Run code that users send, in a sandbox on this machine.")
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where data and logs are kept.", show_default=str(default_data_dir())),
    ] = None,
    otlp_endpoint: Annotated[str, typer.Option(metavar="URL", help="An OTLP/gRPC collector of traces.")] = "",
    metrics_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Where the gateway serves metrics; managers and engines: the ports after it. 0: nowhere.",
        ),
    ] = 0,
    log_level: Annotated[LogLevel, typer.Option(help="The least severe log written.")] = LogLevel.INFO,
    json: Annotated[bool, typer.Option("--json", help="Say everything as JSON, an object a line.")] = False,
) -> None:
    """Starts everything on this machine: NATS, Postgres, managers, engines, gateway.

    Ctrl-C stops it in order; a second one at once. A manager that dies is started again, and goes on
    with its sessions. When another component dies, the end of its log is shown and the rest is
    stopped: restarting those is left to what runs Parrot in production.
    """
    options = UpOptions(
        data_dir=data_dir or default_data_dir(),
        model=model,
        backend=backend,
        engines=engines,
        managers=managers,
        dtype=dtype,
        host=host,
        port=port,
        nats_url=nats,
        postgres_url=postgres,
        otlp_endpoint=otlp_endpoint,
        metrics_port=metrics_port,
        log_level=log_level,
        keys=keys,
        sandbox=sandbox,
    )
    raise typer.Exit(_run(options, as_json=json))


def _run(options: UpOptions, *, as_json: bool) -> int:
    # What the stack stands on takes longer to load than most commands take.
    import logging

    import structlog

    from parrot_cli.errors import UpError
    from parrot_cli.report import Report
    from parrot_cli.stack import run_stack
    from parrot_runtime.errors import Fault

    report = Report(as_json=as_json)
    # What libraries of ours log here, the report says in its own words.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        return asyncio.run(run_stack(options, report))
    except UpError as error:
        return _refused(report, str(error))
    except Fault as fault:
        return _refused(report, fault.message)


def _refused(report: Report, reason: str) -> int:
    report.event("refused", f"parrot up: {reason}", reason=reason, is_error=True)
    return 1
