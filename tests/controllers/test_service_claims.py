"""Events for owners of Services that ask for what is another's, over the production registry on
virtual time.
"""

from __future__ import annotations

from typing import Any

from sliceplane.api.scheme import Namespaces, Nodes, Services
from sliceplane.controllers.service_claims import ServiceClaimsController
from sliceplane.lab.sim.cluster import Cluster


def cluster() -> Cluster:
    made = Cluster(ServiceClaimsController())
    made.create(Namespaces, {"metadata": {"name": "aaa"}}, "")
    node = {
        "metadata": {"name": "node-1"},
        "spec": {"podCIDR": "10.11.0.0/24", "podCIDRs": ["10.11.0.0/24"]},
    }
    made.create(Nodes, node, "")
    status = {"addresses": [{"type": "InternalIP", "address": "192.168.7.1"}]}
    made.patch(Nodes, "node-1", {"status": status}, namespace="", subresource="status")
    made.converge()
    return made


def service(name: str, *external: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80}]
    return {
        "metadata": {"name": name},
        "spec": {"ports": ports, "externalIPs": list(external), **spec},
    }


def told(made: Cluster) -> list[tuple[str, str, str]]:
    made.converge()
    made.check()
    found = [(note.regarding.metadata.name, note.reason, note.note) for note in made.notes]
    made.notes.clear()
    return found


def test_each_claim_that_is_not_honoured_is_one_event_with_who_has_it() -> None:
    made = cluster()
    made.create(Services, service("victim", clusterIP="10.96.0.7"))
    assert told(made) == []
    made.create(
        Services,
        service("evil", "10.96.0.7", "10.96.77.77", "192.168.7.1", "10.11.0.9", "203.0.113.1"),
        "aaa",
    )
    taken = "10.96.0.7 is the cluster IP of Service default/victim"
    of_range = "10.96.77.77 belongs to ServiceCIDR kubernetes"
    assert told(made) == [
        (
            "evil",
            "AddressNotServed",
            (
                f"no node serves addresses of another owner: 10.11.0.9 belongs to Node node-1; {taken}; "
                f"{of_range}; and 1 more"
            ),
        )
    ]
    made.patch(Services, "evil", {"metadata": {"labels": {"a": "b"}}}, namespace="aaa")
    assert told(made) == [], "the same is not said again"
    made.patch(Services, "evil", {"spec": {"externalIPs": ["203.0.113.1"]}}, namespace="aaa")
    assert told(made) == []


def test_an_address_that_becomes_a_nodes_is_told_then() -> None:
    made = cluster()
    made.create(Services, service("web", "192.168.7.9"))
    assert told(made) == []
    status = {
        "addresses": [
            {"type": "InternalIP", "address": ip} for ip in ("192.168.7.1", "192.168.7.9")
        ]
    }
    made.patch(Nodes, "node-1", {"status": status}, namespace="", subresource="status")
    assert told(made) == [
        (
            "web",
            "AddressNotServed",
            "no node serves addresses of another owner: 192.168.7.9 belongs to Node node-1",
        )
    ]


def test_what_is_beyond_the_bounds_is_told() -> None:
    made = cluster()
    addresses = [f"198.18.{number >> 8}.{number & 255}" for number in range(300)]
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 11)]
    made.create(Services, service("huge", *addresses, ports=ports))
    assert told(made) == [
        (
            "huge",
            "ServiceTooLarge",
            (
                "IPv4: no rules are made for 200 external addresses beyond 1,000 (addresses times "
                "ports)"
            ),
        )
    ]
