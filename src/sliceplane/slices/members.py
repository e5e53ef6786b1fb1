"""The Pods that a Service selects, and the endpoint of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.discovery import EndpointConditions
from sliceplane.api.requests import PortProbe
from sliceplane.kit.ip import Family
from sliceplane.slices.cluster import ClusterFacts
from sliceplane.slices.content import PortResolver
from sliceplane.slices.facts import (
    READY,
    Addresses,
    NodeFacts,
    PodFacts,
    encode_node_location,
    endpoint_location,
)
from sliceplane.slices.heuristics.queries import Find
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.hinting.plugin_hints import hint_policies
from sliceplane.slices.packing.packer import SlicePacker
from sliceplane.slices.packing.placement import Desired
from sliceplane.slices.pod_routes import Effect
from sliceplane.slices.removing.losses import EndpointLosses
from sliceplane.slices.shape import HintMode, ServiceShape
from sliceplane.slices.subsets import zone_subsets
from sliceplane.slices.writes import MemberChanges

_BOOLEANS = (False, True)
_CONDITIONS: Final = {
    (ready, serving, terminating): encode(
        EndpointConditions(ready=ready, serving=serving, terminating=terminating)
    )
    for ready, serving, terminating in product(_BOOLEANS, _BOOLEANS, _BOOLEANS)
}
#: the conditions without the feature gate EndpointSliceTerminatingCondition
_READY_ALONE: Final = {key: encode(EndpointConditions(ready=key[0])) for key in _CONDITIONS}


class SliceMembers:
    """The members of one active Service. Owned by ``ServiceState``; sets the packers' desired
    endpoints.

    A Pod on a Node that the cache lacks gets no endpoint until the Node appears, unless unready
    Pods are published: without a zone, consumers everywhere would send it traffic.
    """

    def __init__(
        self,
        shape: ServiceShape,
        ports: PortResolver,
        packers: Mapping[Family, SlicePacker],
        cluster: ClusterFacts,
        *,
        find: Find,
        earlier: SliceMembers | None,
    ) -> None:
        """*earlier*: the members before the Service changed."""
        self._shape = shape
        self._ports = ports
        self._packers = tuple(packers.items())
        self._nodes = cluster.nodes
        self._burst = cluster.burst
        self._publish_not_ready = shape.publish_not_ready
        self._hints = shape.hints
        self._node_names = shape.node_names
        self._conditions = _CONDITIONS if shape.all_conditions else _READY_ALONE
        #: terminating Pods are endpoints
        self._terminating = shape.all_conditions or shape.publish_not_ready
        #: policies by address type, if hints depend on more than one endpoint; empty in other modes
        self._policies = hint_policies(shape, packers, cluster.zones, find)
        #: subsets by address type, if the approach is by zone; otherwise empty
        self._subsets = zone_subsets(shape.subsetting, packers, cluster.node_zones)
        #: the reasons why the last reconciliation of hints gave none, where a policy would give
        #: some
        self.hint_problems: tuple[str, ...] = ()
        self._notices: list[Notice] = []
        self._pods: dict[str, PodFacts] = {}
        #: number of Pods that take traffic and have no retained endpoint
        self.ready = 0
        #: endpoints that were lost although no Pod reported it
        self.losses: Final[EndpointLosses] = EndpointLosses(
            earlier.losses
            if earlier is not None and earlier._shape.selector == shape.selector
            else None
        )
        self._retained: Final = self.losses.retained
        #: the Pod that ``drop`` removes next without a reported end, and the source: an event, or
        #: else a list
        self._expected_drop = ""
        self._drop_by_event = False
        #: Pods without an endpoint, with the name of their missing Node
        self._skipped: dict[str, str] = {}
        #: the part of ``_skipped`` that was reported
        self._reported: dict[str, str] = {}
        #: changes since the last plan
        self._changes = MemberChanges(None)
        if earlier is not None:
            self._continue(earlier)

    def _continue(self, earlier: SliceMembers) -> None:
        self._changes = MemberChanges(earlier._changes, earlier._pods.items())
        self._reported = earlier._reported
        for family, policy in earlier._policies.items():
            if earlier._hints is not self._hints:
                self._notices += policy.final_notices()
            elif family in self._policies:
                self._policies[family].inherit(policy)

    def __contains__(self, pod: str) -> bool:
        return pod in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def begin(self, pods: Iterable[PodFacts]) -> None:
        """Sets the members at the start. Equivalent to ``set`` for each Pod, without its result."""
        assert not self._pods, f"{self._shape.key} has members already"
        for facts in pods:
            name = facts.name
            self._pods[name] = facts
            self._changes.note(name, None)
            if self.losses and not facts.is_unready_by_node:
                self.losses.forget(name)
            self._place(facts)
            if facts.takes_traffic and name not in self._skipped:
                self.ready += 1
        self._burst.ready += self.ready

    def set(self, facts: PodFacts) -> Effect:
        """Adds or replaces a member."""
        name = facts.name
        old = self._pods.get(name)
        was_ready = old is not None and self._is_ready(name)
        losses = self.losses
        was_retained = name in self._retained
        self._changes.note(name, old)
        self._pods[name] = facts
        if was_ready or losses.confirmed or losses.unconfirmed:  # else nothing is lost
            if not facts.is_unready_by_node:
                losses.forget(name)
            elif old is not None and was_ready:
                self._add_loss(name, old, by_event=False)
        was_skipped = name in self._skipped
        changed = self._place(losses[name] if name in self._retained else facts)
        self._count(name, was_ready=was_ready)
        if not changed:
            return Effect.NONE
        if was_retained:
            return Effect.REMOVAL
        if old is None or was_skipped:
            return Effect.CHANGE
        return (
            Effect.REMOVAL
            if name in self._skipped or self._must_lose_traffic(old, facts)
            else Effect.CHANGE
        )

    def _must_lose_traffic(self, old: PodFacts, new: PodFacts) -> bool:
        """Returns True if traffic for *old* must not go to *new*: it has no endpoint, is less
        ready, or has another address, host name or ports.
        """
        if old.excluded:
            return False
        if (
            new.excluded
            or old.readiness > new.readiness
            or (old.hostname, old.subdomain) != (new.hostname, new.subdomain)
        ):
            return True
        if self._ports.group_of(old) is not self._ports.group_of(new):
            return True
        return any(
            family not in new.addresses or new.addresses[family].identity != addresses.identity
            for family, addresses in old.addresses.items()
        )

    def drop(self, pod: str) -> Effect:
        """Removes a member."""
        was_ready = self._is_ready(pod)
        old = self._pods.pop(pod, None)
        if old is None:
            return Effect.NONE
        if pod == self._expected_drop and was_ready:
            self._add_loss(pod, old, by_event=self._drop_by_event)
        elif pod != self._expected_drop or self._drop_by_event:
            self.losses.forget(pod)
        self._expected_drop = ""
        self._changes.note(pod, old)
        self._skipped.pop(pod, None)
        self._count(pod, was_ready=was_ready)
        if pod in self._retained:
            return Effect.NONE
        return Effect.REMOVAL if self._set_desired(pod, None) else Effect.NONE

    def refresh(self, pod: str, *, gone: bool = False, by_event: bool = False) -> Effect:
        """Handles a change of the Node of *pod*. *gone*: the Node is gone, as an event (*by_event*)
        or a list shows.
        """
        losses = self.losses
        facts = losses[pod] if pod in self._retained else self._pods.get(pod)
        if facts is None:
            return Effect.NONE
        was_ready = self._is_ready(pod)
        skipped = pod in self._skipped
        changed = self._place(facts)
        self._count(pod, was_ready=was_ready)
        if gone and was_ready and pod in self._skipped:
            self._add_loss(pod, facts, by_event=by_event)
        elif pod in losses and self._is_back(pod):
            self.remove_lost(pod)
        if not changed:
            return Effect.NONE
        return Effect.REMOVAL if pod in self._skipped and not skipped else Effect.CHANGE

    def _place(self, facts: PodFacts) -> bool:
        name = facts.name
        if facts.excluded:
            self._skipped.pop(name, None)
            return self._set_desired(name, None)
        if facts.terminating and not self._terminating:
            self._skipped.pop(name, None)
            return self._set_desired(name, Desired(self._ports.group_of(facts), "", b""))
        group = self._ports.group_of(facts)
        node = self._nodes.get(facts.node_name)
        if node is None and not self._publish_not_ready and name not in self._retained:
            is_new = self._skipped.get(name) != facts.node_name
            self._skipped[name] = facts.node_name
            return self._set_desired(name, Desired(group, "", b"")) or is_new
        if self._skipped:
            self._skipped.pop(name, None)
        changed = False
        for family, packer in self._packers:
            addresses = facts.addresses.get(family)
            if addresses is None:
                self._forget_zone(name, family)
                changed = packer.set_desired(name, Desired(group, "", b"")) or changed
                continue
            part = group
            if self._subsets:
                subset = self._subsets[family].set(name, "" if node is None else node.zone)
                part = self._ports.part(group, subset)
            if facts.hostname and facts.subdomain == self._shape.name:
                body = self._endpoint(
                    facts, family, addresses, node, b',"hostname":' + encode(facts.hostname)
                )
                desired = Desired(part, f"{addresses.identity} {facts.hostname}", body)
            else:
                desired = Desired(
                    part, addresses.identity, self._endpoint(facts, family, addresses, node, b"")
                )
            changed = packer.set_desired(name, desired) or changed
        return changed

    def _set_desired(self, pod: str, desired: Desired | None) -> bool:
        changed = False
        for family, packer in self._packers:
            self._forget_zone(pod, family)
            changed = packer.set_desired(pod, desired) or changed
        return changed

    def _forget_zone(self, pod: str, family: Family) -> None:
        if self._policies:
            self._policies[family].set(pod, None)
        if self._subsets:
            self._subsets[family].set(pod, None)

    def _endpoint(
        self,
        facts: PodFacts,
        family: Family,
        addresses: Addresses,
        node: NodeFacts | None,
        hostname: bytes,
    ) -> bytes:
        """Returns the endpoint's JSON, with its members in the order of
        ``api.discovery.SliceEndpoint``.
        """
        serving = facts.serving
        terminating = facts.terminating
        ready = self._publish_not_ready or (serving and not terminating)
        hint = b""
        location = b""
        if node is None:
            location = encode_node_location(facts.node_name) if self._node_names else b""
        else:
            location = node.location if self._node_names else node.zone_location
            if ready and (self._hints is HintMode.ZONE or self._hints is HintMode.NODE):
                hint = node.zone_hint if self._hints is HintMode.ZONE else node.node_hint
        if self._policies:
            hint = self._policies[family].set(
                facts.name, endpoint_location(facts, node) if ready else None
            )
        conditions = self._conditions[ready, serving, terminating]
        return b"".join((addresses.head, conditions, hostname, facts.target, location, hint, b"}"))

    # -- removals that no Pod reported

    def expect_drop(self, pod: str, *, by_event: bool) -> None:
        """Announces that the next change removes *pod*, which had not reported its end. *by_event*:
        an event reports the deletion; otherwise a list lacks the Pod.
        """
        self._expected_drop = pod if pod in self._pods else ""
        self._drop_by_event = by_event

    def unconfirmed_without_node(self) -> frozenset[str]:
        """Returns unconfirmed losses that are due to the loss of their Nodes."""
        return frozenset(
            name
            for name, facts in self.losses.unconfirmed.items()
            if name in self._pods and facts.node_name not in self._nodes
        )

    def confirm_losses(self, names: Iterable[str]) -> None:
        """Confirms the unconfirmed losses *names*."""
        for name in names:
            if not self.losses.confirm(name):
                self.remove_lost(name)

    def retain_losses(self, keep: int) -> None:
        """Retains the endpoints of all unconfirmed losses and of *keep* confirmed ones. Costs
        O(both).
        """
        for name in sorted(self.losses.confirmed)[keep:]:
            self.remove_lost(name)
        for facts in self.losses.retain():
            self._place(facts)

    def retained_ports(self) -> tuple[tuple[str, PortProbe], ...]:
        """Returns retained Pods whose loss is confirmed, each with an address and a TCP port, if it
        has one.
        """
        probes = []
        for name in sorted(self.losses.retained & self.losses.confirmed.keys()):
            facts = self.losses.confirmed[name]
            ports = [
                port.port
                for port in self._ports.group_of(facts).ports
                if port.protocol == "TCP" and port.port
            ]
            addresses = next(iter(facts.addresses.values()), None)
            if ports and addresses is not None:
                probes.append((name, PortProbe(addresses.first, ports[0])))
        return tuple(probes)

    def remove_lost(self, pod: str) -> None:
        """Stops retaining the endpoint of *pod*: it follows its Pod again, or is
        removed with it.
        """
        was_ready = self._is_ready(pod)
        self.losses.forget(pod)
        facts = self._pods.get(pod)
        if facts is None:
            self._set_desired(pod, None)
        else:
            self._place(facts)
        self._count(pod, was_ready=was_ready)

    def _add_loss(self, pod: str, facts: PodFacts, *, by_event: bool) -> None:
        if pod not in self.losses:
            self.losses.add(pod, facts, by_event=by_event)
            self._burst.lost()

    def _is_back(self, pod: str) -> bool:
        facts = self._pods.get(pod)
        return facts is not None and facts.readiness == READY and facts.node_name in self._nodes

    def _is_ready(self, pod: str) -> bool:
        facts = self._pods.get(pod)
        if facts is None or not facts.takes_traffic:
            return False
        return pod not in self._skipped and pod not in self._retained

    def _count(self, pod: str, *, was_ready: bool) -> None:
        step = self._is_ready(pod) - was_ready
        if step:
            self.ready += step
            self._burst.ready += step

    # -- subsets

    @property
    def subsets_converged(self) -> bool:
        """True if no endpoint must change its subset because of the current zones.
        Costs O(zones).
        """
        return all(subsets.is_converged for subsets in self._subsets.values())

    def reconcile(self, now: float) -> None:
        """Updates subsets and hints; called before every plan."""
        if self._subsets:
            for family, packer in self._packers:
                for pod in self._subsets[family].switch(labelled=packer.has_labelled_slices):
                    self.refresh(pod)
        if self._policies:
            self._reconcile_hints(now)

    # -- hints that depend on more than one endpoint

    @property
    def hints_converged(self) -> bool:
        """True if no hint must change because of the current zones. Costs O(zones)."""
        return all(policy.is_converged for policy in self._policies.values())

    @property
    def hint_deadline(self) -> float | None:
        """The time at which the next hints of a gradual change move; ``None`` for no change."""
        dues = (policy.next_step for policy in self._policies.values() if not policy.is_converged)
        return min((due for due in dues if due is not None), default=None)

    def set_annotations(self, shape: ServiceShape) -> None:
        """Replaces the shape after a change of annotations for the heuristic."""
        self._shape = shape
        for policy in self._policies.values():
            policy.set_service(shape.view)

    def _reconcile_hints(self, now: float) -> None:
        for family, packer in self._packers:
            hints = self._policies[family]
            if not hints.is_converged:
                for pod in hints.switch(packer):
                    self.refresh(pod)
                for pod in hints.rebalance(packer, now):
                    self.refresh(pod)
            self._notices.extend(hints.take_notices(now))
        problems = (policy.problem for policy in self._policies.values() if policy.problem)
        self.hint_problems = tuple(dict.fromkeys(problems))

    def take_notices(self) -> tuple[Notice, ...]:
        notices = tuple(dict.fromkeys(self._notices))
        self._notices = []
        return notices

    # -- before a plan

    def take_trigger_time(self) -> int:
        """Returns the earliest time, in nanoseconds, at which a member changed since the last call;
        0 for none.
        """
        return self._changes.take(self._pods.get)

    def take_problems(self) -> tuple[str, ...]:
        """Returns a sentence for each Pod that newly has no endpoint because its Node is not in the
        cache.
        """
        if self._reported == self._skipped:
            return ()
        news = {pod: node for pod, node in self._skipped.items() if self._reported.get(pod) != node}
        self._reported = dict(self._skipped)
        key = self._shape.key
        return tuple(
            f"skipping Pod {pod} for Service {key}: Node {news[pod]} Not Found"
            for pod in sorted(news)
        )

    def check(self) -> None:
        """Asserts that the desired endpoints follow from each member's newest version."""
        for _, packer in self._packers:
            expected = {
                name for name, facts in self._pods.items() if not facts.excluded
            } | self.losses.retained
            assert set(packer.desired) == expected, (
                f"{self._shape.key}: {set(packer.desired) ^ expected} differ"
            )
        for policy in self._policies.values():
            policy.check()
        for subsets in self._subsets.values():
            subsets.check()
        self.losses.check()
        ready = sum(map(self._is_ready, self._pods))
        assert self.ready == ready, f"{self._shape.key}: {ready} are ready, counted {self.ready}"
        for name in self._pods:
            assert not self.refresh(name), (
                f"{self._shape.key}: the endpoint of {name} was out of date"
            )
