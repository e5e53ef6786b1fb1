"""Traces the endpoints that a client of xDS at a location receives for a name, and what it picks.

The catalog of the xDS server is filled with one Service, its slices and the Nodes; the answer is
read from the bytes that the client would receive, in the wording of the other traces. Authorization
is not checked: it depends on the client's credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Final

import msgspec

from sliceplane.api.core import Node, Service
from sliceplane.api.discovery import LABEL_FOR_REGION, LABEL_FOR_ZONE, EndpointSlice, SliceEndpoint
from sliceplane.api.findings.wording import CHOICES_MAX, no_such, some
from sliceplane.consume.balancing.merge import PortChoice, endpoint_of
from sliceplane.consume.balancing.model import Endpoint
from sliceplane.consume.model import NodeEndpoint, ServiceKey, ServicePortName, canonical_of
from sliceplane.consume.usable import Choice
from sliceplane.diagnose.trace import reasons
from sliceplane.diagnose.trace.answer import (
    HintsView,
    LoadView,
    TracedEndpoint,
    TracedService,
    TracedSlice,
    XdsClientView,
    XdsTraceAnswer,
)
from sliceplane.diagnose.trace.question import Unanswerable, joined
from sliceplane.diagnose.trace.text import endpoint_tables, fact, laid_out
from sliceplane.diagnose.trace.zones import load_view
from sliceplane.kit.ip import FAMILIES
from sliceplane.xds.catalog import XdsCatalog, catalog_of
from sliceplane.xds.endpoints import draining_by_endpoint
from sliceplane.xds.model import PortEndpoints
from sliceplane.xds.names import ASSIGNMENT, parse_key, parse_target
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.settings import UNLIMITED, PortSettings
from sliceplane.xds.view import XdsView

_SCHEME: Final = "xds:///"
_FIELD: Final = "internalTrafficPolicy"


class XdsQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """*service* and *port* (a name, a number, or ""): as ``question_of`` parses them. *node*,
    *zone*: the location of the client; "": unknown.
    """

    service: ServiceKey
    port: str
    node: str = ""
    zone: str = ""


def question_of(
    text: str, namespace: str, domains: tuple[str, ...], *, node: str = "", zone: str = ""
) -> XdsQuestion:
    """*text*: a target of ``xds:///``, with the scheme or without, or the name of an Envoy cluster.
    Raises ``Unanswerable``.
    """
    name = text.removeprefix(_SCHEME)
    parsed = parse_key(name) or parse_target(name, namespace, domains)
    if parsed is None:
        raise Unanswerable(
            f"--to {text!r} is neither SERVICE[.NAMESPACE][:PORT] nor NAMESPACE/SERVICE:PORT"
        )
    return XdsQuestion(service=parsed.service, port=parsed.port, node=node, zone=zone)


def explain_xds(
    question: XdsQuestion,
    service: Service,
    slices: Iterable[EndpointSlice],
    nodes: tuple[Node, ...] | None,
) -> XdsTraceAnswer:
    """*slices*: of the Service; *nodes*: ``None`` if listing them is forbidden.  Raises
    ``Unanswerable``.
    """
    names = {node.metadata.name for node in nodes or ()}
    if nodes is not None and question.node and question.node not in names:
        raise Unanswerable(no_such("Node", question.node, names))
    read = sorted(slices, key=lambda item: item.metadata.name)
    catalog = catalog_of([service], read, nodes or (), "trace")
    return _Trace(question, service, read, catalog, nodes).answer()


class _Trace:
    def __init__(
        self,
        question: XdsQuestion,
        service: Service,
        slices: list[EndpointSlice],
        catalog: XdsCatalog,
        nodes: tuple[Node, ...] | None,
    ) -> None:
        self._question = question
        self._service = service
        self._slices = slices
        self._nodes = nodes
        self._served = catalog.services[question.service]
        self._settings = self._port()
        self._view: XdsView = catalog.view(
            XdsClient(kind="grpc", node=question.node, zone=question.zone)
        )
        resource = self._view.get(ASSIGNMENT, str(self._settings.key))
        endpoints = self._view.endpoints(str(self._settings.key))
        assert resource is not None, "each port has an assignment"
        assert endpoints is not None, "and endpoints"
        self._endpoints: PortEndpoints = endpoints
        self._version = resource.version
        #: (address, port) that the client receives -> True if sent as draining
        self._received = draining_by_endpoint(resource.body)
        self._choice: Choice[NodeEndpoint] = endpoints.choice(self._view.location)

    def _port(self) -> PortSettings:
        settings = self._served.resolve_port(self._question.port)
        if settings is not None:
            return settings
        key = self._question.service
        names = some(
            [f"{port.key.port} ({port.number})" for port in self._served.settings.values()],
            CHOICES_MAX,
        )
        if not names:
            raise Unanswerable(
                f"xDS serves TCP ports of Services but ExternalName, and Service {key} has none"
            )
        which = (
            f"no TCP port {self._question.port}; it has"
            if self._question.port
            else "several ports, name one:"
        )
        raise Unanswerable(f"Service {key} has {which} {names}")

    @property
    def _name(self) -> ServicePortName:
        return ServicePortName(self._settings.key.service, self._settings.slice_port, "TCP")

    def answer(self) -> XdsTraceAnswer:
        rows = list(self._rows())
        targets = tuple(row for row in rows if row.share != "0")
        location = self._view.location
        policy = self._choice.policy
        spec = self._service.spec
        return XdsTraceAnswer(
            verdict="picks" if targets else "fails",
            reason=self._reason(len(targets)),
            client=XdsClientView(node=location.node, zone=location.zone, region=location.region),
            cluster=str(self._settings.key),
            version=self._version,
            service=TracedService(
                namespace=self._settings.key.service.namespace,
                name=self._settings.key.service.name,
                type=spec.type,
                port_name=self._settings.slice_port,
                port=self._settings.number,
                protocol="TCP",
                role="xDS cluster",
                policy_field=_FIELD,
                policy=policy,
                used=policy,
                traffic_distribution=spec.traffic_distribution or "",
            ),
            balancing=_balancing(self._settings),
            hints=self._hints(),
            load=self._load(),
            targets=targets,
            others=(*(row for row in rows if row.share == "0"), *self._hidden()),
            slices=tuple(self._traced_slices()),
            notes=tuple(self._notes()),
        )

    def _reason(self, count: int) -> str:
        if count:
            return reasons.translated(self._name, self._choice.policy, count)
        if self._settings.is_local and not self._view.location.node:
            return (
                f"{_FIELD} of Service {self._name.service} is Local, and the node of the client "
                "is not known"
            )
        listed = sum(len(item.endpoints or ()) for item in self._slices)
        elsewhere = self._settings.is_local and any(source.ready for source in self._sources())
        return reasons.unusable(self._name, self._choice.policy, _FIELD, listed, has_any=elsewhere)

    def _sources(self) -> list[NodeEndpoint]:
        return self._endpoints.sources(self._view.location)

    def _load(self) -> LoadView | None:
        if self._settings.is_local:
            return None
        return load_view(self._service, self._slices, self._settings.families[0], self._nodes or ())

    def _hints(self) -> HintsView | None:
        use = self._choice.hints
        sources = self._sources()
        if not sources:
            return None
        if use is None:
            return HintsView(sentence=f"not looked at: {_FIELD} is Local")
        return HintsView(
            node=use.node, zone=use.zone, sentence=reasons.hints(use, sources, self._choice)
        )

    def _rows(self) -> Iterator[TracedEndpoint]:
        """Yields every endpoint that counts, by id."""
        drawn = sum(not draining for draining in self._received.values())
        for (endpoint, other), source in zip(
            self._endpoints.endpoints(), self._sources(), strict=True
        ):
            why = reasons.of_endpoint(source, self._choice, _FIELD)
            draining = self._received.get((endpoint.address, endpoint.port))
            if draining:
                why += "; sent as draining, for sessions that stick to it"
            elif draining is None and source in self._choice.endpoints:
                why += "; left out, for a client takes no more in one message"
            if other is not None:
                why += f"; also at {joined(other.address, other.port)}"
            share = Fraction(1, drawn) if draining is False else Fraction(0)
            yield _row(
                endpoint,
                reasons.name_of(self._endpoints.slice_of(endpoint)),
                why,
                share,
                source.is_local,
            )

    def _hidden(self) -> Iterator[TracedEndpoint]:
        """Yields the endpoints that no client receives: overridden by another slice, or without a
        usable address.
        """
        where: dict[str, str] = {}
        for endpoint, other in self._endpoints.endpoints():
            for entry in (endpoint, *((other,) if other is not None else ())):
                where[entry.authority] = where[entry.id] = reasons.name_of(
                    self._endpoints.slice_of(entry)
                )
        for item in self._slices:
            number, problem = self._number(item)
            if problem or self._why_unread(item):
                continue
            for source in item.endpoints or ():
                address = _address(source, item)
                uid = source.target_ref.uid if source.target_ref is not None else ""
                at = where.get(joined(address, number)) or where.get(uid, "")
                if at == item.metadata.name:
                    continue
                why = (
                    f"the same Pod or address in slice {at} counts"
                    if at
                    else "no address that every client could use"
                )
                yield _row(endpoint_of(source, address, number), item.metadata.name, why)

    def _number(self, item: EndpointSlice) -> tuple[int, str]:
        return PortChoice(self._settings.slice_port).of(item.ports or ())

    def _why_unread(self, item: EndpointSlice) -> str:
        labels = item.metadata.labels or {}
        if item.address_type not in FAMILIES:
            return f"its addresses are {item.address_type}s"
        if not self._served.audience(self._view.location).reads(item):
            subsets = [
                f"{label}={labels[label]}"
                for label in (LABEL_FOR_ZONE, LABEL_FOR_REGION)
                if label in labels
            ]
            return f"for others: {', '.join(subsets)}"
        if item.address_type not in self._settings.families:
            return f"the Service has no {item.address_type}"
        return reasons.lacks_port(self._name, item.ports or ()) if self._number(item)[1] else ""

    def _traced_slices(self) -> Iterator[TracedSlice]:
        for item in self._slices:
            yield TracedSlice(
                name=item.metadata.name,
                address_type=item.address_type,
                endpoints=len(item.endpoints or ()),
                why=self._why_unread(item),
            )

    def _notes(self) -> Iterator[str]:
        if self._nodes is None:
            yield "Nodes may not be listed: the client names its zone, and no region is known"
        for problem in self._served.problems:
            yield f"ignored: {problem}"
        if self._settings.requests_max < UNLIMITED:
            yield f"a client fails what is more than {self._settings.requests_max} requests at once"
        if self._settings.is_sticky:
            yield "sessionAffinity: while the endpoint is there; its timeout has no counterpart"


def _balancing(settings: PortSettings) -> str:
    if settings.hashes:
        how = settings.policy or "maglev for Envoy, ring-hash for gRPC"
        return f"{how}: by the source address (Envoy), or one for each channel (gRPC)"
    return settings.policy or "round-robin"


def _address(source: SliceEndpoint, item: EndpointSlice) -> str:
    text = source.addresses[0] if source.addresses else ""
    family = next(candidate for candidate in FAMILIES if candidate == item.address_type)
    return canonical_of(text, family) or text


def _row(
    endpoint: Endpoint,
    slice_name: str,
    why: str,
    share: Fraction = Fraction(0),
    local: bool = False,
) -> TracedEndpoint:
    return TracedEndpoint(
        address=endpoint.address,
        port=endpoint.port,
        share=str(share),
        probability=round(float(share), 6),
        slice=slice_name,
        node=endpoint.node,
        zone=endpoint.zone,
        zone_hints=endpoint.zone_hints,
        node_hints=endpoint.node_hints,
        ready=endpoint.ready,
        serving=endpoint.serving,
        terminating=endpoint.terminating,
        local=local,
        pod=endpoint.pod,
        why=why,
    )


def as_text(answer: XdsTraceAnswer, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are not wrapped."""
    return laid_out(_lines(answer, width), width)


def _lines(answer: XdsTraceAnswer, width: int | None) -> Iterator[str]:
    yield fact("verdict", f"{answer.verdict}: {answer.reason}")
    client = answer.client
    at = [
        f"{kind} {name}"
        for kind, name in (("node", client.node), ("zone", client.zone), ("region", client.region))
    ]
    parts = [text for text in at if not text.endswith(" ")]
    yield fact("client", ", ".join(parts) or "at an unknown location")
    yield fact("cluster", f"{answer.cluster}, version {answer.version}")
    yield fact("policy", f"{answer.service.policy_field} {answer.service.policy}")
    if answer.hints is not None:
        distribution = answer.service.traffic_distribution
        yield fact(
            "hints",
            answer.hints.sentence
            + (f" (trafficDistribution {distribution})" if distribution else ""),
        )
    yield fact("balancing", answer.balancing)
    for number, note in enumerate(answer.notes):
        yield fact("" if number else "notes", note)
    yield from endpoint_tables(answer, width)
