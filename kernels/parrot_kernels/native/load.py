"""Finds and loads the native library.

It is beside its sources where it came with the package, or where that folder can be written; otherwise it is
compiled into a cache: the folder `PARROT_KERNELS_CACHE`, or `parrot-kernels` in the user's caches.
"""

from __future__ import annotations

import ctypes
import os
import stat
from functools import cache
from pathlib import Path

from parrot_kernels.native.build import HERE, NAME, BuildError, build, digest, is_current


def library() -> ctypes.CDLL:
    """The library; it is built where it isn't there as its sources are.

    Raises:
        BuildError: it is not there, and can't be built.
    """
    found = _library()
    if isinstance(found, str):
        raise BuildError(found)
    return found


def unavailable() -> str:
    """Why the library can't be had; nothing, where it can. What was found once is so for the process."""
    found = _library()
    return found if isinstance(found, str) else ""


@cache
def _library() -> ctypes.CDLL | str:
    try:
        return _loaded()
    except BuildError as error:
        return str(error)


def _loaded() -> ctypes.CDLL:
    path = find()
    try:
        return _opened(path)
    except BuildError:
        if path.parent != HERE:
            raise
        # It came with the package, and was made for another system's libraries.
        return _opened(_in_cache())


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{path} can't be loaded: {error}") from None


def find() -> Path:
    """Where the library is, after it was built if need be.

    Raises:
        BuildError: it is not there, and can't be built.
    """
    if is_current(HERE / NAME):
        return HERE / NAME
    return build() if os.access(HERE, os.W_OK) else _in_cache()


def _in_cache() -> Path:
    try:
        folder = _cache() / digest()
        both = (folder.parent, folder)
        for each in both:
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        shared = [each for each in both if _is_shared(each)]
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise BuildError(
            f"the native kernels aren't in {HERE}, which can't be written, nor is there a cache for them "
            f"({error}); set PARROT_KERNELS_CACHE to a folder that can be written"
        ) from None
    # Who can write there, or put another folder in its place, can have this process run what they please.
    if shared:
        raise BuildError(
            f"{shared[0]} can be written by others: no library is loaded from it; remove it, or set "
            "PARROT_KERNELS_CACHE to a folder that only you can write"
        )
    return build(folder)


def _is_shared(folder: Path) -> bool:
    """Whether others than this user and root can write there."""
    found = folder.stat()
    return found.st_uid not in {0, os.geteuid()} or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _cache() -> Path:
    given = os.environ.get("PARROT_KERNELS_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "parrot-kernels"
