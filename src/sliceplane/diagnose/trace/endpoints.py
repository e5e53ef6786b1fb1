"""Every endpoint and slice of the Service that decided, with its use and the reason."""

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
    """Returns the targets of a translated packet, with the verdict there."""
    if decision.state is None:
        return ()
    ways: dict[tuple[str, int], list[Trail]] = {}
    for trail in decision.run.trails:
        if trail.packet.dnat:
            ways.setdefault((trail.packet.daddr, trail.packet.dport), []).append(trail)
    rows = []
    for origin in decision.origins:
        trails = ways.pop((origin.endpoint.ip, origin.endpoint.port), [])
        if trails:
            rows.append(_target(decision, origin, trails))
    assert not ways, f"the packet goes to {sorted(ways)}, which no slice has"
    return tuple(rows)


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
    """Returns the endpoints that get no connection: those that the model excluded, then those that
    another slice overrides.
    """
    tracker = decision.run.plane.tracker
    name = state.port.name
    rows = []
    usable = {(endpoint.ip, endpoint.port) for endpoint in decision.choice.endpoints}
    winners: dict[tuple[str, int], EndpointOrigin] = {}
    for origin in decision.origins:
        key = (origin.endpoint.ip, origin.endpoint.port)
        winners[key] = origin
        if key not in chosen:
            why = reasons.of_endpoint(origin.endpoint, decision.choice, decision.policy_field)
            rows.append(_view(origin, _REFUSED if key in usable else why))
    for slice_key in tracker.slices(name.service):
        for origin in tracker.origins(name.service, slice_key).get(name, []):
            winner = winners[origin.endpoint.ip, origin.endpoint.port]
            if winner.slice != slice_key:
                rows.append(
                    _view(
                        origin, f"the same address in slice {reasons.name_of(winner.slice)} counts"
                    )
                )
    return tuple(rows)


def slices(decision: PacketDecision) -> tuple[TracedSlice, ...]:
    """Returns the slices of the Service, except those of the other IP family."""
    if decision.state is None:
        return ()
    family = decision.inquiry.flight.family
    name = decision.state.port.name
    tracker = decision.run.plane.tracker
    rows = []
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
        rows.append(
            TracedSlice(
                name=endpoint_slice.metadata.name,
                address_type=endpoint_slice.address_type,
                endpoints=len(endpoint_slice.endpoints or ()),
                why=why,
            )
        )
    return tuple(rows)


def _view(
    origin: EndpointOrigin,
    why: str,
    *,
    share: str = "0",
    probability: float = 0.0,
    verdict: Verdict | None = None,
    masquerade: bool = False,
) -> TracedEndpoint:
    endpoint = origin.endpoint
    source = origin.source
    target = source.target_ref
    return TracedEndpoint(
        address=endpoint.ip,
        port=endpoint.port,
        share=share,
        probability=probability,
        verdict=verdict,
        masquerade=masquerade,
        slice=reasons.name_of(origin.slice),
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
