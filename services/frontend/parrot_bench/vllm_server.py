"""vLLM's own OpenAI-compatible server, set as Parrot's engine sets vLLM.

Nothing imports this: it is a program, `python -m parrot_bench.vllm_server`, that `parrot_bench.serving`
starts. It takes its own flags and the engine's (`--model`, `--dtype`, `--threads`...), which are read as the
engine reads them, so that a baseline has the same arithmetic, executor, threads, block size and memory. Left
out is what is Parrot's own: its scheduler, its bound on requests at once, and its kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, Final

from parrot_engine.backends.vllm.arguments import (
    OWN_ATTENTION,
    attention,
    engine_arguments,
    environment,
)
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.main import vllm_options
from parrot_engine.models import ModelError, find_model
from parrot_engine.settings import EngineSettings

SERVER: Final = "vllm.entrypoints.openai.api_server"
KEEP_ALIVE_S: Final = 3600
PLUGINS: Final = ("general", "platform", "io_processor", "stat_logger", "endpoint")
"""Kinds of vLLM's plugins; of all of them the environment chooses by name."""
NGRAM: Final = {
    "method": "ngram",
    "num_speculative_tokens": 6,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}
"""vLLM's prompt lookup: up to six tokens are guessed, after two to four that stand in the prompt already."""


def parse(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """This program's flags, and the engine's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    parser.add_argument("--priority", action="store_true", help="requests' priorities are heeded")
    parser.add_argument("--ngram", action="store_true", help="speculation by prompt lookup")
    return parser.parse_known_args(argv)


def server_arguments(engine: Mapping[str, Any], *, port: int, priority: bool, ngram: bool) -> dict[str, Any]:
    """The server's arguments, from the engine's."""
    apart = {"max_num_seqs", "scheduling_policy"}
    return {name: value for name, value in engine.items() if name not in apart} | {
        "host": "127.0.0.1",
        "port": port,
        "scheduling_policy": "priority" if priority else "fcfs",
        **({"speculative_config": NGRAM} if ngram else {}),
        "enable_prompt_tokens_details": True,
        # A line of log for each request is paid for by the request.
        "disable_log_stats": True,
        "disable_uvicorn_access_log": True,
    }


def without_our_kernels(options: VllmOptions) -> VllmOptions:
    """The options with an attention that vLLM has of itself."""
    return replace(options, attention="") if attention(options) == OWN_ATTENTION else options


def server_environment(options: VllmOptions) -> dict[str, str]:
    """The engine's, and what a server is told beside it."""
    return {
        **environment(options),
        "VLLM_PLUGINS": others_plugins(),
        # What is being waited for stands in the log.
        "VLLM_LOGGING_LEVEL": "INFO",
        # By default vLLM closes an idle connection after 5 s, as long as httpx keeps one: a call that is
        # sent just then fails.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
    }


def others_plugins() -> str:
    """vLLM's plugins that are not Parrot's, as its environment names them; of those, what it is to load."""
    found = [
        plugin.name
        for kind in PLUGINS
        for plugin in entry_points(group=f"vllm.{kind}_plugins")
        if not plugin.value.startswith("parrot_")
    ]
    asked = os.environ.get("VLLM_PLUGINS")
    return ",".join(name for name in found if asked is None or name in asked.split(","))


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as vLLM's command line takes them; what is None or off is left to vLLM's defaults."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        flags.append(f"--{name.replace('_', '-')}")
        if value is not True:
            flags.append(json.dumps(value) if isinstance(value, Mapping) else str(value))
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Becomes the server."""
    own, rest = parse(argv)
    settings = EngineSettings.load(rest)
    options = without_our_kernels(vllm_options(settings))
    # Before vLLM and torch are imported, which read it.
    os.environ.update(server_environment(options))
    try:
        folder = find_model(settings.model, settings.cache_dir, _log)
    except ModelError as error:
        sys.exit(str(error))
    from vllm.platforms import current_platform

    engine = engine_arguments(options, folder.path, folder.name, on_cpu=current_platform.is_cpu())
    given = server_arguments(engine, port=own.port, priority=own.priority, ngram=own.ngram)
    sys.argv = [SERVER, *as_flags(given)]
    _log(" ".join(sys.argv))
    runpy.run_module(SERVER, run_name="__main__")


def _log(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
