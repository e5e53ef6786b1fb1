"""Emulated workloads as the real kubectl drives and shows them: rollouts, scaling, refusals,
readiness gates, drained nodes.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.running import Plane, kubectl, running_plane
from tests.waiting import until

pytestmark = [pytest.mark.kubectl, pytest.mark.timeout(240)]

WAIT_S = 90.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    flags = ("--emulate", "--emulate-nodes", "2", "--emulate-termination", "0s")
    with running_plane(tmp_path_factory.mktemp("rollouts"), *flags) as running:
        yield running


def refused(plane: Plane, *arguments: str, document: object = None) -> str:
    """What kubectl, which reads *document*, says that cannot do it."""
    done = subprocess.run(
        [plane.kubectl, *arguments],
        env=plane.environment,
        input=json.dumps(document),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


def get(plane: Plane, *what: str) -> Any:
    return json.loads(kubectl(plane, "get", *what, "-o", "json"))


def test_rollout_status_history_undo_pause_resume_and_restart(plane: Plane) -> None:
    kubectl(plane, "create", "deployment", "shop", "--image=example/shop:1", "--replicas=3")
    status = ("rollout", "status", "deployment/shop", "--timeout=240s")
    assert 'deployment "shop" successfully rolled out' in kubectl(plane, *status)
    kubectl(plane, "annotate", "deployment", "shop", "kubernetes.io/change-cause=the first")
    kubectl(plane, "set", "image", "deployment/shop", "shop=example/shop:2")
    kubectl(
        plane,
        "annotate",
        "deployment",
        "shop",
        "kubernetes.io/change-cause=the second",
        "--overwrite",
    )
    kubectl(plane, *status)
    until(
        lambda: re.search(
            r"1 +the first\n2 +the second\n",
            kubectl(plane, "rollout", "history", "deployment/shop"),
        )
    )
    detail = kubectl(plane, "rollout", "history", "deployment/shop", "--revision=1")
    assert "example/shop:1" in detail
    assert "Annotations:\tkubernetes.io/change-cause: the first" in detail

    assert "rolled back" in kubectl(plane, "rollout", "undo", "deployment/shop")
    kubectl(plane, *status)
    until(
        lambda: re.search(
            r"2 +the second\n3 +the first\n",
            kubectl(plane, "rollout", "history", "deployment/shop"),
        )
    )
    assert "rolled back" in kubectl(plane, "rollout", "undo", "deployment/shop", "--to-revision=2")
    kubectl(plane, *status)
    assert "unable to find specified revision 1" in refused(
        plane, "rollout", "undo", "deployment/shop", "--to-revision=1"
    )

    kubectl(plane, "rollout", "pause", "deployment/shop")
    kubectl(plane, "set", "image", "deployment/shop", "shop=example/shop:3")
    until(lambda: "DeploymentPaused" in kubectl(plane, "describe", "deployment", "shop"))
    assert "cannot rollback a paused deployment" in refused(
        plane, "rollout", "undo", "deployment/shop"
    )
    assert len(get(plane, "replicasets", "-l", "app=shop")["items"]) == 2
    kubectl(plane, "rollout", "resume", "deployment/shop")
    kubectl(plane, *status)
    sets = get(plane, "replicasets", "-l", "app=shop")["items"]
    assert sorted(item["spec"]["replicas"] for item in sets) == [0, 0, 3]

    before = {pod["metadata"]["uid"] for pod in get(plane, "pods", "-l", "app=shop")["items"]}
    kubectl(plane, "rollout", "restart", "deployment/shop")
    kubectl(plane, *status)
    after = get(plane, "pods", "-l", "app=shop")["items"]
    assert before.isdisjoint(
        pod["metadata"]["uid"] for pod in after if "deletionTimestamp" not in pod["metadata"]
    )
    shown = kubectl(plane, "describe", "deployment", "shop")
    assert re.search(r"Progressing +True +NewReplicaSetAvailable", shown)
    until(
        lambda: re.search(
            r"ScalingReplicaSet .*deployment-controller +Scaled up replica set shop-\w+ from 0 to",
            kubectl(plane, "describe", "deployment", "shop"),
        )
    )


def test_a_quota_that_stops_a_deployment_is_seen_in_every_place_where_one_looks(
    plane: Plane,
) -> None:
    kubectl(plane, "create", "namespace", "tight")
    kubectl(plane, "create", "quota", "few", "-n", "tight", "--hard=pods=1")
    until(lambda: get(plane, "quota", "few", "-n", "tight")["status"].get("hard"))
    kubectl(
        plane, "create", "deployment", "web", "-n", "tight", "--image=example/web:1", "--replicas=3"
    )
    until(
        lambda: re.search(
            r"web +1/3 +1 +1", kubectl(plane, "get", "deployment", "web", "-n", "tight")
        )
    )
    until(lambda: re.search(r"web-\w+ +3 +1 +1", kubectl(plane, "get", "rs", "-n", "tight")))
    kubectl(
        plane,
        "wait",
        "deployment/web",
        "-n",
        "tight",
        "--for=condition=ReplicaFailure",
        "--timeout=240s",
    )
    line = r"Warning +FailedCreate .*replicaset-controller +Error creating: pods \"web-\w+-\" is forbidden: exceeded quota"  # noqa: E501
    until(lambda: re.search(line, kubectl(plane, "describe", "rs", "-n", "tight")))
    assert re.search(
        r"ReplicaFailure +True +FailedCreate",
        kubectl(plane, "describe", "deployment", "-n", "tight"),
    )

    def refusals() -> list[dict[str, Any]]:
        events = get(plane, "events", "-n", "tight", "--field-selector", "reason=FailedCreate")[
            "items"
        ]
        assert len(events) <= 1, "one cause is one Event, however often it was tried"
        return list(events)

    until(refusals, lambda events: events and events[0]["series"]["count"] >= 3)
    kubectl(plane, "patch", "quota", "few", "-n", "tight", "-p", '{"spec":{"hard":{"pods":"5"}}}')
    kubectl(plane, "rollout", "status", "deployment/web", "-n", "tight", "--timeout=240s")
    conditions = get(plane, "deployment", "web", "-n", "tight")["status"]["conditions"]
    assert "ReplicaFailure" not in {one["type"] for one in conditions}


def test_a_pod_behind_a_readiness_gate_is_no_ready_endpoint_until_the_gate_opens(
    plane: Plane,
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gated", "labels": {"app": "gated"}},
        "spec": {
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}],
            "readinessGates": [{"conditionType": "example.com/lb"}],
        },
    }
    kubectl(plane, "create", "-f", "-", document=pod)
    kubectl(plane, "expose", "pod", "gated", "--port=80")
    kubectl(plane, "wait", "pod/gated", "--for=condition=ContainersReady", "--timeout=240s")
    shown = kubectl(plane, "get", "pod", "gated", "-o", "wide")
    assert re.search(r"gated +1/1 +Running .* 0/1\s*$", shown), shown
    ready = "jsonpath={.items[*].endpoints[*].conditions.ready}"
    slices = ("get", "endpointslices", "-l", "kubernetes.io/service-name=gated", "-o", ready)
    until(lambda: "false" in kubectl(plane, *slices) and "true" not in kubectl(plane, *slices))
    opened = '{"status":{"conditions":[{"type":"example.com/lb","status":"True"}]}}'
    kubectl(plane, "patch", "pod", "gated", "--subresource=status", "-p", opened)
    kubectl(plane, "wait", "pod/gated", "--for=condition=Ready", "--timeout=240s")
    until(lambda: "true" in kubectl(plane, *slices))


def test_a_pod_taken_out_of_its_set_for_a_look_is_replaced_and_left_alone(plane: Plane) -> None:
    kubectl(plane, "create", "deployment", "odd", "--image=example/odd:1", "--replicas=2")
    kubectl(plane, "rollout", "status", "deployment/odd", "--timeout=240s")
    name = get(plane, "pods", "-l", "app=odd")["items"][0]["metadata"]["name"]
    kubectl(plane, "label", "pod", name, "app=looked-at", "--overwrite")
    until(lambda: not get(plane, "pod", name)["metadata"].get("ownerReferences"))
    until(lambda: len(get(plane, "pods", "-l", "app=odd")["items"]) == 2)
    kubectl(plane, "delete", "deployment", "odd", "--cascade=orphan")
    until(
        lambda: (
            not get(plane, "replicasets", "-l", "app=odd")["items"][0]["metadata"].get(
                "ownerReferences"
            )
        )
    )
    kubectl(plane, "create", "deployment", "odd", "--image=example/odd:1", "--replicas=2")
    kubectl(plane, "rollout", "status", "deployment/odd", "--timeout=240s")
    assert len(get(plane, "replicasets", "-l", "app=odd")["items"]) == 1, (
        "the orphaned set was adopted"
    )


def test_stateful_and_daemon_sets_roll_out_as_kubectl_waits_for_them(plane: Plane) -> None:
    """Pods of a StatefulSet come again under their names: the next of a name must not wait for the
    last one's end.
    """
    template = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": "db:1"}]},
    }
    spec = {"selector": {"matchLabels": {"app": "db"}}, "template": template}
    for kind, more in (("StatefulSet", {"serviceName": "db", "replicas": 3}), ("DaemonSet", {})):
        name = kind.lower()
        document = {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": {**spec, **more},
        }
        kubectl(plane, "apply", "-f", "-", document=document)
        status = ("rollout", "status", f"{name}/{name}", "--timeout=240s")
        kubectl(plane, *status)
        kubectl(plane, "set", "image", f"{name}/{name}", "c=db:2")
        kubectl(plane, *status)
        pods = get(plane, "pods", "-l", "app=db")["items"]
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"db:2"}
        assert re.search(
            r"\n1 +<none>\n2 +<none>\n", kubectl(plane, "rollout", "history", f"{name}/{name}")
        )
        assert "db:1" in kubectl(plane, "rollout", "history", f"{name}/{name}", "--revision=1")
        assert "rolled back" in kubectl(plane, "rollout", "undo", f"{name}/{name}")
        kubectl(plane, *status)
        pods = get(plane, "pods", "-l", "app=db")["items"]
        assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"db:1"}
        kubectl(plane, "delete", f"{name}/{name}", "--cascade=foreground")


def test_a_container_for_debugging_is_added(plane: Plane) -> None:
    kubectl(plane, "run", "looked-into", "--image=example/app:1")
    kubectl(
        plane, "debug", "looked-into", "--image=busybox", "--container=look", "--target=looked-into"
    )
    (debugger,) = get(plane, "pod", "looked-into")["spec"]["ephemeralContainers"]
    assert (debugger["name"], debugger["image"], debugger["targetContainerName"]) == (
        "look",
        "busybox",
        "looked-into",
    )
    assert "Ephemeral Containers:\n  look:" in kubectl(plane, "describe", "pod", "looked-into")


def test_drain_waits_for_the_budget_and_empties_the_node(plane: Plane) -> None:
    kubectl(plane, "create", "deployment", "kept", "--image=example/kept:1", "--replicas=4")
    kubectl(plane, "rollout", "status", "deployment/kept", "--timeout=200s")
    kubectl(plane, "create", "pdb", "kept", "--selector=app=kept", "--min-available=4")

    def allowed() -> str:
        told = "jsonpath={.status.disruptionsAllowed} of {.status.expectedPods}"
        return kubectl(plane, "get", "pdb", "kept", "-o", told)

    def left(*selectors: str) -> list[dict[str, Any]]:
        found = get(plane, "pods", "-l", "app=kept", *selectors)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    until(allowed, lambda told: told == "0 of 4")
    victim = left()[0]
    name, node = victim["metadata"]["name"], victim["spec"]["nodeName"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/default/pods/{name}/eviction"
    why = (
        "Error from server (TooManyRequests): Cannot evict pod as it would violate the pod's "
        "disruption budget."
    )
    assert refused(plane, "create", "--raw", path, "-f", "-", document=eviction).strip() == why

    kubectl(plane, "patch", "pdb", "kept", "-p", '{"spec":{"minAvailable":3}}')
    until(allowed, lambda told: told == "1 of 4")
    assert f"node/{node} drained" in kubectl(
        plane, "drain", node, "--pod-selector=app=kept", "--timeout=200s"
    )
    assert left("--field-selector", f"spec.nodeName={node}") == []
    kubectl(plane, "uncordon", node)
    kubectl(plane, "rollout", "status", "deployment/kept", "--timeout=200s")
    assert len(left()) == 4
