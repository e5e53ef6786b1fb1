"""Kubernetes' own kube-controller-manager with every controller, and kube-scheduler, unmodified,
with our API server.

Claims are bound to volumes, a StatefulSet's Pods get theirs, the scheduler places Pods, and neither
program's log has an error: nothing that they watch is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import Plane, kubectl, spawn, stop
from tests.peers import kubernetes
from tests.peers.kubernetes import create, eventually, items, statuses

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

TOKENS = {"kube-controller-manager": "manager-of-a-test", "kube-scheduler": "scheduler-of-a-test"}
NODES = ("node-1", "node-2", "node-3")
FLAGS = ("--secure-port=0", "--leader-elect=false")
#: no kubelet renews a Lease here
MANAGER_FLAGS = (
    "--controllers=*",
    "--use-service-account-credentials",
    "--node-monitor-grace-period=1h",
    *FLAGS,
)
#: these start on no server with these flags: they want a key, a range, a cloud or a gate that is
#: off by default
SKIPPED = {
    *(
        "bootstrap-signer-controller",
        "certificatesigningrequest-signing-controller",
        "cloud-node-lifecycle-controller",
    ),
    *("kube-apiserver-serving-clustertrustbundle-publisher-controller", "node-ipam-controller"),
    *(
        "node-route-controller",
        "podcertificaterequest-cleaner-controller",
        "podgroup-protection-controller",
    ),
    *(
        "resourcepoolstatusrequest-controller",
        "selinux-warning-controller",
        "service-lb-controller",
    ),
    *("serviceaccount-token-controller", "storage-version-migrator-controller"),
    *("storageversion-garbage-collector-controller", "token-cleaner-controller"),
}
#: two controllers wrote one object, or a cache was behind, and the work is done again
TRANSIENT = (
    "the object has been modified",
    "is not as new as written version",
    "not found in the cache",
)
#: printed at every start; the ConfigMap is about Secrets that are tokens, of which this server
#: makes none
HARMLESS = (
    "The manifest file is empty",
    "kube-apiserver-legacy-service-account-token-tracking",
    "Flexvolume plugin directory",
)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("".join(f"{token},system:{name},{name}\n" for name, token in TOKENS.items()))
    running = spawn(tmp_path, "--token-auth-file", str(tokens), command="apiserver")
    yield running
    assert stop(running) == 0


def start(program: str, name: str, plane: Plane, folder: Path, *flags: str) -> Any:
    """*program* as the user *name*, with no rights but those of its roles, as a context."""
    kubeconfig = kubernetes.kubeconfig_for(
        plane.kubeconfig, folder / f"{name}.kubeconfig", token=TOKENS[name]
    )
    return kubernetes.started(folder / f"{name}.log", program, f"--kubeconfig={kubeconfig}", *flags)


def complaints(log: Path) -> list[str]:
    """The lines of level error or warning, whose first letter tells."""
    lines = [
        line for line in log.read_text().splitlines() if line[:1] in "EW" and line[1:5].isdigit()
    ]
    return [line for line in lines if not any(text in line for text in (*HARMLESS, *TRANSIENT))]


def test_every_controller_starts_and_the_scheduler_places_pods(
    manager: str, scheduler: str, plane: Plane, tmp_path: Path
) -> None:
    create(
        plane,
        *map(node, NODES),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}},
    )
    statuses(plane, *map(node, NODES))
    log = tmp_path / "kube-controller-manager.log"
    with (
        start(manager, "kube-controller-manager", plane, tmp_path, *MANAGER_FLAGS),
        start(scheduler, "kube-scheduler", plane, tmp_path, *FLAGS),
    ):
        eventually(lambda: "all resource monitors have synced" in log.read_text())
        eventually(lambda: _have_caches(log.read_text()))
        _pods_are_placed(plane)
        _claims_are_bound(plane)
        _claims_go(plane)
        for name in TOKENS:
            assert complaints(tmp_path / f"{name}.log") == []
    skipped = re.findall(
        r'"Warning: (?:skipping controller|controller is disabled)" controller="([^"]+)"',
        log.read_text(),
    )
    assert set(skipped) == SKIPPED


def _have_caches(log: str) -> bool:
    """Each of more than thirty controllers waits for what it watches, and goes on."""
    waiting, synced = (
        log.count(text) for text in ("Waiting for caches to sync", "Caches are synced")
    )
    assert waiting == synced, f"{waiting - synced} of {waiting} controllers wait for a cache"
    return waiting > 30


def node(name: str) -> dict[str, Any]:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def workload(kind: str, name: str, replicas: int, **spec: Any) -> dict[str, Any]:
    labels = {"app": name}
    containers = [{"name": "main", "image": "main:1", "resources": {"requests": {"cpu": "1"}}}]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "demo"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            **spec,
        },
    }


def pods(plane: Plane, name: str) -> list[Any]:
    return items(plane, "pods", "-n", "demo", "-l", f"app={name}")


def _pods_are_placed(plane: Plane) -> None:
    """Six Pods of one CPU are spread over three nodes of four; a thirteenth CPU is nowhere."""
    create(plane, workload("Deployment", "web", 6))

    def placed() -> bool:
        nodes = [pod["spec"].get("nodeName") for pod in pods(plane, "web")]
        assert len(nodes) == 6, nodes
        assert set(nodes) == set(NODES), nodes
        return True

    eventually(placed)


def volume(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "disks",
            "hostPath": {"path": f"/disks/{name}"},
        },
    }


def _claims_are_bound(plane: Plane) -> None:
    """A StatefulSet's claims are made, bound as their Pods are placed, and named by the Pods."""
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "disks"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    template = {
        "metadata": {"name": "data"},
        "spec": {
            "storageClassName": "disks",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    spec = {
        "serviceName": "db",
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [template],
    }
    create(
        plane,
        storage_class,
        volume("disk-1"),
        volume("disk-2"),
        workload("StatefulSet", "db", 2, **spec),
    )

    def bound() -> bool:
        claims = {claim["metadata"]["name"]: claim for claim in items(plane, "pvc", "-n", "demo")}
        assert set(claims) == {"data-db-0", "data-db-1"}, set(claims)
        assert {claim["status"]["phase"] for claim in claims.values()} == {"Bound"}, claims
        assert {claim["spec"]["volumeName"] for claim in claims.values()} == {"disk-1", "disk-2"}
        assert all(pod["spec"].get("nodeName") in NODES for pod in pods(plane, "db"))
        assert all(
            "kubernetes.io/pvc-protection" in claim["metadata"]["finalizers"]
            for claim in claims.values()
        )
        return True

    eventually(bound)
    volumes = kubectl(plane, "get", "pv,pvc,sc", "-n", "demo")
    assert re.search(
        r"persistentvolume/disk-1 +2Gi +RWO +Retain +Bound +demo/data-db-\d +disks ", volumes
    ), volumes
    assert re.search(r"claim/data-db-0 +Bound +disk-\d +2Gi +RWO +disks ", volumes), volumes


def _claims_go(plane: Plane) -> None:
    """A claim waits for its Pod, then goes; its volume stays, released."""
    kubectl(plane, "delete", "statefulset", "db", "-n", "demo", "--wait=false")
    kubectl(plane, "delete", "pods", "-n", "demo", "-l", "app=db", "--force", "--grace-period=0")
    eventually(lambda: not pods(plane, "db"))
    kubectl(plane, "delete", "pvc", "--all", "-n", "demo", "--timeout=60s")

    def released() -> bool:
        phases = [json.dumps(volume["status"]["phase"]) for volume in items(plane, "pv")]
        assert phases == ['"Released"', '"Released"'], phases
        return True

    eventually(released)
