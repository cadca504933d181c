"""Hosts and pods as network namespaces. All links lie in them: the machine's own network stays as it is."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

NETNS: Final = Path("/run/netns")
PROGRAMS: Final = ("ip", "iptables-restore")
SERVICE_RANGE: Final = "10.96.0.0/16"
GATEWAY: Final = "169.254.1.1"
"""What pods take for their router: each host answers to it on every pod's link."""
UPLINK: Final = "up0"
CUT: Final = "CUT"
SERVICES: Final = "SERVICES"
REFUSED: Final = "REFUSED"
EGRESS: Final = "EGRESS"
INGRESS: Final = "INGRESS"
_CLONE_NEWNET: Final = 0x40000000
# What a host does with packets: new connections to Services are turned to endpoints, and CUT can drop what
# comes and goes by the uplink.
_TABLES: Final = f"""*nat
:{SERVICES} - [0:0]
-A PREROUTING -j {SERVICES}
-A OUTPUT -j {SERVICES}
COMMIT
*filter
:{CUT} - [0:0]
:{REFUSED} - [0:0]
:{EGRESS} - [0:0]
:{INGRESS} - [0:0]
-A INPUT -j {CUT}
-A OUTPUT -j {CUT}
-A FORWARD -j {CUT}
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -j {REFUSED}
-A FORWARD -j {EGRESS}
-A FORWARD -j {INGRESS}
-A OUTPUT -j {REFUSED}
COMMIT
"""


class NoNamespaces(Exception):
    """This machine doesn't let us make networks."""


class NetworkError(Exception):
    """A step of setting up the network failed."""


@dataclass
class Host:
    """A node, or a client's machine: a namespace with an uplink to the others.

    Attributes:
        number: of its addresses: 10.70.0.number is its own, 10.70.number.0/24 its pods'.
    """

    name: str
    number: int
    namespace: str
    _pods: count[int] = field(default_factory=lambda: count(2))

    @property
    def address(self) -> str:
        """Its own."""
        return f"10.70.0.{self.number}"

    @property
    def pod_range(self) -> str:
        """Its pods' addresses."""
        return f"10.70.{self.number}.0/24"

    def free_address(self) -> str:
        """An address for a pod; never the same twice."""
        return f"10.70.{self.number}.{next(self._pods)}"


class Network:
    """The bridge, the hosts at it, and their pods. To be closed, which removes all of it.

    Its methods run programs, and return when they are done: not for the loop's thread.
    """

    def __init__(self) -> None:
        self._prefix = f"rehearsal-{secrets.token_hex(2)}"
        self._switch = f"{self._prefix}-switch"
        self._hosts: list[Host] = []
        self._links = count(1)
        self._lock = threading.Lock()
        self._add_namespace(self._switch)
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")

    def add_host(self, name: str) -> Host:
        """One more host, which reaches the others and their pods."""
        host = Host(name, len(self._hosts) + 1, f"{self._prefix}-{name}")
        space = host.namespace
        self._add_namespace(space)
        port = f"p{host.number}"
        _link((port, self._switch), (UPLINK, space))
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", space, "addr", "add", f"{host.address}/24", "dev", UPLINK)
        _ip("-n", space, "link", "set", UPLINK, "up")
        # Turned to an endpoint before they leave; the kernel asks for a way before that.
        _ip("-n", space, "route", "add", SERVICE_RANGE, "dev", UPLINK)
        for other in self._hosts:
            _ip("-n", space, "route", "add", other.pod_range, "via", other.address)
            _ip("-n", other.namespace, "route", "add", host.pod_range, "via", host.address)
        in_namespace(space, lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        load_rules(host, _TABLES)
        self._hosts.append(host)
        return host

    def add_pod(self, host: Host) -> tuple[str, str]:
        """One more pod's network on a host: its namespace, and its address."""
        with self._lock:
            number, address = next(self._links), host.free_address()
        space = f"{self._prefix}-pod{number}"
        self._add_namespace(space)
        link = f"pod{number}"
        _link((link, host.namespace), ("eth0", space))
        _ip("-n", host.namespace, "addr", "add", f"{GATEWAY}/32", "dev", link)
        _ip("-n", host.namespace, "link", "set", link, "up")
        _ip("-n", host.namespace, "route", "add", f"{address}/32", "dev", link)
        _ip("-n", space, "addr", "add", f"{address}/32", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        _ip("-n", space, "route", "add", f"{GATEWAY}/32", "dev", "eth0", "scope", "link")
        _ip("-n", space, "route", "add", "default", "via", GATEWAY, "dev", "eth0")
        return space, address

    def remove(self, namespace: str) -> None:
        """Removes a pod's network."""
        _ip("netns", "del", namespace)

    def close(self) -> None:
        """Removes everything that is left."""
        for path in NETNS.glob(f"{self._prefix}-*"):
            subprocess.run(["ip", "netns", "del", path.name], check=False, capture_output=True)

    def _add_namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")


def check() -> None:
    """Returns where namespaces can be made.

    Raises:
        NoNamespaces: they can't, with the reason.
    """
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces are made by root; run it as root")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise NoNamespaces(f"there is no {' and no '.join(missing)} on the PATH (Debian: iproute2, iptables)")
    try:
        network = Network()
    except NetworkError as error:
        raise NoNamespaces(f"this machine doesn't let root make network namespaces: {error}") from None
    try:
        network.add_pod(network.add_host("probe"))
    except NetworkError as error:
        raise NoNamespaces(f"links and rules can't be made in network namespaces here: {error}") from None
    finally:
        network.close()


def load_rules(host: Host, rules: str) -> None:
    """Adds rules to a host's, and replaces those of the chains that they name."""
    command = ["ip", "netns", "exec", host.namespace, "iptables-restore", "--noflush"]
    done = subprocess.run(command, input=rules, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"iptables-restore on {host.name}: {done.stderr.strip()}")


def cut(host: Host) -> None:
    """Drops, without a word, whatever comes to a host from others or goes to them."""
    drops = "".join(f"-A {CUT} {way} {UPLINK} -j DROP\n" for way in ("-i", "-o"))
    load_rules(host, f"*filter\n:{CUT} - [0:0]\n{drops}COMMIT\n")


def mend(host: Host) -> None:
    """Ends a cut."""
    load_rules(host, f"*filter\n:{CUT} - [0:0]\nCOMMIT\n")


def in_namespace(name: str, work: Callable[[], object]) -> None:
    """Calls something in a namespace, in a thread of its own."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            join(name)
            work()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise NetworkError(f"in namespace {name}: {failures[0]}")


def join(name: str) -> None:
    """Moves this thread, and no other, to a namespace: sockets that it opens from now on are there.

    Raises:
        OSError: there is no such namespace.
    """
    with (NETNS / name).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def connected(address: str, port: int, timeout_s: float) -> socket.socket:
    """A connection from the namespace of this thread."""
    return socket.create_connection((address, port), timeout_s)


def _link(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Joins two namespaces by a link; each end has a name in its own."""
    ends = "link", "add", one[0], "netns", one[1], "type", "veth", "peer", "name", other[0], "netns", other[1]
    _ip(*ends)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def rules_of(lines: Iterable[str], table: str, chains: Iterable[str]) -> str:
    """Rules that replace those of some chains of a table."""
    heads = [f":{chain} - [0:0]" for chain in chains]
    return "\n".join([f"*{table}", *heads, *lines, "COMMIT", ""])
