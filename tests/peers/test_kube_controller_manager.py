"""Kubernetes' own kube-controller-manager, unmodified, with our API server: leases, slices,
mirrors, events, garbage.

The server has no controllers of its own here (``sliceplane apiserver``): what is written is the
manager's. It is the user ``system:kube-controller-manager``, and each of its controllers a
ServiceAccount with a token that it asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, kubectl, spawn, stop
from tests.peers import kubernetes
from tests.peers.kubernetes import SLICES, create, eventually, items, pod, statuses
from tests.peers.programs import dependency

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

CONTROLLERS = (
    "endpointslice-controller",
    "endpoints-controller",
    "endpointslice-mirroring-controller",
    "garbage-collector-controller",
    "namespace-controller",
)
FLAGS = (
    "--secure-port=0",
    f"--controllers={','.join(CONTROLLERS)}",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
)
TOKEN = "manager-of-a-test"
PODS = 150
OUTERMOST = (("Namespace", "demo"), ("Node", "node-1"))
#: printed at every start of a manager, whatever the server
HARMLESS = ("The manifest file is empty",)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text(f"{TOKEN},system:kube-controller-manager,manager-1\n")
    running = spawn(tmp_path, "--token-auth-file", str(tokens), command="apiserver")
    yield running
    assert stop(running) == 0


def start(manager: str, plane: Plane, folder: Path, name: str) -> Any:
    """A manager whose log is *name*, as a context.  It has no rights but those of its roles."""
    kubeconfig = kubernetes.kubeconfig_for(
        plane.kubeconfig, folder / f"{name}.kubeconfig", token=TOKEN
    )
    flags = (f"--kubeconfig={kubeconfig}", "--use-service-account-credentials", *FLAGS)
    return kubernetes.started(folder / f"{name}.log", manager, *flags)


def holder(plane: Plane) -> str:
    lease = json.loads(
        kubectl(plane, "get", "lease", "kube-controller-manager", "-n", "kube-system", "-o", "json")
    )
    return str(lease["spec"].get("holderIdentity", ""))


def managed_by(plane: Plane, name: str, service: str) -> list[Any]:
    labels = f"endpointslice.kubernetes.io/managed-by={name},kubernetes.io/service-name={service}"
    return items(plane, SLICES, "-n", "demo", "-l", labels)


def no_errors(log: Path) -> None:
    """No line of level error or warning, whose first letter tells."""
    bad = [
        line for line in log.read_text().splitlines() if line[:1] in "EW" and line[1:5].isdigit()
    ]
    assert not [line for line in bad if not any(each in line for each in HARMLESS)], bad


def test_the_manager_does_its_work(manager: str, plane: Plane, tmp_path: Path) -> None:
    with start(manager, plane, tmp_path, "first"):
        eventually(lambda: holder(plane))
        _slices(plane)
        _mirror(plane)
        _garbage(plane)
        _namespace(plane)
    no_errors(tmp_path / "first.log")


def _slices(plane: Plane) -> None:
    """150 ready Pods are two slices and one Endpoints object; one that is not ready changes one
    slice.
    """
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "demo"},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
        },
    }
    create(
        plane,
        *(
            {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
            for kind, name in OUTERMOST
        ),
        service,
    )
    create(plane, *(pod(number) for number in range(PODS)))
    statuses(plane, *(pod(number) for number in range(PODS)))

    def made() -> bool:
        slices = managed_by(plane, "endpointslice-controller.k8s.io", "web")
        sizes = sorted(len(each["endpoints"]) for each in slices)
        assert sum(sizes) == PODS, sizes
        assert all(each["conditions"]["ready"] for one in slices for each in one["endpoints"])
        return True

    eventually(made)
    endpoints = json.loads(kubectl(plane, "get", "endpoints", "web", "-n", "demo", "-o", "json"))
    assert sum(len(each["addresses"]) for each in endpoints["subsets"]) == PODS
    before = {
        each["metadata"]["name"]: each["metadata"]["resourceVersion"]
        for each in managed_by(plane, "endpointslice-controller.k8s.io", "web")
    }
    statuses(plane, pod(7, ready=False))

    def changed() -> bool:
        slices = managed_by(plane, "endpointslice-controller.k8s.io", "web")
        unready = [
            each["targetRef"]["name"]
            for one in slices
            for each in one["endpoints"]
            if not each["conditions"]["ready"]
        ]
        assert unready == ["web-7"], unready
        same = [
            one
            for one in slices
            if before.get(one["metadata"]["name"]) == one["metadata"]["resourceVersion"]
        ]
        assert len(same) == len(before) - 1, "one changed Pod is one changed slice"
        return True

    eventually(changed)


def _mirror(plane: Plane) -> None:
    """Endpoints that somebody wrote for a Service without a selector are mirrored, and the mirror
    goes with them.
    """
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "outside", "namespace": "demo"},
        "spec": {"ports": [{"name": "db", "port": 5432}]},
    }
    subset = {"addresses": [{"ip": "192.0.2.7"}], "ports": [{"name": "db", "port": 5432}]}
    endpoints = {"metadata": {"name": "outside", "namespace": "demo"}, "subsets": [subset]}
    create(plane, service, {"apiVersion": "v1", "kind": "Endpoints", **endpoints})

    def mirrored() -> bool:
        found = managed_by(plane, "endpointslicemirroring-controller.k8s.io", "outside")
        return [each["addresses"] for one in found for each in one["endpoints"]] == [["192.0.2.7"]]

    eventually(mirrored)
    kubectl(plane, "delete", "endpoints", "outside", "-n", "demo")
    eventually(lambda: not managed_by(plane, "endpointslicemirroring-controller.k8s.io", "outside"))


def _garbage(plane: Plane) -> None:
    """Slices go with their Service; foreground waits for dependents; orphans stay without their
    owner.
    """
    kubectl(plane, "delete", "service", "web", "-n", "demo")
    eventually(
        lambda: not items(plane, SLICES, "-n", "demo", "-l", "kubernetes.io/service-name=web")
    )
    for cascade in ("foreground", "orphan"):
        create(plane, _config_map(f"owner-{cascade}"))
        owner = json.loads(
            kubectl(plane, "get", "configmap", f"owner-{cascade}", "-n", "demo", "-o", "json")
        )
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"]}
        reference |= {"uid": owner["metadata"]["uid"], "blockOwnerDeletion": True}
        create(plane, _config_map(f"owned-{cascade}", reference))
        kubectl(
            plane,
            "delete",
            "configmap",
            f"owner-{cascade}",
            "-n",
            "demo",
            f"--cascade={cascade}",
            "--timeout=20s",
        )
    names = {
        each["metadata"]["name"]: each["metadata"]
        for each in items(plane, "configmaps", "-n", "demo")
    }
    assert set(names) - {"kube-root-ca.crt"} == {"owned-orphan"}
    eventually(
        lambda: "ownerReferences" not in items(plane, "configmaps", "-n", "demo")[0]["metadata"]
    )


def _config_map(name: str, *owners: dict[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "demo", "ownerReferences": list(owners)}
    if not owners:
        del metadata["ownerReferences"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}}


def _namespace(plane: Plane) -> None:
    """A namespace and all that is in it ends."""
    assert len(items(plane, "pods", "-n", "demo")) == PODS
    kubectl(plane, "delete", "namespace", "demo", "--timeout=60s")
    assert not items(plane, "pods", "-A")


def test_another_manager_takes_over(manager: str, plane: Plane, tmp_path: Path) -> None:
    """The lease has one holder; when that one is gone without a word, the other waits for the lease
    and takes it.
    """
    with start(manager, plane, tmp_path, "second") as second:
        first = eventually(lambda: holder(plane))
        with start(manager, plane, tmp_path, "third"):
            eventually(
                lambda: "attempting to acquire" in (tmp_path / "third.log").read_text().lower()
            )
            assert holder(plane) == first
            second.kill()
            second.wait()
            eventually(lambda: holder(plane) not in ("", first))
            lease = items(plane, "leases", "-n", "kube-system")[0]
            assert lease["spec"]["leaseTransitions"] == 1
            events = items(
                plane, "events", "-n", "kube-system", "--field-selector", "reason=LeaderElection"
            )
            assert len(events) == 2, events


def test_what_the_manager_asks_for(manager: str, plane: Plane, tmp_path: Path) -> None:
    """Its lists and watches are the recorded ones, which ``test_recorded_requests`` replays.

    The garbage collector watches whatever discovery names, so that a new kind is one more request.
    """
    with kubernetes.recorder(plane.kubeconfig, tmp_path / "heard.json") as heard:
        kubeconfig = kubernetes.kubeconfig_for(
            plane.kubeconfig, tmp_path / "plain.kubeconfig", server=heard.url
        )
        log = tmp_path / "recorded.log"
        with kubernetes.started(log, manager, f"--kubeconfig={kubeconfig}", *FLAGS):
            eventually(lambda: "Proceeding to collect garbage" in log.read_text())
        reads = [
            each
            for each in heard.requests()
            if each.method == "GET" and "/leases/" not in each.path
        ]
    version = dependency(kubernetes.MODULE, "k8s.io/kubernetes")
    kubernetes.compare(
        "kube-controller-manager.json", f"kube-controller-manager {version}", reads, more=True
    )
