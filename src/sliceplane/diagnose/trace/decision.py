"""The decision over a packet: which service port, which of its lists, and with which outcome.

The service port follows from the chains that the packet entered, or from the element that
translated or refused it; the list, from the kind of chain, or from the policy of the element.
"""

from __future__ import annotations

from functools import cached_property

from sliceplane.consume.claims import ClaimRefusal
from sliceplane.consume.model import NodeEndpoint, PortState, ServiceKey
from sliceplane.consume.slicecache import EndpointOrigin
from sliceplane.consume.usable import Choice, Policy, choose, choose_local
from sliceplane.diagnose.trace.answer import Verdict
from sliceplane.diagnose.trace.cluster import role_of
from sliceplane.diagnose.trace.inquiry import Inquiry, Run
from sliceplane.diagnose.trace.reasons import PolicyField
from sliceplane.node.nft.buckets import bucket_count, bucket_set
from sliceplane.node.nft.build import build_service
from sliceplane.node.nft.layout import (
    ENDPOINTS_CHECK,
    NO_ENDPOINT_NODE_PORTS,
    NO_ENDPOINTS,
    NODE_PORTS_CHECK,
    REJECT_CHAIN,
    SERVICE_IPS,
    SINGLE_ENDPOINTS,
)
from sliceplane.node.nft.objects import DnatTarget, item_text

#: the checks for Services without endpoints, and the sets that they consult
_REFUSED = {ENDPOINTS_CHECK: NO_ENDPOINTS.name, NODE_PORTS_CHECK: NO_ENDPOINT_NODE_PORTS.name}


class PacketDecision:
    """The decision over one packet; every part is computed on first use."""

    def __init__(self, inquiry: Inquiry, run: Run) -> None:
        self.inquiry = inquiry
        self.run = run

    @cached_property
    def states(self) -> tuple[PortState, ...]:
        tracker = self.run.plane.tracker
        return tuple(state for key in tracker.services() for state in tracker.state(key))

    @cached_property
    def owners(self) -> dict[str, PortState]:
        """Service ports by chain."""
        facts = self.run.plane.facts
        return {
            chain.name: state
            for state in self.states
            for chain in build_service((state,), facts).chains
        }

    @cached_property
    def chains(self) -> tuple[str, ...]:
        """The chains of service ports that the packet entered, in order, without those of single
        endpoints.
        """
        entered = dict.fromkeys(name for trail in self.run.trails for name in trail.packet.chains)
        return tuple(
            name for name in entered if name in self.owners and not name.startswith("endpoint-")
        )

    @cached_property
    def check(self) -> str:
        """The chain that refused an untranslated packet; "": none."""
        trail = self.run.trails[0]
        if trail.outcome.verdict == "accept" or trail.packet.dnat:
            return ""
        entered = [name for name in trail.packet.chains if name != REJECT_CHAIN]
        return entered[-1]

    @cached_property
    def state(self) -> PortState | None:
        """The service port that decided; ``None``: none is concerned."""
        for name in self._decisive:
            return self.owners[name]
        container = SERVICE_IPS.name if self._translated else _REFUSED.get(self.check)
        if container is None:
            return None
        packet = self.inquiry.flight.packet
        facts = self.run.plane.facts
        keys = {(packet.daddr, packet.proto, packet.dport), (packet.proto, packet.dport)}
        for state in self.states:
            elements = build_service((state,), facts).elements
            if any(name == container and key in keys for name, key, _ in elements):
                return state
        raise AssertionError(f"{container} decided over {packet} for no Service")

    @cached_property
    def element(self) -> str:
        """The element that translated the packet if no chain did, as ``nft`` writes it; "": a chain
        did, or nothing.
        """
        if self._decisive or not self._translated:
            return ""
        before = self.inquiry.flight.packet
        after = self.run.trails[0].packet
        key = (before.daddr, before.proto, before.dport)
        if size := bucket_count(self.run.trails[0].packet.chains):
            return f"{bucket_set(size).name} {{ {item_text(key, None)} }}"
        return (
            f"{SINGLE_ENDPOINTS.name} {{ {item_text(key, DnatTarget(after.daddr, after.dport))} }}"
        )

    @property
    def _translated(self) -> bool:
        return self.run.trails[0].packet.dnat  # so are all or none

    @property
    def _decisive(self) -> tuple[str, ...]:
        """``chains`` without those that a translated packet merely passed."""
        return tuple(
            name for name in self.chains if not (self._translated and name.startswith("firewall-"))
        )

    @cached_property
    def used(self) -> Policy:
        """The list that a target was chosen from, or the empty one."""
        if any(name.startswith("local-") for name in self.chains):
            return "Local"
        if any(name.startswith("service-") for name in self.chains):
            return "Cluster"
        return "Local" if self.state is not None and self.is_local else "Cluster"

    @cached_property
    def role(self) -> str:
        assert self.state is not None, "no Service decided"
        packet = self.inquiry.flight.packet
        return role_of(self.state.port, packet.daddr, packet.dport)

    @property
    def is_local(self) -> bool:
        assert self.state is not None, "no Service decided"
        port = self.state.port
        return port.internal_local if self.role == "cluster IP" else port.external_local

    @cached_property
    def verdict(self) -> Verdict:
        trail = self.run.trails[0]  # trails that arrive come first
        return (
            "dnat"
            if trail.packet.dnat and trail.outcome.verdict == "accept"
            else trail.outcome.verdict
        )

    @cached_property
    def refusals(self) -> dict[ServiceKey, ClaimRefusal]:
        """Services that claim the destination and do not get it, sorted."""
        claims = self.run.plane.tracker.claims
        packet = self.inquiry.flight.packet
        protocol = packet.proto.upper()
        destinations = [(packet.daddr, protocol, packet.dport)]
        if packet.daddr in self.inquiry.flight.own:
            destinations.append(("", protocol, packet.dport))
        refusals = {
            key: claims.refusal(key, destination)
            for destination in destinations
            for key in self.inquiry.services
        }
        return {key: refusal for key, refusal in sorted(refusals.items()) if refusal is not None}

    @property
    def policy_field(self) -> PolicyField:
        return "internalTrafficPolicy" if self.role == "cluster IP" else "externalTrafficPolicy"

    @cached_property
    def origins(self) -> list[EndpointOrigin]:
        """The endpoints of the service port, as the model merged them."""
        assert self.state is not None, "no Service decided"
        name = self.state.port.name
        return self.run.plane.tracker.origins(name.service).get(name, [])

    @cached_property
    def choice(self) -> Choice[NodeEndpoint]:
        """The endpoints that the applied policy selects."""
        endpoints = [origin.endpoint for origin in self.origins]
        locality = self.run.plane.tracker.locality
        return (
            choose_local(endpoints, locality)
            if self.used == "Local"
            else choose(endpoints, locality)
        )
