"""What a node proxy reads: EndpointSlices, selections of them (KEP-2030), or Endpoints, over a real
registry.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.node_proxies import make_proxy
from tests.waiting import eventually

from sliceplane.api import codec
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import forbidden, internal
from sliceplane.api.gates import Gates
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointsObjects,
    Events,
    Namespaces,
    Nodes,
    Resource,
    Services,
)
from sliceplane.consume.selections import Union, common_selector, own_selectors, reads_slices
from sliceplane.consume.slicecache import slices_of
from sliceplane.kit.rng import Rng
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import PROBE_VALID_S, ProxyTiming
from sliceplane.node.nft.objects import DynamicSetContents, TableRef, Transaction
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Unreachable

pytestmark = pytest.mark.looptime  # the server is in the loop, too

ON = Gates.parse("EndpointSliceSubsetting=true")
_MAPS = r"endpoints-\S+|single-endpoints"
_ELEMENTS = re.compile(
    rf"^(add|delete) element ip sliceplane ({_MAPS}) \{{ (.*) \}}$", re.MULTILINE
)


class Kernel:
    """Of the rules, only the endpoints that they lead to."""

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], str] = {}

    async def run(self, text: str) -> None:
        if "delete table ip sliceplane" in text:
            self._targets = {}
        for verb, container, items in _ELEMENTS.findall(text):
            for item in items.split(", "):
                number, _, target = item.partition(" : ")
                if verb == "add":
                    self._targets[container, number] = target.partition(" . ")[0]
                else:
                    del self._targets[container, number]

    async def write(self, transaction: Transaction) -> bool:
        await self.run(transaction.render())
        return False

    async def dynamic_sets(self, table: TableRef) -> DynamicSetContents:
        return {}

    def disturbed(self) -> bool:
        return False

    async def tables(self) -> frozenset[TableRef]:
        return frozenset()

    @property
    def endpoints(self) -> set[str]:
        return set(self._targets.values())

    async def leads_to(self, *wanted: str) -> None:
        await eventually(lambda: self.endpoints, lambda endpoints: endpoints == set(wanted))


@pytest_asyncio.fixture
async def api() -> AsyncIterator[InProcessClient]:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0)) as plane:
        client = plane.client("system:admin")
        await create(client, Namespaces, {"metadata": {"name": "ns"}}, "")
        spec = {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80}]}
        await create(client, Services, {"metadata": {"name": "svc"}, "spec": spec})
        yield client


async def create(
    client: InProcessClient, resource: Resource, document: dict[str, Any], namespace: str = "ns"
) -> None:
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **document}
    await client.create(resource, namespace, codec.encode(whole))


async def put_slice(client: InProcessClient, name: str, ip: str, **labels: str) -> None:
    shown = {
        f"endpointslice.kubernetes.io/{key.replace('_', '-')}": value
        for key, value in labels.items()
    }
    document = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "svc", **shown}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ip]}],
        "ports": [{"name": "http", "port": 8080}],
    }
    await create(client, EndpointSlices, document)


async def put_node(client: InProcessClient, zone: str = "a", region: str = "east") -> None:
    labels = {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": region}
    await create(client, Nodes, {"metadata": {"name": "node-1", "labels": labels}}, "")


async def relabel(
    client: InProcessClient, resource: Resource, name: str, namespace: str, **labels: str | None
) -> None:
    prefix = "topology" if resource is Nodes else "endpointslice"
    body = {
        "metadata": {
            "labels": {
                f"{prefix}.kubernetes.io/{k.replace('_', '-')}": v for k, v in labels.items()
            }
        }
    }
    await client.patch(resource, namespace, name, codec.encode(body), patch_type="merge")


@asynccontextmanager
async def proxy_of(
    client: Any,
    gates: Gates = Gates(),  # noqa: B008  # it is frozen
    *,
    timing: ProxyTiming = ProxyTiming(),  # noqa: B008  # it is frozen
) -> AsyncIterator[tuple[NodeProxy, Kernel]]:
    kernel = Kernel()
    clock = asyncio.get_running_loop().time
    proxy = make_proxy(
        "node-1", Nftables(kernel), families=("IPv4",), gates=gates, clock=clock, timing=timing
    )
    task = asyncio.create_task(proxy.follow(client, Rng(1)))
    try:
        await proxy.wait_ready()
        yield proxy, kernel
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def everywhere(client: InProcessClient) -> None:
    await put_slice(client, "all", "10.0.0.1")
    await put_slice(client, "zone-a", "10.0.0.2", for_zone="a")
    await put_slice(client, "zone-b", "10.0.0.3", for_zone="b")
    await put_slice(client, "east", "10.0.0.4", for_region="east")
    await put_slice(client, "west", "10.0.0.5", for_region="west")


# KEP-2030, "Unit Tests"


async def test_all_slices_are_consumed_when_the_feature_is_disabled(api: InProcessClient) -> None:
    await put_node(api)
    await everywhere(api)
    async with proxy_of(api) as (_, kernel):
        assert kernel.endpoints == {f"10.0.0.{number}" for number in range(1, 6)}


async def test_a_slice_for_a_zone_is_consumed_in_that_zone(api: InProcessClient) -> None:
    await put_node(api, zone="a", region="north")
    await put_slice(api, "zone-a", "10.0.0.2", for_zone="a")
    async with proxy_of(api, ON) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.2"}, "with the first rules"


async def test_a_slice_for_a_zone_is_not_consumed_in_another_zone(api: InProcessClient) -> None:
    await put_node(api, zone="a")
    await put_slice(api, "zone-b", "10.0.0.3", for_zone="b")
    await put_slice(api, "all", "10.0.0.1")
    async with proxy_of(api, ON) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.1"}


async def test_a_slice_for_a_region_is_consumed_in_that_region(api: InProcessClient) -> None:
    await put_node(api, region="east")
    await put_slice(api, "east", "10.0.0.4", for_region="east")
    async with proxy_of(api, ON) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.4"}


async def test_a_slice_for_a_region_is_not_consumed_in_another_region(api: InProcessClient) -> None:
    await put_node(api, region="east")
    await put_slice(api, "west", "10.0.0.5", for_region="west")
    await put_slice(api, "all", "10.0.0.1")
    async with proxy_of(api, ON) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.1"}


# Labels that change


async def test_a_node_that_moves_reads_other_slices_and_misses_none_meanwhile(
    api: InProcessClient,
) -> None:
    await put_node(api)
    await everywhere(api)
    async with proxy_of(api, ON) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.1", "10.0.0.2", "10.0.0.4"}
        await relabel(api, Nodes, "node-1", "", zone="b")
        while "10.0.0.3" not in kernel.endpoints:
            assert {"10.0.0.1", "10.0.0.2", "10.0.0.4"} <= kernel.endpoints, (
                "the old ones stay until then"
            )
            await asyncio.sleep(0)
        await kernel.leads_to("10.0.0.1", "10.0.0.3", "10.0.0.4")
        await relabel(api, Nodes, "node-1", "", zone=None, region="west")
        await kernel.leads_to("10.0.0.1", "10.0.0.5")


async def test_a_slice_that_is_given_to_somebody_else_goes_and_comes(api: InProcessClient) -> None:
    await put_node(api)
    await put_slice(api, "all", "10.0.0.1")
    await put_slice(api, "other", "10.0.0.2")
    async with proxy_of(api, ON) as (_, kernel):
        for labels, wanted in (
            ({"for_zone": "b"}, {"10.0.0.1"}),
            ({"for_zone": "a"}, {"10.0.0.1", "10.0.0.2"}),
            ({"for_zone": None}, {"10.0.0.1", "10.0.0.2"}),
            ({"for_region": "east"}, {"10.0.0.1", "10.0.0.2"}),
            ({"for_region": "west"}, {"10.0.0.1"}),
        ):
            await relabel(api, EndpointSlices, "other", "ns", **labels)
            await kernel.leads_to(*wanted)


async def test_a_node_without_labels_reads_what_is_for_everybody(api: InProcessClient) -> None:
    await everywhere(api)
    async with proxy_of(api, ON, timing=ProxyTiming(node_grace_s=0.02)) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.1"}
        await put_node(api)
        await kernel.leads_to("10.0.0.1", "10.0.0.2", "10.0.0.4")


def test_selectors_are_those_of_the_kep() -> None:
    document = {
        "metadata": {
            "labels": {"topology.kubernetes.io/zone": "a", "topology.kubernetes.io/region": "east"}
        }
    }
    here = codec.decode(codec.encode(document), Nodes.projection)
    headless = "!service.kubernetes.io/headless"
    assert common_selector(Gates()) == headless
    assert own_selectors(Gates(), here) == ()  # type: ignore[arg-type]  # it is a Node
    for_zone, for_region = (
        "endpointslice.kubernetes.io/for-zone",
        "endpointslice.kubernetes.io/for-region",
    )
    assert common_selector(ON) == f"{headless},!{for_zone},!{for_region}"
    assert own_selectors(ON, here) == (f"{headless},{for_zone}=a", f"{headless},{for_region}=east")  # type: ignore[arg-type]  # it is a Node
    assert own_selectors(ON, None) == ()


selections = st.lists(
    st.tuples(
        st.sampled_from(["x", "y"]),
        st.sampled_from(["one", "two"]),
        st.sampled_from(["put", "put", "remove", "drop"]),
    ),
    max_size=30,
)


@given(selections)
def test_a_union_is_the_newest_of_what_its_selections_have(
    history: list[tuple[str, str, str]],
) -> None:
    union, shown = Union(), {}
    model: dict[str, dict[str, EndpointSlice]] = {"one": {}, "two": {}}
    for version, (name, selection, what) in enumerate(history, 1):
        old = model[selection].get(name)
        differences = []
        if what == "put":
            document = {
                "metadata": {"namespace": "ns", "name": name, "resourceVersion": str(version)}
            }
            model[selection][name] = new = codec.decode(codec.encode(document), EndpointSlice)
            differences = [union.on_change(selection, old, new)]
        elif what == "remove" and old is not None:
            del model[selection][name]
            differences = [union.on_change(selection, old, None)]
        elif what == "drop":
            model[selection] = {}
            differences = list(union.drop(selection))
        for difference in differences:
            if difference is None:
                continue
            key = (difference.new or difference.old).metadata.name  # type: ignore[union-attr]  # one of them is there
            assert shown.get(key) is difference.old
            shown[key] = difference.new
        union.check()
        for key in ("x", "y"):
            have = [found[key] for found in model.values() if key in found]
            newest = max(have, key=lambda each: int(each.metadata.resource_version), default=None)
            assert shown.get(key) is newest


# Endpoints instead


def test_which_gate_counts_where() -> None:
    assert reads_slices(Gates())
    assert reads_slices(Gates(), windows=True)
    old = (1, 18)
    assert not reads_slices(Gates(old))
    assert reads_slices(Gates.parse("EndpointSliceProxying=true", old))
    assert not reads_slices(Gates.parse("EndpointSliceProxying=true,EndpointSlice=false", old))
    assert not reads_slices(
        Gates.parse("WindowsEndpointSliceProxying=false", (1, 19)), windows=True
    )
    assert reads_slices(Gates.parse("WindowsEndpointSliceProxying=false", (1, 19)))


async def test_endpoints_are_read_when_slices_are_not(api: InProcessClient) -> None:
    await put_node(api)
    await put_slice(api, "all", "10.0.0.9")
    subsets = [
        {
            "addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}],
            "notReadyAddresses": [{"ip": "10.0.0.3"}],
            "ports": [{"name": "http", "port": 8080}],
        }
    ]
    await create(api, EndpointsObjects, {"metadata": {"name": "svc"}, "subsets": subsets})
    async with proxy_of(api, Gates.parse("EndpointSliceProxying=false", (1, 21))) as (_, kernel):
        assert kernel.endpoints == {"10.0.0.1", "10.0.0.2"}
        body = {
            "subsets": [
                {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"name": "http", "port": 8080}]}
            ]
        }
        await api.patch(EndpointsObjects, "ns", "svc", codec.encode(body), patch_type="merge")
        await kernel.leads_to("10.0.0.3")
        await api.delete(EndpointsObjects, "ns", "svc")
        await kernel.leads_to()


def test_endpoints_become_slices_by_family_and_subset() -> None:
    document = {
        "metadata": {"namespace": "ns", "name": "svc", "resourceVersion": "7"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.1", "nodeName": "node-1"}, {"ip": "fd00::1"}],
                "ports": [{"port": 80}],
            },
            {
                "notReadyAddresses": [{"ip": "10.0.0.2"}],
                "ports": [{"name": "x", "port": 81, "protocol": "UDP"}],
            },
        ],
    }
    made = slices_of(codec.decode(codec.encode(document), Endpoints))
    found = [
        (
            each.address_type,
            [(e.addresses[0], e.conditions.ready, e.node_name) for e in each.endpoints or ()],
        )
        for each in made.values()
    ]
    assert found == [
        ("IPv4", [("10.0.0.1", True, "node-1")]),
        ("IPv6", [("fd00::1", True, None)]),
        ("IPv4", [("10.0.0.2", False, None)]),
    ]
    assert {
        (each.metadata.labels or {})["kubernetes.io/service-name"] for each in made.values()
    } == {"svc"}
    assert slices_of(None) == {}


# Can what we know be believed?


class Moody:
    """A client whose lists of Nodes do what they are told to."""

    def __init__(self, client: InProcessClient) -> None:
        self._client = client
        self.mood: Any = None
        self.probes = 0
        self.forbidden: Resource | None = None

    def watch(self, selection: Selection, **options: Any) -> Any:
        resource = selection.resource
        if resource is self.forbidden:
            raise forbidden(resource.plural, resource.group, "", "no role says so")
        return self._client.watch(selection, **options)

    async def list(self, selection: Selection, **options: Any) -> Any:
        if options.get("limit") == 1:
            self.probes += 1
            if self.mood == "silent":
                await asyncio.Event().wait()
            if self.mood is not None:
                raise self.mood
        return await self._client.list(selection, **options)


async def test_a_silent_server_is_noticed_within_a_second(api: InProcessClient) -> None:
    await put_node(api)
    server = Moody(api)
    async with proxy_of(server) as (proxy, _):
        for mood, said in (
            (None, ""),
            ("silent", "the API server did not answer within 0.6 s"),
            (
                Unreachable("connection refused"),
                "the API server cannot be reached: connection refused",
            ),
            (internal("no disk"), "the API server answers 500: no disk"),
            (None, ""),
        ):
            server.mood = mood
            await asyncio.sleep(2 * PROBE_VALID_S)
            began = asyncio.get_running_loop().time()
            assert await proxy.unanswered() == said
            assert asyncio.get_running_loop().time() - began < 1.0
            assert proxy.health().healthy, "the rules are as good as before"
        assert server.probes == 5


async def test_who_polls_health_sees_a_silent_server_within_a_second(api: InProcessClient) -> None:
    """From the moment of its last answer, not only from that of a question."""
    await put_node(api)
    server, loop = Moody(api), asyncio.get_running_loop()
    async with proxy_of(server) as (proxy, _):
        await asyncio.sleep(2 * PROBE_VALID_S)
        assert await proxy.unanswered() == ""
        server.mood, silent_since = "silent", loop.time()
        await eventually(proxy.unanswered)
        assert loop.time() - silent_since < 1.0


async def test_many_who_ask_are_one_request(api: InProcessClient) -> None:
    await put_node(api)
    server = Moody(api)
    async with proxy_of(server) as (proxy, kernel):
        await asyncio.gather(*(proxy.unanswered() for _ in range(50)))
        assert server.probes == 0, "it has just listed: that is an answer"
        await asyncio.sleep(PROBE_VALID_S + 0.05)
        await asyncio.gather(*(proxy.unanswered() for _ in range(50)))
        await proxy.unanswered()
        assert server.probes == 1
        await asyncio.sleep(PROBE_VALID_S + 0.05)
        await put_slice(api, "heard", "10.0.0.9")
        await kernel.leads_to("10.0.0.9")
        assert await proxy.unanswered() == ""
        assert server.probes == 1, "what a watch brings is an answer, too"


async def test_a_watch_that_the_server_refuses_is_a_reason_although_it_answers(
    api: InProcessClient,
) -> None:
    await put_node(api)
    server = Moody(api)
    server.forbidden = EndpointSlices
    async with proxy_of(server, timing=ProxyTiming(probe_valid_s=0.0)) as (proxy, _):
        refused = (
            "endpointslices are not watched: endpointslices.discovery.k8s.io is forbidden: no "
            "role says so"
        )
        await eventually(proxy.unanswered, lambda why: why == refused)
        server.forbidden = None
        await eventually(proxy.unanswered, lambda why: why == "")


async def test_a_proxy_that_is_told_so_asks_nobody(api: InProcessClient) -> None:
    server = Moody(api)
    server.mood = "silent"
    async with proxy_of(server, timing=ProxyTiming(probe_timeout_s=0.0)) as (proxy, _):
        await asyncio.sleep(PROBE_VALID_S + 0.05)
        assert await proxy.unanswered() == ""
        assert server.probes == 0


async def test_a_health_port_that_is_taken_is_an_event_on_the_service(api: InProcessClient) -> None:
    await put_node(api)
    taken = await asyncio.start_server(lambda *_: None, "0.0.0.0", 0)
    port = int(taken.sockets[0].getsockname()[1])
    spec = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port,
        "ports": [{"name": "http", "port": 80}],
    }
    try:
        async with proxy_of(api) as (proxy, _):
            subject = codec.decode(
                codec.encode({"metadata": {"namespace": "ns", "name": "svc"}, "spec": spec}),
                Service,
            )
            marked = codec.decode_document(codec.encode(subject))
            marked["spec"]["clusterIP"] = "10.96.0.100"
            proxy.on_change(Change(Services.key, None, codec.decode(codec.encode(marked), Service)))
            page = await eventually(
                lambda: api.list(Selection(Events, "ns")), lambda page: page.items
            )
            event = codec.decode_document(page.items[0])
            assert (event["reason"], event["type"]) == (
                "FailedToStartServiceHealthcheck",
                "Warning",
            )
            assert event["involvedObject"]["name"] == "svc"
            assert f"port {port} (IPv4)" in event["message"]
    finally:
        taken.close()
        await taken.wait_closed()
