"""How much a query keeps of each object, and how often it asks: a cluster has 100,000 Pods."""

from __future__ import annotations

import gc
import tracemalloc
from functools import cache
from typing import Any

import msgspec
import pytest
from tests.diagnose.explain.world import NOW, World, add_pod, add_service, ago, healthy

from sliceplane.diagnose.explain.investigation import LOOKUPS_MAX, Investigation
from sliceplane.diagnose.explain.objects import PODS, SLICES, Readable
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation

OBJECTS = 1000
LOOKED_UP = "sliceplane lint without -n sees all"


@cache
def _template() -> bytes:
    document = add_pod(healthy(), "cart", "shop", "node", {"app": "cart"})
    return msgspec.json.encode(document)


def pod_body(number: int) -> bytes:
    """A Pod as a cluster has it: times and names of its own, the rest as its siblings."""
    document = msgspec.json.decode(_template())
    document["metadata"]["name"] = f"cart-5d8c7f9b6-{number:05d}"
    document["metadata"]["labels"]["topology.kubernetes.io/zone"] = f"zone-{number % 3}"
    document["spec"]["nodeName"] = f"node-{number % 50}.example.internal"
    document["metadata"]["uid"] = f"5b8c9fe0-4619-4ba2-bae1-{number:012x}"
    address = f"10.244.{number >> 8}.{number & 255}"
    document["status"] |= {"podIP": address, "podIPs": [{"ip": address}]}
    # Not read: a list keeps nothing of it.
    document["spec"]["volumes"] = [{"name": f"token-{number}", "projected": {"sources": []}}] * 10
    return msgspec.json.encode(document)


def slice_body(number: int) -> bytes:
    """A slice of two endpoints, written at a time of its own."""
    written = {
        "manager": "kube-controller-manager",
        "time": ago(number),
        "fieldsV1": {"f:endpoints": {}, "f:metadata": {f"f:label-{i}": {} for i in range(50)}},
    }
    endpoints = [
        {
            "addresses": [f"10.244.{index >> 8}.{index & 255}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "nodeName": f"node-{index % 50}.example.internal",
            "zone": f"zone-{index % 3}",
            "targetRef": {
                "kind": "Pod",
                "namespace": "shop",
                "name": f"cart-5d8c7f9b6-{index:05d}",
                "uid": f"5b8c9fe0-4619-4ba2-bae1-{index:012x}",
            },
        }
        for index in (number, (number + 1) % OBJECTS)
    ]
    metadata = {
        "name": f"cart-{number:05d}",
        "namespace": "shop",
        "uid": f"1e112c70-4de6-468d-a10c-{number:012x}",
        "resourceVersion": str(1_000_000 + number),
        "labels": {"kubernetes.io/service-name": f"cart-{number // 5}"},
        "managedFields": [written],
    }
    return msgspec.json.encode(
        {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": []}
    )


@pytest.mark.parametrize(("first", "second"), [(PODS, SLICES), (SLICES, PODS)])
def test_of_an_object_little_is_kept(first: Readable[Any], second: Readable[Any]) -> None:
    """Lists arrive in any order. A Pod and a slice took 7.2 kB together before members were
    shared, and each slice kept its body besides.
    """
    bodies_of = {PODS.resource.key: pod_body, SLICES.resource.key: slice_body}
    investigation = Investigation(ExplainQuestion("everything"), NOW)
    _template()
    gc.collect()
    tracemalloc.start()
    try:
        for readable in (first, second):
            make = bodies_of[readable.resource.key]
            for page in range(0, OBJECTS, 100):
                selection = readable.everywhere()
                bodies = [make(number) for number in range(page, page + 100)]
                investigation.on_list(selection, investigation.decoded(selection, bodies))
                del bodies
        gc.collect()
        of_both = tracemalloc.get_traced_memory()[0] / OBJECTS
    finally:
        tracemalloc.stop()
    assert of_both < 2400, f"{of_both:.0f} bytes for a Pod and a slice"


def with_strays(number: int) -> World:
    """*number* Services with an address of another manager, which no Pod has."""
    world = healthy()
    for index in range(number):
        name = f"legacy-{index:03d}"
        add_service(world, name, selector={"app": "cart"})
        world.add(
            "EndpointSlice",
            "shop",
            name,
            labels={
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "mesh.example.org",
            },
            addressType="IPv4",
            endpoints=[{"addresses": [f"172.16.0.{index}"], "conditions": {"ready": True}}],
            ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
        )
    return world


def strays(answer: Explanation) -> int:
    return sum(finding.code == "E3" for finding in answer.findings)


def lookups(world: World) -> int:
    return sum("status.podIP" in selection.field_selector for selection in world.asked)


@pytest.mark.parametrize("number", [LOOKUPS_MAX, LOOKUPS_MAX + 1, 100])
def test_lint_of_a_namespace_looks_few_addresses_up_and_names_how_many(number: int) -> None:
    world = with_strays(number)
    answer = world.ask(ExplainQuestion("everything", namespace="shop"))
    assert lookups(world) == strays(answer) == LOOKUPS_MAX
    phrases = [phrase for phrase in answer.unchecked if LOOKED_UP in phrase]
    if number == LOOKUPS_MAX:
        assert not phrases
        return
    assert phrases[0].startswith(f"other slices: pods ({LOOKUPS_MAX} of {number} addresses"), (
        phrases
    )
    assert "other slices" not in answer.well
    assert not answer.missing_rights


def test_lint_of_a_cluster_looks_no_address_up_and_judges_all() -> None:
    world = with_strays(100)
    answer = world.ask(ExplainQuestion("everything"))
    assert (lookups(world), strays(answer)) == (0, 100)
    assert not [phrase for phrase in answer.unchecked if LOOKED_UP in phrase]


def test_an_address_of_a_pod_of_the_namespace_is_not_looked_up() -> None:
    world = with_strays(3)
    for index in range(3):
        pod = add_pod(world, f"other-{index}", "shop", "node-1", {"app": "other"})
        pod["status"]["podIPs"] = [{"ip": f"172.16.0.{index}"}]
    answer = world.ask(ExplainQuestion("everything", namespace="shop"))
    assert (lookups(world), strays(answer)) == (0, 0)


def test_a_reader_without_the_right_is_refused_few_lookups() -> None:
    """Of its own namespace it may list Pods."""
    world = with_strays(100)
    investigation = Investigation(ExplainQuestion("everything", namespace="shop"), NOW)
    refused = 0
    while reads := investigation.pending_reads():
        for selection in reads:
            if selection.resource is PODS.resource and not selection.namespace:
                investigation.on_refused(selection, "no right to")
                refused += 1
            else:
                page = investigation.decoded(selection, world.list(selection))
                investigation.on_list(selection, page)
    answer = investigation.answer()
    assert refused == LOOKUPS_MAX
    assert answer.missing_rights == ("list pods in all namespaces",)
    assert strays(answer) == 0
