"""One Service, Pod, Node or zone with what concerns it: what checks are given.

A case is made anew whenever more was read; whatever it works out it keeps, so that checks may ask
as often as they like. Checks are pure functions of a case.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar, Final

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, EndpointSlice, SliceEndpoint
from sliceplane.api.findings.finding import Evidence, ObjectName
from sliceplane.api.findings.wording import pairs_text
from sliceplane.api.meta import Object
from sliceplane.api.requests import PortProbe, ProbeOutcome, Selection
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import NODES, PODS, SERVICES, SLICES, FullPod, Readable
from sliceplane.diagnose.explain.question import ExplainQuestion

#: endpoints of one Service to which connections are tried
TARGETS_MAX: Final = 20


class ClientCase:
    """Where the question's client is: ``--from``."""

    def __init__(self, facts: Facts, question: ExplainQuestion) -> None:
        client = question.client
        assert client is not None, f"{question} has no client"
        self.pod: FullPod | None = None
        node_name = ""
        if client.kind == "pod":
            self.pod = facts.get(PODS, client.namespace, client.name)
            node_name = self.pod.spec.node_name if self.pod is not None else ""
        elif client.kind == "node":
            node_name = client.name
        self.node: Node | None = facts.get(NODES, "", node_name) if node_name else None
        zone = client.name if client.kind == "zone" else zone_of(self.node)
        self.place = Locality(node_name, zone)
        #: the client is an object that was read, a zone that has a Node, or an address
        self.is_there = {
            "pod": self.pod is not None,
            "node": self.node is not None,
            "zone": any(zone_of(node) == zone for node in facts.of(NODES)),
        }.get(client.kind, True)
        pod_address = next(iter(self.pod.status.ips), "") if self.pod is not None else ""
        self.address = client.name if client.kind == "address" else pod_address


class PodsCase:
    """What a Service and a Pod have in common: Pods that are to be endpoints.  ``name``: of the
    Service or the Pod.
    """

    resource: ClassVar[Readable[Object]]

    def __init__(self, facts: Facts, question: ExplainQuestion, namespace: str, name: str) -> None:
        self.facts = facts
        self.question = question
        self.namespace = namespace
        self.name = name

    @property
    def subject(self) -> ObjectName:
        return ObjectName(
            self.resource.resource.key, self.resource.resource.kind, self.namespace, self.name
        )

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.facts.now

    @property
    def exists(self) -> bool:
        raise NotImplementedError

    @property
    def judged(self) -> tuple[FullPod, ...]:
        """The Pods that checks of Pods look at, those that have ended among them."""
        raise NotImplementedError

    @property
    def is_served(self) -> bool:
        """Whether some Pod takes connections in the place of one that does not."""
        raise NotImplementedError

    @property
    def publishes_unready(self) -> bool:
        """Pods are endpoints before they are ready, as asked for."""
        return False

    def was_read(self, selection: Selection) -> bool:
        return self.facts.was_read(selection)


class PodCase(PodsCase):
    """``pod`` is ``None`` where there is no such Pod."""

    resource = PODS

    @cached_property
    def pod(self) -> FullPod | None:
        return self.facts.get(PODS, self.namespace, self.name)

    @property
    def exists(self) -> bool:
        return self.pod is not None

    @property
    def judged(self) -> tuple[FullPod, ...]:
        return (self.pod,) if self.pod is not None else ()

    @property
    def is_served(self) -> bool:
        """A Pod that was asked about is not served by others."""
        return False

    @cached_property
    def services(self) -> tuple[Service, ...]:
        """Those that select it, sorted by name."""
        if self.pod is None:
            return ()
        labels = self.pod.labels.items()
        services = self.facts.of(SERVICES, self.namespace)
        return tuple(
            service
            for service in services
            if (pairs := selector_of(service)) and pairs.items() <= labels
        )


