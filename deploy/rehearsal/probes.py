"""Probes, as the kubelet makes them: from the pod's host, each within its own time."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from deploy.rehearsal.manifests import NotPlayed, Object
from deploy.rehearsal.network import connected

KINDS: Final = ("httpGet", "tcpSocket", "exec")

Run = Callable[[list[str], float], Awaitable[str]]
"""Runs a command in the container, for so many seconds at most; what is wrong, or nothing."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe of a container, with Kubernetes' defaults."""

    kind: str
    about: Object
    delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int

    @classmethod
    def of(cls, container: Object, name: str) -> Probe | None:
        """A container's `startupProbe`, `readinessProbe` or `livenessProbe`.

        Raises:
            NotPlayed: it is of a kind that is not played.
        """
        found = container.get(name)
        if found is None:
            return None
        kind = next((kind for kind in KINDS if kind in found), "")
        if not kind or found[kind].get("scheme", "HTTP") != "HTTP":
            where = f"container {container['name']}: {name}"
            raise NotPlayed(f"{where} is none of {', '.join(KINDS)}, over plain HTTP")
        about = dict(found[kind])
        if "port" in about:
            about["port"] = port_of(container, about["port"])
        return cls(
            kind,
            about,
            found.get("initialDelaySeconds", 0),
            found.get("periodSeconds", 10),
            found.get("timeoutSeconds", 1),
            found.get("successThreshold", 1),
            found.get("failureThreshold", 3),
        )

    async def once(self, address: str, threads: ThreadPoolExecutor, run: Run) -> str:
        """What is wrong; empty: nothing.

        Args:
            threads: they live in the host's network namespace.
        """
        if self.kind == "exec":
            return await run(self.about["command"], self.timeout_s)
        ask = self._get if self.kind == "httpGet" else self._connect
        return await asyncio.get_running_loop().run_in_executor(threads, ask, address)

    def _connect(self, address: str) -> str:
        try:
            connected(address, self.about["port"], self.timeout_s).close()
        except OSError as error:
            return f"port {self.about['port']}: {error}"
        return ""

    def _get(self, address: str) -> str:
        port, path = self.about["port"], self.about.get("path", "/")
        client = http.client.HTTPConnection(address, port, timeout=self.timeout_s)
        try:
            client.request("GET", path, headers={"User-Agent": "kube-probe", "Connection": "close"})
            answer = client.getresponse()
            text = answer.read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return f"{path}: {error}"
        finally:
            client.close()
        return "" if 200 <= answer.status < 400 else f"{path}: {answer.status} {text}"


def port_of(container: Object, port: int | str) -> int:
    """The number of a container's port, which may be given by its name.

    Raises:
        NotPlayed: it has no port of that name.
    """
    if isinstance(port, int):
        return port
    ports: list[Object] = container.get("ports", [])
    numbers = {one.get("name", ""): one["containerPort"] for one in ports}
    if port not in numbers:
        raise NotPlayed(f"container {container['name']} has no port {port}")
    return int(numbers[port])
