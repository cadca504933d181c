"""The `parrot` command."""

from __future__ import annotations

import os

import typer

from parrot_cli import bench, cancel, engines, graph, keys, logs, ps, run, tenants, trace, up
from parrot_runtime.version import parrot_version

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
    print(parrot_version())


app.command()(up.up)
app.command(context_settings={"allow_interspersed_args": False})(run.run)
app.command()(ps.ps)
app.command()(logs.logs)
app.command()(graph.graph)
app.command()(trace.trace)
app.command()(cancel.cancel)
app.command()(engines.engines)
app.command()(bench.bench)
app.add_typer(keys.keys, name="keys")
app.add_typer(tenants.tenants, name="tenants")


def main() -> None:
    """Entry point of `parrot`."""
    app(prog_name="parrot")


if __name__ == "__main__":
    main()