class ServiceCase(PodsCase):
    """``service`` is ``None`` where there is no such Service. ``pod``: the Pod that was asked
    about, if one was; its state is told by the ``PodCase`` then.
    """

    resource = SERVICES

    def __init__(
        self,
        facts: Facts,
        question: ExplainQuestion,
        namespace: str,
        name: str,
        pod: FullPod | None = None,
    ) -> None:
        super().__init__(facts, question, namespace, name)
        self.pod = pod
        self.service: Service | None = facts.get(SERVICES, namespace, name)

    @property
    def exists(self) -> bool:
        return self.service is not None

    @property
    def has_endpoints(self) -> bool:
        """An ExternalName is answered by DNS alone."""
        return self.service is not None and self.service.spec.type != "ExternalName"

    @property
    def is_headless(self) -> bool:
        return self.service is not None and self.service.spec.cluster_ip == "None"

    @property
    def judged(self) -> tuple[FullPod, ...]:
        return self.selected if self.pod is None else ()

    @cached_property
    def is_served(self) -> bool:
        return any(
            pod.is_ready and not pod.is_drained and not pod.has_ended and not pod.is_going
            for pod in self.selected
        )

    @property
    def publishes_unready(self) -> bool:
        return self.service is not None and self.service.spec.publish_not_ready_addresses

    @cached_property
    def selector(self) -> dict[str, str]:
        """Empty: the Service has none, or is an ExternalName, whose selector selects nothing."""
        return {} if self.service is None else selector_of(self.service)

    def pods_selection(self, namespace: str) -> Selection:
        """Pods with the labels of the selector; *namespace* "": of all."""
        return PODS.in_namespace(namespace, pairs_text(self.selector))

    @cached_property
    def selected(self) -> tuple[FullPod, ...]:
        """Every Pod that has the labels, whatever state it is in."""
        return self.facts.pods_with(self.namespace, self.selector)

    @cached_property
    def live(self) -> tuple[FullPod, ...]:
        """Those selected that have not ended."""
        return tuple(pod for pod in self.selected if not pod.has_ended)

    @cached_property
    def slices(self) -> tuple[EndpointSlice, ...]:
        return self.facts.slices_of(self.namespace, self.name)

    @property
    def sees_slices(self) -> bool:
        """Slices were read: what is in none of them is in none."""
        return self.was_read(
            SLICES.in_namespace(self.namespace, f"{LABEL_SERVICE_NAME}={self.name}")
        )

    @cached_property
    def endpoints(self) -> tuple[tuple[EndpointSlice, SliceEndpoint], ...]:
        """In the order of the slices' names."""
        return tuple(
            (endpoint_slice, endpoint)
            for endpoint_slice in self.slices
            for endpoint in endpoint_slice.endpoints or ()
        )

    @cached_property
    def ready(self) -> tuple[tuple[EndpointSlice, SliceEndpoint], ...]:
        """Absent conditions count as KEP-0752 says: ready."""
        return tuple(pair for pair in self.endpoints if pair[1].conditions.ready is not False)

    @cached_property
    def targets(self) -> tuple[PortProbe, ...]:
        """Where connections go: the TCP ports of its ready endpoints, the first ``TARGETS_MAX``."""
        found: dict[PortProbe, None] = {}
        for item, endpoint in self.ready:
            for port in item.ports or () if item.address_type != "FQDN" else ():
                if port.port and (port.protocol or "TCP") == "TCP" and endpoint.addresses:
                    found[PortProbe(endpoint.addresses[0], port.port)] = None
        return tuple(found)[:TARGETS_MAX]

    @cached_property
    def tried(self) -> dict[PortProbe, ProbeOutcome]:
        """How connections from here to its ready endpoints ended; empty: none were tried."""
        tried = self.facts.tried or {}
        return {target: tried[target] for target in self.targets if target in tried}

    @cached_property
    def client(self) -> ClientCase | None:
        return ClientCase(self.facts, self.question) if self.question.client is not None else None

    def field(self, path: str, value: str, was: str = "") -> Evidence:
        """Of the Service."""
        return Evidence(subject=self.subject, field=path, value=value, was=was)


class NodeCase:
    """``node`` is ``None`` where there is no such Node."""

    def __init__(self, facts: Facts, question: ExplainQuestion, name: str) -> None:
        self.facts = facts
        self.question = question
        self.name = name
        self.node: Node | None = facts.get(NODES, "", name)

    @property
    def subject(self) -> ObjectName:
        return ObjectName("nodes", "Node", "", self.name)

    @property
    def now(self) -> float:
        return self.facts.now

    @property
    def zone(self) -> str:
        return zone_of(self.node)


class ZoneCase:
    def __init__(self, facts: Facts, question: ExplainQuestion, name: str) -> None:
        self.facts = facts
        self.question = question
        self.name = name

    @property
    def subject(self) -> ObjectName:
        """A zone is no object; it is named as one."""
        return ObjectName("zones", "Zone", "", self.name)

    @property
    def now(self) -> float:
        return self.facts.now

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.facts.of(NODES) if zone_of(node) == self.name)


Case = ServiceCase | PodCase | NodeCase | ZoneCase


def selector_of(service: Service) -> dict[str, str]:
    """Empty: it selects nothing."""
    return {} if service.spec.type == "ExternalName" else service.spec.selector or {}


def zone_of(node: Node | None) -> str:
    return "" if node is None else (node.metadata.labels or {}).get(LABEL_ZONE, "")


def name_of(readable: Readable[Object], item: Object) -> ObjectName:
    resource = readable.resource
    return ObjectName(resource.key, resource.kind, item.metadata.namespace, item.metadata.name)


def pod_name(pod: FullPod) -> ObjectName:
    return name_of(PODS, pod)


def seen(readable: Readable[Object], item: Object, path: str, value: str) -> Evidence:
    """A field of *item* as evidence."""
    return Evidence(subject=name_of(readable, item), field=path, value=value)
