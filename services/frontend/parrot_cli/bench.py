"""`parrot bench`: the same applications on Parrot, and on what a client can do without it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parrot_cli.failing import FAILED, CommandError, reporting, wrong_use
from parrot_cli.options import PACKAGED_MODEL, Backend, Dtype

if TYPE_CHECKING:
    from parrot_bench.command import Asked


class Workload(StrEnum):
    """What is run."""

    CHAIN = "chain"
    CHAIN_LOADED = "chain-loaded"
    CHAINS = "chains"
    MAP_REDUCE = "map-reduce"
    SHARED_PROMPT = "shared-prompt"
    MULTI_AGENT = "multi-agent"
    MIXED = "mixed"


def _size(text: str) -> Any:
    return typer.Option(min=1, show_default=False, help=text, rich_help_panel="Sizes")


def _server(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Servers", **more)


Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", min=0.001, show_default=False, help="Random arrivals a second.", rich_help_panel="Sizes"
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, show_default=False, help="Between applications' arrivals.", rich_help_panel="Sizes"),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        min=0.001, show_default=False, help="What ends later is no goodput.", rich_help_panel="Sizes"
    ),
]


def bench(
    workload: Annotated[Workload, typer.Argument(help="What is run.")],
    *,
    systems: Annotated[
        str, typer.Option(metavar="A,B,...", help="What runs it; by default Parrot, and what could win.")
    ] = "",
    ablate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|all",
            help="Parrot without a feature, as a policy that sees requests, or with attention.",
        ),
    ] = None,
    engines: Annotated[int, typer.Option(min=1, max=64, help="How many engines each system has.")] = 1,
    rtt_ms: Annotated[
        float, typer.Option(min=0, max=60_000, help="The network between client and servers, there and back.")
    ] = 0,
    repeat: Annotated[int | None, typer.Option(min=1, help="Rounds; by default 3, with --quick 1.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another one: other texts and arrivals.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: to see that everything works.")
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="Leave idle servers up, instead of one system at a time.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Texts to work on; by default Python's own reference.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="OUT", help="Write everything to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="OUT.svg|png", help="Draw it.")] = None,
    timeout_s: Annotated[float, typer.Option(min=1, help="What an application may take.")] = 900,
    applications: Annotated[int | None, _size("Applications; of shared-prompt, system prompts.")] = None,
    chunks: Annotated[int | None, _size("Parts of a document.")] = None,
    chunk_tokens: Annotated[int | None, _size("Of each part.")] = None,
    output_tokens: Annotated[int | None, _size("Of each call, exactly.")] = None,
    prompt_tokens: Annotated[int | None, _size("Of a system prompt, a task, a chat's prompt.")] = None,
    queries: Annotated[int | None, _size("To each system prompt; chats; background at the most.")] = None,
    files: Annotated[int | None, _size("That a team writes.")] = None,
    rounds: Annotated[int | None, _size("Of review and revision.")] = None,
    rate: Rate = None,
    gap_s: Seconds = None,
    deadline_s: Deadline = None,
    model: Annotated[str, _server("The model.", metavar="DIR|smollm2")] = PACKAGED_MODEL,
    backend: Annotated[Backend, _server("What Parrot's engines generate with.")] = Backend.VLLM,
    dtype: Annotated[Dtype, _server("The model's arithmetic.")] = Dtype.BFLOAT16,
    threads: Annotated[int, _server("Of each engine; 0: the cores, shared.", min=0)] = 0,
    step_tokens: Annotated[int, _server("An engine step's tokens at most.", min=32)] = 512,
    kv_cache_mib: Annotated[int, _server("Of each engine; 0, on GPU: what is left.", min=0)] = 1024,
    capacity: Annotated[int, _server("Programs at once of a Parrot engine; 0: its own.", min=0)] = 0,
    url: Annotated[str, _server("A Parrot server that runs already.", metavar="URL")] = "",
    endpoint: Annotated[
        list[str] | None, _server("An OpenAI API that runs already, for baselines.", metavar="URL/v1")
    ] = None,
) -> None:
    """Runs applications on Parrot and on baselines, by turns, and compares them.

    Every system gets the same texts, output lengths, model, engine settings and network. Every other round
    runs the systems in the opposite order. Ctrl-C stops everything that was started.

    The exit code is 1 when a system that was asked for could not be measured, or an application failed.
    """
    sizes = {
        "applications": applications,
        "chunks": chunks,
        "chunk_tokens": chunk_tokens,
        "output_tokens": output_tokens,
        "prompt_tokens": prompt_tokens,
        "queries": queries,
        "files": files,
        "rounds": rounds,
        "rate_per_s": rate,
        "gap_s": gap_s,
        "deadline_s": deadline_s,
    }
    with reporting("bench", as_json=False):
        # What stands behind it is not loaded for any other command.
        from parrot_bench.command import Asked
        from parrot_bench.systems.base import Settings

        settings = Settings(
            folder=Path(),
            model=model,
            backend=backend.value,
            dtype=dtype.value,
            engines=engines,
            threads=threads,
            capacity=capacity,
            step_tokens=step_tokens,
            kv_cache_mib=kv_cache_mib,
            rtt_ms=rtt_ms,
            url=url.rstrip("/"),
            endpoints=tuple(each.rstrip("/") for each in endpoint or ()),
        )
        asked = Asked(
            workload=workload.value,
            settings=settings,
            systems=_listed(systems),
            ablate=tuple(ablate or ()),
            sizes={name: value for name, value in sizes.items() if value is not None},
            repeat=repeat or 0,
            seed=seed,
            quick=quick,
            together=together,
            timeout_s=timeout_s,
            data=data,
            out=json,
            plot=plot,
        )
        _run(asked)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _run(asked: Asked) -> None:
    from parrot_bench.command import WrongUse
    from parrot_bench.command import bench as run_bench
    from parrot_bench.documents import DocumentError
    from parrot_bench.systems.base import Unavailable

    try:
        if not run_bench(asked):
            raise typer.Exit(FAILED)
    except (WrongUse, DocumentError) as error:
        wrong_use(str(error))
    except (Unavailable, OSError) as error:
        raise CommandError(str(error), FAILED) from None
