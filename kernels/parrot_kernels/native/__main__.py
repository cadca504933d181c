"""Builds the native library, where it isn't there as its sources are, and says where it is."""

from __future__ import annotations

import sys

from parrot_kernels.native.build import BuildError
from parrot_kernels.native.load import find

if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find()}\n")
    except BuildError as failed:
        sys.exit(f"parrot-kernels: {failed}")
