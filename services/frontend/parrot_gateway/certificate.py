"""The gateway's certificate as its channels to managers have it."""

from __future__ import annotations

import structlog

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.tls import Tls
from parrot_runtime.tls_trouble import why_not

log = structlog.get_logger()


class Certificate:
    """Tells when channels are to be made anew, and why managers don't let this gateway in."""

    def __init__(self, tls: Tls | None) -> None:
        """`tls`: None: plain text is spoken."""
        self.tls = tls
        self._in_use = tls.current() if tls is not None else None
        self._told: dict[str, str] = {}

    def changed(self) -> bool:
        """Whether the files hold another one than when this was asked last."""
        before, self._in_use = self._in_use, self.tls.current() if self.tls is not None else None
        return before is not self._in_use

    async def explain(self, address: str) -> None:
        """Logs why a manager can't be spoken to, if that is why; once, until it is another reason."""
        why = await why_not(address, self.tls)
        if why and self._told.get(address) != why:
            log.warning("manager not spoken to", address=address, reason=why)
        self._told[address] = why


def refused(address: str, fault: Fault) -> Fault:
    """What applications are told when a manager finds that this is no gateway: that is ours to mend."""
    log.error("the manager does not take this for a gateway", address=address, reason=fault.message)
    return Fault(
        errors.UNAVAILABLE, "the managers refuse this gateway; its log says why", retry_after_ms=1000
    )
