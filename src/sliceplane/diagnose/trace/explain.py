"""From what decided to the answer. Everything is looked up in what the model made, and in
``decision.PacketDecision``.

Why a packet does not arrive is told as a finding of the catalogue, where what the tracer reads
suffices to name one. It reads Services and slices, not Pods: why a Service has no usable endpoint
is ``sliceplane explain``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from sliceplane.api.findings.codes import cause_of
from sliceplane.api.findings.finding import Evidence, Finding, ObjectName
from sliceplane.consume.model import ServiceKey
from sliceplane.diagnose.trace import endpoints, reasons
from sliceplane.diagnose.trace.answer import (
    DestinationView,
    HintsView,
    NodeView,
    SourceView,
    TraceAnswer,
    TracedEndpoint,
    TracedService,
)
from sliceplane.diagnose.trace.decision import PacketDecision
from sliceplane.diagnose.trace.inquiry import Inquiry
from sliceplane.node.nft.layout import CLUSTER_IPS_CHECK


def causes(decision: PacketDecision, reason: str) -> Iterator[Finding]:
    """At most one; *reason* is the answer's sentence."""
    state = decision.state
    packet = decision.inquiry.flight.packet
    if state is None:
        if decision.check == CLUSTER_IPS_CHECK:
            there = [
                other.port for other in decision.states if other.port.cluster_ip == packet.daddr
            ]
            code = "S3" if any(port.port == packet.dport for port in there) else "S2"
            if there:
                ports = ", ".join(f"{port.port}/{port.name.protocol}" for port in there)
                yield _finding(code, there[0].name.service, reason, "spec.ports", ports)
            return
        for key in [
            key for key, refusal in decision.refusals.items() if refusal.why == "other Service"
        ][:1]:
            yield _finding(
                "S7", key, reason, "spec.ports", f"{packet.dport}/{packet.proto.upper()}"
            )
        return
    service = state.port.name.service
    if decision.check in decision.owners:
        ranges = ", ".join(map(str, state.port.source_ranges))
        yield _finding("S9", service, reason, "spec.loadBalancerSourceRanges", ranges)
    elif decision.check and state.categories.has_any:
        code = "X1" if decision.policy_field == "internalTrafficPolicy" else "X2"
        yield _finding(code, service, reason, f"spec.{decision.policy_field}", "Local")


def _finding(code: str, service: ServiceKey, sentence: str, field: str, value: str) -> Finding:
    subject = ObjectName("services", "Service", service.namespace, service.name)
    return Finding(
        code=code,
        subject=subject,
        sentence=sentence,
        evidence=(Evidence(subject=subject, field=field, value=value),),
        remedy=cause_of(code).remedy,
    )


def explain(inquiry: Inquiry) -> TraceAnswer:
    """The answer to *inquiry*, for which everything that it wanted was read."""
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
    reason = _reason(decision, len(targets))
    return TraceAnswer(
        verdict=decision.verdict,
        reason=reason,
        findings=tuple(causes(decision, reason)),
        source=SourceView(address=packet.saddr, kind=flight.source_kind, name=flight.source_name),
        destination=DestinationView(
            address=packet.daddr,
            port=packet.dport,
            protocol=packet.proto.upper(),
            is_=decision.inquiry.cluster.roles(packet.daddr, packet.dport),
        ),
        node=NodeView(name=flight.node.metadata.name, zone=decision.run.plane.tracker.place.zone),
        service=_service_view(decision),
        hints=_hints(decision),
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
    endpoints_there = [origin.endpoint for origin in decision.origins]
    return HintsView(
        node=use.node, zone=use.zone, sentence=reasons.hints(use, endpoints_there, decision.choice)
    )


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
            "without --cluster-cidr Pods are not told from clients outside, and neither is "
            "masqueraded"
        )
    lost = sum(Fraction(target.share) for target in targets if target.verdict != "dnat")
    if lost:
        notes.append(f"{lost} of the connections are refused after the translation")
    excess = decision.run.plane.tracker.excess(service)
    if any(excess):
        notes.append(f"Service {service} is beyond the bounds: {excess}")
    return (*notes, *refused)
