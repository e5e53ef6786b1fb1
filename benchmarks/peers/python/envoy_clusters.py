"""Follow one Service with an Envoy behind ``sliceplane xds``, as ``sliceplane conformance --run
program:`` wants it.

    sliceplane conformance --run "program:python envoy_clusters.py ENVOY" --claims
    hints,fallback,local

Run with a Python that has sliceplane. Both programs are this one's children. What is believed is
what Envoy's ``/clusters`` lists for the port's cluster, without hosts that drain.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import FrameType
from typing import Any

from sliceplane.xds.bootstrap import BootstrapOptions, envoy_bootstrap

#: a port without a name has its number in the cluster's name
PORT = os.environ["SLICEPLANE_PORT"] or "80"
CLUSTER = f"{os.environ['SLICEPLANE_NAMESPACE']}/{os.environ['SLICEPLANE_SERVICE']}:{PORT}"
LOOK_S = 0.05


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def start(envoy: str, folder: Path, admin_port: int) -> list[subprocess.Popen[bytes]]:
    """The server, which is waited for, and Envoy."""
    port = free_port()
    flags = ("--insecure-bind-address", f"127.0.0.1:{port}", "--trust-node-metadata", "node")
    xds = subprocess.Popen(
        [sys.executable, "-m", "sliceplane", "xds", *flags], stdout=subprocess.PIPE
    )
    assert xds.stdout is not None
    if not xds.stdout.readline():
        raise SystemExit(f"sliceplane xds ended with {xds.wait()}")
    wish = BootstrapOptions(
        host="127.0.0.1",
        port=port,
        insecure=True,
        admin_port=admin_port,
        zone=os.environ["SLICEPLANE_ZONE"],
        metadata={"node_name": os.environ["SLICEPLANE_NODE"]},
    )
    bootstrap = folder / "envoy.json"
    bootstrap.write_text(json.dumps(envoy_bootstrap(wish)))
    small = ("--concurrency", "1", "--base-id", str(admin_port), "-l", "warn")
    return [xds, subprocess.Popen([envoy, "-c", str(bootstrap), *small])]


def used(told: dict[str, Any]) -> list[str] | None:
    """``None``: there is no such cluster yet."""
    for status in told["cluster_statuses"]:
        if status["name"] == CLUSTER:
            return sorted(
                authority(host["address"]["socket_address"])
                for host in status.get("host_statuses", ())
                if host["health_status"].get("eds_health_status") != "DRAINING"
            )
    return None


def authority(place: dict[str, Any]) -> str:
    address = place["address"]
    return (
        f"[{address}]:{place['port_value']}"
        if ":" in address
        else f"{address}:{place['port_value']}"
    )


def stop(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


def main(envoy: str) -> None:
    signal.signal(signal.SIGTERM, stop)
    admin_port = free_port()
    children: list[subprocess.Popen[bytes]] = []
    last: list[str] | None = None
    with tempfile.TemporaryDirectory() as folder:
        try:
            children = start(envoy, Path(folder), admin_port)
            while all(child.poll() is None for child in children):
                try:
                    with urllib.request.urlopen(
                        f"http://127.0.0.1:{admin_port}/clusters?format=json"
                    ) as answer:
                        believed = used(json.load(answer))
                except OSError:  # it starts
                    believed = None
                if believed is not None and believed != last:
                    last = believed
                    print(json.dumps(believed), flush=True)
                time.sleep(LOOK_S)
            raise SystemExit(f"ended: {[child.poll() for child in children]}")
        finally:
            for child in children:
                child.kill()
            for child in children:
                child.wait()


if __name__ == "__main__":
    main(sys.argv[1])
