"""One Service, Pod, Node or zone with all that concerns it: the argument of checks.

A new case is created after each read; it caches derived values, so that checks may request them
repeatedly. Checks are pure functions of a case.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

from sliceplane.api.core import Node, Service, ServicePort
from sliceplane.api.discovery import LABEL_SERVICE_NAME, LABEL_ZONE, SliceEndpoint
from sliceplane.api.findings.codes import Severity
from sliceplane.api.findings.finding import Certainty, Evidence, Finding, ObjectName, TooYoung
from sliceplane.api.findings.wording import pairs_text, patch
from sliceplane.api.meta import Object
from sliceplane.api.requests import PortProbe, ProbeOutcome, Selection
from sliceplane.api.selectors import adoption
from sliceplane.consume.usable import Locality
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.kernel import KernelFacts
from sliceplane.diagnose.explain.objects import (
    NODES,
    PODS,
    SERVICES,
    SLICES,
    FullPod,
    FullSlice,
    Readable,
)
from sliceplane.diagnose.explain.question import ExplainQuestion

#: endpoints of one Service to which connections are tried
TARGETS_MAX: Final = 20
T = TypeVar("T")
Kind = TypeVar("Kind", bound=Object)


class ClientCase:
    """The location of the client of the query: ``--from``."""

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
        self.location = Locality(node_name, zone)
        #: True if the client is an object that was read, a zone that has a Node, or an address
        self.exists = {
            "pod": self.pod is not None,
            "node": self.node is not None,
            "zone": any(zone_of(node) == zone for node in facts.of(NODES)),
        }.get(client.kind, True)
        pod_address = next(iter(self.pod.status.ips), "") if self.pod is not None else ""
        self.address = client.name if client.kind == "address" else pod_address


class ExplainCase:
    """The object of the query, or an object that the query leads to."""

    resource: ClassVar[Readable[Object]]

    def __init__(self, facts: Facts, question: ExplainQuestion, namespace: str, name: str) -> None:
        self.facts = facts
        self.question = question
        self.namespace = namespace
        self.name = name

    @property
    def subject(self) -> ObjectName:
        resource = self.resource.resource
        return ObjectName(resource.key, resource.kind, self.namespace, self.name)

    @property
    def now(self) -> float:
        """Seconds since the epoch."""
        return self.facts.now

    @property
    def exists(self) -> bool:
        return self.facts.get(self.resource, self.namespace, self.name) is not None

    def was_read(self, selection: Selection) -> bool:
        return self.facts.was_read(selection)

    def get(self, readable: Readable[Kind], name: str) -> Kind | None:
        """Returns the object *name* of the namespace of the case."""
        return self.facts.get(readable, self.namespace, name)

    def of(self, readable: Readable[Kind]) -> tuple[Kind, ...]:
        """Returns the objects of the namespace of the case, sorted by name."""
        return self.facts.of(readable, self.namespace)

    @property
    def kernel(self) -> KernelFacts:
        """The kernel of this machine; only checks of the kernel may use it."""
        assert self.facts.kernel is not None, "the kernel was not read"
        return self.facts.kernel

    def field(self, path: str, value: str) -> Evidence:
        """A field of the subject as evidence."""
        return Evidence(subject=self.subject, field=path, value=value)

    def finding(
        self,
        code: str,
        sentence: str,
        *evidence: Evidence,
        subject: ObjectName | None = None,
        effect: str = "",
        remedy: str = "",
        certainty: Certainty = "certain",
        weight: Severity | None = None,
        too_young: TooYoung | None = None,
    ) -> Finding:
        """A finding about the subject of the case, unless *subject* names another object."""
        return Finding(
            code=code,
            subject=subject or self.subject,
            sentence=sentence,
            evidence=evidence,
            effect=effect,
            remedy=remedy,
            certainty=certainty,
            weight=weight,
            too_young=too_young,
        )


class PodsCase(ExplainCase):
    """The common part of a Service and a Pod: Pods that should be endpoints."""

    @property
    def judged(self) -> tuple[FullPod, ...]:
        """The Pods that checks of Pods inspect, ended ones included."""
        raise NotImplementedError

    @property
    def is_served(self) -> bool:
        """Returns True if another Pod serves the connections of an unready one."""
        raise NotImplementedError

    @property
    def is_served_by_leaving(self) -> bool:
        """Returns True if a Pod that leaves serves while none is ready (KEP-1669)."""
        return False

    @property
    def is_served_by_unready(self) -> bool:
        """Returns True if a Pod that runs is an endpoint before it is ready, as requested."""
        return False


class PodCase(PodsCase):
    """A Pod and the Services that select it."""

    resource = PODS

    @cached_property
    def pod(self) -> FullPod:
        return _existing(self.facts.get(PODS, self.namespace, self.name))

    @property
    def judged(self) -> tuple[FullPod, ...]:
        return (self.pod,) if self.exists else ()

    @property
    def is_served(self) -> bool:
        """Returns False: other Pods do not replace the Pod of the query."""
        return False

    @cached_property
    def services(self) -> tuple[Service, ...]:
        """The Services that select the Pod, sorted by name."""
        if not self.exists:
            return ()
        labels = self.pod.labels.items()
        services = self.facts.of(SERVICES, self.namespace)
        return tuple(
            service
            for service in services
            if (pairs := selector_of(service)) and pairs.items() <= labels
        )


class ServiceCase(PodsCase):
    """A Service with its Pods and slices. ``pod``: the Pod of the query, if any, which its
    ``PodCase`` judges.
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

    @cached_property
    def service(self) -> Service:
        return _existing(self.facts.get(SERVICES, self.namespace, self.name))

    @property
    def has_endpoints(self) -> bool:
        """Returns False for an ExternalName, which only DNS answers."""
        return self.service.spec.type != "ExternalName"

    @property
    def is_headless(self) -> bool:
        return self.service.spec.cluster_ip == "None"

    @property
    def judged(self) -> tuple[FullPod, ...]:
        return self.selected if self.pod is None else ()

    @cached_property
    def is_served(self) -> bool:
        return any(
            pod.is_ready
            and not pod.is_drained
            and not pod.has_ended
            and not pod.metadata.is_deleting
            for pod in self.selected
        )

    @property
    def is_served_by_leaving(self) -> bool:
        return any(
            pod.is_ready and pod.metadata.is_deleting and not pod.has_ended for pod in self.selected
        )

    @property
    def requested_ports(self) -> tuple[ServicePort, ...]:
        """The ports of the Service that the query is about: all, unless it names one."""
        question = self.question
        return tuple(
            port
            for port in self.service.spec.ports or ()
            if question.port in ("", str(port.port), port.name)
            and question.protocol in ("", port.protocol)
        )

    @cached_property
    def is_served_by_unready(self) -> bool:
        return self.service.spec.publish_not_ready_addresses and any(
            status.state.running is not None
            for pod in self.selected
            if not pod.has_ended
            for status in pod.status.container_statuses or ()
        )

    @cached_property
    def selector(self) -> dict[str, str]:
        """The selector; empty if the Service has none, or is an ExternalName, whose selector
        selects nothing.
        """
        return selector_of(self.service)

    def pods_selection(self, *, everywhere: bool = False) -> Selection:
        """Returns the selection of Pods with the labels of the selector, of the namespace or of
        all.
        """
        return PODS.in_namespace("" if everywhere else self.namespace, pairs_text(self.selector))

    @property
    def slices_selection(self) -> Selection:
        return SLICES.in_namespace(self.namespace, f"{LABEL_SERVICE_NAME}={self.name}")

    def patch(self, change: dict[str, Any]) -> str:
        """Returns the command that merges *change* into the Service."""
        return patch(self.namespace, "service", self.name, change)

    @cached_property
    def selected(self) -> tuple[FullPod, ...]:
        """The Pods that have the labels, in any state."""
        return self.facts.pods_with(self.namespace, self.selector)

    @cached_property
    def live(self) -> tuple[FullPod, ...]:
        """The selected Pods that have not ended."""
        return tuple(pod for pod in self.selected if not pod.has_ended)

    @cached_property
    def slices(self) -> tuple[FullSlice, ...]:
        return self.facts.slices_of(self.namespace, self.name)

    @property
    def has_read_slices(self) -> bool:
        """Returns True if the slices were read, so that no other endpoint exists."""
        return self.was_read(self.slices_selection)

    @cached_property
    def endpoints(self) -> tuple[tuple[FullSlice, SliceEndpoint], ...]:
        """The endpoints, in the order of the slices' names."""
        return tuple(
            (endpoint_slice, endpoint)
            for endpoint_slice in self.slices
            for endpoint in endpoint_slice.endpoints or ()
        )

    @cached_property
    def ready(self) -> tuple[tuple[FullSlice, SliceEndpoint], ...]:
        """The ready endpoints; an absent condition counts as ready (KEP-0752)."""
        return tuple(pair for pair in self.endpoints if pair[1].conditions.ready is not False)

    @cached_property
    def targets(self) -> tuple[PortProbe, ...]:
        """The first ``TARGETS_MAX`` targets of connections: TCP ports of ready endpoints."""
        probes: dict[PortProbe, None] = {}
        names = {port.name for port in self.requested_ports}
        for item, endpoint in self.ready:
            for port in item.ports or () if item.address_type != "FQDN" else ():
                if (port.name or "") not in names and not self.is_headless:
                    continue
                if port.port and (port.protocol or "TCP") == "TCP" and endpoint.addresses:
                    probes[PortProbe(endpoint.addresses[0], port.port)] = None
        return tuple(probes)[:TARGETS_MAX]

    @cached_property
    def tried(self) -> dict[PortProbe, ProbeOutcome]:
        """The outcomes of connections from here to ready endpoints; empty: none were tried."""
        tried = self.facts.tried or {}
        return {target: tried[target] for target in self.targets if target in tried}

    @cached_property
    def client(self) -> ClientCase | None:
        return ClientCase(self.facts, self.question) if self.question.client is not None else None


