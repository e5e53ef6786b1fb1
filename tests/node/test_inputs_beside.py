"""A name server in a node proxy's process: what both read is read once, and the proxy learns of its
own part alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.dns.world import ZONE
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.gates import Gates
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Namespaces, Services
from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.io.service import Resolver
from sliceplane.dns.wire import A, labels_of, name_of
from sliceplane.kit.rng import Rng
from sliceplane.node.io.inputs import InputHandlers, Inputs
from sliceplane.node.io.node_proxy import watches
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.reflect import loop_clock

PORTS = [{"name": "http", "port": 80}]


async def write_objects(client: Client) -> None:
    other = {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}
    for name, metadata, spec in (
        ("own", {}, {"ports": PORTS}),
        ("other", other, {"ports": PORTS}),
        ("peers", {}, {"clusterIP": "None", "ports": PORTS}),
    ):
        service = {"metadata": {"name": name, **metadata}, "spec": spec}
        labels = {"kubernetes.io/service-name": name} | (
            {"service.kubernetes.io/headless": ""} if name == "peers" else {}
        )
        endpoints = {
            "metadata": {"name": f"{name}-1", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"]}],
            "ports": PORTS,
        }
        for resource, document in ((Services, service), (EndpointSlices, endpoints)):
            await client.perform(
                Write(verb="create", resource=resource, namespace="default", body=encode(document))
            )


async def test_services_and_slices_are_read_once_and_the_proxy_is_told_of_its_own(
    monkeypatch: Any,
) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await write_objects(client)
        listed: list[Selection] = []
        plain_list = client.list

        async def counted(selection: Selection, **how: Any) -> Any:
            listed.append(selection)
            return await plain_list(selection, **how)

        monkeypatch.setattr(client, "list", counted)
        clock = loop_clock(1000.0)
        resolver = Resolver(ZoneConfig(), AnswerConfig(), clock=clock)
        seen: dict[str, set[str]] = {}

        def on_changes(_: str, changes: tuple[Change[Any], ...]) -> None:
            for change in changes:
                seen.setdefault(change.resource, set()).add(change.object.metadata.name)

        inputs = Inputs(
            client,
            watches("node-1", Gates()),
            InputHandlers(on_changes, lambda *_: None, lambda _: None, lambda _: None),
            clock=clock,
            rng=Rng(1),
            consumer=resolver,
        )
        following = [
            asyncio.create_task(inputs.run()),
            asyncio.create_task(resolver.follow(client, Rng(2), (Selection(Namespaces),))),
        ]
        try:
            async with asyncio.timeout(60):
                await resolver.wait_ready()
            for name in ("own", "other", "peers"):
                found = resolver.server.view.find(
                    labels_of(name_of(f"{name}.default.svc.{ZONE}")), A
                )
                assert found is not None
                assert found.records is not None, (name, found.why)
            await eventually(
                lambda: seen.get(Services.key, set()) >= {"own"} and EndpointSlices.key in seen
            )
            assert {"other", "peers"} & seen[Services.key] == set()
            assert {"own-1", "other-1"} <= seen[EndpointSlices.key]
            assert "peers-1" not in seen[EndpointSlices.key]
            held = inputs.versions(Services.key)[""]
            assert "default/own" in held
            assert "default/peers" not in held
            assert [item.resource.key for item in listed].count(Services.key) == 1
            assert [item.resource.key for item in listed].count(EndpointSlices.key) == 1
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
