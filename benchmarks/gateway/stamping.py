"""Notes when functions of a service begin and end. Imported as the process starts, before the service is.

Every process appends lines `TIME NAME` (monotonic ns, one clock for all of a machine) to a file of its
own in the folder that PARROT_STAMPS names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

POINTS: Final = {
    "parrot_gateway.observing": ["Observed.__call__"],
    "parrot_gateway.manager_client": ["ManagerClient.open_with_calls"],
    "parrot_manager.store.postgres": [
        "PostgresStore.insert_session_with_calls",
        "PostgresStore.commit",
    ],
    "parrot_engine.programs.execution": ["Execution.run"],
    "parrot_engine.backends.openai.client": ["OpenAIClient._open"],
    "parrot_runtime.values.writer": ["DeltaWriter.append"],
    "parrot_runtime.values.reader": ["SessionFeed.open", "SessionFeed._on_delta"],
}
"""Methods, by their modules."""


class Stamps:
    """Writes them without buffering: a line is one write."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"{os.getpid()}").open("ab", buffering=0)

    def note(self, name: str) -> None:
        """It is now."""
        self._file.write(b"%d %s\n" % (time.monotonic_ns(), name.encode()))


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the functions of `POINTS` as their modules are imported."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in POINTS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for point in POINTS[name]:
                    _wrap(module, point, self._stamps)

            loader.exec_module = exec_module
        return spec


def _wrap(module: ModuleType, point: str, stamps: Stamps) -> None:
    owner_name, method = point.split(".")
    owner = getattr(module, owner_name)
    setattr(owner, method, _stamped(getattr(owner, method), point, stamps))


def _stamped(function: Callable[..., Any], name: str, stamps: Stamps) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            stamps.note(f"{name} begins")
            try:
                return await function(*args, **kwargs)
            finally:
                stamps.note(f"{name} ends")

        return waited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        stamps.note(f"{name} begins")
        return function(*args, **kwargs)

    return called


if folder := os.environ.get("PARROT_STAMPS"):
    sys.meta_path.insert(0, Finder(Stamps(Path(folder))))
