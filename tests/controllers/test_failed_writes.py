"""What people read of a write that is refused again and again: one Event that counts, not one for
each try.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import eventually

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    EndpointSlices,
    EventsV1,
    Nodes,
    Pods,
    Resource,
    ResourceQuotas,
    Services,
)
from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.watch.controller.base import Write, stable_error
from sliceplane.watch.io.base import Client


def create(**metadata: str) -> Write:
    body = encode({"metadata": {"namespace": "default", **metadata}})
    return Write(
        verb="create",
        resource=EndpointSlices,
        namespace="default",
        name=metadata.get("name", ""),
        body=body,
    )


def refused(name: str) -> StatusError:
    return forbidden(
        "endpointslices", "discovery.k8s.io", name, "exceeded quota: q, requested: x=1, used: x=0"
    )


@pytest.mark.parametrize("prefix", ["web-", "w.e+b-", "x" * 70])
def test_a_name_that_was_made_up_for_one_try_is_not_told(prefix: str) -> None:
    told = {
        stable_error(create(generateName=prefix), refused(f"{prefix[:58]}{end}")).message
        for end in ("bcdfg", "x2z9k")
    }
    assert told == {
        (
            f'endpointslices.discovery.k8s.io "{prefix}" is forbidden: exceeded quota: q, '
            "requested: "
            "x=1, used: x=0"
        )
    }


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (create(name="web-bcdfg"), "web-bcdfg"),
        (create(generateName="web-"), "web-other"),
        (create(generateName="web-"), "api-bcdfg"),
        (
            Write(verb="delete", resource=EndpointSlices, namespace="default", name="web-bcdfg"),
            "web-bcdfg",
        ),
    ],
)
def test_names_of_objects_that_there_are_stay(write: Write, name: str) -> None:
    assert f'"{name}"' in stable_error(write, refused(name)).message


async def _make(client: Client, resource: Resource, namespace: str, document: Document) -> None:
    status = document.pop("status", None)
    await client.create(resource, namespace, encode(document))
    if status:
        name = document["metadata"]["name"]
        await client.patch(
            resource,
            namespace,
            name,
            encode({"status": status}),
            patch_type="merge",
            subresource="status",
        )


@pytest.mark.looptime
async def test_a_quota_that_refuses_slices_is_one_event_of_the_service_however_often_it_is_tried() -> (
    None
):
    service = ControllerService(default_controllers())
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), (service,)) as plane:
        client = plane.client("system:admin")
        hard = {"count/endpointslices.discovery.k8s.io": "0"}
        await _make(
            client, ResourceQuotas, "default", {"metadata": {"name": "q"}, "spec": {"hard": hard}}
        )

        async def used() -> object:
            return (
                decode_document(await client.get(ResourceQuotas, "default", "q"))
                .get("status", {})
                .get("used")
            )

        async def told() -> list[Document]:
            page = await client.list(Selection(EventsV1, "default"))
            events = [decode_document(body) for body in page.items]
            return [event for event in events if event["reason"] == "FailedToUpdateEndpointSlices"]

        await eventually(used)
        await _make(client, Nodes, "", {"metadata": {"name": "n"}})
        ports = [{"port": 80}]
        spec = {"selector": {"a": "b"}, "ports": ports}
        await _make(client, Services, "default", {"metadata": {"name": "web"}, "spec": spec})
        container = {"name": "c", "image": "i"}
        pod = {
            "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"nodeName": "n", "containers": [container]},
        }
        await _make(
            client, Pods, "default", {**pod, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
        )
        await eventually(told, lambda events: any(event.get("series") for event in events))
        await asyncio.sleep(600)
        found = await told()
        assert len(found) == 1, [event["note"] for event in found]
        assert (
            'endpointslices.discovery.k8s.io "web-" is forbidden: exceeded quota: q'
            in found[0]["note"]
        )
