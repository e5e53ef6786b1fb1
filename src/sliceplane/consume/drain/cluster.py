"""The part of a cluster that a barrier follows: slices, Services, Nodes, Leases, reports, and the
verdicts on them.

Fed with the changes and marks of informers over ``SELECTIONS``; asked for a verdict on each Pod
that leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Services
from sliceplane.consume.drain.answer import DrainVerdict, Missing
from sliceplane.consume.drain.barrier import (
    FORGET_S,
    NodeHolding,
    Proof,
    UnknownPolicy,
    compare,
    judge,
)
from sliceplane.consume.drain.barrier import Nodes as KnownNodes
from sliceplane.consume.drain.departure import Departures
from sliceplane.consume.drain.reports import barrier_answers
from sliceplane.consume.node_caches import NodeCaches
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REPORT,
    LABEL_COMPONENT,
    LEASE_NAMESPACE,
    Scope,
    read_report,
    spread_of,
)
from sliceplane.watch.cache import Change, Mark

#: of all consumers that tell; and of those that read everything, node proxies among them
LEASES: Final = Selection(Leases, label_selector=LABEL_COMPONENT)
NODE_LEASES: Final = Selection(Leases, LEASE_NAMESPACE, LABEL_COMPONENT)
SELECTIONS: Final = (Selection(EndpointSlices), Selection(Services), Selection(Nodes), LEASES)


class DrainCluster:
    """Owned by one follower.  Times are seconds since the epoch."""

    def __init__(self, *, services_known: bool = True, leases_known: bool = True) -> None:
        """Kinds that are not known may not be read; without Leases every node is unknown."""
        self._leases_known = leases_known
        #: why the API server sends no changes; "" while it does. Nothing that is cached is then
        #: known to be so.
        self.lost = ""
        self._heard = 0
        self.departures = Departures(services_known=services_known)
        self.nodes = KnownNodes()
        self._caches = NodeCaches()

    def on_change(self, change: Change[Object], now: float) -> None:
        self._caches.on_change(change)
        match change.object:
            case EndpointSlice():
                self.departures.on_slice(*change.typed(EndpointSlice))
            case Service():
                self.departures.on_service(*change.typed(Service))
            case Node():
                self.nodes.on_node(*change.typed(Node))
            case Lease() as lease:
                self.nodes.on_lease(*change.typed(Lease), now)
                annotations = {} if change.new is None else lease.metadata.annotations or {}
                report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
                self._caches.on_report(lease.metadata.key, report, now)
            case unexpected:
                raise AssertionError(f"{change.resource} is not followed: {unexpected!r}")

    def on_mark(self, mark: Mark, now: float) -> tuple[str, ...]:
        """The Pods of which something else is known now."""
        self._caches.on_mark(mark, now)
        if mark.resource == EndpointSlices.key:
            return self.departures.on_mark(mark.revision)
        return self.departures.look() if mark.resource == Services.key else ()

    @property
    def heard(self) -> int:
        """The number of the last answer of ``consume.drain.reports`` that was heard."""
        return self._heard

    def on_heard(self, body: bytes, now: float) -> None:
        """An answer to ``consume.drain.reports.question``."""
        try:
            answer = barrier_answers.decode(body)
        except msgspec.DecodeError:
            return  # another server's answer to a path that it does not know
        self._heard = answer.number
        for lease, report in answer.reports.items():
            if self.nodes.on_report(lease, report):
                self._caches.on_report(lease, report, now)

    def facts(self) -> list[NodeHolding]:
        """O(nodes); for as many verdicts as are wanted at this moment."""
        self.nodes.on_differing(frozenset(self._caches.differing))
        return self.nodes.facts()

    def verdict(
        self,
        key: str,
        facts: Sequence[NodeHolding],
        now: float,
        *,
        policy: UnknownPolicy = UnknownPolicy(),  # noqa: B008  # it is frozen
        waited_s: float = 0.0,
        forget_s: float = FORGET_S,
    ) -> DrainVerdict:
        goal = self.departures.goal(key)
        proof = self._proof(goal, facts, now, forget_s)
        if self.lost:
            policy = (
                UnknownPolicy()
            )  # it is about nodes, and lets none go because the API server is away
        return judge(self.departures.uses(key), goal, proof, policy, waited_s)

    def unknown(
        self, facts: Sequence[NodeHolding], now: float, *, forget_s: float = FORGET_S
    ) -> tuple[Missing, ...]:
        """The nodes of which no verdict can know anything."""
        return self._proof({}, facts, now, forget_s).unknown

    def _proof(
        self, goal: Mapping[Scope, int], facts: Sequence[NodeHolding], now: float, forget_s: float
    ) -> Proof:
        proof = compare(goal, facts, now, forget_s=forget_s)
        if not self._leases_known:
            blind = Missing("every node", f"no right to list and watch leases in {LEASE_NAMESPACE}")
            proof = proof._replace(required=proof.required + 1, unknown=(*proof.unknown, blind))
        if self.lost:
            proof = proof._replace(
                waiting=(),
                unknown=(Missing("every node", f"no changes from the API server: {self.lost}"),),
            )
        return proof

    def asks(self, key: str, nonce: str, nodes: int) -> tuple[Write, ...]:
        """Every node that reads the slices concerned is to report."""
        body = encode({"metadata": {"annotations": {ANNOTATION_REPORT: spread_of(nonce, nodes)}}})
        return tuple(
            Write(
                verb="patch",
                resource=EndpointSlices,
                namespace=seen.metadata.namespace,
                name=seen.metadata.name,
                body=body,
                tolerate=("NotFound",),
            )
            for seen in self.departures.slices_to_ask(key)
        )

    def check(self) -> None:
        self._caches.check()
