"""Addresses to listen on."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone; a name is, if it is localhost."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
