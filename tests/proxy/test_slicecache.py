"""The slice cache: flattening, duplicates, what counts as a change
(``pkg/proxy/endpointslicecache_test.go``).
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api import codec
from sliceplane.api.discovery import EndpointSlice
from sliceplane.consume.model import NodeEndpoint, ServiceKey, ServicePortName
from sliceplane.consume.slicecache import SliceCache
from sliceplane.kit.ip import Family

SVC = ServiceKey("ns", "svc")
HTTP = ServicePortName(SVC, "http", "TCP")


def make(
    name: str = "s1",
    endpoints: list[Any] | None = None,
    *,
    ports: list[Any] | None = None,
    service: str | None = "svc",
    version: str = "1",
    namespace: str = "ns",
    kind: str = "IPv4",
) -> EndpointSlice:
    """An endpoint is an address, or a whole one; ports default to http 80."""
    document = {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "resourceVersion": version,
            "labels": {"kubernetes.io/service-name": service} if service is not None else None,
        },
        "addressType": kind,
        "endpoints": [{"addresses": [e]} if isinstance(e, str) else e for e in endpoints or []],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}] if ports is None else ports,
    }
    return codec.decode(codec.encode(document), EndpointSlice)


def pod(address: str, uid: str = "", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "uid": uid} if uid else None,
    }


class Cache(SliceCache):
    def __init__(self, family: Family = "IPv4") -> None:
        super().__init__(family, "node-1")

    def put(self, new: EndpointSlice) -> tuple[ServiceKey, ...]:
        found = self.on_slice(new.metadata.key, new)
        self.check()
        return found

    def drop(self, new: EndpointSlice) -> tuple[ServiceKey, ...]:
        found = self.on_slice(new.metadata.key, None)
        self.check()
        return found

    def http(self) -> list[str]:
        return [f"{e.ip}:{e.port}" for e in self.endpoints(SVC).get(HTTP, [])]


def test_two_slices_are_one_service() -> None:
    cache = Cache()
    cache.put(make("s1", ["10.0.0.1", "10.0.0.2"]))
    cache.put(make("s2", ["10.0.0.2", "10.0.0.3"]))
    assert cache.http() == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
    cache.put(make("s3", ["10.0.0.1"], ports=[{"name": "http", "port": 8080, "protocol": "TCP"}]))
    assert "10.0.0.1:8080" in cache.http()
    assert "10.0.0.1:80" in cache.http()


def test_order_is_that_of_the_text() -> None:
    cache = Cache()
    cache.put(make("s1", ["10.0.1.1", "10.0.1.10"]))
    assert cache.http() == ["10.0.1.10:80", "10.0.1.1:80"]


def test_other_services_and_namespaces_do_not_leak() -> None:
    cache = Cache()
    cache.put(make("s1", ["10.0.0.1"]))
    cache.put(make("s2", ["10.0.0.2"], service="other"))
    cache.put(make("s1", ["10.0.0.3"], namespace="elsewhere"))
    assert cache.http() == ["10.0.0.1:80"]


@pytest.mark.parametrize(
    "port",
    [
        {"port": 80, "protocol": "TCP"},
        {"name": "http", "protocol": "TCP"},
        {"name": "http", "port": 0},
        {"name": "http", "port": 70000},
        {"name": None, "port": 80},
    ],
)
def test_ports_without_name_or_number_are_ignored(port: dict[str, Any]) -> None:
    cache = Cache()
    cache.put(make(ports=[port], endpoints=["10.0.0.1"]))
    assert cache.endpoints(SVC) == {}


def test_endpoint_fields() -> None:
    cache = Cache()
    whole = {
        "addresses": ["010.0.0.1", "10.0.0.9"],
        "conditions": {"ready": False, "serving": True, "terminating": True},
        "nodeName": "node-1",
        "hints": {"forZones": [{"name": "a"}, {"name": "b"}], "forNodes": [{"name": "node-1"}]},
    }
    cache.put(
        make(
            endpoints=[whole, {"addresses": []}, {"addresses": ["fd00::1"]}, {"addresses": ["no"]}]
        )
    )
    expected = NodeEndpoint("10.0.0.1", 80, False, True, True, True, ("a", "b"), ("node-1",))
    assert cache.endpoints(SVC) == {HTTP: [expected]}
    cache.put(make(endpoints=["10.0.0.1"]))
    assert cache.endpoints(SVC) == {HTTP: [NodeEndpoint("10.0.0.1", 80)]}


def test_node_without_a_name_has_no_local_endpoints() -> None:
    cache = SliceCache("IPv4", "")
    cache.on_slice("ns/s1", make(endpoints=[{"addresses": ["10.0.0.1"], "nodeName": ""}]))
    assert not cache.endpoints(SVC)[HTTP][0].is_local


def test_ipv6_is_canonical() -> None:
    cache = Cache("IPv6")
    cache.put(make(endpoints=["FD00:0::0001"], kind="IPv6"))
    assert cache.http() == ["fd00::1:80"]
    assert cache.put(make("four", endpoints=["10.0.0.1"])) == ()


class TestDuplicates:
    """kubernetes/kubernetes#135334 (a ghost and a live Pod share an address);
    sercand/kuberesolver#66.
    """

    def terminating(self, cache: Cache) -> bool:
        (found,) = cache.endpoints(SVC)[HTTP]
        return found.terminating

    def test_within_one_slice_the_live_one_wins(self) -> None:
        cache = Cache()
        dying = pod("10.0.0.1", ready=False, serving=True, terminating=True)
        cache.put(make(endpoints=[dying, pod("10.0.0.1"), dying]))
        assert not self.terminating(cache)

    @pytest.mark.parametrize("ghost_first", [True, False])
    def test_of_different_pods_the_live_one_wins(self, ghost_first: bool) -> None:
        cache = Cache()
        ghost = pod("10.0.0.1", "old", ready=False, terminating=True)
        cache.put(make("s1", [ghost], version="5" if ghost_first else "9"))
        cache.put(make("s2", [pod("10.0.0.1", "new")], version="7"))
        assert not self.terminating(cache)

    @pytest.mark.parametrize("newer", ["s1", "s2"])
    def test_of_one_pod_the_newest_slice_wins(self, newer: str) -> None:
        cache = Cache()
        older = "s2" if newer == "s1" else "s1"
        cache.put(make(newer, [pod("10.0.0.1", "p", ready=False, terminating=True)], version="10"))
        cache.put(make(older, [pod("10.0.0.1", "p")], version="9"))
        assert self.terminating(cache)

    def test_metadata_alone_is_a_change_only_where_it_makes_a_slice_the_newest(self) -> None:
        cache = Cache()
        cache.put(make("s1", [pod("10.0.0.1", "p", ready=False, terminating=True)], version="10"))
        assert (
            cache.put(
                make("s1", [pod("10.0.0.1", "p", ready=False, terminating=True)], version="11")
            )
            == ()
        )
        cache.put(make("s2", [pod("10.0.0.1", "p")], version="12"))
        assert not self.terminating(cache)
        assert cache.put(make("s2", [pod("10.0.0.1", "p")], version="13")) == ()
        assert cache.put(
            make("s1", [pod("10.0.0.1", "p", ready=False, terminating=True)], version="14")
        ) == (SVC,)
        assert self.terminating(cache)


class TestChanges:
    def test_what_is_and_what_is_not(self) -> None:
        cache = Cache()
        assert cache.put(make(endpoints=["10.0.0.1", "10.0.0.2"])) == (SVC,)
        assert cache.put(make(endpoints=["10.0.0.1", "10.0.0.2"], version="2")) == ()
        assert cache.put(make(endpoints=["10.0.0.2", "10.0.0.1"])) == (SVC,)
        assert cache.put(make(endpoints=["10.0.0.2"])) == (SVC,)
        assert cache.drop(make("unknown")) == ()
        assert cache.put(make("fqdn", ["example.com"], kind="FQDN")) == ()
        assert cache.put(make("nobody", ["10.0.0.1"], service=None)) == ()
        assert cache.put(make("nobody", ["10.0.0.1"], service="")) == ()
        assert cache.drop(make()) == (SVC,)
        assert cache.drop(make()) == ()

    def test_a_moved_slice_leaves_its_old_service(self) -> None:
        cache = Cache()
        other = ServiceKey("ns", "other")
        cache.put(make(endpoints=["10.0.0.1"]))
        assert cache.put(make(endpoints=["10.0.0.1"], service="other")) == (SVC, other)
        assert cache.endpoints(SVC) == {}
        assert len(cache.endpoints(other)) == 1
        assert cache.put(make(endpoints=["10.0.0.1"], service=None)) == (other,)
        assert cache.services() == ()

    def test_touching_one_slice_of_many_keeps_the_others(self) -> None:
        """kuberesolver#66: 101 endpoints and more, one slice touched."""
        cache = Cache()
        for number in range(5):
            cache.put(make(f"s{number}", [f"10.0.{number}.{i}" for i in range(100)]))
        cache.put(make("s3", [f"10.0.3.{i}" for i in range(99)], version="2"))
        assert len(cache.http()) == 499

    def test_size_returns_to_baseline_after_churn(self) -> None:
        """k/k#128928: the cache grew to 8 GB."""
        cache = Cache()
        for number in range(2000):
            new = make(f"s{number}", ["10.0.0.1"], service=f"svc{number % 7}")
            cache.put(new) if number % 50 == 0 else cache.on_slice(new.metadata.key, new)
        for number in range(2000):
            cache.on_slice(f"ns/s{number}", None)
        cache.check()
        assert cache.services() == ()
        assert cache._service_of == {}
