"""A small network of namespaces: one switch, hosts plugged into it.  Nothing in the root namespace changes.

Every name starts with a prefix of this process, and ``close`` removes every namespace that was made
(with it go its interfaces, addresses, routes and nftables rules).
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass


class NetError(RuntimeError):
    """An ``ip`` command failed: its words."""


def run_ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one interface, ``eth0``."""

    namespace: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]


class Net:
    """A switch and its hosts.  Use as a context manager; owned by one thread."""

    def __init__(self, label: str = "demo") -> None:
        self._prefix = f"sp-{label}-{os.getpid()}"
        self._hosts: dict[str, Host] = {}
        self._count = 0

    def __enter__(self) -> Net:
        self._switch = f"{self._prefix}-switch"
        run_ip("netns", "add", self._switch)
        run_ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        run_ip("-n", self._switch, "link", "set", "br0", "up")
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add_host(self, name: str, addresses: tuple[str, ...]) -> Host:
        """*addresses* with their prefix lengths, e.g. ``10.244.1.2/16``.  A default route leads to the switch,
        so that packets to a cluster IP have somewhere to go until they are rewritten."""
        assert name not in self._hosts, f"host {name} exists"
        host = Host(f"{self._prefix}-{name}")
        self._count += 1
        port = f"p{self._count}"
        run_ip("netns", "add", host.namespace)
        self._hosts[name] = host
        run_ip(
            *("-n", self._switch, "link", "add", port, "type", "veth"),
            *("peer", "name", "eth0", "netns", host.namespace),
        )
        run_ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        run_ip("-n", host.namespace, "link", "set", "lo", "up")
        run_ip("-n", host.namespace, "link", "set", "eth0", "up")
        for address in addresses:
            more = ("nodad",) if ":" in address else ()
            run_ip("-n", host.namespace, "addr", "add", address, "dev", "eth0", *more)
        for family in sorted({"-6" if ":" in address else "-4" for address in addresses}):
            run_ip(family, "-n", host.namespace, "route", "add", "default", "dev", "eth0")
        return host

    def remove_host(self, name: str) -> None:
        host = self._hosts.pop(name)
        run_ip("netns", "del", host.namespace)

    def close(self) -> None:
        for name in list(self._hosts):
            self.remove_host(name)
        run_ip("netns", "del", self._switch)
