"""Machines made of network namespaces: hosts on one bridge, nothing of it in the root namespace.

``Net`` makes a namespace that holds nothing but a bridge; ``add_host`` makes a namespace with one leg on it.
Everything has a name with the prefix given (and the process id, so that runs do not meet) and is gone when the
context ends.  Needs root and iproute2::

    with Net("demo") as net:
        client = net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")
        print(client.exec(["ip", "addr"]).stdout)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType

COMMAND_TIMEOUT_S = 30


def run(command: Sequence[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end.  Raises ``RuntimeError`` with what it printed if it fails."""
    done = subprocess.run(
        list(command), input=stdin, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done


class Host:
    """One network namespace, ``netns``, with an interface ``eth0``."""

    def __init__(self, netns: str, ip4: str, ip6: str) -> None:
        self.netns = netns
        self.ip4 = ip4.partition("/")[0]
        self.ip6 = ip6.partition("/")[0]
        self._children: list[subprocess.Popen[str]] = []

    def exec(self, command: Sequence[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, to its end.  Raises ``RuntimeError`` if it fails."""
        return run(["ip", "netns", "exec", self.netns, *command], stdin=stdin)

    def spawn(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts a command inside; it is ended with the host.  Its standard input and output are pipes."""
        child = subprocess.Popen(
            ["ip", "netns", "exec", self.netns, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def python(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a Python program inside, to its end."""
        return self.exec([sys.executable, "-I", "-c", program, *arguments])

    def serve(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python program inside and waits until it has printed its first line."""
        child = self.spawn([sys.executable, "-I", "-u", "-c", program, *arguments])
        assert child.stdout is not None, "spawn makes pipes"
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"the server in {self.netns} ended with {child.wait()} before it was ready")
        return child

    def close(self) -> None:
        for child in self._children:
            child.kill()
            with child:  # closes its pipes and waits
                pass
        self._children.clear()


class Net:
    """A bridge in a namespace of its own, and the hosts on it.  Leaving the context removes it all."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}-{os.getpid()}"
        self._cleanup = ExitStack()
        self._bridge = f"{self._prefix}-bridge"
        self._ports = 0

    def __enter__(self) -> Net:
        try:
            self._add_namespace(self._bridge)
            self._ip(self._bridge, "link", "add", "br0", "type", "bridge", "forward_delay", "0")
            self._ip(self._bridge, "link", "set", "br0", "up")
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def add_host(self, name: str, *, ip4: str, ip6: str, gateway4: str = "", gateway6: str = "") -> Host:
        """A host with addresses ``a.b.c.d/length``.  Without a gateway its default route is the bridge itself:
        addresses
        that nobody has (service addresses) leave through ``eth0`` all the same."""
        netns = f"{self._prefix}-{name}"
        self._add_namespace(netns)
        host = Host(netns, ip4, ip6)
        self._cleanup.callback(host.close)
        port = f"port{self._ports}"
        self._ports += 1
        self._ip(self._bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", netns)
        self._ip(self._bridge, "link", "set", port, "master", "br0", "up")
        # A namespace has its own switches; without these, addresses are tentative for a second and pods are redirected.
        for switch in (
            "ipv6/conf/all/accept_dad=0",
            "ipv6/conf/default/accept_dad=0",
            "ipv4/conf/all/send_redirects=0",
        ):
            self._sysctl(host, switch)
        self._ip(netns, "link", "set", "lo", "up")
        self._ip(netns, "addr", "add", ip4, "dev", "eth0")
        self._ip(netns, "addr", "add", ip6, "dev", "eth0", "nodad")
        self._ip(netns, "link", "set", "eth0", "up")
        via4 = ["via", gateway4] if gateway4 else []
        via6 = ["via", gateway6] if gateway6 else []
        self._ip(netns, "route", "add", "default", *via4, "dev", "eth0")
        self._ip(netns, "-6", "route", "add", "default", *via6, "dev", "eth0")
        return host

    def make_router(self, host: Host) -> None:
        """*host* forwards packets of others."""
        for switch in (
            "ipv4/ip_forward=1",
            "ipv6/conf/all/forwarding=1",
            "ipv4/conf/eth0/send_redirects=0",
            "ipv4/conf/eth0/rp_filter=0",
        ):
            self._sysctl(host, switch)

    def _add_namespace(self, netns: str) -> None:
        run(["ip", "netns", "add", netns])
        self._cleanup.callback(run, ["ip", "netns", "del", netns])

    def _ip(self, netns: str, *arguments: str) -> None:
        run(["ip", "-n", netns, *arguments])

    def _sysctl(self, host: Host, switch: str) -> None:
        path, _, value = switch.partition("=")
        host.exec(["sh", "-c", f"echo {value} > /proc/sys/net/{path}"])
