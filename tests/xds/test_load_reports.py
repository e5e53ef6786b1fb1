"""Load reports of clients: what counts, what is refused, and a program of gRPC as it is."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slices.fake_cluster import make_node
from tests.waiting import eventually
from tests.xds.conftest import Served, Shop, endpoint, grpc_program, host_address, xds_server

from sliceplane.api import codec
from sliceplane.api.users import User
from sliceplane.client import HttpClient, Leases, Nodes, Services, StatusError
from sliceplane.consume.demand import MEASURED, read_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.xds import wire
from sliceplane.xds.catalog import XdsCatalog, XdsConfig
from sliceplane.xds.io import server
from sliceplane.xds.io.admission import AdmissionConfig
from sliceplane.xds.io.load import LOAD_PATH, LoadStreams
from sliceplane.xds.streams.actions import VisibleNamespaces
from sliceplane.xds.streams.messages import load_request
from sliceplane.xds.streams.requests import (
    LOAD_CLUSTERS_MAX,
    LOAD_REQUESTS_MAX,
    RequestError,
    read_load_stats,
)

ANNOTATIONS = {
    "service.kubernetes.io/topology-mode": MEASURED,
    ANNOTATION_DEMAND: "requests",
}


@pytest.fixture(autouse=True)
def frequent_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REVIEW_S", 0.5)


def locality(issued: int = 0, successful: int = 0, failed: int = 0) -> bytes:
    return wire.message(
        2, wire.integer(2, successful), wire.integer(4, failed), wire.integer(8, issued)
    )


def stats(cluster: str, *localities: bytes) -> bytes:
    return wire.message(2, wire.text(1, cluster), *localities)


def node(zone: str) -> bytes:
    return wire.message(1, wire.text(1, "client"), wire.message(4, wire.text(2, zone)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.tuples(st.integers(0, 2**40), st.booleans()), max_size=4),
        ),
        max_size=8,
    )
)
def test_requests_of_all_localities_add_up(
    reported: list[tuple[str, list[tuple[int, bool]]]],
) -> None:
    message = node("zone-a") + b"".join(
        stats(
            name,
            *[
                locality(issued=count) if counts_issued else locality(successful=count, failed=1)
                for count, counts_issued in localities
            ],
        )
        for name, localities in reported
    )
    expected: dict[str, int] = {}
    for name, localities in reported:
        added = sum(count + (not counts_issued) for count, counts_issued in localities)
        if localities:
            expected[name] = min(expected.get(name, 0) + added, LOAD_REQUESTS_MAX)
    client, requests = read_load_stats(message)
    assert requests == expected
    assert client is not None
    assert client.zone == "zone-a"


@given(st.binary(max_size=200))
def test_whatever_a_client_sends_is_a_report_or_refused(message: bytes) -> None:
    requests: dict[str, int] = {}
    with suppress(RequestError):
        _, requests = read_load_stats(message)
    assert all(0 <= count <= LOAD_REQUESTS_MAX for count in requests.values())


def test_a_report_of_too_many_clusters_is_read_up_to_the_bound() -> None:
    message = b"".join(stats(f"ns/s{number}:80", locality(1)) for number in range(10_000))
    assert len(read_load_stats(message)[1]) <= LOAD_CLUSTERS_MAX + 16


class Reporting:
    """A client's stream of load reports."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        identity = lambda data: data  # noqa: E731
        self.call = self._channel.stream_stream(
            LOAD_PATH, request_serializer=identity, response_deserializer=identity
        )()

    async def send(self, message: bytes) -> None:
        await self.call.write(message)

    async def requested(self) -> bytes:
        async with asyncio.timeout(20):
            answer: Any = await self.call.read()
        assert isinstance(answer, bytes), "the stream has ended"
        return answer

    async def end(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(20):
            return await self.call.code(), await self.call.details()

    async def close(self) -> None:
        self.call.cancel()
        await self._channel.close()


async def add_node(client: HttpClient, name: str, zone: str) -> None:
    labels = {"topology.kubernetes.io/zone": zone}
    await client.create(Nodes, "", codec.encode({"metadata": {"name": name, "labels": labels}}))


async def counts(client: HttpClient, name: str) -> dict[str, int]:
    try:
        body = await client.get(Leases, "kube-node-lease", f"sliceplane-xds-{name}")
    except StatusError:  # not reported yet
        return {}
    annotations = json.loads(body)["metadata"]["annotations"]
    return read_demand(annotations.get(ANNOTATION_DEMAND, "")).counts


async def start_of_uid(client: HttpClient, shop: Shop) -> str:
    uid: str = json.loads(await client.get(Services, shop.namespace, "web"))["metadata"]["uid"]
    return uid[:8]


async def test_a_client_is_asked_for_services_that_want_it_and_counts_in_its_zone(
    client: HttpClient, shop: Shop
) -> None:
    zone = f"zone-{shop.namespace}"
    await add_node(client, f"node-{shop.namespace}", zone)
    async with xds_server(client, report_name=shop.namespace) as served:
        reporting = Reporting(served.port)
        await reporting.send(node(zone))
        await shop.service("plain")
        await shop.service("web", annotations=ANNOTATIONS)
        cluster = f"{shop.namespace}/web:http"
        assert await reporting.requested() == load_request([cluster])
        await reporting.send(
            stats(cluster, locality(7)) + stats(f"{shop.namespace}/plain:http", locality(9))
        )
        uid = await start_of_uid(client, shop)
        assert await eventually(
            lambda: counts(client, shop.namespace), lambda found: found == {f"{zone}/{uid}": 7}
        )
        await shop.service("web", annotations={"sliceplane.dev/demand": "connections"})
        assert await reporting.requested() == load_request([])
        await reporting.close()


async def test_reports_of_a_client_whose_right_is_gone_do_not_count() -> None:
    catalog = XdsCatalog(XdsConfig(), "p")
    catalog.on_node(None, make_node("n-1", "zone-a"))
    catalog.shared.measured["shop/web:http"] = "11111111"
    catalog.on_synced()
    visible = VisibleNamespaces()

    async def visibility(user: User) -> VisibleNamespaces:
        return visible

    sent: list[bytes] = []
    call: Any = Mock(user=User(name="ana"), send=sent.append)
    clock = count(100.0, 10.0)
    streams = LoadStreams(catalog, AdmissionConfig(), lambda: next(clock), visibility)
    streams.opened(call)
    streams.message(call, node("zone-a"))
    await eventually(lambda: sent == [load_request(["shop/web:http"])])
    streams.message(call, stats("shop/web:http", locality(3)))
    visible = VisibleNamespaces(False, frozenset())
    await streams.review()
    assert sent[1:] == [load_request([])]
    streams.message(call, stats("shop/web:http", locality(4)))
    assert streams.counts() == {"zone-a/11111111": 3}
    await streams.review()
    assert len(sent) == 2, "nothing changed"


async def test_totals_of_a_service_that_is_gone_are_forgotten() -> None:
    catalog = XdsCatalog(XdsConfig(), "p")
    for zone in ("zone-a", "zone-b"):
        catalog.on_node(None, make_node(f"n-{zone}", zone))
    measured = catalog.shared.measured
    measured |= {"shop/web:http": "11111111", "shop/cart:http": "22222222"}
    catalog.on_synced()

    async def visibility(user: User) -> VisibleNamespaces:
        return VisibleNamespaces()

    clock = count(100.0, 10.0)
    streams = LoadStreams(catalog, AdmissionConfig(), lambda: next(clock), visibility)
    for zone, web in (("zone-a", 3), ("zone-b", 5)):
        sent: list[bytes] = []
        call: Any = Mock(user=User(name="ana"), send=sent.append)
        streams.opened(call)
        streams.message(call, node(zone))
        assert await eventually(lambda sent=sent: sent, bool)
        report = stats("shop/web:http", locality(web)) + stats("shop/cart:http", locality(4))
        streams.message(call, report)
    del measured["shop/cart:http"]
    assert streams.counts() == {"zone-a/11111111": 3, "zone-b/11111111": 5}
    del measured["shop/web:http"]
    assert streams.counts() == {}
    measured["shop/web:http"] = "11111111"
    assert streams.counts() == {}


async def test_a_client_of_an_unknown_zone_is_not_asked(
    client: HttpClient, served: Served, shop: Shop
) -> None:
    await shop.service("web", annotations=ANNOTATIONS)
    reporting = Reporting(served.port)
    await reporting.send(node("nowhere"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await reporting.requested()
    await reporting.close()


async def test_a_client_that_reports_all_the_time_is_cut(
    client: HttpClient, served: Served, shop: Shop
) -> None:
    zone = f"zone-{shop.namespace}"
    await add_node(client, f"node-{shop.namespace}", zone)
    await shop.service("web", annotations=ANNOTATIONS)
    reporting = Reporting(served.port)
    await reporting.send(node(zone))
    await reporting.requested()
    for _ in range(2):
        await reporting.send(stats(f"{shop.namespace}/web:http", locality(1)))
    code, why = await reporting.end()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert why == "more than one load report in 1.0 s"
    await reporting.close()


async def test_a_program_of_grpc_reports_its_calls(
    tmp_path: Path, client: HttpClient, shop: Shop
) -> None:
    zone = f"zone-{shop.namespace}"
    await add_node(client, f"node-{shop.namespace}", zone)
    await shop.service("web", annotations=ANNOTATIONS)
    target, at = f"xds:///web.{shop.namespace}:80", host_address()
    async with (
        xds_server(client, report_name=shop.namespace) as served,
        grpc_program(tmp_path, served.wish(node_id="program", zone=zone)) as program,
    ):
        port = await program.ask("backend", at)
        await shop.slice("web-1", port, endpoint(at, "one"))
        await eventually(lambda: program.answered(target), lambda ports: ports == {port})
        told = await program.ask("call", target, 50)
        assert told["failed"] == {}
        uid = await start_of_uid(client, shop)
        found = await eventually(
            lambda: counts(client, shop.namespace),
            lambda found: found.get(f"{zone}/{uid}", 0) >= 50,
            within_s=60,
        )
        assert list(found) == [f"{zone}/{uid}"]
