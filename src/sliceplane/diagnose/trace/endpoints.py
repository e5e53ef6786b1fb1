"""Every endpoint and slice of the Service that decided, with what becomes of it and why."""

from __future__ import annotations

from fractions import Fraction

from sliceplane.consume.model import PortState
from sliceplane.consume.slicecache import EndpointOrigin
from sliceplane.diagnose.trace import reasons
from sliceplane.diagnose.trace.answer import TracedEndpoint, TracedSlice, Verdict
from sliceplane.diagnose.trace.decision import PacketDecision
from sliceplane.node.nft.trace import Trail

_REFUSED = "would be used, but the packet is refused before"


def targets(decision: PacketDecision) -> tuple[TracedEndpoint, ...]:
    """Where a translated packet may go, with what becomes of it there."""
    if decision.state is None:
        return ()
    ways: dict[tuple[str, int], list[Trail]] = {}
    for trail in decision.run.trails:
        if trail.packet.dnat:
            ways.setdefault((trail.packet.daddr, trail.packet.dport), []).append(trail)
    made = []
    for origin in decision.origins:
        trails = ways.pop((origin.endpoint.ip, origin.endpoint.port), [])
        if trails:
            made.append(_target(decision, origin, trails))
    assert not ways, f"the packet goes to {sorted(ways)}, which no slice has"
    return tuple(made)


def _target(
    decision: PacketDecision, origin: EndpointOrigin, trails: list[Trail]
) -> TracedEndpoint:
    assert decision.state is not None, "no Service decided"
    share = sum((trail.share for trail in trails), Fraction(0))
    outcome = trails[0].outcome
    why = reasons.of_endpoint(origin.endpoint, decision.choice, decision.policy_field)
    if outcome.verdict != "accept":
        is_also = decision.inquiry.cluster.roles(origin.endpoint.ip, origin.endpoint.port)
        why = f"{why}; but {origin.endpoint.ip} is itself {' and '.join(is_also)}"
    return _view(
        origin,
        why,
        share=str(share),
        probability=round(float(share), 6),
        verdict="dnat" if outcome.verdict == "accept" else outcome.verdict,
        masquerade=outcome.masquerade,
    )


def others(
    decision: PacketDecision, state: PortState, chosen: set[tuple[str, int]]
) -> tuple[TracedEndpoint, ...]:
    """The endpoints that get nothing: those that the model left out, then those that another slice
    knows better.
    """
    tracker = decision.run.plane.tracker
    name = state.port.name
    made = []
    usable = {(endpoint.ip, endpoint.port) for endpoint in decision.choice.endpoints}
    winners: dict[tuple[str, int], EndpointOrigin] = {}
    for origin in decision.origins:
        key = (origin.endpoint.ip, origin.endpoint.port)
        winners[key] = origin
        if key not in chosen:
            why = reasons.of_endpoint(origin.endpoint, decision.choice, decision.policy_field)
            made.append(_view(origin, _REFUSED if key in usable else why))
    for slice_key in tracker.slices(name.service):
        for origin in tracker.origins(name.service, slice_key).get(name, []):
            winner = winners[origin.endpoint.ip, origin.endpoint.port]
            if winner.slice != slice_key:
                made.append(
                    _view(
                        origin, f"the same address in slice {reasons.name_of(winner.slice)} counts"
                    )
                )
    return tuple(made)


def slices(decision: PacketDecision) -> tuple[TracedSlice, ...]:
    """The slices of the Service, but those of the other IP family."""
    if decision.state is None:
        return ()
    family = decision.inquiry.flight.family
    name = decision.state.port.name
    tracker = decision.run.plane.tracker
    made = []
    for endpoint_slice in decision.inquiry.slices(name.service):
        if (
            endpoint_slice.address_type in {"IPv4", "IPv6"}
            and endpoint_slice.address_type != family
        ):
            continue
        why = decision.inquiry.why_unread(endpoint_slice)
        if not why and endpoint_slice.address_type != family:
            why = f"its addresses are {endpoint_slice.address_type}s"
        if not why and name not in tracker.origins(name.service, endpoint_slice.metadata.key):
            why = reasons.lacks_port(name, endpoint_slice.ports or ())
        made.append(
            TracedSlice(
                name=endpoint_slice.metadata.name,
                address_type=endpoint_slice.address_type,
                endpoints=len(endpoint_slice.endpoints or ()),
                why=why,
            )
        )
    return tuple(made)


def _view(
    found: EndpointOrigin,
    why: str,
    *,
    share: str = "0",
    probability: float = 0.0,
    verdict: Verdict | None = None,
    masquerade: bool = False,
) -> TracedEndpoint:
    endpoint = found.endpoint
    source = found.source
    target = source.target_ref
    return TracedEndpoint(
        address=endpoint.ip,
        port=endpoint.port,
        share=share,
        probability=probability,
        verdict=verdict,
        masquerade=masquerade,
        slice=reasons.name_of(found.slice),
        node=source.node_name or "",
        zone=source.zone or "",
        zone_hints=endpoint.zone_hints,
        node_hints=endpoint.node_hints,
        ready=endpoint.ready,
        serving=endpoint.serving,
        terminating=endpoint.terminating,
        local=endpoint.is_local,
        pod=target.name if target is not None and target.kind == "Pod" else "",
        why=why,
    )
