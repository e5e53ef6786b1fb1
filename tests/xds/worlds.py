"""Services, slices and Nodes for tests of xDS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sliceplane.api.core import Node, Service, ServicePort, ServiceSpec
from sliceplane.api.discovery import (
    LABEL_REGION,
    LABEL_SERVICE_NAME,
    LABEL_ZONE,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    ForNode,
    ForZone,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference
from sliceplane.xds.catalog import XdsCatalog, XdsChange, XdsConfig
from sliceplane.xds.names import ASSIGNMENT
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.view import XdsView

KEY = "default/web:http"
GRPC = XdsClient(kind="grpc", namespace="default")
ENVOY = XdsClient(kind="envoy")
LEDS = XdsClient(kind="envoy", leds=True)
HTTP = EndpointPort(name="http", protocol="TCP", port=8080)
READY = EndpointConditions(ready=True, serving=True, terminating=False)
NOT_READY = EndpointConditions(ready=False, serving=False, terminating=False)
ENDING = EndpointConditions(ready=False, serving=True, terminating=True)


def service(
    name: str = "web",
    *,
    ports: Iterable[ServicePort] = (),
    annotations: Mapping[str, str] = {},
    **spec: Any,
) -> Service:
    spec.setdefault("cluster_ip", "10.96.0.1")
    spec.setdefault("ip_families", ("IPv4",))
    made = tuple(ports) or (ServicePort(name="http", port=80),)
    metadata = ObjectMeta(name=name, namespace="default", annotations=dict(annotations))
    return Service(metadata=metadata, spec=ServiceSpec(ports=made, **spec))


def pod(
    number: int,
    conditions: EndpointConditions = READY,
    *,
    zone: str = "a",
    node: str = "",
    for_zones: Iterable[str] = (),
    for_nodes: Iterable[str] = (),
    address: str = "",
) -> SliceEndpoint:
    hints = EndpointHints(
        for_zones=tuple(ForZone(name=name) for name in for_zones),
        for_nodes=tuple(ForNode(name=name) for name in for_nodes),
    )
    return SliceEndpoint(
        addresses=(address or f"10.0.{number // 250}.{number % 250 + 1}",),
        conditions=conditions,
        zone=zone,
        node_name=node or None,
        hints=hints,
        target_ref=ObjectReference(kind="Pod", name=f"pod-{number}", uid=f"uid-{number:06}"),
    )


def slice_of(
    endpoints: Iterable[SliceEndpoint],
    revision: int = 1,
    *,
    name: str = "web-1",
    of: str = "web",
    family: str = "IPv4",
    ports: tuple[EndpointPort, ...] = (HTTP,),
    labels: Mapping[str, str] = {},
) -> EndpointSlice:
    metadata = ObjectMeta(
        name=name,
        namespace="default",
        resource_version=str(revision),
        labels={LABEL_SERVICE_NAME: of, **labels},
    )
    return EndpointSlice(
        metadata=metadata, address_type=family, endpoints=tuple(endpoints), ports=ports
    )


def node(name: str, zone: str, region: str = "") -> Node:
    return Node(metadata=ObjectMeta(name=name, labels={LABEL_ZONE: zone, LABEL_REGION: region}))


class World:
    """A catalog that is told what is there, by differences."""

    def __init__(
        self, *objects: Service | EndpointSlice | Node, process: str = "p", **config: Any
    ) -> None:
        self.catalog = XdsCatalog(XdsConfig(**config), process)
        self._held: dict[tuple[type, str], Service | EndpointSlice | Node] = {}
        self.put(*objects)
        self.catalog.on_synced()
        self.catalog.take_changes()

    def put(self, *objects: Service | EndpointSlice | Node) -> None:
        for subject in objects:
            held = (type(subject), subject.metadata.key)
            self._tell(self._held.get(held), subject)
            self._held[held] = subject

    def delete(self, *objects: Service | EndpointSlice | Node) -> None:
        for subject in objects:
            self._tell(self._held.pop((type(subject), subject.metadata.key)), None)

    def _tell(self, before: Any, after: Any) -> None:
        match after if after is not None else before:
            case Service():
                self.catalog.on_service(before, after)
            case EndpointSlice():
                self.catalog.on_slice(before, after)
            case Node():
                self.catalog.on_node(before, after)

    def view(self, client: XdsClient) -> XdsView:
        return self.catalog.view(client)

    def changes(self) -> list[XdsChange]:
        self.catalog.check()
        return self.catalog.take_changes()


def body(view: XdsView, type_url: str = ASSIGNMENT, name: str = KEY) -> bytes:
    resource = view.get(type_url, name)
    assert resource is not None, f"there is no {name}"
    return resource.body
