"""The observer beside unmodified kube-proxy: no revision is reported before the kernel has it, in
each of its modes, whatever happens to it.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.running import PYTHON_ENVIRONMENT, Plane, spawn, stop
from tests.figures import tell
from tests.kernel.netns import Host, Net
from tests.kernel.test_demand_packets import tables
from tests.peers import kubernetes
from tests.peers.observed_node import SERVICE_IP
from tests.peers.test_kube_proxy import configuration, kubectl, objects
from tests.waiting import until

from sliceplane.api.selectors.distribution import ANNOTATION_TOPOLOGY_MODE
from sliceplane.consume.demand import MEASURED, read_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1200)]

ROUNDS = int(os.environ.get("OBSERVED_ROUNDS", "25"))
#: answers with its address
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[1].encode())
    def log_message(self, *arguments):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512
server = Server(("0.0.0.0", 8080), Handler)
print("ready", flush=True)
server.serve_forever()
"""
#: opens connections one after the other, and prints what each answers
CALLS = """
import sys, urllib.request
for _ in range(int(sys.argv[2])):
    print(urllib.request.urlopen(f"http://{sys.argv[1]}/", timeout=60).read().decode())
"""
CALLS_COUNT = 60


class ObservedNode:
    """A node with an API server, kube-proxy in some mode and the observer."""

    def __init__(self, folder: Path, node: Host, plane: Plane, program: str) -> None:
        self.folder = folder
        self.node = node
        self.plane = plane
        self._program = program
        self.prefix = tuple(node.place.command())
        self.log = folder / "observe.log"

    @contextmanager
    def kube_proxy(self, mode: str) -> Iterator[Any]:
        config = Path(configuration(self.folder, self.plane.kubeconfig))
        document = yaml.safe_load(config.read_text())
        config.write_text(yaml.safe_dump({**document, "mode": mode}))
        command = (*self.prefix, self._program, "--config", str(config))
        with kubernetes.started(self.folder / "kube-proxy.log", *command) as process:
            yield process

    @contextmanager
    def observer(self, *more: str) -> Iterator[None]:
        command = (sys.executable, "-m", "sliceplane", "observe", "--node", "node-1")
        flags = ("--kubeconfig", self.plane.kubeconfig, *more)
        with kubernetes.started(self.log, *self.prefix, *command, *flags):
            until(lambda: "ready node=node-1" in self.log.read_text())
            leases = ("get", "lease", "-n", "kube-node-lease", "-o", "name")
            until(lambda: "proxy-node-1" in kubectl(self.node, self.plane, *leases))
            yield

    def lease(self) -> dict[str, Any]:
        text = kubectl(
            self.node,
            self.plane,
            *("get", "lease", "-n", "kube-node-lease", "sliceplane-proxy-node-1", "-o", "json"),
        )
        return json.loads(text)["metadata"]["annotations"]

    def problems(self) -> str:
        report = json.loads(self.lease()["sliceplane.dev/progress"])
        return "; ".join(report.get("problems", []))


@contextmanager
def observed(folder: Path, kube_proxy: str) -> Iterator[tuple[ObservedNode, list[Host]]]:
    with Net("ob") as net:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        backends = [
            net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2, 3)
        ]
        for backend in backends:
            backend.serve(SERVER, backend.ip4)
        plane = spawn(folder, command="apiserver", prefix=tuple(node.place.command()))
        try:
            ready = tuple((backend, True) for backend in backends)
            kubectl(node, plane, "create", "-f", "-", document=objects(node, *ready))
            yield ObservedNode(folder, node, plane, kube_proxy), backends
        finally:
            stop(plane)


