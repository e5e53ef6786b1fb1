"""A plane with a node proxy on one machine, and agents with their servers on others: all real programs, each in a
network namespace of its own, with the defaults that a user has."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from tests.e2e.running import ROOT, kubectl_path, spawn, stop
from tests.kernel.cluster import CLIENT
from tests.kernel.netns import Host, Net, run

#: a server that answers with its name; at SIGTERM it serves who has come, and ends when no one comes any more
SERVER = """
import asyncio, signal, sys
name, count = sys.argv[1].encode(), 0
async def answer(reader, writer):
    global count
    count += 1
    try:
        while await reader.read(100):
            writer.write(name + b"\\n")
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(answer, "0.0.0.0", 8080, backlog=1024)
    await ended.wait()
    seen = -1
    while seen != count:
        seen = count
        await asyncio.sleep(0.5)
    server.close()
asyncio.run(main())
"""
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
}
VIP = "10.96.0.100"
#: makes ``time.time`` of a Python program differ from the machine's by what a file says
CLOCK = """
import os, time
_true = time.time
def _shifted():
    try:
        with open(os.environ["CLOCK_FILE"]) as file:
            return _true() + float(file.read() or 0)
    except (OSError, ValueError):
        return _true()
time.time = _shifted
"""


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
        self.clock = _clock_of(self.folder)

    def start(self, *flags: str) -> None:
        environment = {
            "KUBECONFIG": str(self.kubeconfig), "XDG_STATE_HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder / "run"), **self.clock,
        }  # fmt: skip
        self.process = self.host.spawn([
            "env", *(f"{name}={value}" for name, value in environment.items()),
            sys.executable, "-m", "sliceplane", "agent", "run", "web", "--name", self.name, "--port", "http=8080",
            *flags, "--", sys.executable, "-I", "-c", SERVER, self.name,
        ])  # fmt: skip
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
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (child,) = [int(child) for child in children]
        return child


class Ground(Protocol):
    """What agents stand on: an API server, a judge and a node proxy, on one machine."""

    kubeconfig: Path

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OurPlane:
    """``sliceplane up --proxy``."""

    def __init__(self, node: Host, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._clock = _clock_of(folder)
        self._port = "0"

    def start(self) -> None:
        clock = (f"{name}={value}" for name, value in self._clock.items())
        flags = ("--bind-address", self._node.ip4, "--proxy", "--hostname-override", "node-1")
        prefix = (*self._node.place.command(), "env", *clock)
        self._plane = spawn(self._folder, "--secure-port", self._port, *flags, prefix=prefix)
        self._port = self._plane.url.rpartition(":")[2]
        self.kubeconfig = Path(self._plane.kubeconfig)

    def stop(self) -> None:
        assert stop(self._plane) == 0


class AgentTown:
    """*ground*: made of the node's host and a folder."""

    def __init__(self, net: Net, folder: Path, ground: Callable[[Host, Path], Ground]) -> None:
        self.folder = folder
        self.node = net.add_host("node", ip4="10.79.0.1/16", ip6="fd79::1/64")
        self.ground = ground(self.node, folder)
        self.ground.start()
        self.machines = []
        for number in (1, 2):
            host = net.add_host(f"vm{number}", ip4=f"10.79.1.{number}/16", ip6=f"fd79::1:{number}/64")
            self.machines.append(Machine(host, f"vm{number}", folder, self.ground.kubeconfig))
        self.kubectl("create", "-f", "-", document=SERVICE)

    def kubectl(self, *arguments: str, document: Any = None, kubeconfig: Path | None = None) -> str:
        """Raises ``RuntimeError`` with what it says if it fails."""
        own = (f"KUBECONFIG={kubeconfig or self.ground.kubeconfig}", f"HOME={self.folder}", "GOGC=off")
        stdin = None if document is None else json.dumps(document)
        return self.node.exec(["env", *own, kubectl_path(), *arguments], stdin=stdin).stdout

    def slices(self) -> dict[str, dict[str, Any]]:
        listed = json.loads(self.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "json"))
        return {item["metadata"]["name"]: item for item in listed["items"]}

    def ready(self) -> set[str]:
        """Hosts of endpoints that are ready."""
        endpoints = [endpoint for found in self.slices().values() for endpoint in found["endpoints"]]
        return {endpoint["hostname"] for endpoint in endpoints if endpoint["conditions"]["ready"]}

    def led_to(self) -> set[str]:
        """Who answers a client on the node; errors begin with "!"."""
        return set(json.loads(self.node.converse(CLIENT, json.dumps(["tcp", VIP, 80, 16, 20.0]))))


def _clock_of(folder: Path) -> dict[str, str]:
    """For the environment of a process whose clock can be set: write seconds to the file ``clock`` in *folder*."""
    modules = folder / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(CLOCK)
    return {"CLOCK_FILE": str(folder / "clock"), "PYTHONPATH": f"{modules}{os.pathsep}{ROOT / 'src'}"}


@contextmanager
def agent_town(folder: Path, ground: Callable[[Host, Path], Ground] = OurPlane) -> Iterator[AgentTown]:
    """Two machines."""
    with Net("spa") as net:
        town = AgentTown(net, folder, ground)
        try:
            yield town
        finally:
            for machine in town.machines:
                machine.clear()
            town.ground.stop()
