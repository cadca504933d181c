"""Asks a service whether it is ready; exits with 0 when it is, else with 1 and the reason.

Usage: probe.py URL

For health checks of images, which have no curl.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from typing import Final

WAIT_S: Final = 4.0


def main(arguments: list[str]) -> str | None:
    """What is wrong, or None."""
    match arguments:
        case [url] if url.startswith(("http://", "https://")):
            return ask(url)
        case _:
            return "usage: probe.py URL"


def ask(url: str) -> str | None:
    """None when the answer to a GET is a success."""
    try:
        # Whatever proxy is set, the service asked about is in this very container.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=WAIT_S):
            return None
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read().decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
