"""The Node that a plane registers for the machine whose rules it writes."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.codec import decode, decode_document, encode
from sliceplane.api.core import Node
from sliceplane.api.errors import forbidden
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Nodes
from sliceplane.node.io import own_node
from sliceplane.node.io.own_node import OwnNode
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.base import Client


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Of this machine, by the version of IP; a test may change them."""
    known = {4: "198.51.100.7", 6: "2001:db8::7"}
    monkeypatch.setattr(own_node, "outward", lambda version: known.get(version, ""))
    return known


async def stored(client: Client) -> Node:
    return decode(await client.get(Nodes, "", "laptop"), Node)


def said(node: Node) -> list[str]:
    return [entry.address for entry in node.status.addresses or () if entry.type == "InternalIP"]


async def write(client: Client, document: Document, verb: Any, subresource: str = "") -> None:
    name = "" if verb == "create" else "laptop"
    await client.perform(
        Write(verb=verb, resource=Nodes, name=name, subresource=subresource, body=encode(document))
    )


async def test_a_machine_is_a_node_that_is_ready_while_its_proxy_runs(
    addresses: dict[int, str],
) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        own = OwnNode("laptop", client, lambda: 1_800_000_000.0)
        await own.register()
        node = await stored(client)
        assert (node.is_ready, said(node)) == (True, ["198.51.100.7", "2001:db8::7"])
        assert [(taint.key, taint.effect) for taint in node.spec.taints or ()] == [
            (own_node.TAINT, "NoSchedule")
        ]
        labels = node.metadata.labels or {}
        assert (labels["kubernetes.io/hostname"], labels["kubernetes.io/os"]) == ("laptop", "linux")

        version = node.metadata.resource_version
        await own.register()
        assert (await stored(client)).metadata.resource_version == version, (
            "nothing changed, so nothing is written"
        )

        addresses[4] = "203.0.113.9"  # it went to another network
        await own.register()
        assert said(await stored(client)) == ["203.0.113.9", "2001:db8::7"]
        addresses.clear()  # and is offline for a moment
        await own.register()
        assert said(await stored(client)) == ["203.0.113.9", "2001:db8::7"]

        await write(
            client, {"metadata": {"labels": {"topology.kubernetes.io/zone": "home"}}}, "patch"
        )
        await own.mark_not_ready()
        node = await stored(client)
        assert not node.is_ready
        assert (node.metadata.labels or {})["topology.kubernetes.io/zone"] == "home"
        await own.register()
        assert (await stored(client)).is_ready, "it comes back with the next start"

        await write(client, {}, "delete")
        await own.register()
        assert (await stored(client)).is_ready, "a user deleted it, and the machine is there"


async def test_a_node_that_another_program_keeps_stays_as_it_is(addresses: dict[int, str]) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await write(client, {"metadata": {"name": "laptop"}}, "create")
        own = OwnNode("laptop", client, lambda: 1_800_000_000.0)
        await own.register()
        assert said(await stored(client)) == list(addresses.values()), (
            "a Node that no program keeps is taken over"
        )
        others = {
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}, "addresses": [], "conditions": []}
        }
        await write(client, others, "patch", "status")
        before = await client.get(Nodes, "", "laptop")
        await own.register()
        await own.mark_not_ready()
        assert decode_document(await client.get(Nodes, "", "laptop")) == decode_document(before)


async def test_conditions_of_others_stay(addresses: dict[int, str]) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await write(client, {"metadata": {"name": "laptop"}}, "create")
        theirs = {"type": "DiskPressure", "status": "False", "reason": "NoPressure"}
        await write(client, {"status": {"conditions": [theirs]}}, "patch", "status")
        await OwnNode("laptop", client, lambda: 1_800_000_000.0).register()
        conditions = (await stored(client)).status.conditions or ()
        assert [(entry.type, entry.status) for entry in conditions] == [
            ("DiskPressure", "False"),
            ("Ready", "True"),
        ]
        assert addresses


async def test_a_server_that_refuses_does_not_end_the_proxy(addresses: dict[int, str]) -> None:
    class Refusing:
        asked = 0

        async def get(self, *_: object) -> bytes:
            self.asked += 1
            raise forbidden("nodes", "", "laptop", "no")

    refusing = Refusing()
    own = OwnNode("laptop", refusing, lambda: 0.0)  # type: ignore[arg-type]
    await own.register()
    await own.mark_not_ready()
    assert refusing.asked == 2
