"""``drift --node --deep`` where the proxy has no pages: the kernel here is compared, or it is said
not to be.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from tests.ports import free_port

from sliceplane.api import codec
from sliceplane.api.codec import encode
from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases, Namespaces, Nodes, Resource, Services
from sliceplane.consume.progress import Progress
from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.diagnose.drift.answer import Drift
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.io import drifting
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.io.base import Client

NODE = socket.gethostname().lower()
CART = ClusterDestination("10.96.0.100", "tcp", 80)
POD = ServedTarget("10.244.0.7", 8080)


async def _cluster(client: Client) -> None:
    """A Service of one endpoint, and a proxy of this machine that reports to have everything."""
    ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
    endpoint_slice = {
        "metadata": {"name": "cart-1", "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [POD.address]}],
        "ports": [{"name": "http", "port": POD.port, "protocol": "TCP"}],
    }
    documents: list[tuple[Resource, str, dict[str, Any]]] = [
        (Namespaces, "", {"metadata": {"name": "kube-node-lease"}}),
        (Nodes, "", {"metadata": {"name": NODE}}),
        (
            Services,
            "default",
            {"metadata": {"name": "cart"}, "spec": {"clusterIP": CART.address, "ports": ports}},
        ),
        (EndpointSlices, "default", endpoint_slice),
    ]
    for resource, namespace, document in documents:
        present = await client.list(
            Selection(resource, field_selector=f"metadata.name={document['metadata']['name']}")
        )
        if not present.items:
            await client.perform(
                Write(verb="create", resource=resource, namespace=namespace, body=encode(document))
            )
    progress = Progress(NODE, ("IPv4",))
    progress.on_change(
        Change(Nodes.key, None, Node(metadata=ObjectMeta(name=NODE, uid="1"))), "all", 0.0
    )
    slices = await client.list(Selection(EndpointSlices))
    for item in slices.items:
        progress.on_change(
            Change(EndpointSlices.key, None, codec.decode(item, EndpointSlice)), "all", 0.0
        )
    progress.on_mark(EndpointSlices.key, "all", Mark(EndpointSlices.key, slices.resource_version))
    progress.on_idle("IPv4")
    await client.perform(
        Write(
            verb="create",
            resource=Leases,
            namespace="kube-node-lease",
            body=progress.take_report(time.time()),
        )
    )


@pytest.mark.parametrize(
    ("facts", "kernel", "code", "is_blind"),
    [
        (KernelFacts(rules=((CART, frozenset({POD})),)), "equal", "", False),
        (KernelFacts(rules=()), "differs", "N5", False),
        (
            KernelFacts(rules=((CART, frozenset({ServedTarget("10.244.9.9", 8080)})),)),
            "differs",
            "N5",
            False,
        ),
        (
            KernelFacts(unread=("rules of Services (what nft lists (Operation not permitted))",)),
            "not looked at",
            "",
            True,
        ),
    ],
)
async def test_the_kernel_itself_is_read_where_the_proxy_has_no_pages(
    monkeypatch: pytest.MonkeyPatch, facts: KernelFacts, kernel: str, code: str, is_blind: bool
) -> None:
    async def read_kernel() -> KernelFacts:
        return facts

    monkeypatch.setattr(drifting, "read_kernel", read_kernel)
    monkeypatch.setattr(drifting, "RECHECK_DELAY_S", 0.0)
    monkeypatch.setattr(drifting, "BEHIND_S", 0.0)
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await _cluster(client)

        async def look(**how: Any) -> Drift:
            return await drifting.read_drift(client, time.time, node=NODE, port=free_port(), **how)

        drift = await look(deep=True)
        (row,) = drift.rows
        assert (row.kernel, drift.is_blind) == (kernel, is_blind), (
            drift.findings,
            drift.unchecked,
        )
        assert [finding.code for finding in drift.findings] == ([code] if code else [])
        if is_blind:
            assert any("Operation not permitted" in phrase for phrase in drift.unchecked)
        # Without --deep what the proxy reports of its kernel stands.
        (row,) = (await look()).rows
        assert row.kernel == "as told"


async def test_a_change_that_the_kernel_may_not_have_yet_is_too_young_to_judge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read_kernel() -> KernelFacts:
        return KernelFacts(rules=())

    monkeypatch.setattr(drifting, "read_kernel", read_kernel)
    monkeypatch.setattr(drifting, "RECHECK_DELAY_S", 0.0)
    monkeypatch.setattr(drifting, "BEHIND_S", 3600.0)
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await _cluster(client)
        drift = await drifting.read_drift(client, time.time, node=NODE, port=free_port(), deep=True)
        assert (drift.findings, drift.is_blind) == ((), True)
        assert any(
            "rules (too young to judge: default/cart" in phrase for phrase in drift.unchecked
        )
