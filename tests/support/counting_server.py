"""`CountingUpstream` as a program that takes the flags of a baseline's server, and has a child of its own.

`--dtype broken` ends at once with an error, `--dtype late` never listens.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys

from tests.support.counting_upstream import CountingUpstream

CHILD = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()"


async def serve(port: int) -> None:
    """Serves until it is ended."""
    async with CountingUpstream(port=port) as server:
        await server.serve_forever()


def main() -> None:
    """Starts a child that nothing ends but a kill, and serves."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="")
    arguments, _ = parser.parse_known_args()
    if arguments.dtype == "broken":
        sys.exit("ValueError: there is no such dtype")
    child = subprocess.Popen([sys.executable, "-c", CHILD])
    print(f"child {child.pid}", flush=True)  # noqa: T201 - it is read from the log
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(asyncio.Event().wait() if arguments.dtype == "late" else serve(arguments.port))


if __name__ == "__main__":
    main()
