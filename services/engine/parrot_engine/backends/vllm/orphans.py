"""Ends a process whose parent is gone."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Ends this process when the one that started it through `multiprocessing` is gone.

    When a service is killed, vLLM's process goes on, with the model's memory and nothing to do.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent,), name="parent-watch", daemon=True).start()


def _wait_and_end(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
