"""Connections in the Lease of a node: ``sliceplane proxy``, and ``sliceplane observe --demand``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from tests.kernel.kube_proxy_table import TABLE as KUBE_PROXY
from tests.kernel.netns import Host, Net
from tests.kernel.proxy_process import started
from tests.kernel.test_demand_packets import tables
from tests.kernel.test_observed_rules import service_lines, write
from tests.waiting import eventually

from sliceplane.consume.demand import read_demand
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.testing import Plane

pytestmark = pytest.mark.kernel

ELEMENT = "add element ip kube-proxy service-ips {{ {address} . tcp . 80 : goto service-1 }}"
CALLER = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.socket() as caller:
        caller.settimeout(0.05)
        try:
            caller.connect((sys.argv[1], 80))
        except OSError:
            pass
"""


class Site(NamedTuple):
    plane: Plane
    node: Host
    address: str
    uid: str

    def flags(self) -> tuple[str, ...]:
        return "--kubeconfig", str(self.plane.kubeconfig), "--netns", self.node.netns

    def call(self, count: int) -> None:
        self.node.python(CALLER, self.address, str(count))

    def demand(self) -> dict[str, int]:
        lease = self.plane.get("leases", "sliceplane-proxy-node-1", namespace="kube-node-lease")
        return read_demand(lease["metadata"]["annotations"].get(ANNOTATION_DEMAND, "")).counts

    async def reported(self, count: int) -> None:
        await eventually(
            lambda: asyncio.to_thread(self.demand),
            lambda found: found.get(self.uid, -1) >= count,
            ignoring=(Exception,),
        )
        assert await asyncio.to_thread(self.demand) == {self.uid: count}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "web",
                "annotations": {"service.kubernetes.io/topology-mode": "sliceplane.dev/Measured"},
            },
            "spec": {"ports": [{"name": "http", "port": 80}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"]}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        },
    ]
    with Net("dem") as net:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with Plane() as plane:
            service, _ = await asyncio.to_thread(plane.apply, documents)
            address, uid = service["spec"]["clusterIP"], service["metadata"]["uid"][:8]
            yield Site(plane, node, address, uid)


async def test_the_proxy_reports_demand(site: Site) -> None:
    async with started("proxy", *site.flags(), "--hostname-override", "node-1"):
        await eventually(lambda: tables(site.node), lambda found: "ip" in found)
        await asyncio.to_thread(site.call, 9)
        await site.reported(9)
    assert tables(site.node) == [], "the proxy's rules stay, its counters do not"
    assert "sliceplane" in site.node.exec(["nft", "list", "tables"]).stdout


async def test_the_observer_reports_demand_if_requested(site: Site) -> None:
    """Beside rules of kube-proxy, which it does not touch."""
    write(site.node, KUBE_PROXY.format(family="ip", address="ipv4_addr"))
    write(site.node, KUBE_PROXY.format(family="ip6", address="ipv6_addr"))
    write(site.node, *service_lines(1, [1], sticky=False), ELEMENT.format(address=site.address))
    before = site.node.exec(["nft", "list", "ruleset"]).stdout
    flags = (*site.flags(), "--node", "node-1")
    async with started("observe", *flags, "--demand"):
        await eventually(lambda: tables(site.node), lambda found: "ip" in found)
        left = site.node.exec(["nft", "list", "table", "ip", "sliceplane-demand"]).stdout
        await asyncio.to_thread(site.call, 9)
        await site.reported(9)
    assert site.node.exec(["nft", "list", "ruleset"]).stdout == before
    write(site.node, left)  # as after a crash
    async with started("observe", *flags):
        await eventually(lambda: tables(site.node), lambda found: not found)
    assert site.node.exec(["nft", "list", "ruleset"]).stdout == before
