"""Why a packet does not arrive, as a finding of the catalogue, where what the tracer reads suffices to name one.

It reads Services and slices, not Pods: why a Service has no usable endpoint is ``sliceplane explain``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.findings.codes import cause_of
from sliceplane.findings.finding import Evidence, Finding, ObjectName
from sliceplane.nft.layout import CLUSTER_IPS_CHECK
from sliceplane.proxy.model import ServiceKey
from sliceplane.tracer.decision import PacketDecision


def causes(decision: PacketDecision, reason: str) -> Iterator[Finding]:
    """At most one; *reason* is the answer's sentence."""
    state = decision.state
    packet = decision.inquiry.flight.packet
    if state is None:
        if decision.check == CLUSTER_IPS_CHECK:
            there = [other.port for other in decision.states if other.port.cluster_ip == packet.daddr]
            code = "S3" if any(port.port == packet.dport for port in there) else "S2"
            if there:
                ports = ", ".join(f"{port.port}/{port.name.protocol}" for port in there)
                yield _finding(code, there[0].name.service, reason, "spec.ports", ports)
            return
        for key in [key for key, refusal in decision.refusals.items() if refusal.why == "other Service"][:1]:
            yield _finding("S7", key, reason, "spec.ports", f"{packet.dport}/{packet.proto.upper()}")
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
