"""What follows from a write: health checks, latencies, figures, UDP flows; and what of it a failure
keeps.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest
from tests.fakes.node_proxies import make_proxy
from tests.nft.machine import DYING, GONE, NODE, Machine, ep, make_slice, service
from tests.proxy.test_consumption import Kernel
from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME, EndpointSlice
from sliceplane.api.scheme import EndpointSlices, Nodes, ServiceCIDRs, Services
from sliceplane.consume.model import NodeEndpoint, ServedPort, ServiceKey, ServicePortName
from sliceplane.kit.ip import Family
from sliceplane.kit.metrics import Distribution
from sliceplane.kit.times import format_micro_time
from sliceplane.node.conntrack import Expected, TrackedFlow, UdpFlow, parse_flow, parse_tracked
from sliceplane.node.io.kernel.conntrack import Conntrack, ConntrackError
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.metrics import PROGRAMMING_BUCKETS, ProxyMetrics
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import NodePlaneConfig
from sliceplane.node.post_sync import HealthCheck
from sliceplane.watch.cache import Change

KEY = ServiceKey("ns", "svc")
HERE = {"nodeName": NODE}
LOCAL: dict[str, Any] = {
    "type": "LoadBalancer",
    "externalTrafficPolicy": "Local",
    "healthCheckNodePort": 31000,
}


def stamped(
    at: float | None, endpoints: list[Any], version: int = 1, name: str = "svc"
) -> EndpointSlice:
    document = codec.decode_document(codec.encode(make_slice(endpoints, name, version=version)))
    if at is not None:
        document["metadata"]["annotations"] = {ANNOTATION_TRIGGER_TIME: format_micro_time(at)}
    return codec.decode(codec.encode(document), EndpointSlice)


class TestTriggerTimes:
    """Times of the machine begin at 0, so does its tracker."""

    def machine(self) -> Machine:
        machine = Machine()
        machine.put(service())
        machine.sync()
        machine.now = 100.0
        return machine

    def latencies(self, machine: Machine) -> list[float]:
        machine.sync()
        return [round(seconds, 3) for seconds in machine.plane.post_sync.take_latencies()]

    def test_add_then_update(self) -> None:
        machine = self.machine()
        machine.put(stamped(97.0, ["10.0.0.1"]), stamped(99.0, ["10.0.0.2"], 2))
        assert self.latencies(machine) == [3.0, 1.0]
        assert self.latencies(machine) == []

    def test_none_without_annotation_with_junk_or_from_before_the_start(self) -> None:
        machine = Machine()
        machine.plane = nft_plane("IPv4", NodePlaneConfig(node_name=NODE, since=98.0))
        machine.plane.on_synced(0.0)
        machine.put(service(), stamped(None, ["10.0.0.1"]), stamped(97.0, ["10.0.0.2"], 2))
        junk = codec.decode_document(codec.encode(stamped(99.0, ["10.0.0.3"], 3)))
        junk["metadata"]["annotations"][ANNOTATION_TRIGGER_TIME] = "yesterday"
        machine.put(codec.decode(codec.encode(junk), EndpointSlice))
        machine.now = 100.0
        assert self.latencies(machine) == []

    def test_add_then_delete_and_add_again(self) -> None:
        machine = self.machine()
        machine.put(stamped(97.0, ["10.0.0.1"]))
        machine.drop(stamped(97.0, []))
        assert self.latencies(machine) == []
        machine.put(stamped(97.0, ["10.0.0.1"], 2))
        machine.drop(stamped(97.0, []))
        machine.put(stamped(99.0, ["10.0.0.1"], 3))
        assert self.latencies(machine) == [1.0]

    def test_services_are_kept_apart(self) -> None:
        machine = self.machine()
        machine.put(
            service("web", 2), stamped(97.0, ["10.0.0.1"]), stamped(98.0, ["10.0.0.2"], name="web")
        )
        machine.drop(stamped(97.0, []))
        assert self.latencies(machine) == [2.0]

    def test_metadata_alone_says_nothing_twice(self) -> None:
        machine = self.machine()
        machine.put(stamped(97.0, ["10.0.0.1"]))
        assert self.latencies(machine) == [3.0]
        machine.put(stamped(97.0, ["10.0.0.1"], 2))
        machine.put(stamped(97.0, ["10.0.0.2"], 3))  # content, but for the same reason as before
        assert self.latencies(machine) == []

    def test_a_write_that_fails_loses_none(self) -> None:
        machine = self.machine()
        machine.put(stamped(97.0, ["10.0.0.1"]))
        assert machine.plane.take_transaction(machine.now) is not None
        machine.plane.on_failure(machine.now)
        assert machine.plane.post_sync.take_latencies() == ()
        machine.now = 105.0
        assert self.latencies(machine) == [8.0]


class TestHealthChecks:
    def test_ready_local_addresses_count_once(self) -> None:
        machine = Machine()
        ports = [{"name": "http", "port": 80}, {"name": "https", "port": 443}]
        rows = [
            ep("10.0.0.1", **HERE),
            ep("10.0.0.2", **HERE, **DYING),
            ep("10.0.0.3", **HERE, **GONE),
            "10.0.0.4",
        ]
        both = [{"name": "http", "port": 8080}, {"name": "https", "port": 8443}]
        machine.put(service(ports=ports, **LOCAL), make_slice(rows, ports=both))
        assert machine.plane.post_sync.health_checks == {}
        machine.sync()
        assert machine.plane.post_sync.health_checks == {KEY: HealthCheck(31000, 1)}

    def test_the_port_comes_and_goes_with_the_type(self) -> None:
        machine = Machine()
        machine.put(service())
        machine.sync()
        for spec, wanted in (
            (LOCAL, {KEY: HealthCheck(31000, 0)}),
            ({}, {}),
            (LOCAL, {KEY: HealthCheck(31000, 0)}),
        ):
            machine.put(service(**spec))
            machine.sync()
            assert machine.plane.post_sync.health_checks == wanted
        machine.drop(service())
        machine.sync()
        assert machine.plane.post_sync.health_checks == {}

    def test_only_what_the_kernel_has_counts(self) -> None:
        machine = Machine()
        machine.put(service(**LOCAL), make_slice([ep("10.0.0.1", **HERE)]))
        machine.plane.take_transaction(0.0)
        machine.plane.on_failure(0.0)
        assert machine.plane.post_sync.health_checks == {}
        machine.now = 10.0
        machine.sync()
        assert machine.plane.post_sync.health_checks == {KEY: HealthCheck(31000, 1)}


@pytest.mark.parametrize(
    ("spec", "rows", "expected"),
    [
        ({"internalTrafficPolicy": "Local"}, ["10.0.0.1"], (1, 0)),
        ({"internalTrafficPolicy": "Local"}, [ep("10.0.0.1", **HERE)], (0, 0)),
        ({"internalTrafficPolicy": "Local"}, [], (0, 0)),
        ({**LOCAL}, ["10.0.0.1"], (0, 1)),
        ({**LOCAL, "internalTrafficPolicy": "Local"}, ["10.0.0.1"], (1, 1)),
        ({}, ["10.0.0.1"], (0, 0)),
    ],
)
def test_ports_without_a_local_endpoint(
    spec: dict[str, Any], rows: list[Any], expected: tuple[int, int]
) -> None:
    machine = Machine()
    machine.put(service(**spec), make_slice(rows))
    machine.sync()
    assert machine.plane.post_sync.without_local == expected
    machine.drop(service())
    machine.sync()
    assert machine.plane.post_sync.without_local == (0, 0)


def test_udp_services_are_told_when_they_change_and_no_others() -> None:
    machine = Machine()
    udp = [{"name": "dns", "port": 53, "protocol": "UDP"}]
    machine.put(service("web", 2), service(ports=udp))
    machine.sync()
    assert machine.plane.post_sync.take_udp() == (KEY,)
    machine.put(make_slice(["10.0.0.1"], "web"))
    machine.sync()
    assert machine.plane.post_sync.take_udp() == ()
    machine.put(make_slice(["10.0.0.1"], ports=[{"name": "dns", "port": 53, "protocol": "UDP"}]))
    machine.sync()
    assert machine.plane.post_sync.take_udp() == (KEY,)
    assert machine.plane.post_sync.udp_services() == (KEY,)


# UDP flows


def udp_port(**more: Any) -> ServedPort:
    return ServedPort(
        name=ServicePortName(KEY, "dns", "UDP"), cluster_ip="172.30.0.1", port=53, **more
    )


def line(to: str, to_port: int, by: str, by_port: int, proto: str = "udp      17") -> str:
    return (
        f"{proto} 29 src=10.0.9.9 dst={to} sport=4000 dport={to_port} [UNREPLIED] "
        f"src={by} dst=10.0.9.9 sport={by_port} dport=4000 mark=0 use=1"
    )


def stale_flows(lines: list[str], expected: Expected, family: Family) -> tuple[UdpFlow, ...]:
    """Each once, sorted."""
    tracked = [found for text in lines if (found := parse_tracked(text, family)) is not None]
    return tuple(sorted({found.flow for found in tracked if expected.is_stale(found.flow)}))


class TestFlows:
    def expected(self) -> Expected:
        expected = Expected()
        reachable = udp_port(node_port=30053, external_ips=("192.0.2.1",), vips=("203.0.113.5",))
        expected.add(
            reachable,
            [
                NodeEndpoint("10.0.0.1", 5353),
                NodeEndpoint("10.0.0.2", 5353, ready=False, serving=False),
            ],
        )
        return expected

    @pytest.mark.parametrize(
        ("to", "to_port", "by", "by_port", "stale"),
        [
            ("172.30.0.1", 53, "10.0.0.1", 5353, False),
            ("172.30.0.1", 53, "10.0.0.9", 5353, True),  # the endpoint is gone
            ("172.30.0.1", 53, "10.0.0.2", 5353, True),  # it does not serve
            ("172.30.0.1", 53, "10.0.0.1", 53, True),  # an old port
            ("172.30.0.1", 53, "172.30.0.1", 53, True),  # never translated
            ("172.30.0.1", 54, "10.0.0.9", 54, False),  # another port
            ("192.0.2.1", 53, "10.0.0.9", 5353, True),
            ("203.0.113.5", 53, "10.0.0.9", 5353, True),
            ("192.168.0.1", 30053, "10.0.0.9", 5353, True),
            ("192.168.0.7", 30053, "10.0.0.1", 5353, False),
            ("8.8.8.8", 53, "8.8.8.8", 53, False),
        ],
    )
    def test_which_are_stale(
        self, to: str, to_port: int, by: str, by_port: int, stale: bool
    ) -> None:
        found = stale_flows([line(to, to_port, by, by_port)], self.expected(), "IPv4")
        assert found == ((UdpFlow((to, to_port), (by, by_port)),) if stale else ())

    def test_other_protocols_families_and_junk_are_passed_over(self) -> None:
        assert parse_flow(line("172.30.0.1", 53, "10.0.0.9", 53, "tcp       6"), "IPv4") is None
        assert parse_flow(line("fd00::1", 53, "fd00::2", 53), "IPv4") is None
        assert parse_flow(line("fd00:0::1", 53, "fd00::2", 53), "IPv6") == UdpFlow(
            ("fd00::1", 53), ("fd00::2", 53)
        )
        assert parse_flow("conntrack v1.4.7: 3 flow entries have been shown.", "IPv4") is None

    def test_without_a_serving_endpoint_every_flow_is_stale(self) -> None:
        """k/k#139628: the last endpoint goes, and clients talk to it for ever."""
        expected = Expected()
        expected.add(
            udp_port(), [NodeEndpoint("10.0.0.1", 53, ready=False, serving=False, terminating=True)]
        )
        lines = [line("172.30.0.1", 53, "10.0.0.1", 53), line("172.30.0.2", 53, "10.0.0.1", 53)]
        assert stale_flows(lines, expected, "IPv4") == (
            UdpFlow(("172.30.0.1", 53), ("10.0.0.1", 53)),
        )

    def test_a_service_that_is_gone_leaves_no_flow(self) -> None:
        """k/k#141371; what another Service has at the same address stays."""
        udp = [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}]
        shared = {"ports": udp, "externalIPs": ["192.0.2.1"]}
        rows = [{"name": "dns", "port": 5353, "protocol": "UDP"}]
        machine = Machine()
        machine.put(service(**shared), make_slice(["10.0.0.1"], ports=rows))
        machine.put(service("twin", 2, **shared), make_slice(["10.0.0.2"], "twin", ports=rows))
        machine.sync()
        assert machine.plane.post_sync.take_removed_udp() == ()
        machine.drop(service())
        machine.sync()
        gone = machine.plane.post_sync.take_removed_udp()
        # The twin gets what it asked for, and is looked at as it was before, too.
        assert [port.cluster_ip for port in gone] == ["172.30.0.1", "172.30.0.2"]
        assert machine.plane.post_sync.take_removed_udp() == ()
        expected = machine.plane.tracker.expected_flows(
            machine.plane.post_sync.udp_services(), gone
        )
        lines = [
            line("172.30.0.1", 53, "10.0.0.1", 5353),
            line("172.30.0.2", 53, "10.0.0.2", 5353),
            line("192.0.2.1", 53, "10.0.0.1", 5353),
            line("192.0.2.1", 53, "10.0.0.2", 5353),
            line("192.168.0.1", 30053, "10.0.0.2", 5353),
        ]
        assert stale_flows(lines, expected, "IPv4") == (
            UdpFlow(("172.30.0.1", 53), ("10.0.0.1", 5353)),
            UdpFlow(("192.0.2.1", 53), ("10.0.0.1", 5353)),
        )

    @pytest.mark.parametrize(
        "change", [{"clusterIP": "172.30.0.7", "clusterIPs": ["172.30.0.7"]}, {"ports": []}]
    )
    def test_a_port_that_changes_leaves_no_flow(self, change: dict[str, Any]) -> None:
        machine = Machine()
        machine.put(service(ports=[{"name": "dns", "port": 53, "protocol": "UDP"}]))
        machine.sync()
        machine.put(
            service(**{"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}], **change})
        )
        machine.sync()
        expected = machine.plane.tracker.expected_flows(
            (), machine.plane.post_sync.take_removed_udp()
        )
        assert expected.is_stale(UdpFlow(("172.30.0.1", 53), ("10.0.0.1", 5353)))

    def test_a_refused_write_forgets_nothing_yet(self) -> None:
        machine = Machine()
        machine.put(service(ports=[{"name": "dns", "port": 53, "protocol": "UDP"}]))
        machine.sync()
        machine.drop(service())
        assert machine.plane.take_transaction(machine.now) is not None
        machine.plane.on_failure(machine.now)
        assert machine.plane.post_sync.take_removed_udp() == ()
        machine.now = 10.0
        machine.sync()
        assert len(machine.plane.post_sync.take_removed_udp()) == 1

    def test_an_entry_is_named_by_its_first_packet_and_its_zone(self) -> None:
        text = line("172.30.0.1", 53, "10.0.0.9", 5353)
        flow = UdpFlow(("172.30.0.1", 53), ("10.0.0.9", 5353))
        assert parse_tracked(text, "IPv4") == TrackedFlow(flow, ("10.0.9.9", 4000))
        assert parse_tracked(text + " zone=7", "IPv4") == TrackedFlow(flow, ("10.0.9.9", 4000), 7)

    def test_a_thousand_addresses_of_one_port_share_their_endpoints(self) -> None:
        """Issue 30: a Service of 1,000 external IPs and 100,000 endpoints would have cost a node 10
        GB.
        """
        endpoints = [
            NodeEndpoint(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 53) for n in range(2_000)
        ]
        addresses = tuple(f"198.18.{n >> 8}.{n & 255}" for n in range(1_000))
        expected = Expected()
        tracemalloc.start()
        expected.add(udp_port(external_ips=addresses), endpoints)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 2 << 20, f"{grown} bytes"
        assert not expected.is_stale(UdpFlow((addresses[-1], 53), ("10.0.0.7", 53)))
        assert expected.is_stale(UdpFlow((addresses[-1], 53), ("10.99.0.7", 53)))

    async def test_a_missing_program_is_a_sentence(self) -> None:
        with pytest.raises(ConntrackError, match="no-such-conntrack could not be started"):
            await Conntrack(program="no-such-conntrack").reconcile("IPv4", self.expected())
        assert await Conntrack(program="no-such-conntrack").reconcile("IPv4", Expected()) == 0


class Forgetter:
    def __init__(self) -> None:
        self.calls: list[tuple[Family, bool]] = []
        self.failures = 0

    async def reconcile(self, family: Family, expected: Expected) -> int:
        self.calls.append((family, bool(expected)))
        if self.failures:
            self.failures -= 1
            raise ConntrackError("no")
        return 2


@pytest.mark.looptime
async def test_flows_are_looked_at_after_changes_of_udp_and_again_after_a_failure() -> None:
    forgetter = Forgetter()
    proxy = make_proxy(NODE, Nftables(Kernel()), families=("IPv4",), flows=forgetter)
    task = asyncio.create_task(proxy.run())
    try:
        for resource in (Services, EndpointSlices, Nodes, ServiceCIDRs):
            proxy.on_synced(resource.key)
        await proxy.wait_ready()
        assert forgetter.calls == []
        forgetter.failures = 2
        udp = [{"name": "dns", "port": 53, "protocol": "UDP"}]
        proxy.on_change(Change(Services.key, None, service(ports=udp)))
        proxy.on_change(Change(EndpointSlices.key, None, make_slice(["10.0.0.1"], ports=udp)))
        await eventually(lambda: len(forgetter.calls), lambda count: count >= 3)
        assert forgetter.calls[-1] == ("IPv4", True)
        forgetter.failures = 1
        proxy.on_change(Change(Services.key, service(ports=udp), None))
        await eventually(lambda: len(forgetter.calls), lambda count: count >= 5)
        assert forgetter.calls[3:] == [("IPv4", True)] * 2, (
            "who went is not forgotten by a pass that failed"
        )
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_a_service_that_changes_all_the_time_does_not_keep_flows_busy() -> None:
    """Issue 30: with 200,000 entries a pass takes two seconds of the loop, and a tenant has one
    begin at any time.
    """

    class Slow(Forgetter):
        async def reconcile(self, family: Family, expected: Expected) -> int:
            await asyncio.sleep(2.0)
            return await super().reconcile(family, expected)

    forgetter = Slow()
    loop = asyncio.get_running_loop()
    proxy = make_proxy(
        NODE, Nftables(Kernel()), families=("IPv4",), flows=forgetter, clock=loop.time
    )
    task = asyncio.create_task(proxy.run())
    try:
        for resource in (Services, EndpointSlices, Nodes, ServiceCIDRs):
            proxy.on_synced(resource.key)
        await proxy.wait_ready()
        udp = [{"name": "dns", "port": 53, "protocol": "UDP"}]
        slices = [make_slice([f"10.0.0.{n}"], ports=udp, version=n) for n in (1, 2)]
        proxy.on_change(Change(Services.key, None, service(ports=udp)))
        proxy.on_change(Change(EndpointSlices.key, None, slices[0]))
        for number in range(600):
            proxy.on_change(Change(EndpointSlices.key, slices[number % 2], slices[1 - number % 2]))
            await asyncio.sleep(0.1)
        assert 5 <= len(forgetter.calls) <= 7, f"{len(forgetter.calls)} passes of 2 s in 60 s"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Figures


def test_families_have_upstreams_names_and_buckets() -> None:
    samples = ProxyMetrics()
    samples.on_write("IPv4", 0.003, full=True, failed=True)
    samples.on_write("IPv4", 0.5, full=False, failed=False)
    samples.on_written("IPv4", 1000.0, (0.7, 61.0), (1, 2), 0)
    samples.on_conntrack("IPv6", 0.01, 3)
    samples.on_service_change()
    samples.on_endpoint_change()
    samples.on_started("IPv4", 999.0)
    names = [family.name for family in samples.families()]
    assert names == sorted(names)
    found = {family.name.removeprefix("kubeproxy_"): family for family in samples.families()}

    def value(name: str, *labels: str) -> Any:
        return {sample.labels: sample.value for sample in found[name].samples}[labels]

    whole = value("sync_proxy_rules_duration_seconds", "IPv4")
    assert isinstance(whole, Distribution)
    assert (whole.bounds[0], whole.bounds[-1], len(whole.bounds), sum(whole.counts)) == (
        0.001,
        16.384,
        15,
        2,
    )
    assert sum(value("sync_full_proxy_rules_duration_seconds", "IPv4").counts) == 1
    assert sum(value("sync_partial_proxy_rules_duration_seconds", "IPv4").counts) == 1
    programming = value("network_programming_duration_seconds", "IPv4")
    assert dict(zip(programming.bounds, programming.counts, strict=False))[1.0] == 1
    assert dict(zip(programming.bounds, programming.counts, strict=False))[65.0] == 1
    assert (len(PROGRAMMING_BUCKETS), PROGRAMMING_BUCKETS[-1]) == (81, 300.0)
    assert list(PROGRAMMING_BUCKETS) == sorted(set(PROGRAMMING_BUCKETS))
    assert value("sync_proxy_rules_no_local_endpoints_total", "IPv4", "external") == 2
    assert value("conntrack_reconciler_deleted_entries_total", "IPv6") == 3
    assert value("sync_proxy_rules_nftables_sync_failures_total", "IPv4") == 1
    assert value("sync_proxy_rules_last_timestamp_seconds", "IPv4") == 1000.0
    assert value("sync_proxy_rules_last_queued_timestamp_seconds", "IPv4") == 999.0
    assert value("sync_proxy_rules_service_changes_total") == 1
    assert value("sync_proxy_rules_endpoint_changes_pending") == 0
