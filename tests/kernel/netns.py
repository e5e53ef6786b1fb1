"""Hosts for packet tests: the demo's network of namespaces, with hosts that run commands and small
programs.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import demo.net

from sliceplane.kit.ip import Family

#: what hangs is ended; no measure of how long a command may take
COMMAND_TIMEOUT_S = 120


def run(command: Sequence[str], *, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end.  Raises ``RuntimeError`` with what it printed if it fails."""
    done = subprocess.run(
        list(command),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed ({done.returncode}): {done.stderr.strip()}")
    return done


class Host:
    """One network namespace, ``netns``, with an interface ``eth0``."""

    def __init__(self, place: demo.net.Host, ip4: str, ip6: str) -> None:
        self.place = place
        self.netns = place.namespace
        self.ip4 = ip4.partition("/")[0]
        self.ip6 = ip6.partition("/")[0]
        self._children: list[subprocess.Popen[str]] = []
        #: by program: processes that wait for a line
        self._waiting: dict[str, list[subprocess.Popen[str]]] = {}

    def ip(self, family: Family) -> str:
        return self.ip4 if family == "IPv4" else self.ip6

    def exec(
        self, command: Sequence[str], *, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, to its end.  Raises ``RuntimeError`` if it fails."""
        return run(self.place.command(*command), stdin=stdin)

    def spawn(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts a command inside; it is ended with the host.  Its standard input and output are
        pipes.
        """
        child = subprocess.Popen(
            self.place.command(*command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._children.append(child)
        return child

    def python(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a Python program inside, to its end."""
        return self.exec([sys.executable, "-I", "-c", program, *arguments])

    def converse(self, program: str, line: str) -> str:
        """The line that a Python program inside says to *line*. It answers line by line and stays
        for the next one: to start a process costs more than what it is asked. Each of several
        callers at a time has a process of its own.
        """
        waiting = self._waiting.setdefault(program, [])
        try:
            child = waiting.pop()
        except IndexError:
            child = self.spawn([sys.executable, "-I", "-u", "-c", program])
        assert child.stdin is not None, "spawn makes pipes"
        assert child.stdout is not None, "spawn makes pipes"
        child.stdin.write(f"{line}\n")
        child.stdin.flush()
        said = child.stdout.readline()
        if not said:
            raise RuntimeError(
                f"a program in {self.netns} ended with {child.wait()} and did not answer {line}"
            )
        waiting.append(child)
        return said

    def serve(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python program inside and waits until it has printed its first line."""
        child = self.spawn([sys.executable, "-I", "-u", "-c", program, *arguments])
        assert child.stdout is not None, "spawn makes pipes"
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(
                f"the server in {self.netns} ended with {child.wait()} before it was ready"
            )
        return child

    def close(self) -> None:
        for child in self._children:
            child.kill()
            with child:  # closes its pipes and waits
                pass
        self._children.clear()
        self._waiting.clear()


class Net:
    """A switch in a namespace of its own, and the hosts on it (``demo.net``).  Leaving the context
    removes it all.
    """

    def __init__(self, prefix: str) -> None:
        self._net = demo.net.Net(prefix)
        self._hosts: list[Host] = []

    def __enter__(self) -> Net:
        self._net.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self._hosts:
            host.close()
        self._net.close()

    def add_host(
        self, name: str, *, ip4: str, ip6: str, gateway4: str = "", gateway6: str = ""
    ) -> Host:
        """A host with addresses ``a.b.c.d/length``."""
        gateways = tuple(gateway for gateway in (gateway4, gateway6) if gateway)
        host = Host(self._net.add_host(name, (ip4, ip6), gateways), ip4, ip6)
        self._hosts.append(host)
        return host

    def make_router(self, host: Host) -> None:
        """*host* forwards packets of others."""
        host.place.set_kernel(
            "ipv4/ip_forward=1",
            "ipv6/conf/all/forwarding=1",
            "ipv4/conf/eth0/send_redirects=0",
            "ipv4/conf/eth0/rp_filter=0",
        )
