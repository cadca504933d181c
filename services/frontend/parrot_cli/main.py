"""The `parrot` command."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
from pathlib import Path
from typing import Annotated

import structlog
import typer

from parrot_cli.datadir import default_data_dir
from parrot_cli.errors import UpError
from parrot_cli.options import PACKAGED_MODEL, Backend, Dtype, LogLevel, UpOptions
from parrot_cli.report import Report
from parrot_cli.stack import run_stack
from parrot_runtime.errors import Fault

# Set before gRPC is first used: this process starts others, and gRPC must not mind.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Parrot, a server for LLM applications.",
)


@app.callback()
def parrot() -> None:
    """Parrot, a server for LLM applications."""


@app.command()
def version() -> None:
    """Prints the version."""
    print(importlib.metadata.version("parrot-serve"))


@app.command()
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
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where data and logs are kept.", show_default=str(default_data_dir())),
    ] = None,
    otlp_endpoint: Annotated[str, typer.Option(metavar="URL", help="An OTLP/gRPC collector of traces.")] = "",
    log_level: Annotated[LogLevel, typer.Option(help="The least severe log written.")] = LogLevel.INFO,
    json: Annotated[bool, typer.Option("--json", help="Say everything as JSON, an object a line.")] = False,
) -> None:
    """Starts everything on this machine: NATS, Postgres, manager, engines, gateway.

    Ctrl-C stops it in order; a second one at once. When a component dies, the end of its log is
    shown and the rest is stopped: restarting what dies is left to what runs Parrot in production.
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
        log_level=log_level,
    )
    report = Report(as_json=json)
    # What libraries of ours log here, the report says in its own words.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        code = asyncio.run(run_stack(options, report))
    except UpError as error:
        code = _refused(report, str(error))
    except Fault as fault:
        code = _refused(report, fault.message)
    raise typer.Exit(code)


def _refused(report: Report, reason: str) -> int:
    report.event("refused", f"parrot up: {reason}", reason=reason, is_error=True)
    return 1


def main() -> None:
    """Entry point of `parrot`."""
    app(prog_name="parrot")


if __name__ == "__main__":
    main()
