"""The chart's roles are enough and no more: the real commands under them, and what the server's
audit log says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
import yaml
from tests.deploy.helm import a_list, documents, rendered
from tests.e2e.running import ROOT, Plane, kubectl, running_plane
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Net
from tests.waiting import until
from tests.xds.conftest import DELTA
from tests.xds.streams.clients import delta_request, node, read_response

from sliceplane.xds.names import CLUSTER

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(900)]

PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
ENDPOINTS = """
apiVersion: v1
kind: Endpoints
metadata: {name: mirrored, namespace: default}
subsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]
"""
SERVICES = """
apiVersion: v1
kind: Service
metadata: {name: mirrored, namespace: default}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80}], trafficDistribution: PreferSameZone}
"""
NODE = """
apiVersion: v1
kind: Node
metadata: {name: n1}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: default, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: main, image: x}]}
"""
LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  name: sliceplane-proxy-n1
  namespace: kube-node-lease
  labels: {sliceplane.dev/component: node-proxy}
  annotations: {sliceplane.dev/endpointslices-revision: "1"}
spec: {holderIdentity: n1, leaseDurationSeconds: 3600, renewTime: "2100-01-01T00:00:00.000000Z"}
"""
STATUS = {
    "status": {
        "phase": "Running",
        "podIP": "10.9.0.1",
        "podIPs": [{"ip": "10.9.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
}
#: What our server never asks for.
NOT_ASKED_HERE = {
    ("update", "", "services/finalizers"),
    ("update", "", "endpoints/finalizers"),
    ("create", "", "endpoints/restricted"),
    ("create", "discovery.k8s.io", "endpointslices/restricted"),
}
#: What is asked for only when something repeats or goes wrong.
SELDOM = {
    ("patch", "events.k8s.io", "events"),
    ("create", "events.k8s.io", "events"),
    ("patch", "", "services/status"),
    ("get", "", "namespaces"),
    ("get", "", "endpoints"),
    ("get", "discovery.k8s.io", "endpointslices"),
}
#: Needed and not in the log: an apply that creates is a patch there, and a Lease is deleted after
#: the test has looked.
LEASE_RIGHTS = {
    ("create", "coordination.k8s.io", "leases"),
    ("delete", "coordination.k8s.io", "leases"),
}
Right = tuple[str, str, str]


def installed(plane: Plane, folder: Path, component: str, *values: str) -> tuple[Path, str]:
    """The chart's ServiceAccount and roles are there; a kubeconfig with its token, and its user
    name.
    """
    wanted = [each for each in documents(rendered(*values)) if each["kind"] in RIGHTS_AND_WHO]
    kubectl(plane, "apply", "-f", "-", document=a_list(wanted))
    account = f"sliceplane-{component}"
    token = kubectl(plane, "create", "token", account, "-n", "kube-system").strip()
    config = yaml.safe_load(Path(plane.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / f"{component}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path, f"system:serviceaccount:kube-system:{account}"


RIGHTS_AND_WHO = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def granted(*values: str) -> set[Right]:
    return {
        (verb, group, resource)
        for document in documents(rendered(*values))
        if document["kind"] in ("ClusterRole", "Role")
        for rule in document["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def asked(audit: Path, user: str) -> tuple[set[Right], list[Any]]:
    """What *user* asked for, and which of its requests were refused for want of a right."""
    rights: set[Right] = set()
    refused = []
    for line in audit.read_text().splitlines():
        event = json.loads(line)
        what = event.get("objectRef")
        if event["user"]["username"] != user or not what:
            continue
        resource = "/".join(filter(None, (what["resource"], what.get("subresource"))))
        rights.add((event["verb"], what.get("apiGroup", ""), resource))
        if event.get("responseStatus", {}).get("code") in (401, 403):
            refused.append(event)
    return rights, refused


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[str]:
    """What its ready line says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sliceplane", *arguments],
        env=PYTHON,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        word, _, rest = process.stdout.readline().strip().partition(" ")
        assert word == "ready"
        yield rest
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def mirrored(plane: Plane, *addresses: str) -> bool:
    shown = "-o=jsonpath={.items[*].endpoints[*].addresses[*]}"
    selector = "kubernetes.io/service-name=mirrored"
    return kubectl(plane, "get", "endpointslices", "-l", selector, shown).split() == list(addresses)


def change_everything(plane: Plane) -> None:
    """Each verb that the controllers have for slices and Endpoints becomes necessary."""
    kubectl(plane, "patch", "pod", "web-0", "--subresource=status", "-p", json.dumps(STATUS))
    until(lambda: "10.9.0.1" in kubectl(plane, "get", "endpoints", "web", "-o", "yaml"))
    until(lambda: mirrored(plane, "192.0.2.7"))
    kubectl(plane, "apply", "-f", "-", document=ENDPOINTS.replace(".7", ".8"))
    until(lambda: mirrored(plane, "192.0.2.8"))
    kubectl(plane, "delete", "endpoints", "mirrored")
    until(lambda: mirrored(plane))
    drain(plane)
    kubectl(plane, "delete", "service", "web")
    until(lambda: "web" not in kubectl(plane, "get", "endpoints", "-o", "name"))


def drain(plane: Plane) -> None:
    """A node that holds what is there when it is asked, and not before."""
    lease = yaml.safe_load(LEASE)
    kubectl(plane, "apply", "-f", "-", document=yaml.safe_dump(lease))
    kubectl(plane, "annotate", "pod", "web-0", "sliceplane.dev/drain=now")
    asked = "-o=jsonpath={.items[*].metadata.annotations.sliceplane\\.dev/report}"
    until(
        lambda: kubectl(
            plane, "get", "endpointslices", "-l", "kubernetes.io/service-name=web", asked
        )
    )
    lease["metadata"]["annotations"]["sliceplane.dev/endpointslices-revision"] = "1000000"
    kubectl(plane, "apply", "-f", "-", document=yaml.safe_dump(lease))
    kubectl(plane, "wait", "pod/web-0", "--for=condition=sliceplane.dev/Drained", "--timeout=60s")


def test_the_controllers_need_what_they_are_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    run = "endpointslice-controller,endpoints-controller,endpointslice-mirroring-controller,pod-drained-controller"
    values = ("--set=controllers.mode=work", f"--set=controllers.run={{{run}}}")
    with running_plane(tmp_path, f"--audit-log-path={audit}", command="apiserver") as plane:
        kubeconfig, user = installed(plane, tmp_path, "controllers", *values)
        kubectl(plane, "apply", "-f", "-", document="---".join((NODE, SERVICES, POD, ENDPOINTS)))
        lease = (
            "--leader-elect-resource-name=sliceplane-controllers",
            "--leader-elect-resource-namespace=kube-system",
        )
        with running("controllers", f"--kubeconfig={kubeconfig}", f"--controllers={run}", *lease):
            change_everything(plane)
    rights, refused = asked(audit, user)
    assert refused == []
    assert granted(*values) - rights - SELDOM == NOT_ASKED_HERE
    assert rights <= granted(*values)


def test_the_name_server_needs_what_it_is_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    values = ("--set=controllers.enabled=false", "--set=dns.enabled=true")
    with running_plane(tmp_path, f"--audit-log-path={audit}", command="apiserver") as plane:
        kubeconfig, user = installed(plane, tmp_path, "dns", *values)
        with running(
            "dns", f"--kubeconfig={kubeconfig}", "--listen=127.0.0.1:0", "--progress-lease=true"
        ):
            until(lambda: ("patch", "coordination.k8s.io", "leases") in asked(audit, user)[0])
    rights, refused = asked(audit, user)
    assert refused == []
    assert rights <= granted(*values)
    seldom = {
        ("create", "events.k8s.io", "events"),
        ("patch", "events.k8s.io", "events"),
    }  # of a forwarding loop
    assert granted(*values) <= rights | seldom | LEASE_RIGHTS


def test_the_xds_server_needs_what_it_is_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    values = ("--set=controllers.enabled=false", "--set=xds.enabled=true")
    with running_plane(tmp_path, f"--audit-log-path={audit}", command="apiserver") as plane:
        kubeconfig, user = installed(plane, tmp_path, "xds", *values)
        kubectl(plane, "create", "serviceaccount", "caller", "-n", "default")
        token = kubectl(plane, "create", "token", "caller", "-n", "default").strip()
        pki = Path(plane.kubeconfig).parent / "pki"
        tls = (
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
        )
        flags = ("--bind-address=127.0.0.1:0", *tls, "--progress-lease=true")
        with running("xds", f"--kubeconfig={kubeconfig}", *flags) as address:
            secure = grpc.composite_channel_credentials(
                grpc.ssl_channel_credentials((pki / "ca.crt").read_bytes()),
                grpc.access_token_call_credentials(token),
            )
            said: SimpleQueue[bytes | None] = SimpleQueue()
            said.put(delta_request(CLUSTER, of_node=node()))
            with grpc.secure_channel(f"localhost:{address.rpartition(':')[2]}", secure) as channel:
                answers = channel.stream_stream(DELTA)(
                    iter(said.get, None), timeout=100, wait_for_ready=True
                )
                assert read_response(next(answers), delta=True).resources == {}, (
                    "it may see no namespace"
                )
                answers.cancel()
                said.put(None)
            until(lambda: ("patch", "coordination.k8s.io", "leases") in asked(audit, user)[0])
    rights, refused = asked(audit, user)
    assert refused == []
    assert rights <= granted(*values)
    assert granted(*values) <= rights | SELDOM | LEASE_RIGHTS


def test_a_relay_needs_what_it_is_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    relay = ("--set=relay.enabled=true", "--set=relay.aggregateReports=true")
    values = ("--set=controllers.enabled=false", *relay)
    with running_plane(tmp_path, f"--audit-log-path={audit}", command="apiserver") as plane:
        kubeconfig, user = installed(plane, tmp_path, "relay", *values)
        pki = Path(plane.kubeconfig).parent / "pki"
        tls = (
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
        )
        kubectl(plane, "create", "serviceaccount", "caller", "-n", "default")
        token = kubectl(plane, "create", "token", "caller", "-n", "default").strip()
        flags = (f"--upstream={kubeconfig}", "--listen=127.0.0.1:0", "--aggregate-reports=us")
        with running("relay", *flags, *tls) as address:
            request = urllib.request.Request(
                f"https://localhost:{address.rpartition(':')[2]}/api/v1/nodes",
                headers={"authorization": f"Bearer {token}"},
            )
            trusted = ssl.create_default_context(cafile=str(pki / "ca.crt"))
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(request, context=trusted, timeout=60)
            until(lambda: granted(*values) - LEASE_RIGHTS <= asked(audit, user)[0])
    rights, refused = asked(audit, user)
    assert refused == []
    assert rights - LEASE_RIGHTS == granted(*values) - LEASE_RIGHTS


@pytest.mark.kernel
def test_the_proxy_needs_what_it_is_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    proxy = (
        "--set=proxy.enabled=true",
        "--set=proxy.apiServer.host=192.0.2.1",
        "--set=proxy.drainPort=10261",
    )
    values = ("--set=controllers.enabled=false", *proxy)
    with Net("spr") as net, running_plane(tmp_path, f"--audit-log-path={audit}") as plane:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        kubeconfig, user = installed(plane, tmp_path, "proxy", *values)
        kubectl(plane, "apply", "-f", "-", document="---".join((NODE, SERVICES, POD)))
        flags = (
            f"--kubeconfig={kubeconfig}",
            "--hostname-override=n1",
            f"--netns={node.netns}",
            "--drain-port=10261",
        )
        with running("proxy", *flags):
            until(
                lambda: (
                    "sliceplane-proxy-n1"
                    in kubectl(plane, "get", "leases", "-n", "kube-node-lease", "-o", "name")
                )
            )
            kubectl(
                plane, "patch", "pod", "web-0", "--subresource=status", "-p", json.dumps(STATUS)
            )
            until(lambda: ("patch", "coordination.k8s.io", "leases") in asked(audit, user)[0])
    rights, refused = asked(audit, user)
    assert refused == []
    assert granted(*values) - rights <= SELDOM | LEASE_RIGHTS
    assert rights <= granted(*values)


@pytest.mark.kernel
def test_the_observer_needs_what_it_is_given(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    values = ("--set=controllers.enabled=false", "--set=observer.enabled=true")
    with Net("sor") as net, running_plane(tmp_path, f"--audit-log-path={audit}") as plane:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        host.exec(["nft", "-f", "-"], stdin=TABLE.format(family="ip", address="ipv4_addr"))
        kubeconfig, user = installed(plane, tmp_path, "observer", *values)
        kubectl(plane, "apply", "-f", "-", document="---".join((NODE, SERVICES)))
        flags = (f"--kubeconfig={kubeconfig}", "--node=n1", f"--netns={host.netns}")
        with running("observe", *flags):
            until(
                lambda: (
                    "sliceplane-proxy-n1"
                    in kubectl(plane, "get", "leases", "-n", "kube-node-lease", "-o", "name")
                )
            )
    rights, refused = asked(audit, user)
    assert refused == []
    assert granted(*values) - rights <= LEASE_RIGHTS
    assert rights <= granted(*values)
