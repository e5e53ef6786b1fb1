"""From the ways that a packet may go to the answer: which Service, which list of endpoints, and why those.

Everything is looked up in what the model made.  Which service port decided is told by the chains that the packet
entered (or by the element that refused it), which list counted by their kind, and what became of hints by
``Categories.hints``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from sliceplane.nft.build import build_service
from sliceplane.nft.layout import (
    CLUSTER_IPS_CHECK,
    ENDPOINTS_CHECK,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINTS,
    NODE_PORTS_CHECK,
    REJECT_CHAIN,
)
from sliceplane.nft.trace import Trail
from sliceplane.proxy.model import Endpoint, PortState
from sliceplane.proxy.slicecache import Found
from sliceplane.tracer import reasons
from sliceplane.tracer.answer import (
    Answer,
    DestinationView,
    EndpointView,
    HintsView,
    NodeView,
    Policy,
    ServiceView,
    SliceView,
    SourceView,
    Verdict,
)
from sliceplane.tracer.cluster import role_of
from sliceplane.tracer.inquiry import Inquiry, Run

#: the checks for Services without endpoints, and where they look
_REFUSED = {ENDPOINTS_CHECK: NO_ENDPOINTS.name, NODE_PORTS_CHECK: NO_ENDPOINT_NODE_PORTS.name}


def explain(inquiry: Inquiry) -> Answer:
    """The answer to *inquiry*, for which everything that it wanted was read."""
    return _Explanation(inquiry, inquiry.run()).answer()


@dataclass(frozen=True)
class _Explanation:
    inquiry: Inquiry
    run: Run

    # What decided

    @cached_property
    def _states(self) -> tuple[PortState, ...]:
        tracker = self.run.plane.tracker
        return tuple(state for key in tracker.services() for state in tracker.state(key))

    @cached_property
    def _owners(self) -> dict[str, PortState]:
        """Chain -> the service port that it belongs to."""
        facts = self.run.plane.facts
        return {chain.name: state for state in self._states for chain in build_service((state,), facts).chains}

    @cached_property
    def _chains(self) -> tuple[str, ...]:
        """Those of service ports that were entered on the way, in order; without those of single endpoints."""
        entered = dict.fromkeys(name for trail in self.run.trails for name in trail.packet.chains)
        return tuple(name for name in entered if name in self._owners and not name.startswith("endpoint-"))

    @cached_property
    def _check(self) -> str:
        """The chain that refused an untranslated packet; "": none did."""
        trail = self.run.trails[0]
        if trail.outcome.verdict == "accept" or trail.packet.dnat:
            return ""
        entered = [name for name in trail.packet.chains if name != REJECT_CHAIN]
        return entered[-1]

    @cached_property
    def _state(self) -> PortState | None:
        """The service port that decided; ``None``: none has to do with it."""
        for name in self._chains:
            return self._owners[name]
        if self._check not in _REFUSED:
            return None
        packet, facts = self.inquiry.flight.packet, self.run.plane.facts
        keys = {(packet.daddr, packet.proto, packet.dport), (packet.proto, packet.dport)}
        for state in self._states:
            elements = build_service((state,), facts).elements
            if any(container == _REFUSED[self._check] and key in keys for container, key, _ in elements):
                return state
        raise AssertionError(f"{self._check} refused {packet} for no Service")

    @cached_property
    def _used(self) -> Policy:
        """Which list was drawn from, or, where nobody was, which one is empty."""
        if any(name.startswith("local-") for name in self._chains):
            return "Local"
        if any(name.startswith("service-") for name in self._chains):
            return "Cluster"
        return "Local" if self._state is not None and self._is_local else "Cluster"

    @property
    def _role(self) -> str:
        assert self._state is not None, "no Service decided"
        packet = self.inquiry.flight.packet
        return role_of(self._state.port, packet.daddr, packet.dport)

    @property
    def _is_local(self) -> bool:
        assert self._state is not None, "no Service decided"
        port = self._state.port
        return port.internal_local if self._role == "cluster IP" else port.external_local

    # The answer

    def answer(self) -> Answer:
        flight, packet = self.inquiry.flight, self.inquiry.flight.packet
        targets = self._targets()
        others: tuple[EndpointView, ...] = ()
        if self._state is not None:
            others = self._others(self._state, {(each.address, each.port) for each in targets})
        decisive = (self._check,) if self._check and self._check not in self._chains else ()
        return Answer(
            verdict=self._verdict,
            reason=self._reason,
            source=SourceView(address=packet.saddr, kind=flight.source_kind, name=flight.source_name),
            destination=DestinationView(
                address=packet.daddr,
                port=packet.dport,
                protocol=packet.proto.upper(),
                is_=self.inquiry.cluster.roles(packet.daddr, packet.dport),
            ),
            node=NodeView(name=flight.node.metadata.name, zone=self.run.plane.tracker.topology.zone),
            service=self._service_view(),
            hints=self._hints(),
            masquerade=self._masquerade(targets),
            targets=targets,
            others=others,
            slices=self._slices(),
            chains=(*self._chains, *decisive),
            notes=self._notes(targets),
        )

    @cached_property
    def _verdict(self) -> Verdict:
        trail = self.run.trails[0]  # those that arrive come first
        return "dnat" if trail.packet.dnat and trail.outcome.verdict == "accept" else trail.outcome.verdict

    @property
    def _reason(self) -> str:
        cluster, packet = self.inquiry.cluster, self.inquiry.flight.packet
        if self._state is None:
            if self._check == CLUSTER_IPS_CHECK:
                ports = [each.port for each in self._states if each.port.cluster_ip == packet.daddr]
                return reasons.no_such_port(packet, ports, cluster.range_of(packet.daddr))
            return reasons.untouched(packet, cluster.roles(packet.daddr, packet.dport))
        if self._check in self._owners:
            return reasons.out_of_ranges(packet, self._state.port)
        if self._check:
            listed = sum(len(each.endpoints or ()) for each in self.inquiry.slices(self._state.port.name.service))
            return reasons.nobody(self._state, self._used, self._policy_field, listed)
        told = reasons.translated(self._state, self._used, len(self._targets()))
        return told if self._verdict == "dnat" else f"{told}, and each is refused there"

    @property
    def _policy_field(self) -> reasons.PolicyField:
        return "internalTrafficPolicy" if self._role == "cluster IP" else "externalTrafficPolicy"

    def _service_view(self) -> ServiceView | None:
        if self._state is None:
            return None
        port = self._state.port
        spec = self.inquiry.cluster.by_key[port.name.service].spec
        return ServiceView(
            namespace=port.name.service.namespace,
            name=port.name.service.name,
            type=spec.type,
            port_name=port.name.port,
            port=port.port,
            protocol=port.name.protocol,
            node_port=port.node_port,
            role=self._role,
            policy_field=self._policy_field,
            policy="Local" if self._is_local else "Cluster",
            used=self._used,
            session_affinity_seconds=port.affinity_timeout_s,
            traffic_distribution=spec.traffic_distribution or "",
        )

    def _hints(self) -> HintsView | None:
        if self._state is None or not self._origins:
            return None
        categories = self._state.categories
        if self._used == "Local" or categories.hints is None:
            return HintsView(sentence=f"not looked at: {self._policy_field} is Local")
        return HintsView(
            node=categories.hints.node,
            zone=categories.hints.zone,
            sentence=reasons.hints(
                categories, [found.endpoint for found in self._origins], self.run.plane.tracker.topology
            ),
        )

    # Endpoints

    @cached_property
    def _origins(self) -> list[Found]:
        """The endpoints of the service port, as the model merged them."""
        assert self._state is not None, "no Service decided"
        name = self._state.port.name
        return self.run.plane.tracker.origins(name.service).get(name, [])

    def _targets(self) -> tuple[EndpointView, ...]:
        """Where a translated packet may go, with what becomes of it there."""
        if self._state is None:
            return ()
        found = {(each.endpoint.ip, each.endpoint.port): each for each in self._origins}
        ways: dict[tuple[str, int], list[Trail]] = {}
        for trail in self.run.trails:
            if trail.packet.dnat:
                ways.setdefault((trail.packet.daddr, trail.packet.dport), []).append(trail)
        made = []
        for each in self._origins:
            trails = ways.pop((each.endpoint.ip, each.endpoint.port), [])
            if trails:
                made.append(self._target(found[each.endpoint.ip, each.endpoint.port], trails))
        assert not ways, f"the packet goes to {sorted(ways)}, which nobody published"
        return tuple(made)

    def _target(self, found: Found, trails: list[Trail]) -> EndpointView:
        assert self._state is not None, "no Service decided"
        share = sum((trail.share for trail in trails), Fraction(0))
        outcome = trails[0].outcome
        why = reasons.chosen(found.endpoint, self._state.categories, self._used, self.run.plane.tracker.topology)
        if outcome.verdict != "accept":
            is_also = self.inquiry.cluster.roles(found.endpoint.ip, found.endpoint.port)
            why = f"{why}; but {found.endpoint.ip} is itself {' and '.join(is_also)}"
        return _view(
            found,
            why,
            share=str(share),
            probability=round(float(share), 6),
            verdict="dnat" if outcome.verdict == "accept" else outcome.verdict,
            masquerade=outcome.masquerade,
        )

    def _others(self, state: PortState, chosen: set[tuple[str, int]]) -> tuple[EndpointView, ...]:
        """The endpoints that get nothing: those that the model left out, then those that another slice knows better."""
        tracker, name = self.run.plane.tracker, state.port.name
        made = []
        winners: dict[tuple[str, int], Found] = {}
        for found in self._origins:
            key = (found.endpoint.ip, found.endpoint.port)
            winners[key] = found
            if key not in chosen:
                made.append(_view(found, self._why_not(found.endpoint, state)))
        for slice_key in tracker.slices(name.service):
            for found in tracker.origins(name.service, slice_key).get(name, []):
                winner = winners[found.endpoint.ip, found.endpoint.port]
                if winner.slice != slice_key:
                    made.append(_view(found, f"the same address in slice {reasons.name_of(winner.slice)} counts"))
        return tuple(made)

    def _why_not(self, endpoint: Endpoint, state: PortState) -> str:
        categories = state.categories
        usable = categories.local if self._used == "Local" else categories.cluster
        if endpoint in usable:
            return "would be used, but the packet is refused before"
        return reasons.not_chosen(endpoint, categories, self._used, self._policy_field)

    def _slices(self) -> tuple[SliceView, ...]:
        """The slices of the Service, but those of the other IP family."""
        if self._state is None:
            return ()
        family, name, tracker = self.inquiry.flight.family, self._state.port.name, self.run.plane.tracker
        made = []
        for each in self.inquiry.slices(name.service):
            if each.address_type in {"IPv4", "IPv6"} and each.address_type != family:
                continue
            why = self.inquiry.why_unread(each)
            if not why and each.address_type != family:
                why = f"its addresses are {each.address_type}s"
            if not why and name not in tracker.origins(name.service, each.metadata.key):
                why = reasons.lacks_port(name, each.ports or ())
            made.append(
                SliceView(
                    name=each.metadata.name,
                    address_type=each.address_type,
                    endpoints=len(each.endpoints or ()),
                    why=why,
                )
            )
        return tuple(made)

    # The rest

    def _masquerade(self, targets: tuple[EndpointView, ...]) -> str:
        if not any(each.masquerade for each in targets):
            return "no"
        source = self.inquiry.flight.packet.saddr
        if all(each.address == source for each in targets if each.masquerade):
            return f"only towards {source}: an endpoint that calls itself"
        assert self._state is not None, "a translated packet has a Service"
        if self._role != "cluster IP":
            return "yes: it came to an address for clients outside" + (
                ", from the node itself" if self._state.port.external_local else ""
            )
        if self.inquiry.settings.rules.masquerade_all:
            return "yes: --masquerade-all"
        return f"yes: {source} is no Pod of this node (--detect-local-mode)"

    def _notes(self, targets: tuple[EndpointView, ...]) -> tuple[str, ...]:
        notes = list(self.inquiry.flight.notes)
        notes += [f"not looked at: {sentence}" for sentence in self.inquiry.cluster.unread]
        if self._state is None:
            return tuple(notes)
        if targets and self._is_local and self._used == "Cluster":
            notes.append(
                "externalTrafficPolicy Local is for clients outside: those on this node may use every endpoint"
            )
        if self._role == "cluster IP" and self._tells_nobody_apart and self.inquiry.flight.source_kind != "Pod":
            notes.append("without --cluster-cidr Pods are not told from clients outside, and neither is masqueraded")
        refused = sum(Fraction(each.share) for each in targets if each.verdict != "dnat")
        if refused:
            notes.append(f"{refused} of the connections are refused after the translation")
        claims = [str(key) for key in self._rivals()]
        if claims:
            notes.append(f"Service {', '.join(claims)} claims this address and port too; the first by name counts")
        return tuple(notes)

    @property
    def _tells_nobody_apart(self) -> bool:
        return self.run.plane.facts.detector is None and not self.inquiry.settings.rules.masquerade_all

    def _rivals(self) -> list[object]:
        """Other Services that claim the same destination."""
        assert self._state is not None, "no Service decided"
        packet, own = self.inquiry.flight.packet, self._state.port.name.service
        found = []
        for state in self._states:
            port = state.port
            role = role_of(port, packet.daddr, packet.dport)
            number = port.node_port if role == "node port" else port.port
            wanted = (number, port.name.protocol.lower()) == (packet.dport, packet.proto)
            if wanted and port.name.service != own and role and role == self._role:
                found.append(port.name.service)
        return list(dict.fromkeys(found))


def _view(
    found: Found,
    why: str,
    *,
    share: str = "0",
    probability: float = 0.0,
    verdict: Verdict | None = None,
    masquerade: bool = False,
) -> EndpointView:
    endpoint, source = found.endpoint, found.source
    target = source.target_ref
    return EndpointView(
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
