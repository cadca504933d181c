"""`parrot run`: a program, or a graph written down, on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parrot_cli.failing import reporting, wrong_use
from parrot_cli.running import run_graph, run_program
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, Url


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A program (.py), or a graph (.json).")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENT]...", help="The program's own; of a graph: NAME=TEXT or NAME=@FILE."
        ),
    ] = None,
    *,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of the sessions.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Runs an application on a server, and tells of the sessions it made.

    A program gets the server by PARROT_URL and PARROT_API_KEY, and by OPENAI_BASE_URL and OPENAI_API_KEY
    for what it asks through OpenAI's client; its exit code is this command's. With --json, what it prints
    goes to stderr, and its sessions to stdout.

    A graph is the body of a POST to .../calls, as the HTTP API takes it. Arguments give variables their
    values: topic="the sea", text=@chapter.txt. What no call reads is printed, as it is generated.
    """
    with reporting("run", as_json=as_json), Server(url, api_key) as server:
        if not file.is_file():
            wrong_use(f"{file}: there is no such file")
        if file.suffix == ".py":
            code = run_program(server, file, arguments or [], quiet=quiet, as_json=as_json)
        elif file.suffix == ".json":
            code = run_graph(server, file, arguments or [], quiet=quiet, as_json=as_json)
        else:
            wrong_use(f"{file}: a program's name ends in .py, a graph's in .json")
        raise typer.Exit(code)
