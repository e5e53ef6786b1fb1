"""Kubernetes' own kube-proxy, unmodified, against our API server: it cannot tell the difference,
and packets arrive.

One run is recorded and must ask for exactly what ``data/kube-proxy.json`` says, which
``test_kube_proxy_requests`` replays in every test run. The other runs as the user
``system:kube-proxy`` under our roles, and survives a restart of the server. Server and kube-proxy
are in a network namespace of their own.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.running import Plane, spawn, stop
from tests.kernel.netns import Host, Net
from tests.kernel.proxy_process import SERVER
from tests.peers import kubernetes
from tests.peers.programs import dependency

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1200)]

TOKEN = "kube-proxy-of-a-test"
CLIENT = """
import urllib.request
for _ in range(16):
    print(urllib.request.urlopen("http://10.96.0.100/", timeout=2).read().decode())
"""


def kubectl(node: Host, plane: Plane, *arguments: str, document: Any = None) -> str:
    command = [
        "env",
        *(f"{name}={value}" for name, value in plane.environment.items()),
        plane.kubectl,
        *arguments,
    ]
    return node.exec(command, stdin=None if document is None else json.dumps(document)).stdout


def a_slice(*ready: tuple[Host, bool]) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-1",
            "namespace": "demo",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [host.ip4], "conditions": {"ready": is_ready}} for host, is_ready in ready
        ],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }


def objects(node: Host, *ready: tuple[Host, bool]) -> dict[str, Any]:
    spec = {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80}]}
    address = {"addresses": [{"type": "InternalIP", "address": node.ip4}]}
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": address},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "demo"},
            "spec": spec,
        },
        a_slice(*ready),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def configuration(folder: Path, kubeconfig: str) -> str:
    """A kube-proxy's usual one for nftables; a namespace refuses the limits of conntrack."""
    wanted = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": "node-1",
        "clientConnection": {
            "kubeconfig": kubeconfig,
            "contentType": "application/vnd.kubernetes.protobuf",
        },
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "oomScoreAdj": 0,
    }
    path = folder / "kube-proxy.yaml"
    path.write_text(yaml.safe_dump(wanted))
    return str(path)


def rules(node: Host) -> str:
    return node.exec(["nft", "list", "table", "ip", "kube-proxy"]).stdout


def answers(node: Host) -> set[str]:
    return set(node.python(CLIENT).stdout.split())


def reached(node: Host, wanted: set[str]) -> float:
    """Seconds until exactly the backends *wanted* answer."""
    begin = time.monotonic()
    kubernetes.eventually(lambda: answers(node) == wanted)
    return time.monotonic() - begin


def refused(node: Host) -> bool:
    try:
        answers(node)
    except RuntimeError as error:
        return "refused" in str(error).lower()
    return False


def test_kube_proxy_serves_what_the_api_says(kube_proxy: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f"{TOKEN},system:kube-proxy,proxy-1\n")
    with Net("kp") as net:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        one, two = (
            net.add_host(f"b{n}", ip4=f"10.10.1.{n}/16", ip6=f"fd10::1:{n}/64") for n in (1, 2)
        )
        one.serve(SERVER, "b1")
        two.serve(SERVER, "b2")
        prefix = tuple(node.place.command())
        flags = ("--token-auth-file", str(tokens))
        plane = spawn(tmp_path, *flags, command="apiserver", prefix=prefix)
        try:
            kubectl(node, plane, "create", "-f", "-", document=objects(node, (one, True)))
            _record(kube_proxy, tmp_path, node, plane)

            kubeconfig = kubernetes.kubeconfig_for(
                plane.kubeconfig, tmp_path / "proxy.kubeconfig", token=TOKEN
            )
            log = tmp_path / "kube-proxy.log"
            config = configuration(tmp_path, kubeconfig)
            with kubernetes.started(log, *prefix, kube_proxy, "--config", config, "-v", "2"):
                _follow(node, plane, one, two)
                port = str(urllib.parse.urlsplit(plane.url).port)
                assert stop(plane) == 0
                assert answers(node) == {"b1"}, "the rules stay when the server is away"
                plane = spawn(
                    tmp_path, *flags, "--secure-port", port, command="apiserver", prefix=prefix
                )
                kubectl(node, plane, "replace", "-f", "-", document=a_slice((two, True)))
                reached(node, {"b2"})
            assert "forbidden" not in log.read_text()
        finally:
            stop(plane)


def _record(kube_proxy: str, folder: Path, node: Host, plane: Plane) -> None:
    prefix = tuple(node.place.command())
    with kubernetes.recorder(plane.kubeconfig, folder / "heard.json", prefix) as heard:
        kubeconfig = kubernetes.kubeconfig_for(
            plane.kubeconfig, folder / "plain.kubeconfig", server=heard.url
        )
        config = configuration(folder, kubeconfig)
        with kubernetes.started(folder / "recorded.log", *prefix, kube_proxy, "--config", config):
            reached(node, {"b1"})
            kubernetes.eventually(lambda: "Starting" in kubectl(node, plane, "get", "events"))
        kubernetes.compare(
            "kube-proxy.json",
            f"kube-proxy {dependency(kubernetes.MODULE, 'k8s.io/kubernetes')}",
            heard.requests(),
        )
    table = rules(node)
    assert "10.96.0.100 . tcp . 80" in table, table
    assert "demo/web" in table, table


def _follow(node: Host, plane: Plane, one: Host, two: Host) -> None:
    """Every change of the slice reaches the packets."""
    took = {}
    reached(node, {"b1"})
    for name, wanted, ready in (
        ("added", {"b1", "b2"}, [(one, True), (two, True)]),
        ("not ready", {"b2"}, [(one, False), (two, True)]),
        ("ready again", {"b1"}, [(one, True)]),
    ):
        kubectl(node, plane, "replace", "-f", "-", document=a_slice(*ready))
        took[name] = reached(node, wanted)
    kubectl(node, plane, "delete", "endpointslice", "web-1", "-n", "demo")
    kubernetes.eventually(lambda: refused(node))
    kubectl(node, plane, "create", "-f", "-", document=a_slice((one, True)))
    took["created"] = reached(node, {"b1"})
    print(
        "kube-proxy, s until packets follow:",
        {name: round(seconds, 2) for name, seconds in took.items()},
    )
