"""Builds the answer from the model's state and ``decision.PacketDecision``.

The reason why a packet does not arrive is a finding of the catalogue, if the tracer has read enough
to name one. It reads Services and slices, not Pods: ``sliceplane explain`` reports why a Service
has no usable endpoint.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sliceplane.api.findings.finding import Finding
from sliceplane.consume.model import ServiceKey
from sliceplane.diagnose.explain.case import ServiceCase
from sliceplane.diagnose.explain.checks.policies import dropped_from_outside, internal_local
from sliceplane.diagnose.explain.checks.services import no_such_port
from sliceplane.diagnose.explain.checks.serving import claimed_twice, source_ranges
from sliceplane.diagnose.explain.facts import Facts
from sliceplane.diagnose.explain.objects import NODES, SERVICES, SLICES
from sliceplane.diagnose.explain.question import ClientReference, ExplainQuestion
from sliceplane.diagnose.trace import endpoints, reasons
from sliceplane.diagnose.trace.answer import (
    DestinationView,
    HintsView,
    LoadView,
    NodeView,
    SourceView,
    TraceAnswer,
    TracedEndpoint,
    TracedService,
)
from sliceplane.diagnose.trace.decision import PacketDecision
from sliceplane.diagnose.trace.inquiry import Inquiry
from sliceplane.diagnose.trace.zones import load_view
from sliceplane.node.nft.layout import CLUSTER_IPS_CHECK

#: the check that yields the finding of each code
_CHECKS: Final = {
    "S2": no_such_port,
    "S3": no_such_port,
    "S7": claimed_twice,
    "S9": source_ranges,
    "X1": internal_local,
    "X2": dropped_from_outside,
}


def causes(decision: PacketDecision) -> tuple[Finding, ...]:
    """Returns the finding that explains a refused packet, as ``sliceplane explain`` words it; at
    most one.
    """
    cause = _cause(decision)
    if cause is None:
        return ()
    code, key = cause
    case = _case(decision, key, of_address=code == "S9")
    return tuple(finding for finding in _CHECKS[code](case) if finding.code == code)[:1]


def _cause(decision: PacketDecision) -> tuple[str, ServiceKey] | None:
    """Returns the code of the refusal, and the Service concerned."""
    packet = decision.inquiry.flight.packet
    if decision.state is None:
        if decision.check == CLUSTER_IPS_CHECK:
            ports = [
                other.port for other in decision.states if other.port.cluster_ip == packet.daddr
            ]
            code = "S3" if any(port.port == packet.dport for port in ports) else "S2"
            return (code, ports[0].name.service) if ports else None
        lost = [key for key, why in decision.refusals.items() if why.why == "other Service"]
        return ("S7", lost[0]) if lost else None
    service = decision.state.port.name.service
    if decision.check in decision.owners:
        return "S9", service
    if decision.check and decision.state.categories.has_any:
        return "X1" if decision.policy_field == "internalTrafficPolicy" else "X2", service
    return None


def _case(decision: PacketDecision, key: ServiceKey, *, of_address: bool) -> ServiceCase:
    """Returns the Service as a case of ``sliceplane explain``, with the sender or the node as
    client. Its slices lack managedFields, which these checks do not use.
    """
    flight, cluster = decision.inquiry.flight, decision.inquiry.cluster
    facts = Facts(0.0)
    for readable, objects in (
        (SERVICES, cluster.services),
        (NODES, cluster.nodes),
        (SLICES, decision.inquiry.slices(key)),
    ):
        facts.take(readable.everywhere(), objects)
    client = (
        ClientReference("address", flight.packet.saddr)
        if of_address
        else ClientReference("node", flight.node.metadata.name)
    )
    question = ExplainQuestion(
        "service",
        key.name,
        key.namespace,
        str(flight.packet.dport),
        flight.packet.proto.upper(),
        client,
    )
    return ServiceCase(facts, question, key.namespace, key.name)


def explain(inquiry: Inquiry) -> TraceAnswer:
    """Returns the answer to *inquiry*, which has all the slices that it needs."""
    return _answer(PacketDecision(inquiry, inquiry.run()))


def _answer(decision: PacketDecision) -> TraceAnswer:
    flight = decision.inquiry.flight
    packet = decision.inquiry.flight.packet
    targets = endpoints.targets(decision)
    others: tuple[TracedEndpoint, ...] = ()
    if decision.state is not None:
        others = endpoints.others(
            decision, decision.state, {(target.address, target.port) for target in targets}
        )
    decisive = (decision.check,) if decision.check and decision.check not in decision.chains else ()
    return TraceAnswer(
        verdict=decision.verdict,
        reason=_reason(decision, len(targets)),
        findings=causes(decision),
        source=SourceView(address=packet.saddr, kind=flight.source_kind, name=flight.source_name),
        destination=DestinationView(
            address=packet.daddr,
            port=packet.dport,
            protocol=packet.proto.upper(),
            is_=decision.inquiry.cluster.roles(packet.daddr, packet.dport),
        ),
        node=NodeView(
            name=flight.node.metadata.name, zone=decision.run.plane.tracker.locality.zone
        ),
        service=_service_view(decision),
        hints=_hints(decision),
        load=_load(decision),
        masquerade=_masquerade(decision, targets),
        targets=targets,
        others=others,
        slices=endpoints.slices(decision),
        chains=(*decision.chains, *decisive),
        element=decision.element,
        notes=_notes(decision, targets),
    )


def _reason(decision: PacketDecision, count: int) -> str:
    cluster = decision.inquiry.cluster
    packet = decision.inquiry.flight.packet
    if decision.state is None:
        if decision.check == CLUSTER_IPS_CHECK:
            ports = [
                state.port for state in decision.states if state.port.cluster_ip == packet.daddr
            ]
            return reasons.no_such_port(packet, ports, cluster.range_of(packet.daddr))
        for key, refusal in decision.refusals.items():
            return reasons.refused(key, refusal)
        return reasons.untouched(packet, cluster.roles(packet.daddr, packet.dport))
    if decision.check in decision.owners:
        return reasons.out_of_ranges(packet, decision.state.port)
    if decision.check:
        listed = sum(
            len(endpoint_slice.endpoints or ())
            for endpoint_slice in decision.inquiry.slices(decision.state.port.name.service)
        )
        has_any = decision.state.categories.has_any
        return reasons.unusable(
            decision.state.port.name, decision.used, decision.policy_field, listed, has_any=has_any
        )
    sentence = reasons.translated(decision.state.port.name, decision.used, count)
    return sentence if decision.verdict == "dnat" else f"{sentence}, and each is refused there"


def _service_view(decision: PacketDecision) -> TracedService | None:
    if decision.state is None:
        return None
    port = decision.state.port
    spec = decision.inquiry.cluster.by_key[port.name.service].spec
    return TracedService(
        namespace=port.name.service.namespace,
        name=port.name.service.name,
        type=spec.type,
        port_name=port.name.port,
        port=port.port,
        protocol=port.name.protocol,
        node_port=port.node_port,
        role=decision.role,
        policy_field=decision.policy_field,
        policy="Local" if decision.is_local else "Cluster",
        used=decision.used,
        session_affinity_seconds=port.affinity_timeout_s,
        traffic_distribution=spec.traffic_distribution or "",
    )


def _hints(decision: PacketDecision) -> HintsView | None:
    if decision.state is None or not decision.origins:
        return None
    use = decision.choice.hints
    if use is None:
        return HintsView(sentence=f"not looked at: {decision.policy_field} is Local")
    candidates = [origin.endpoint for origin in decision.origins]
    return HintsView(
        node=use.node, zone=use.zone, sentence=reasons.hints(use, candidates, decision.choice)
    )


def _load(decision: PacketDecision) -> LoadView | None:
    if decision.state is None or decision.used == "Local":
        return None
    key = decision.state.port.name.service
    inquiry = decision.inquiry
    cluster = inquiry.cluster
    return load_view(cluster.by_key[key], inquiry.slices(key), inquiry.flight.family, cluster.nodes)


def _masquerade(decision: PacketDecision, targets: tuple[TracedEndpoint, ...]) -> str:
    if not any(target.masquerade for target in targets):
        return "no"
    source = decision.inquiry.flight.packet.saddr
    if all(target.address == source for target in targets if target.masquerade):
        return f"only towards {source}: an endpoint that calls itself"
    assert decision.state is not None, "a translated packet has a Service"
    if decision.role != "cluster IP":
        return "yes: it came to an address for clients outside" + (
            ", from the node itself" if decision.state.port.external_local else ""
        )
    if decision.inquiry.settings.rules.masquerade_all:
        return "yes: --masquerade-all"
    return f"yes: {source} is no Pod of this node (--detect-local-mode)"


def _notes(decision: PacketDecision, targets: tuple[TracedEndpoint, ...]) -> tuple[str, ...]:
    notes = list(decision.inquiry.flight.notes)
    notes += [f"not looked at: {sentence}" for sentence in decision.inquiry.cluster.unread]
    refused = [reasons.refused(key, refusal) for key, refusal in decision.refusals.items()]
    if decision.state is None:
        return (*notes, *refused[1:])  # the first is the reason
    service = decision.state.port.name.service
    if (
        decision.check
        and not decision.state.categories.has_any
        and decision.check not in decision.owners
    ):
        notes.append(
            f"why it has none: sliceplane explain service {service.name} -n {service.namespace}"
        )
    if targets and decision.is_local and decision.used == "Cluster":
        notes.append(
            "externalTrafficPolicy Local is for clients outside: those on this node may use every "
            "endpoint"
        )
    if (
        decision.role == "cluster IP"
        and decision.run.plane.facts.detector is None
        and not decision.inquiry.settings.rules.masquerade_all
        and decision.inquiry.flight.source_kind != "Pod"
    ):
        notes.append(
            "without --cluster-cidr Pods cannot be told from clients outside, and neither is "
            "masqueraded"
        )
    lost = sum(Fraction(target.share) for target in targets if target.verdict != "dnat")
    if lost:
        notes.append(f"{lost} of the connections are refused after the translation")
    excess = decision.run.plane.tracker.excess(service)
    if any(excess):
        notes.append(f"Service {service} is beyond the bounds: {excess}")
    return (*notes, *refused)
