"""Remedies can be followed: they fit what is there, and no controller undoes them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.explain.faults import relays
from tests.diagnose.explain.world import NOW, World, add_pod, ago, healthy, owner, write_slice

from sliceplane.api.findings.finding import Finding
from sliceplane.consume.agents.registration import MANAGED_BY as AGENTS
from sliceplane.diagnose.explain.question import ExplainQuestion

NAMED = '[{"op":"add","path":"/ports/0/name","value":"http"}]'
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"


def _finding(world: World, code: str, question: ExplainQuestion | None = None) -> Finding:
    answer = world.ask(question or ExplainQuestion("service", "cart", "shop"))
    return next(finding for finding in answer.findings if finding.code == code)


def test_a_target_port_that_is_mistyped_is_corrected_in_the_service() -> None:
    """No container port gets the mistyped name."""
    world = healthy()
    world.get("Service", "shop", "cart")["spec"]["ports"][0]["targetPort"] = "htpp"
    operation = '[{"op":"replace","path":"/spec/ports/0/targetPort","value":"http"}]'
    wanted = f"kubectl -n shop patch service cart --type json -p '{operation}'"
    assert _finding(world, "T2").remedy == wanted


def test_a_target_port_that_some_pods_have_is_left_as_it_is() -> None:
    world = healthy()
    world.get("Service", "shop", "cart")["spec"]["ports"][0]["targetPort"] = "http"
    world.get("Pod", "shop", "cart-1")["spec"]["containers"][0]["ports"][0]["name"] = "htpp"
    assert "patch service" not in _finding(world, "T2").remedy


@pytest.mark.parametrize(
    ("manager", "remedy"),
    [
        ("endpointslicemirroring-controller.k8s.io", "kubectl -n shop edit endpoints cart"),
        (AGENTS, "start its agent with --port http=PORT"),
        (
            "legacy-sync",
            "let legacy-sync name the port 'http' in slice cart-x7k2p, as the Service does",
        ),
        ("", f"kubectl -n shop patch endpointslice cart-x7k2p --type json -p '{NAMED}'"),
    ],
)
def test_the_port_of_a_slice_is_named_where_its_writer_takes_it_from(
    manager: str, remedy: str
) -> None:
    world = healthy()
    del world.get("Service", "shop", "cart")["spec"]["selector"]
    document = world.get("EndpointSlice", "shop", "cart-x7k2p")
    document["ports"][0]["name"] = "web"
    document["metadata"]["labels"][MANAGED_BY] = manager
    if manager.startswith("endpointslicemirroring"):
        world.add("Endpoints", "shop", "cart", subsets=[{"addresses": [{"ip": "10.244.0.3"}]}])
    assert _finding(world, "T5").remedy == remedy


def test_of_two_slices_with_one_pod_the_controllers_is_not_deleted() -> None:
    """It would be written again at once."""
    world = healthy()
    mine = world.get("EndpointSlice", "shop", "cart-x7k2p")
    mine["metadata"]["creationTimestamp"] = ago(10)
    other = {
        **mine,
        "metadata": {**mine["metadata"], "name": "legacy", "creationTimestamp": ago(9000)},
    }
    other["metadata"]["labels"] = {**mine["metadata"]["labels"], MANAGED_BY: "legacy-sync"}
    world.add(
        "EndpointSlice",
        "shop",
        "legacy",
        labels=other["metadata"]["labels"],
        addressType="IPv4",
        endpoints=mine["endpoints"],
        ports=mine["ports"],
        meta={"creationTimestamp": ago(9000)},
    )
    assert _finding(world, "E12").remedy == "kubectl -n shop delete endpointslice legacy"


def _owned_by(world: World, kind: str) -> None:
    """The Pods are of a Job, or of nothing."""
    job = world.add(
        "Job", "shop", "train", spec={"template": {"metadata": {"labels": {"app": "cart"}}}}
    )
    for pod in world.all("Pod"):
        pod["metadata"]["ownerReferences"] = [owner(job)] if kind == "Job" else []


def _unready(world: World, state: dict[str, Any]) -> None:
    for pod in world.all("Pod"):
        for condition in pod["status"]["conditions"]:
            if condition["type"] in ("ContainersReady", "Ready"):
                condition.update(status="False", lastTransitionTime=ago(900))
        pod["status"]["containerStatuses"][0].update(ready=False, state=state)


@pytest.mark.parametrize("kind", ["Pod", "Job"])
def test_a_probe_of_what_never_changes_is_not_edited(kind: str) -> None:
    world = healthy()
    _owned_by(world, kind)
    _unready(world, {"running": {"startedAt": ago(900)}})
    for pod in world.all("Pod"):
        pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] = 8081
    assert _finding(world, "R6").remedy.startswith(f"make {kind.lower()} ")


def test_the_image_of_a_job_is_not_set() -> None:
    world = healthy()
    _owned_by(world, "Job")
    _unready(world, {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})
    assert _finding(world, "R4").remedy.startswith("make Job train anew")


def test_others_are_said_to_serve_where_there_are_others() -> None:
    world = healthy()
    world.get("Service", "shop", "cart")["spec"]["publishNotReadyAddresses"] = True
    for pod in world.all("Pod"):
        pod["spec"]["readinessGates"] = [{"conditionType": "example.org/lb"}]
        for condition in pod["status"]["conditions"]:
            if condition["type"] == "Ready":
                condition.update(status="False", lastTransitionTime=ago(900))
    gate = _finding(world, "R7")
    assert (gate.severity, "others" in gate.effect) == ("warning", False)
    add_pod(world, "cart-9", "shop", "node-1", {"app": "cart"})
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")
    gate = _finding(world, "R7")
    assert (gate.severity, gate.effect) == ("warning", "3 endpoints fewer; the others serve")


# Relays


def _relay_codes(*leases: Any) -> list[str]:
    world = healthy()
    for lease in leases:
        lease(world)
    return [code for code in world.codes() if code.startswith("N")]


def test_the_lease_of_a_relay_that_was_removed_is_deleted() -> None:
    world = healthy()
    relays.reports(relays.relay("eu", heard=NOW - 240))(world)
    remedy = _finding(world, "N16").remedy
    assert remedy.endswith("kubectl -n kube-node-lease delete lease sliceplane-relay-eu")
    world.drop("Lease", "kube-node-lease", "sliceplane-relay-eu")
    assert not world.codes()


def test_a_relay_that_another_one_reports_for_has_no_lease_to_delete() -> None:
    world = healthy()
    child = relays.below("eu-1", "eu", heard=NOW - 240, is_late=True)
    relays.reports(relays.relay("eu"), child)(world)
    remedy = _finding(world, "N16").remedy
    assert "kubectl" not in remedy
    assert "does not reach eu; if" in remedy
    assert remedy.endswith("its parent forgets it after a day")


def test_another_name_or_another_parent_ends_the_fault_of_a_relay() -> None:
    named = relays.reports(relays.relay("eu"))
    assert _relay_codes(relays.reports(relays.relay("eu"), relays.TWIN)) == ["N18"]
    assert _relay_codes(named, relays.reports({**relays.TWIN, "name": "eu-b"})) == []
    assert _relay_codes(relays.reports(relays.relay("eu", **relays.BEHIND))) == ["N17"]
    moved = relays.relay("eu", parent="https://10.0.0.2:6443")
    assert _relay_codes(relays.reports(moved)) == []


def test_a_relay_that_is_not_ready_is_given_its_right_or_stopped() -> None:
    world = healthy()
    relays.reports(relays.relay("eu", trouble=relays.NO_RIGHT))(world)
    assert "give relay eu what it lacks, or stop it" in _finding(world, "N19").remedy
    assert _relay_codes(named := relays.reports(relays.relay("eu"))) == [], named
    assert _relay_codes(relays.reports(relays.relay("eu", heard=NOW - 240))) == ["N16"]
