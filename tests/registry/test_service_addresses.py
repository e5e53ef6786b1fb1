"""IPAddresses follow Services in the same commit; ServiceCIDRs give and bound ranges; repair is
upstream's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import Events, IPAddresses, ServiceCIDRs, Services
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.admission.address_book import NumberLedger, Range, static_band
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

TABLES = tables(__file__)

PARENT = {"resource": "services", "namespace": "default", "name": "s"}


def service(name: str = "s", **spec: Any) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, **spec},
    }


def names(api: Any, resource: Any = IPAddresses) -> list[str]:
    return sorted(record.key.name for record in api.list(resource).records)


def address(name: str, /, *, managed: bool = True, **parent: Any) -> Any:
    labels = {
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
        "ipaddress.kubernetes.io/ip-family": "IPv4",
    }
    head = {"name": name, "labels": labels if managed else {}}
    return {"metadata": head, "spec": {"parentRef": {**PARENT, **parent}}}


def tend(api: Any, seconds: float = 0.0) -> int:
    api.now += seconds
    revision: int = api.registry.tend(api.now)
    api.commit()
    api.registry.check()
    return revision


def told(api: Any) -> list[tuple[str, str]]:
    events = [json.loads(record.body) for record in api.list(Events).records]
    return [(each["reason"], each["message"]) for each in events]


def test_one_address_object_for_each_cluster_ip_in_the_same_commit(api: Any) -> None:
    before = names(api)
    api.commits = False
    created = json.loads(api.create(Services, service(ipFamilyPolicy="RequireDualStack")).body)
    staged = [
        (event.type.value, event.record.key.resource, event.record.key.name)
        for event in api.store.take_staged()
    ]
    addresses = created["spec"]["clusterIPs"]
    assert staged == [
        *(("ADDED", "ipaddresses.networking.k8s.io", each) for each in addresses),
        ("ADDED", "services", "s"),
    ], "one step of the registry, so one batch on disk"
    api.events += api.store.on_durable(api.store.staged_revision)
    api.commits = True
    assert names(api) == sorted([*before, *addresses])
    found = api.get(IPAddresses, addresses[1])
    assert found["metadata"]["labels"] == {
        "ipaddress.kubernetes.io/ip-family": "IPv6",
        "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
    }
    assert found["spec"] == {"parentRef": PARENT}
    assert found["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]
    api.patch(Services, "s", {"spec": {"ipFamilyPolicy": "SingleStack"}})
    assert names(api) == sorted([*before, addresses[0]]), "a downgrade gives the second back"
    api.patch(Services, "s", {"spec": {"ipFamilyPolicy": "PreferDualStack"}})
    assert len(names(api)) == len(before) + 2
    api.patch(Services, "s", {"spec": {"type": "ExternalName", "externalName": "a.b"}})
    assert names(api) == before
    api.patch(Services, "s", {"spec": {"type": "ClusterIP", "externalName": None}})
    api.delete(Services, "s")
    assert names(api) == before
    deleted = [event.record.key.name for event in api.events if event.type.value == "DELETED"]
    assert addresses[0] in deleted, "watchers see it"
    api.registry.check()


def test_what_is_not_stored_holds_no_address(api: Any) -> None:
    before = names(api)
    api.commits = False
    api.create(Services, service())
    api.store.take_staged()
    api.store.abort_staged()
    api.registry.on_aborted()
    api.commits = True
    assert names(api) == before
    api.registry.check()
    api.create(Services, service(), dry_run=True)
    assert names(api) == before


def test_the_default_range(api: Any) -> None:
    found = api.get(ServiceCIDRs, "kubernetes")
    assert found["spec"] == {"cidrs": ["10.96.0.0/16", "fd00:10:96::/112"]}
    assert found["metadata"]["finalizers"] == ["networking.k8s.io/service-cidr-finalizer"]
    condition = found["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "")
    assert condition["message"] == "Kubernetes Service CIDR is ready"
    assert tend(api) == 0, "nothing to do, nothing written"


def test_more_ranges(make_api: Any) -> None:
    api = make_api(
        service_cidrs=("10.96.0.0/30",), advertise_address="192.0.2.1", advertise_port=443
    )
    assert names(api) == ["10.96.0.1"]
    api.create(Services, service())
    assert names(api) == ["10.96.0.1", "10.96.0.2"]
    assert api.fails("create", Services, service("t")).code == 500
    api.create(ServiceCIDRs, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.97.0.0/24"]}})
    assert api.fails("create", Services, service("t", clusterIP="10.97.0.9")).message.endswith(
        "the provided network does not match the current range"
    ), "not ready yet"
    tend(api)
    given = json.loads(api.create(Services, service("t")).body)["spec"]["clusterIP"]
    assert given.startswith("10.97.0."), "the new range is used when the first is full"
    api.create(Services, service("u", clusterIP="10.97.0.200"))

    api.delete(ServiceCIDRs, "more")
    tend(api)
    condition = api.get(ServiceCIDRs, "more")["status"]["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "Terminating")
    assert condition["message"] == (
        "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a "
        "new ServiceCIDR"
    )
    assert api.fails("create", Services, service("v")).code == 500, (
        "nothing comes from a range that is going"
    )
    api.delete(Services, "t")
    tend(api)
    assert "more" in names(api, ServiceCIDRs)
    api.delete(Services, "u")
    tend(api)
    assert names(api, ServiceCIDRs) == ["kubernetes"]


def test_a_range_may_go_when_another_covers_it(api: Any) -> None:
    for name, cidr in (("a", "10.97.0.0/24"), ("b", "10.97.0.0/16")):
        api.create(ServiceCIDRs, {"metadata": {"name": name}, "spec": {"cidrs": [cidr]}})
    tend(api)
    api.create(Services, service(clusterIP="10.97.0.9"))
    api.delete(ServiceCIDRs, "a")
    tend(api)
    assert names(api, ServiceCIDRs) == ["b", "kubernetes"]


def test_a_range_that_waits_for_its_addresses_still_covers_them(api: Any) -> None:
    """No Event tells the owner of the Service to make it anew."""
    api.create(ServiceCIDRs, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.200.0.0/24"]}})
    tend(api)
    api.create(Services, service(clusterIP="10.200.0.7"))
    tend(api)
    api.delete(ServiceCIDRs, "more")
    api.patch(IPAddresses, "10.200.0.7", {"metadata": {"labels": {"a": "b"}}})
    for _ in range(3):
        tend(api, 30)
    assert told(api) == []
    assert "deletionTimestamp" in api.get(ServiceCIDRs, "more")["metadata"]


def test_the_default_range_cannot_vanish(api: Any) -> None:
    api.create(Services, service())
    api.delete(ServiceCIDRs, "kubernetes")
    tend(api)
    assert api.get(ServiceCIDRs, "kubernetes")["status"]["conditions"][0]["reason"] == "Terminating"
    api.delete(Services, "s")
    tend(api)
    assert "deletionTimestamp" not in api.get(ServiceCIDRs, "kubernetes")["metadata"], (
        "it is made again"
    )
    assert api.create(Services, service()).code == 201


def test_a_single_stack_cluster_becomes_dual_stack() -> None:
    store = Store()
    for cidrs in (("10.96.0.0/16",), ("10.96.0.0/16", "fd00:10:96::/112")):
        registry = Registry(store, rng=Rng(1), config=RegistryConfig(service_cidrs=cidrs))
        registry.bootstrap(1_800_000_000.0)
        store.take_staged()
        store.on_durable(store.staged_revision)
        record = store.get(Key(ServiceCIDRs.storage_key, "", "kubernetes"))
        assert record is not None
        assert json.loads(record.body)["spec"]["cidrs"] == list(cidrs)
        registry.check()


def test_changed_ranges_are_used_beside_the_old_ones(api: Any) -> None:
    old = json.loads(api.create(Services, service()).body)["spec"]["clusterIP"]
    config = RegistryConfig(service_cidrs=("10.97.0.0/16", "fd00:10:96::/112"))
    api.registry = Registry(api.store, rng=Rng(7), config=config)
    api.registry.bootstrap(api.now)
    api.commit()
    assert api.get(ServiceCIDRs, "kubernetes")["spec"]["cidrs"][0] == "10.96.0.0/16", (
        "what is told stays"
    )
    assert json.loads(api.create(Services, service("t")).body)["spec"]["clusterIP"].startswith(
        "10.97."
    )
    assert api.create(Services, service("u", clusterIP="10.96.44.44")).code == 201
    assert api.get(Services, "s")["spec"]["clusterIP"] == old
    assert told(api) == []


def test_an_address_object_of_somebody_else_keeps_the_address(api: Any) -> None:
    api.create(IPAddresses, address("10.96.0.77", managed=False, resource="gateways", group="x.io"))
    error = api.fails("create", Services, service(clusterIP="10.96.0.77"))
    assert error.message.endswith(
        "failed to allocate IP 10.96.0.77: provided IP is already allocated"
    )
    tend(api, 120.0)
    assert "10.96.0.77" in names(api)


def test_a_missing_address_object_is_made_again(api: Any) -> None:
    given = json.loads(api.create(Services, service()).body)["spec"]["clusterIP"]
    api.delete(IPAddresses, given)
    tend(api)
    assert api.get(IPAddresses, given)["spec"]["parentRef"] == PARENT
    assert told(api) == [
        ("ClusterIPNotAllocated", f"Cluster IP [IPv4]: {given} is not allocated; repairing")
    ]
    assert tend(api) == 0


def test_changed_labels_are_set_right(api: Any) -> None:
    given = json.loads(api.create(Services, service()).body)["spec"]["clusterIP"]
    api.patch(IPAddresses, given, {"metadata": {"labels": None}})
    tend(api)
    assert len(api.get(IPAddresses, given)["metadata"]["labels"]) == 2


@pytest.mark.parametrize(
    ("parent", "wait_s", "event", "message"), TABLES["a_stray_address_object_is_removed"]
)
def test_a_stray_address_object_is_removed(
    api: Any, parent: Any, wait_s: float, event: str, message: str
) -> None:
    api.create(Services, service())
    api.create(IPAddresses, address("10.96.0.9", **parent))
    if wait_s:
        tend(api, wait_s - 2)
        assert "10.96.0.9" in names(api), "somebody may be about to create the Service"
        tend(api, 2)
    else:
        tend(api)
    assert "10.96.0.9" not in names(api)
    ((reason, text),) = told(api)
    assert reason == event
    assert message in text


def test_an_address_object_with_a_finalizer_waits(api: Any) -> None:
    given = json.loads(api.create(Services, service()).body)["spec"]["clusterIP"]
    api.patch(IPAddresses, given, {"metadata": {"finalizers": ["x.io/f"]}})
    api.delete(Services, "s")
    tend(api, 61)
    assert "deletionTimestamp" in api.get(IPAddresses, given)["metadata"]
    assert api.fails("create", Services, service("t", clusterIP=given)).code == 422
    api.patch(IPAddresses, given, {"metadata": {"finalizers": None}})
    assert given not in names(api)
    tend(api)
    assert api.create(Services, service("t", clusterIP=given)).code == 201


def test_a_database_from_before_is_repaired_at_the_start_without_noise(api: Any) -> None:
    given = json.loads(api.create(Services, service(ipFamilyPolicy="RequireDualStack")).body)[
        "spec"
    ]["clusterIPs"]
    for resource in (IPAddresses, ServiceCIDRs):
        for record in api.list(resource).records:
            api.store.stage_delete(
                record.key, lambda revision, record=record: _moved(record, revision)
            )
    api.commit()
    api.registry = Registry(api.store, rng=Rng(2), config=RegistryConfig())
    api.registry.bootstrap(api.now)
    api.commit()
    assert names(api) == sorted(given)
    assert names(api, ServiceCIDRs) == ["kubernetes"]
    assert told(api) == []
    api.registry.check()
    revision = api.store.revision
    again = Registry(api.store, rng=Rng(3), config=RegistryConfig())
    again.bootstrap(api.now)
    assert api.store.staged_revision == revision, "a second start writes nothing"


def _moved(record: Any, revision: int) -> Any:
    from sliceplane.server.store.types import restamp

    return restamp(record, revision)


def test_low_numbers_are_given_out_last() -> None:
    assert [static_band(size, share=16, most=256) for size in (8, 16, 32, 1024, 65536)] == [
        0,
        0,
        16,
        64,
        256,
    ]
    ledger, rng = NumberLedger((Range(1, 100, 16), Range(200, 201, 0)), reserved=(1,)), Rng(1)
    given: list[int] = []
    while (number := ledger.choose(rng)) is not None:
        given.append(number)
        ledger.assign(Key("services", "d", str(number)), (number,))
    assert sorted(given) == [*range(2, 101), 200, 201]
    assert min(given[:84]) == 17, "the band comes after the rest"
    assert given[99:] in ([200, 201], [201, 200]), "and another range after the first"
    ledger.check()


def test_dynamic_addresses_and_ports_leave_the_band(api: Any) -> None:
    for number in range(40):
        spec = json.loads(api.create(Services, service(f"s{number}", type="NodePort")).body)["spec"]
        assert tuple(map(int, spec["clusterIP"].split("."))) > (10, 96, 1, 0)
        assert spec["ports"][0]["nodePort"] >= 30086
