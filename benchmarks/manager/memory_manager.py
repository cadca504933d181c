"""A manager that keeps everything in memory: what `durability.py` compares the real one with.

Takes the manager's own flags.
"""

from __future__ import annotations

from contextlib import nullcontext

from parrot_manager.main import serve_store
from parrot_manager.settings import ManagerSettings
from parrot_manager.store.memory import MemoryStore
from parrot_runtime.lifecycle import Stop, run_service


def main() -> None:
    """Serves until it is told to stop."""
    settings = ManagerSettings.load()

    async def serve(stop: Stop) -> None:
        await serve_store(settings, stop, nullcontext(MemoryStore()))

    run_service("manager", settings, serve)


if __name__ == "__main__":
    main()
