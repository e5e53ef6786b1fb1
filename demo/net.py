"""A small network of namespaces: one switch, hosts plugged into it. Nothing in the root namespace
changes.

Every name starts with a prefix of this process, and ``close`` removes every namespace that was made
(with it go its interfaces, addresses, routes and nftables rules), and what it resolves names with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: files that ``ip netns exec`` shows in the place of those in /etc (ip-netns(8))
RESOLV = Path("/etc/netns")


class NetError(RuntimeError):
    """An ``ip`` command failed: its words."""


def run_ip(*arguments: str, stdin: str = "") -> None:
    done = subprocess.run(
        ["ip", *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NetError(f"ip {' '.join(arguments)}: {done.stderr.strip()}\n{stdin}".strip())


def _inside(namespace: str, *commands: str) -> None:
    """All *commands* of ``ip`` by one process, which ends at the first that fails."""
    run_ip("-n", namespace, "-batch", "-", stdin="".join(f"{command}\n" for command in commands))


def _everywhere(address: str) -> str:
    """The destination of a default route of the address's family."""
    return "::/0" if ":" in address else "0.0.0.0/0"


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one interface, ``eth0``."""

    namespace: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def resolve_with(self, address: str, search: str) -> None:
        """Programs of this host ask the name server at *address*, which becomes one of its own."""
        run_ip("-n", self.namespace, "addr", "add", f"{address}/32", "dev", "lo")
        folder = RESOLV / self.namespace
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "resolv.conf").write_text(
            f"nameserver {address}\nsearch {search}\noptions ndots:5\n"
        )

    def set_kernel(self, *settings: str) -> None:
        """Each ``path=value`` below ``/proc/sys/net`` of this host."""
        parts = (setting.partition("=") for setting in settings)
        script = " && ".join(f"echo {value} > /proc/sys/net/{path}" for path, _, value in parts)
        run_ip("netns", "exec", self.namespace, "sh", "-c", script)


class Net:
    """A switch and its hosts.  Use as a context manager; owned by one thread."""

    def __init__(self, label: str = "demo") -> None:
        self._prefix = f"sp-{label}-{os.getpid()}"
        self._switch = f"{self._prefix}-switch"
        self._hosts: dict[str, Host] = {}
        self._count = 0

    def __enter__(self) -> Net:
        run_ip("netns", "add", self._switch)
        try:
            _inside(self._switch, "link add br0 type bridge forward_delay 0", "link set br0 up")
        except NetError:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add_host(
        self, name: str, addresses: tuple[str, ...], gateways: tuple[str, ...] = ()
    ) -> Host:
        """*addresses* with their prefix lengths, e.g. ``10.244.1.2/16``; a gateway for each family
        that has one.

        Without a gateway the default route is the switch itself, so that packets to addresses that
        no host has (cluster IPs) have somewhere to go until they are rewritten.
        """
        assert name not in self._hosts, f"host {name} exists"
        host = Host(f"{self._prefix}-{name}")
        self._count += 1
        port = f"p{self._count}"
        run_ip("netns", "add", host.namespace)
        self._hosts[name] = host
        _inside(
            self._switch,
            f"link add {port} type veth peer name eth0 netns {host.namespace}",
            f"link set {port} master br0 up",
        )
        # Without these an IPv6 address is tentative for a second, and hosts are told of shorter
        # ways.
        host.set_kernel(
            "ipv6/conf/all/accept_dad=0",
            "ipv6/conf/default/accept_dad=0",
            "ipv4/conf/all/send_redirects=0",
        )
        via = {_everywhere(gateway): f" via {gateway}" for gateway in gateways}
        families = sorted({_everywhere(address) for address in addresses})
        _inside(
            host.namespace,
            "link set lo up",
            *(f"addr add {address} dev eth0{' nodad' * (':' in address)}" for address in addresses),
            "link set eth0 up",
            *(f"route add {family}{via.get(family, '')} dev eth0" for family in families),
        )
        return host

    def remove_host(self, name: str) -> None:
        host = self._hosts.pop(name)
        shutil.rmtree(RESOLV / host.namespace, ignore_errors=True)
        run_ip("netns", "del", host.namespace)

    def close(self) -> None:
        for name in list(self._hosts):
            self.remove_host(name)
        run_ip("netns", "del", self._switch)
