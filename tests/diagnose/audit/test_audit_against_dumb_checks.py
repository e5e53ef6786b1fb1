"""Any small cluster: the audit finds exactly what checks written straight over the documents
find.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sliceplane.diagnose.audit.audit import Auditor, confirmed
from sliceplane.diagnose.audit.judge import CONTROLLERS, FLEETING, key_of

MIRRORING = "endpointslicemirroring-controller.k8s.io"
Document = dict[str, Any]
World = dict[str, list[Document]]

NAMES = st.sampled_from(["a", "b"])
IPS = st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "FD00:0::1"])
MANAGERS = st.sampled_from(["kube-controller-manager", "operator", "helm"])


def metadata(
    name: str, labels: Document, annotations: Document, managers: list[str], owned: str
) -> Document:
    fields = [
        {
            "manager": each,
            "operation": "Update",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {owned: {}},
        }
        for each in managers
    ]
    found: Document = {"name": name, "namespace": "n", "labels": labels, "annotations": annotations}
    return {**found, "managedFields": fields} if fields else found


@st.composite
def services(draw: st.DrawFn) -> Document:
    spec: Document = draw(
        st.sampled_from([{"selector": {"x": "y"}}, {}, {"type": "ExternalName"}, {"selector": {}}])
    )
    families = draw(st.sampled_from([["IPv4"], ["IPv6", "IPv4"], None]))
    ports = draw(
        st.sampled_from(
            [[], [{"port": 80, "targetPort": "http"}], [{"port": 80, "targetPort": 8080}]]
        )
    )
    spec = {**spec, "ipFamilies": families, "ports": ports}
    return {"metadata": {"name": draw(NAMES), "namespace": "n"}, "spec": spec}


@st.composite
def endpoints(draw: st.DrawFn) -> Document:
    labels = draw(
        st.sampled_from(
            [
                {},
                {"endpointslice.kubernetes.io/skip-mirror": "true"},
                {"endpoints.kubernetes.io/managed-by": "reverse-mirror.sliceplane.dev"},
            ]
        )
    )
    annotations = draw(
        st.sampled_from(
            [
                {},
                {"control-plane.alpha.kubernetes.io/leader": "{}"},
                {"endpoints.kubernetes.io/over-capacity": "truncated"},
            ]
        )
    )
    owned = draw(st.sampled_from(["f:subsets", "f:metadata"]))
    listed = st.lists(IPS.map(lambda ip: {"ip": ip}), max_size=3)
    subset = st.fixed_dictionaries({"addresses": listed, "notReadyAddresses": listed})
    return {
        "metadata": metadata(
            draw(NAMES), labels, annotations, draw(st.lists(MANAGERS, max_size=2)), owned
        ),
        "subsets": draw(st.lists(subset, max_size=2)),
    }


@st.composite
def slices(draw: st.DrawFn) -> Document:
    manager = draw(st.sampled_from([MIRRORING, "endpointslice-controller.k8s.io", ""]))
    labels = {
        "kubernetes.io/service-name": draw(NAMES),
        "endpointslice.kubernetes.io/managed-by": manager,
    }
    conditions = st.fixed_dictionaries(
        {}, optional={"ready": st.sampled_from([True, False, None]), "terminating": st.booleans()}
    )
    endpoint = st.fixed_dictionaries(
        {"addresses": st.lists(IPS, min_size=1, max_size=2), "conditions": conditions}
    )
    return {
        "metadata": metadata(draw(st.text("abc", min_size=3, max_size=6)), labels, {}, [], ""),
        "addressType": "IPv4",
        "endpoints": draw(st.lists(endpoint, max_size=3)),
        "ports": draw(st.sampled_from([None, [], [{"name": "", "port": 8080, "protocol": "TCP"}]])),
    }


def one_of_each_name(found: list[Document]) -> list[Document]:
    return list({each["metadata"]["name"]: each for each in found}.values())


WORLDS = st.fixed_dictionaries(
    {
        "services": st.lists(services(), max_size=2).map(one_of_each_name),
        "endpoints": st.lists(endpoints(), max_size=2).map(one_of_each_name),
        "endpointslices": st.lists(slices(), max_size=3).map(one_of_each_name),
    }
)


def audited(world: World) -> Auditor:
    auditor = Auditor()
    for plural, documents in world.items():
        for each in documents:
            auditor.on_object(plural, json.dumps(each).encode())
    assert not auditor.unreadable
    return auditor


# The dumb checks.  Addresses are (text, readiness) as they stand in the documents.


def canonical(ip: str) -> str:
    return ip.lower().replace("fd00:0::1", "fd00::1")


def of_endpoints(found: Document) -> set[tuple[str, bool]]:
    return {
        (canonical(address["ip"]), member == "addresses")
        for subset in found["subsets"]
        for member in ("addresses", "notReadyAddresses")
        for address in subset[member]
    }


def of_slices(found: list[Document]) -> set[tuple[str, bool]]:
    return {
        (canonical(each["addresses"][0]), each["conditions"].get("ready") is not False)
        for one in found
        for each in one["endpoints"]
        if each["conditions"].get("ready") is not False or not each["conditions"].get("terminating")
    }


def differs(
    left: set[tuple[str, bool]], right: set[tuple[str, bool]]
) -> tuple[set[str], set[str], bool]:
    ips, others = {ip for ip, _ in left}, {ip for ip, _ in right}
    turned = any(
        (ip, ready) in left
        and (ip, not ready) not in left
        and (ip, not ready) in right
        and (ip, ready) not in right
        for ip in ips & others
        for ready in (True, False)
    )
    return ips - others, others - ips, turned


def label_of(found: Document) -> str:
    return str(found["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"])


def portless(found: list[Document]) -> set[str]:
    """Addresses that are in slices without ports alone."""
    bare, good = (
        of_slices([each for each in found if bool(each["ports"]) is some]) for some in (False, True)
    )
    return {ip for ip, _ in bare} - {ip for ip, _ in good}


def dumb_kinds(world: World, name: str) -> set[str]:  # a list of plain checks
    def named(plural: str) -> Document | None:
        return next((each for each in world[plural] if each["metadata"]["name"] == name), None)

    service, found = named("services"), named("endpoints")
    all_slices = [
        each
        for each in world["endpointslices"]
        if each["metadata"]["labels"]["kubernetes.io/service-name"] == name
    ]
    mirrored = [
        each
        for each in all_slices
        if each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == MIRRORING
    ]
    others = [each for each in all_slices if each not in mirrored]
    kinds = set()
    external = service is not None and service["spec"].get("type") == "ExternalName"
    selecting = service is not None and not external and bool(service["spec"].get("selector"))
    labels = found["metadata"]["labels"] if found else {}
    lock = (
        found is not None
        and "control-plane.alpha.kubernetes.io/leader" in found["metadata"]["annotations"]
    )
    skip = "endpointslice.kubernetes.io/skip-mirror" in labels
    if mirrored and (service is None or selecting or found is None or lock or skip):
        kinds.add("E4" if selecting else "E15")
    first = [
        {canonical(e["addresses"][0]) for each in part for e in each["endpoints"]}
        for part in (mirrored, others)
    ]
    if first[0] & first[1]:
        kinds.add("E12")
    names_port = (
        selecting
        and service is not None
        and any(p["targetPort"] == "http" for p in service["spec"]["ports"])
    )
    if names_port and portless(
        [each for each in others if label_of(each) == "endpointslice-controller.k8s.io"]
    ):
        kinds.add("T2")
    if found is None:
        return kinds
    if lock:
        has_use = service is not None and not external and not selecting
        return kinds | {"L6"} | ({"E5"} if has_use and of_endpoints(found) else set())
    if service is None or external:
        return kinds | {"L3"}
    reverse = "endpoints.kubernetes.io/managed-by" in labels
    if reverse:
        kinds.add("L7")
    counterparts = others if selecting or reverse else all_slices
    if selecting and not reverse:
        made = [
            each
            for each in others
            if each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"]
            == "endpointslice-controller.k8s.io"
        ]
        counterparts = made or others
    left, right = of_endpoints(found), of_slices(counterparts)
    families = service["spec"]["ipFamilies"]
    if (selecting or reverse) and families:
        six = families[0] == "IPv6"
        left, right = ({each for each in side if (":" in each[0]) == six} for side in (left, right))
    only_left, only_right, turned = differs(left, right)
    if names_port:
        only_right -= portless(counterparts)
    over = "endpoints.kubernetes.io/over-capacity" in found["metadata"]["annotations"]
    if over:
        kinds.add("E8")
    wrong = bool(only_left) if over else bool(only_left or only_right or turned)
    writers = {
        each["manager"]
        for each in found["metadata"].get("managedFields", ())
        if "f:subsets" in each["fieldsV1"]
    }
    if selecting or reverse:
        return kinds | ({"L1"} if wrong else set()) | ({"L4"} if writers - CONTROLLERS else set())
    if skip and only_left:
        return kinds | {"E5"}
    return kinds | ({"L2"} if wrong else set()) | ({"L5"} if writers else set())


@given(WORLDS)
def test_findings_are_those_of_dumb_checks(world: World) -> None:
    found = audited(world).findings()
    assert len(set(found)) == len(found)
    for name in ("a", "b"):
        assert {each.code for each in found if key_of(each) == f"n/{name}"} == dumb_kinds(
            world, name
        )


@given(WORLDS, st.randoms(use_true_random=False))
def test_the_order_in_which_objects_come_makes_no_difference(world: World, random: Any) -> None:
    shuffled = {plural: random.sample(found, len(found)) for plural, found in world.items()}
    assert audited(shuffled).findings() == audited(world).findings()
    assert audited(shuffled).writers() == audited(world).writers()


@given(WORLDS, WORLDS)
def test_a_second_look_keeps_what_both_looks_found(world: World, later: World) -> None:
    first, second = audited(world).findings(), audited(later).findings()
    kept = confirmed(first, second)
    assert confirmed(first, first) == first
    both = {(each.code, key_of(each)) for each in first} & {
        (each.code, key_of(each)) for each in second
    }
    assert {(each.code, key_of(each)) for each in kept if each.code in FLEETING} == {
        each for each in both if each[0] in FLEETING
    }
    assert [each for each in kept if each.code not in FLEETING] == [
        each for each in first if each.code not in FLEETING
    ]
