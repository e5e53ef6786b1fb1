"""The observer against a kernel whose rules the test writes as kube-proxy does: what it reports, and
when.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.kernel.netns import Host, Net
from tests.kernel.test_observed_rules import TABLE, service_lines, write
from tests.waiting import eventually

from sliceplane.api.errors import StatusError
from sliceplane.client import HttpClient
from sliceplane.consume.io.reporting import report_progress
from sliceplane.kit.ip import FAMILIES
from sliceplane.kit.rng import Rng
from sliceplane.node.io.observing.observer import Observer
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.reflect import loop_clock

pytestmark = pytest.mark.kernel

ELEMENT = "add element ip kube-proxy service-ips {{ {address} . tcp . 80 : goto service-1 }}"
SAVED = """\
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A KUBE-SERVICES -d {address}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
{endpoints}COMMIT
"""


class ObservedPlane:
    """A plane with a Service of the test's own slice, a node in a namespace, and its observer."""

    def __init__(self, plane: Plane, client: HttpClient, host: Host) -> None:
        self.plane = plane
        self.host = host
        self.address = ""
        clock = loop_clock(time.time())
        self.observer = Observer("node-1", FAMILIES, clock=clock, netns=host.netns)
        self._client = client
        self._clock = clock

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        reports = report_progress(self._client, self.observer, Rng(2), self._clock, spread_s=0.0)
        tasks = [
            asyncio.create_task(self.observer.follow(self._client, Rng(1))),
            asyncio.create_task(reports),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def apply(self, endpoints: list[int]) -> int:
        """Writes the Service and its slice; returns the slice's revision."""
        documents = [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "web"},
                "spec": {"ports": [{"name": "http", "port": 80}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "web-1",
                    "labels": {"kubernetes.io/service-name": "web"},
                    "annotations": {"sliceplane.dev/report": f"{sorted(endpoints)}/0"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [f"10.1.0.{number}"]} for number in endpoints],
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            },
        ]
        written = await asyncio.to_thread(self.plane.apply, documents)
        self.address = written[0]["spec"]["clusterIP"]
        return int(written[1]["metadata"]["resourceVersion"])

    def write_nftables(self, endpoints: list[int]) -> None:
        write(self.host, *service_lines(1, endpoints, sticky=False))

    def write_iptables(self, endpoints: list[int]) -> None:
        lines = "".join(
            f"-A KUBE-SVC-A -p tcp -m tcp -j DNAT --to-destination 10.1.0.{number}:8080\n"
            for number in endpoints
        )
        saved = SAVED.format(address=self.address, endpoints=lines)
        self.host.exec(["iptables-nft-restore"], stdin=saved)

    def lease(self) -> dict[str, Any]:
        lease = self.plane.get("leases", "sliceplane-proxy-node-1", namespace="kube-node-lease")
        return dict(lease["metadata"]["annotations"])

    async def reported(self) -> int:
        annotations = await asyncio.to_thread(self.lease)
        return int(annotations["sliceplane.dev/endpointslices-revision"])

    async def problems(self) -> str:
        annotations = await asyncio.to_thread(self.lease)
        return "; ".join(json.loads(annotations["sliceplane.dev/progress"]).get("problems", []))


@pytest.fixture
async def observed() -> AsyncIterator[ObservedPlane]:
    with Net("obs") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with (
            Plane() as plane,
            HttpClient(kubeconfig.load(plane.kubeconfig)) as client,
        ):
            yield ObservedPlane(plane, client, host)


async def _in_step(observed: ObservedPlane, write_rules: Callable[[list[int]], None]) -> None:
    """A removed endpoint is reported when the rules lack it, and not before."""
    first = await observed.apply([1, 2])
    await eventually(observed.reported, lambda revision: revision >= first, ignoring=(Exception,))
    second = await observed.apply([1])
    await eventually(lambda: observed.observer.pending == 1)
    assert await observed.reported() < second
    write_rules([1])
    await eventually(observed.reported, lambda revision: revision >= second)
    assert await observed.problems() == ""


async def test_rules_of_nftables_and_a_table_that_goes(observed: ObservedPlane) -> None:
    await observed.apply([1, 2])
    write(observed.host, TABLE.format(family="ip", address="ipv4_addr"))
    observed.write_nftables([1, 2])
    write(observed.host, ELEMENT.format(address=observed.address))
    async with observed.following():
        await _in_step(observed, observed.write_nftables)
        assert observed.observer.source == "nftables"
        write(observed.host, "delete table ip kube-proxy")
        await eventually(observed.problems, lambda text: "no rules of kube-proxy" in text)


async def test_rules_of_iptables(observed: ObservedPlane) -> None:
    await observed.apply([1, 2])
    observed.write_iptables([1, 2])
    async with observed.following():
        await _in_step(observed, observed.write_iptables)
        assert observed.observer.source == "iptables-nft"
        report = json.loads((await asyncio.to_thread(observed.lease))["sliceplane.dev/progress"])
        assert report["observed"] == "kube-proxy iptables-nft"
        observed.host.exec(["iptables-nft", "-t", "nat", "-F"])
        await eventually(observed.problems, lambda text: "no rules of kube-proxy" in text)


async def test_a_node_without_kube_proxy_stays_unknown(observed: ObservedPlane) -> None:
    await observed.apply([1])
    async with observed.following():
        await eventually(lambda: observed.observer.checks > 0)
        assert not observed.observer.is_ready
        with pytest.raises(StatusError, match="not found"):
            await asyncio.to_thread(observed.lease)
