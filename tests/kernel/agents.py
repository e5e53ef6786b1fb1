"""A plane with a node proxy on one machine, and agents with their servers on others: all real
programs, each in a network namespace of its own, with the defaults that a user has.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from tests.e2e.running import ROOT, kubectl_path, spawn, stop
from tests.kernel.cluster import CLIENT
from tests.kernel.load import SERVER
from tests.kernel.netns import Host, Net, run
from tests.process_table import children_of

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {
        "clusterIP": "10.96.0.100",
        "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
    },
}
VIP = "10.96.0.100"
#: gives a program another CLOCK_REALTIME, and it alone (a time namespace of Linux leaves that clock
#: as it is)
FAKETIME = "/usr/$LIB/faketime/libfaketime.so.1"


class MovedClock:
    """The wall clock of programs, as libfaketime tells it to them: the machine's, plus what
    ``move`` says.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.move(0)

    def move(self, seconds: int) -> None:
        """From now on."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{seconds:+d}\n")
        temporary.replace(self._file)
        seen = int(run(["env", *self.environment(), "date", "+%s"]).stdout) - time.time()
        assert abs(seen - seconds) < 300, f"the clock was moved by {seen} s and not by {seconds}"

    def environment(self) -> tuple[str, ...]:
        """For ``env``: of the programs whose clock it is."""
        return (
            f"LD_PRELOAD={FAKETIME}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )


class Machine:
    """A VM: ``start`` begins an agent with its server there."""

    def __init__(self, host: Host, name: str, folder: Path, kubeconfig: Path) -> None:
        self.host = host
        self.name = name
        self.folder = folder / name
        (self.folder / "run").mkdir(parents=True)
        self.kubeconfig = kubeconfig
        self.said: list[str] = []
        self._reader = threading.Thread()
        self.process: subprocess.Popen[str] | None = None
        #: of its agent, if it has one of its own
        self.clock: MovedClock | None = None

    def start(self, *flags: str) -> None:
        environment = {
            "KUBECONFIG": str(self.kubeconfig),
            "XDG_STATE_HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "PYTHONPATH": str(ROOT / "src"),
        }
        self.process = self.host.spawn(
            [
                "env",
                *(f"{name}={value}" for name, value in environment.items()),
                *(self.clock.environment() if self.clock is not None else ()),
                sys.executable,
                "-m",
                "sliceplane",
                "agent",
                "run",
                "web",
                "--name",
                self.name,
                "--port",
                "http=8080",
                *flags,
                "--",
                sys.executable,
                "-I",
                "-c",
                SERVER,
                self.name,
            ]
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "spawn makes pipes"
        self.said += process.stdout

    def end(self, number: int = signal.SIGTERM) -> None:
        """A signal for the agent."""
        assert self.process is not None, "no agent was started"
        self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None, "no agent was started"
        code = await asyncio.to_thread(self.process.wait, 120)
        await asyncio.to_thread(self._reader.join, 60)
        return code

    def clear(self) -> None:
        """The agent and its server are gone, whatever holds their output."""
        for pid in run(["ip", "netns", "pids", self.host.netns]).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._reader.ident is not None:
            self._reader.join(60)

    def server(self) -> int:
        """The process of its server."""
        assert self.process is not None, "no agent was started"
        (child,) = children_of(self.process.pid)
        return child


class Ground(Protocol):
    """What agents stand on: an API server, a judge and a node proxy, on one machine.  ``clock``:
    the judge's.
    """

    kubeconfig: Path
    clock: MovedClock | None

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OurPlane:
    """``sliceplane up --proxy``."""

    def __init__(self, node: Host, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._port = "0"
        self.clock: MovedClock | None = None

    def start(self) -> None:
        clock = self.clock.environment() if self.clock is not None else ()
        flags = ("--bind-address", self._node.ip4, "--proxy", "--hostname-override", "node-1")
        prefix = (*self._node.place.command(), "env", *clock)
        self._plane = spawn(self._folder, "--secure-port", self._port, *flags, prefix=prefix)
        self._port = self._plane.url.rpartition(":")[2]
        self.kubeconfig = Path(self._plane.kubeconfig)

    def stop(self) -> None:
        assert stop(self._plane) == 0


class AgentTown:
    """*ground*: made of the node's host and a folder.  *clocks*: the judge and the first agent have
    one each.
    """

    def __init__(
        self, net: Net, folder: Path, ground: Callable[[Host, Path], Ground], *, clocks: bool
    ) -> None:
        self.folder = folder
        self.node = net.add_host("node", ip4="10.79.0.1/16", ip6="fd79::1/64")
        self.ground = ground(self.node, folder)
        if clocks:
            assert shutil.which("faketime"), "needs the Debian package faketime"
            self.ground.clock = MovedClock(folder)
        self.ground.start()
        self.machines = []
        for number in (1, 2):
            host = net.add_host(
                f"vm{number}", ip4=f"10.79.1.{number}/16", ip6=f"fd79::1:{number}/64"
            )
            self.machines.append(Machine(host, f"vm{number}", folder, self.ground.kubeconfig))
        if clocks:
            self.machines[0].clock = MovedClock(self.machines[0].folder)
        self.kubectl("create", "-f", "-", document=SERVICE)

    def kubectl(self, *arguments: str, document: Any = None, kubeconfig: Path | None = None) -> str:
        """Raises ``RuntimeError`` with what it says if it fails."""
        own = (
            f"KUBECONFIG={kubeconfig or self.ground.kubeconfig}",
            f"HOME={self.folder}",
            "GOGC=off",
        )
        stdin = None if document is None else json.dumps(document)
        return self.node.exec(["env", *own, kubectl_path(), *arguments], stdin=stdin).stdout

    def slices(self) -> dict[str, dict[str, Any]]:
        listed = json.loads(
            self.kubectl(
                "get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "json"
            )
        )
        return {item["metadata"]["name"]: item for item in listed["items"]}

    def ready(self) -> set[str]:
        """Hosts of endpoints that are ready."""
        endpoints = [
            endpoint for found in self.slices().values() for endpoint in found["endpoints"]
        ]
        return {endpoint["hostname"] for endpoint in endpoints if endpoint["conditions"]["ready"]}

    def led_to(self) -> set[str]:
        """Who answers a client on the node; errors begin with "!"."""
        return set(json.loads(self.node.converse(CLIENT, json.dumps(["tcp", VIP, 80, 16, 20.0]))))


@contextmanager
def agent_town(
    folder: Path, ground: Callable[[Host, Path], Ground] = OurPlane, *, clocks: bool = False
) -> Iterator[AgentTown]:
    """Two machines."""
    with Net("spa") as net:
        town = AgentTown(net, folder, ground, clocks=clocks)
        try:
            yield town
        finally:
            for machine in town.machines:
                machine.clear()
            town.ground.stop()
