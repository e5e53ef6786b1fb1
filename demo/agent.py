"""The part of a kubelet that the emulation leaves to others: something real behind every Pod's
address.

Follows Pods with ``kubectl get pods --watch``. A Pod with an address gets a host on the switch and
an HTTP server there; when the server listens, the Pod is annotated ready, and the emulation says so
in its status. When the Pod is gone, so are its server and its host.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from demo.net import Net, NetError
from demo.plane import DemoError, Plane

READY = "emulation.sliceplane.dev/ready=true"
BACKEND = Path(__file__).with_name("backend.py")
PORT = 8080


class Agent:
    """One thread; it alone owns the servers until ``close`` has joined it."""

    def __init__(self, plane: Plane, net: Net) -> None:
        self._plane = plane
        self._net = net
        self._servers: dict[str, subprocess.Popen[str]] = {}
        self.problems: list[str] = []
        self._watch = plane.popen_kubectl(
            "get", "pods", "--watch", "--output-watch-events", "-o", "json"
        )
        self._thread = threading.Thread(target=self._run, name="agent")
        self._thread.start()

    def _run(self) -> None:
        assert self._watch.stdout is not None
        for line in self._watch.stdout:
            event = json.loads(line)
            try:
                self._handle(event["type"], event["object"])
            except (NetError, DemoError, OSError) as error:
                self.problems.append(str(error))

    def _handle(self, kind: str, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            self._stop(name)
            return
        addresses = [item["ip"] for item in pod.get("status", {}).get("podIPs") or []]
        if not addresses or name in self._servers or pod["metadata"].get("deletionTimestamp"):
            return
        host = self._net.add_host(
            name, tuple(a + ("/48" if ":" in a else "/16") for a in addresses)
        )
        server = subprocess.Popen(
            host.command(sys.executable, str(BACKEND), name, str(PORT)),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._servers[name] = server
        assert server.stdout is not None
        if server.stdout.readline().strip() != "listening":
            raise DemoError(f"the server of Pod {name} did not start")
        self._plane.kubectl("annotate", "pod", name, READY)

    def _stop(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is None:
            return
        server.terminate()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()
        self._net.remove_host(name)

    def close(self) -> None:
        self._watch.terminate()
        self._watch.wait()
        self._thread.join()
        assert self._watch.stdout is not None
        self._watch.stdout.close()
        for name in list(self._servers):
            self._stop(name)
