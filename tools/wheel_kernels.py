"""Compiles the kernels for the CPU into the wheel, which is then one for this kind of machine.

Without a compiler the wheel is for every machine and carries the sources only: then the kernels are compiled
where they are first used, or vLLM's own attention is. `PARROT_WHEEL_KERNELS=require` makes that an error.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS: Final = "kernels/parrot_kernels/native"


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling's hook; it finds the class by its base."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the library to what the wheel holds.

        Raises:
            BuildError: it can't be compiled, and is required.
        """
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "kernels"))
        from parrot_kernels.native.build import BuildError, build

        try:
            library = build()
        except BuildError as error:
            if os.environ.get("PARROT_WHEEL_KERNELS") == "require":
                raise
            self.app.display_warning(f"the wheel carries no compiled kernels: {error}")
            return
        build_data["artifacts"] += [f"{KERNELS}/{name}" for name in (library.name, f"{library.stem}.stamp")]
        build_data["pure_python"] = False
        # It is no extension of Python's: one for all its versions.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
