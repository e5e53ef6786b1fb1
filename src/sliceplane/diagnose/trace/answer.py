"""The answer as data: the document of ``--output json``, with stable names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.consume.usable import Policy

Verdict = Literal["dnat", "accept", "reject", "drop"]


class AnswerPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the document."""


class SourceView(AnswerPart, frozen=True, kw_only=True):
    """``kind``: Pod, Node, or other; a Pod's name is ``namespace/name``."""

    address: str
    kind: str
    name: str = ""


class DestinationView(AnswerPart, frozen=True, kw_only=True):
    """``is_``: the roles of the address in the cluster, a phrase each."""

    address: str
    port: int
    protocol: str
    is_: tuple[str, ...] = msgspec.field(name="is", default=())


class NodeView(AnswerPart, frozen=True, kw_only=True):
    name: str
    zone: str = ""


class TracedService(AnswerPart, frozen=True, kw_only=True):
    """``role``: the role of the destination for the Service. ``policy`` is the value of
    ``policy_field``; ``used`` is the list of endpoints that was applied, which for a client on the
    node is Cluster even with ``externalTrafficPolicy: Local``.
    """

    namespace: str
    name: str
    type: str
    port_name: str
    port: int
    protocol: str
    node_port: int = 0
    role: str
    policy_field: Literal["internalTrafficPolicy", "externalTrafficPolicy"]
    policy: Policy
    used: Policy
    session_affinity_seconds: int = 0
    traffic_distribution: str = ""


class HintsView(AnswerPart, frozen=True, kw_only=True):
    """``node`` and ``zone`` are values of ``consume.usable.HintOutcome``; "": hints were not
    considered.
    """

    node: str = ""
    zone: str = ""
    sentence: str


class TracedEndpoint(AnswerPart, frozen=True, kw_only=True):
    """``share`` is exact ("1/3", "0" if it gets nothing) and ``probability`` the same as a
    number.
    """

    address: str
    port: int
    share: str = "0"
    probability: float = 0.0
    verdict: Verdict | None = None
    masquerade: bool = False
    slice: str = ""
    node: str = ""
    zone: str = ""
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    local: bool = False
    pod: str = ""
    why: str = ""


class TracedSlice(AnswerPart, frozen=True, kw_only=True):
    """``why``: why the slice does not count for this service port; "": it counts."""

    name: str
    address_type: str
    endpoints: int
    why: str = ""


class LoadView(AnswerPart, frozen=True, kw_only=True):
    """The load of zones with hints of ``value``. ``demand``: the part of the connections that start in
    each zone, by ``origin``. ``loads``: the greatest of an endpoint in a zone, in multiples of an even
    share, with the hints of the slices, those that the value asks for, and ``PreferSameZone``.
    ``problem``: the reason why the value gives no hints.
    """

    value: str
    origin: str
    problem: str = ""
    demand: Mapping[str, float]
    endpoints: Mapping[str, int]
    loads: Mapping[str, Mapping[str, float]]


class TraceAnswer(AnswerPart, frozen=True, kw_only=True):
    """``targets`` get the connection, ``others`` are the rest of the Service's endpoints;
    ``chains`` are the decisive chains of the node's table, ``element`` is the decisive element if
    no chain is needed (one endpoint). ``findings``: the cause of a refusal, if the catalogue has
    it.
    """

    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...] = ()
    source: SourceView
    destination: DestinationView
    node: NodeView
    service: TracedService | None = None
    hints: HintsView | None = None
    load: LoadView | None = None
    masquerade: str = "no"
    targets: tuple[TracedEndpoint, ...] = ()
    others: tuple[TracedEndpoint, ...] = ()
    slices: tuple[TracedSlice, ...] = ()
    chains: tuple[str, ...] = ()
    element: str = ""
    notes: tuple[str, ...] = ()

    @property
    def arrives(self) -> bool:
        """Returns True if the packet passes, whichever target is chosen."""
        refused = any(target.verdict in {"drop", "reject"} for target in self.targets)
        return self.verdict in {"dnat", "accept"} and not refused

    def as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return {**document, "findings": [finding.as_document() for finding in self.findings]}


class XdsClientView(AnswerPart, frozen=True, kw_only=True):
    """The location of the client; "": unknown."""

    node: str = ""
    zone: str = ""
    region: str = ""


class XdsTraceAnswer(AnswerPart, frozen=True, kw_only=True):
    """The endpoints that an xDS client receives for a port of a Service, and picks. ``cluster``:
    the name of its assignment; ``balancing``: how one of ``targets`` is picked; ``version``: of the
    assignment.
    """

    verdict: Literal["picks", "fails"]
    reason: str
    client: XdsClientView
    cluster: str
    version: str
    service: TracedService
    balancing: str
    hints: HintsView | None = None
    load: LoadView | None = None
    targets: tuple[TracedEndpoint, ...] = ()
    others: tuple[TracedEndpoint, ...] = ()
    slices: tuple[TracedSlice, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def arrives(self) -> bool:
        return self.verdict == "picks"

    def as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document
