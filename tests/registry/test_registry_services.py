"""Addresses, families and node ports of Services (KEP-563), and which Service holds them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Namespaces, Services
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry

TABLES = tables(__file__)

PORTS = [{"port": 80}]


def service(name: str = "s", **spec: Any) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"ports": [dict(port) for port in PORTS], "selector": {"a": "b"}, **spec},
    }


def spec_of(outcome: Any) -> Any:
    return json.loads(outcome.body)["spec"]


def test_defaults(api: Any) -> None:
    spec = spec_of(api.create(Services, service()))
    assert spec["type"] == "ClusterIP"
    assert spec["sessionAffinity"] == "None"
    assert spec["internalTrafficPolicy"] == "Cluster"
    assert spec["ipFamilies"] == ["IPv4"]
    assert spec["ipFamilyPolicy"] == "SingleStack"
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["clusterIP"].startswith("10.96.")
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    assert "externalTrafficPolicy" not in spec
    api.registry.check()


@pytest.mark.parametrize(("given", "families", "policy", "count"), TABLES["families"])
def test_families(api: Any, given: Any, families: list[str], policy: str, count: int) -> None:
    spec = spec_of(api.create(Services, service(**given)))
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"], len(spec["clusterIPs"])) == (
        families,
        policy,
        count,
    )
    if given.get("clusterIP") == "None":
        assert spec["clusterIPs"] == ["None"]
    else:
        assert [":" in address for address in spec["clusterIPs"]] == [
            family == "IPv6" for family in families
        ][:count]


def test_single_stack_clusters(make_api: Any) -> None:
    api = make_api(service_cidrs=("10.96.0.0/16",))
    assert spec_of(api.create(Services, service(ipFamilyPolicy="PreferDualStack")))[
        "ipFamilies"
    ] == ["IPv4"]
    error = api.fails("create", Services, service("t", ipFamilyPolicy="RequireDualStack"))
    assert error.message == (
        'Service "t" is invalid: spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this '
        "cluster is not "
        "configured "
        "for dual-stack services"
    )
    error = api.fails("create", Services, service("t", ipFamilies=["IPv6"]))
    assert error.message == (
        'Service "t" is invalid: spec.ipFamilies[0]: Invalid value: "IPv6": not configured on '
        "this cluster"
    )


def test_explicit_addresses(api: Any) -> None:
    spec = spec_of(api.create(Services, service(clusterIP="10.96.7.7")))
    assert spec["clusterIPs"] == ["10.96.7.7"]
    taken = (
        'Service "t" is invalid: spec.clusterIPs: Invalid value: ["10.96.7.7"]: failed to '
        "allocate IP 10.96.7.7: "
    )
    error = api.fails("create", Services, service("t", clusterIP="10.96.7.7"))
    assert (error.code, error.message) == (422, f"{taken}provided IP is already allocated")
    error = api.fails("create", Services, service("t", clusterIP="10.97.0.1"))
    assert error.message.endswith(": the provided network does not match the current range")
    error = api.fails("create", Services, service("t", clusterIP="10.96.0.1"))
    assert error.message.endswith(
        "failed to allocate IP 10.96.0.1: provided IP is already allocated"
    ), "reserved"
    api.delete(Services, "s")
    assert api.create(Services, service("t", clusterIP="10.96.7.7")).code == 201, (
        "a deleted Service gives it back"
    )


@pytest.mark.parametrize(("first", "second", "message"), TABLES["addresses_stay"])
def test_addresses_stay(api: Any, first: Any, second: Any, message: str | None) -> None:
    api.create(Services, service(**first))
    error = api.fails("patch", Services, "s", {"spec": second})
    assert error.code == 422
    if message:
        assert error.message == f'Service "s" is invalid: {message}'


def test_a_null_cluster_ip_keeps_the_address(api: Any) -> None:
    before = spec_of(api.create(Services, service()))
    outcome = api.patch(Services, "s", {"spec": {"clusterIP": None, "clusterIPs": None}})
    assert spec_of(outcome) == before
    assert outcome.revision == 0


def test_to_dual_stack_and_back(api: Any) -> None:
    primary = spec_of(api.create(Services, service()))["clusterIP"]
    dual = spec_of(api.patch(Services, "s", {"spec": {"ipFamilyPolicy": "RequireDualStack"}}))
    assert dual["clusterIPs"][0] == primary
    assert dual["ipFamilies"] == ["IPv4", "IPv6"]
    second = dual["clusterIPs"][1]
    back = spec_of(api.patch(Services, "s", {"spec": {"ipFamilyPolicy": "SingleStack"}}))
    assert (back["clusterIPs"], back["ipFamilies"]) == ([primary], ["IPv4"])
    assert api.create(Services, service("t", clusterIP=second)).code == 201
    api.registry.check()


def test_external_name_gives_everything_back(api: Any) -> None:
    before = spec_of(api.create(Services, service(type="NodePort")))
    external = spec_of(
        api.patch(Services, "s", {"spec": {"type": "ExternalName", "externalName": "example.com"}})
    )
    for member in (
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "externalTrafficPolicy",
    ):
        assert member not in external, member
    assert "nodePort" not in external["ports"][0]
    other = service("t", type="NodePort", clusterIP=before["clusterIP"])
    other["spec"]["ports"][0]["nodePort"] = before["ports"][0]["nodePort"]
    assert api.create(Services, other).code == 201
    again = spec_of(api.patch(Services, "s", {"spec": {"type": "ClusterIP", "externalName": None}}))
    assert again["clusterIP"] != before["clusterIP"]
    api.registry.check()


def test_node_ports(api: Any) -> None:
    spec = spec_of(api.create(Services, service(type="NodePort")))
    number = spec["ports"][0]["nodePort"]
    assert 30000 <= number <= 32767
    assert spec["externalTrafficPolicy"] == "Cluster"
    for wanted, detail in (
        (80, "provided port is not in the valid range. The range of valid ports is 30000-32767"),
        (number, "provided port is already allocated"),
    ):
        error = api.fails(
            "create",
            Services,
            service("t", type="NodePort", ports=[{"port": 80, "nodePort": wanted}]),
        )
        assert (
            error.message
            == f'Service "t" is invalid: spec.ports[0].nodePort: Invalid value: {wanted}: {detail}'
        )
    kept = spec_of(api.update(Services, "s", service(type="NodePort")))
    assert kept["ports"][0]["nodePort"] == number
    plain = spec_of(api.patch(Services, "s", {"spec": {"type": "ClusterIP"}}))
    assert "nodePort" not in plain["ports"][0]
    assert "externalTrafficPolicy" not in plain


def test_one_port_over_two_protocols_has_one_node_port(api: Any) -> None:
    ports = [
        {"name": "t", "port": 53},
        {"name": "u", "port": 53, "protocol": "UDP"},
        {"name": "x", "port": 54},
    ]
    first, second, third = spec_of(api.create(Services, service(type="NodePort", ports=ports)))[
        "ports"
    ]
    assert first["nodePort"] == second["nodePort"] != third["nodePort"]


def test_load_balancers(api: Any) -> None:
    spec = spec_of(
        api.create(Services, service(type="LoadBalancer", externalTrafficPolicy="Local"))
    )
    assert spec["allocateLoadBalancerNodePorts"] is True
    assert spec["healthCheckNodePort"] not in (0, spec["ports"][0]["nodePort"])
    none = spec_of(
        api.create(Services, service("t", type="LoadBalancer", allocateLoadBalancerNodePorts=False))
    )
    assert "nodePort" not in none["ports"][0]
    plain = spec_of(api.patch(Services, "s", {"spec": {"type": "ClusterIP"}}))
    for member in ("healthCheckNodePort", "allocateLoadBalancerNodePorts", "externalTrafficPolicy"):
        assert member not in plain
    api.registry.check()


def test_a_health_check_port_is_no_node_port_of_the_same_service(api: Any) -> None:
    """kube-proxy listens at one and the kernel translates the other: upstream refuses the pair at
    allocation.
    """
    local = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    taken = "provided port is already allocated"
    pair = service(**local, healthCheckNodePort=30500, ports=[{"port": 80, "nodePort": 30500}])
    error = api.fails("create", Services, pair)
    assert (
        error.message
        == f'Service "s" is invalid: spec.healthCheckNodePort: Invalid value: 30500: {taken}'
    )
    api.create(Services, service(**local, healthCheckNodePort=30500))
    moved = service(**local, healthCheckNodePort=30500, ports=[{"port": 80, "nodePort": 30500}])
    error = api.fails("update", Services, "s", moved)
    assert (
        error.message
        == f'Service "s" is invalid: spec.ports[0].nodePort: Invalid value: 30500: {taken}'
    )
    api.registry.check()


def test_a_node_port_that_is_chosen_leaves_the_requested_health_check_port_alone(api: Any) -> None:
    """All ports of the range but two are taken, and one of them is asked for by the Service
    itself.
    """
    for first in range(30000, 32768, 100):
        ports = [
            {"name": f"p{n}", "port": n, "nodePort": n}
            for n in range(first, min(first + 100, 32768))
        ]
        api.create(
            Services,
            service(
                f"s{first}",
                type="NodePort",
                ports=[p for p in ports if p["port"] not in (30500, 31500)],
            ),
        )
    wanted = service(
        "t", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=30500
    )
    spec = spec_of(api.create(Services, wanted))
    assert (spec["healthCheckNodePort"], spec["ports"][0]["nodePort"]) == (30500, 31500)


def test_dry_run_holds_nothing_and_shows_placeholders(api: Any) -> None:
    spec = spec_of(api.create(Services, service(type="NodePort"), dry_run=True))
    assert (spec["clusterIP"], spec["ports"][0]["nodePort"]) == ("10.96.0.1", 32769)
    assert api.create(Services, service(clusterIP="10.96.9.9"), dry_run=True).code == 201
    assert api.create(Services, service(clusterIP="10.96.9.9")).code == 201
    api.registry.check()


def test_a_full_range(make_api: Any) -> None:
    api = make_api(service_cidrs=("10.96.0.0/29",), node_port_first=30000, node_port_last=30001)
    for name in "abcde":
        api.create(Services, service(name))
    error = api.fails("create", Services, service("f"))
    assert (error.code, error.reason) == (500, "InternalError")
    assert error.message == "Internal error occurred: failed to allocate a serviceIP: range is full"
    api.delete(Services, "c")
    freed = spec_of(api.create(Services, service("f")))["clusterIP"]
    assert freed not in ("10.96.0.1", "10.96.0.0", "10.96.0.7")
    api.delete(Services, "a")
    error = api.fails(
        "create",
        Services,
        service(
            "g", type="NodePort", ports=[{"name": n, "port": 80 + i} for i, n in enumerate("xyz")]
        ),
    )
    assert error.message == "Internal error occurred: failed to allocate a nodePort: range is full"


def test_a_failed_back_end_frees_what_was_staged(api: Any) -> None:
    api.commits = False
    api.create(Services, service(clusterIP="10.96.5.5"))
    assert api.fails("create", Services, service("t", clusterIP="10.96.5.5")).code == 422
    api.store.abort_staged()
    api.registry.on_aborted()
    api.registry.check()
    assert api.create(Services, service("t", clusterIP="10.96.5.5")).code == 201


def test_a_restart_finds_the_holders(api: Any) -> None:
    api.create(Services, service(clusterIP="10.96.5.5"))
    api.registry = Registry(api.store, rng=Rng(9), config=RegistryConfig())
    api.registry.check()
    assert api.fails("create", Services, service("t", clusterIP="10.96.5.5")).code == 422


# Bootstrap


def test_bootstrap_is_idempotent(api: Any) -> None:
    assert api.names(Namespaces, namespace="") == [
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
    ]
    assert api.names(Services) == []
    before = api.store.revision
    assert api.registry.bootstrap(api.now + 5) == before


def test_the_api_servers_own_service(make_api: Any) -> None:
    api = make_api(advertise_address="192.168.3.4", advertise_port=6443)
    own = api.get(Services, "kubernetes")
    assert own["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}
    assert own["spec"]["clusterIP"] == "10.96.0.1"
    assert own["spec"]["ports"] == [
        {"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}
    ]
    assert "selector" not in own["spec"]
    slice_ = api.get(EndpointSlices, "kubernetes")
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert slice_["endpoints"] == [{"addresses": ["192.168.3.4"], "conditions": {"ready": True}}]
    assert slice_["ports"] == [{"name": "https", "port": 6443, "protocol": "TCP"}]
    endpoints = api.get(EndpointsObjects, "kubernetes")
    assert endpoints["metadata"]["labels"] == {"endpointslice.kubernetes.io/skip-mirror": "true"}
    assert endpoints["subsets"] == [
        {"addresses": [{"ip": "192.168.3.4"}], "ports": slice_["ports"]}
    ]


def test_endpoints_follow_a_new_address(make_api: Any) -> None:
    api = make_api(advertise_address="192.168.3.4", advertise_port=6443)
    for address, kind in (("192.168.3.5", "IPv4"), ("2001:db8::5", "IPv6")):
        config = RegistryConfig(advertise_address=address, advertise_port=7443)
        api.now += 15  # the server before this one crashed
        api.registry = Registry(api.store, rng=Rng(2), config=config)
        api.registry.bootstrap(api.now)
        api.commit()
        slice_ = api.get(EndpointSlices, "kubernetes")
        assert (
            slice_["addressType"],
            slice_["endpoints"][0]["addresses"],
            slice_["ports"][0]["port"],
        ) == (
            kind,
            [address],
            7443,
        )
        assert api.get(EndpointsObjects, "kubernetes")["subsets"][0]["addresses"] == [
            {"ip": address}
        ]


def test_a_loopback_address_has_no_endpoints(make_api: Any) -> None:
    api = make_api(advertise_address="127.0.0.1", advertise_port=6443)
    assert api.names(Services) == ["default/kubernetes"]
    assert api.names(EndpointSlices) == []