class NodeCase(ExplainCase):
    """A Node and its Pods. ``node`` is ``None`` if there is no such Node."""

    resource = NODES

    @cached_property
    def node(self) -> Node | None:
        return self.facts.get(NODES, "", self.name)

    @property
    def zone(self) -> str:
        return zone_of(self.node)


class ZoneCase(ExplainCase):
    @property
    def subject(self) -> ObjectName:
        """The zone as an object name, although it is no object."""
        return ObjectName("zones", "Zone", "", self.name)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(node for node in self.facts.of(NODES) if zone_of(node) == self.name)


def _existing(item: T | None) -> T:
    assert item is not None, "only the first link is about objects that do not exist"
    return item


def selector_of(service: Service) -> dict[str, str]:
    """Returns the selector of *service*, adopted or not; empty: it selects nothing."""
    return {} if service.spec.type == "ExternalName" else adoption.selector_of(service)


def zone_of(node: Node | None) -> str:
    return "" if node is None else (node.metadata.labels or {}).get(LABEL_ZONE, "")


def list_names(objects: Iterable[Object]) -> list[str]:
    return [item.metadata.name for item in objects]


def name_of(readable: Readable[Object], item: Object) -> ObjectName:
    resource = readable.resource
    return ObjectName(resource.key, resource.kind, item.metadata.namespace, item.metadata.name)


def evidence_of(readable: Readable[Object], item: Object, path: str, value: str) -> Evidence:
    """Returns a field of *item* as evidence."""
    return Evidence(subject=name_of(readable, item), field=path, value=value)