def run_rounds(node: ObservedNode, backends: list[Host], rounds: int, seed: int) -> dict[str, Any]:
    arguments = (node.plane.kubeconfig, str(rounds), str(seed), *(host.ip4 for host in backends))
    command = [sys.executable, "-m", "tests.peers.observed_node", *arguments]
    path = f"{PYTHON_ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parents[2]}"
    done = node.node.exec(["env", f"PYTHONPATH={path}", *command])
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_no_revision_is_reported_before_packets_follow_it(
    kube_proxy: str, tmp_path: Path, mode: str
) -> None:
    with (
        observed(tmp_path, kube_proxy) as (node, backends),
        node.kube_proxy(mode),
        node.observer(),
    ):
        found = run_rounds(node, backends, ROUNDS, seed=1)
    rounds = found["rounds"]
    early = [each for each in rounds if each["stale_after_report"]]
    behind = [each["reported_s"] - each["last_stale_s"] for each in rounds]
    tell(
        f"observe beside kube-proxy, {mode}: {len(rounds)} changes, {found['connections']} connections, "
        f"reported early {len(early)}, after the change {statistics.median(r['reported_s'] for r in rounds):.2f} s, "
        f"after the last stale connection {statistics.median(behind):.2f} s (max {max(behind):.2f})"
    )
    assert not early, early


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_demand_is_counted_beside_it(kube_proxy: str, tmp_path: Path, mode: str) -> None:
    """Each connection once, and its rules lead to the endpoints as before."""
    asks = {"metadata": {"annotations": {ANNOTATION_TOPOLOGY_MODE: MEASURED}}}
    patch = ("patch", "service", "-n", "demo", "web", "-p", json.dumps(asks))
    with observed(tmp_path, kube_proxy) as (node, backends), node.kube_proxy(mode):
        with node.observer("--demand"):
            kubectl(node.node, node.plane, *patch)
            until(lambda: tables(node.node), lambda found: "ip" in found)
            answers = set(node.node.python(CALLS, SERVICE_IP, str(CALLS_COUNT)).stdout.split())
            assert answers == {backend.ip4 for backend in backends}
            found = until(
                lambda: read_demand(node.lease().get(ANNOTATION_DEMAND, "")).counts,
                lambda counts: any(counts.values()),
            )
            assert list(found.values()) == [CALLS_COUNT]
        assert tables(node.node) == []


def test_a_frozen_kube_proxy_is_named_and_nothing_is_reported(
    kube_proxy: str, tmp_path: Path
) -> None:
    with (
        observed(tmp_path, kube_proxy) as (node, backends),
        node.kube_proxy("nftables") as process,
        node.observer(),
    ):
        until(lambda: node.lease()["sliceplane.dev/endpointslices-revision"] != "0")
        process.send_signal(signal.SIGSTOP)
        try:
            document = [{"op": "remove", "path": "/endpoints/0"}]
            slices = ("patch", "endpointslice", "-n", "demo", "web-1", "--type=json")
            kubectl(node.node, node.plane, *slices, "-p", json.dumps(document))
            revision = kubectl(
                node.node,
                node.plane,
                *("get", "endpointslice", "-n", "demo", "web-1"),
                "-o=jsonpath={.metadata.resourceVersion}",
            )
            sentence = f"still sends demo/web:http (10.96.0.100:80/TCP) to {backends[0].ip4}:8080"
            until(lambda: sentence in node.problems())
            assert int(node.lease()["sliceplane.dev/endpointslices-revision"]) < int(revision)
        finally:
            process.send_signal(signal.SIGCONT)
        reported = "sliceplane.dev/endpointslices-revision"
        until(lambda: int(node.lease()[reported]) >= int(revision))
        until(lambda: not node.problems())


def test_a_flushed_table_and_another_mode_are_noticed(kube_proxy: str, tmp_path: Path) -> None:
    with observed(tmp_path, kube_proxy) as (node, backends):
        with node.kube_proxy("nftables"), node.observer():
            node.node.exec(["nft", "delete", "table", "ip", "kube-proxy"])
            until(lambda: "no IPv4 rules of kube-proxy" in node.problems())
        node.node.exec(["nft", "flush", "ruleset"])
        node.log.unlink()
        with node.kube_proxy("iptables"), node.observer():
            assert "rules=iptables" in node.log.read_text()
            found = run_rounds(node, backends, 2, seed=3)
            assert not any(each["stale_after_report"] for each in found["rounds"])
