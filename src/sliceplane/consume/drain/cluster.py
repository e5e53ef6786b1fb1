"""The part of a cluster that a barrier follows: slices, Services, Nodes, Leases, reports, and the
verdicts on them.

Its input are the changes and marks of informers over ``SELECTIONS``; its output is a verdict on
each draining Pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    ConsumerState,
    Proof,
    UnknownPolicy,
    compare,
    judge,
)
from sliceplane.consume.drain.barrier import Nodes as KnownNodes
from sliceplane.consume.drain.departure import DrainingPods
from sliceplane.consume.drain.relayed import NodeLeases
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

#: the Leases of all consumers that report; and of those that read everything, such as node proxies
LEASES: Final = Selection(Leases, label_selector=LABEL_COMPONENT)
NODE_LEASES: Final = Selection(Leases, LEASE_NAMESPACE, LABEL_COMPONENT)
SELECTIONS: Final = (Selection(EndpointSlices), Selection(Services), Selection(Nodes), LEASES)


class DrainCluster:
    """Owned by one follower.  Times are seconds since the epoch."""

    def __init__(
        self,
        *,
        reads_services: bool = True,
        reads_leases: bool = True,
        reads_nodes: bool = True,
        until_idle: bool = False,
    ) -> None:
        """Flags for kinds that may be read; without Leases every node is unknown. *until_idle*:
        nodes that count no connections are unknown, too.
        """
        self._reads_leases = reads_leases
        self._reads_nodes = reads_nodes
        self._until_idle = until_idle
        #: why the API server sends no changes; "" while it does. Otherwise the caches may be old.
        self.lost = ""
        self._answer_number = 0
        self.draining_pods = DrainingPods(reads_services=reads_services)
        self.nodes = KnownNodes()
        self._leases = NodeLeases()
        self._caches = NodeCaches()

    def on_change(self, change: Change[Object], now: float) -> None:
        self._caches.on_change(change)
        match change.object:
            case EndpointSlice():
                self.draining_pods.on_slice(*change.typed(EndpointSlice))
            case Service():
                self.draining_pods.on_service(*change.typed(Service))
            case Node():
                self.nodes.on_node(*change.typed(Node))
            case Lease():
                for old, new, age_s in self._leases.on_lease(*change.typed(Lease)):
                    self._on_lease(old, new, now - age_s)
            case unexpected:
                raise AssertionError(f"{change.resource} is not followed: {unexpected!r}")

    def _on_lease(self, old: Lease | None, new: Lease | None, now: float) -> None:
        """Notes a change of a Lease that its consumer wrote at *now*."""
        self.nodes.on_lease(old, new, now)
        lease = new or old
        assert lease is not None, "a change has an old or a new object"
        annotations = {} if new is None else lease.metadata.annotations or {}
        report = read_report(annotations.get(ANNOTATION_PROGRESS, ""))
        self._caches.on_report(lease.metadata.key, report, now)

    def on_mark(self, mark: Mark, now: float) -> tuple[str, ...]:
        """Notes *mark* and returns the keys of Pods whose state changed."""
        self._caches.on_mark(mark, now)
        if mark.resource == EndpointSlices.key:
            return self.draining_pods.on_mark(mark.revision)
        return self.draining_pods.update() if mark.resource == Services.key else ()

    @property
    def answer_number(self) -> int:
        """The number of the last answer of ``consume.drain.reports`` that was received."""
        return self._answer_number

    def on_answer(self, body: bytes, now: float) -> None:
        """Notes an answer to ``consume.drain.reports.question``."""
        try:
            answer = barrier_answers.decode(body)
        except msgspec.DecodeError:
            return  # another server's answer to a path that it does not know
        self._answer_number = answer.number
        for lease, report in answer.reports.items():
            if self.nodes.on_report(lease, report):
                self._caches.on_report(lease, report, now)

    def facts(self) -> list[ConsumerState]:
        """Returns the states for any number of verdicts at this moment.  O(nodes)."""
        self.nodes.on_differing(frozenset(self._caches.differing))
        return self.nodes.facts()

    def verdict(
        self,
        key: str,
        facts: Sequence[ConsumerState],
        now: float,
        *,
        policy: UnknownPolicy = UnknownPolicy(),  # noqa: B008  # it is frozen
        waited_s: float = 0.0,
        forget_s: float = FORGET_S,
    ) -> DrainVerdict:
        goal = self.draining_pods.goal(key)
        proof = self._proof(goal, facts, now, forget_s)
        if self.lost:
            policy = UnknownPolicy()  # no node is ignored because the API server is unreachable
        return judge(self.draining_pods.uses(key), goal, proof, policy, waited_s)

    def unknown(
        self, facts: Sequence[ConsumerState], now: float, *, forget_s: float = FORGET_S
    ) -> tuple[Missing, ...]:
        """Returns the nodes that are unknown for every verdict."""
        return self._proof({}, facts, now, forget_s).unknown

    def _proof(
        self, goal: Mapping[Scope, int], facts: Sequence[ConsumerState], now: float, forget_s: float
    ) -> Proof:
        proof = compare(goal, facts, now, forget_s=forget_s, until_idle=self._until_idle)
        if not self._reads_nodes and not proof.required:
            blind = Missing("every node", "no right to list and watch nodes")
            proof = proof._replace(unknown=(blind,))
        if not self._reads_leases:
            blind = Missing("every node", f"no right to list and watch leases in {LEASE_NAMESPACE}")
            proof = proof._replace(required=proof.required + 1, unknown=(*proof.unknown, blind))
        if self.lost:
            proof = proof._replace(
                waiting=(),
                unknown=(Missing("every node", f"no changes from the API server: {self.lost}"),),
            )
        return proof

    def request_reports(self, key: str, nonce: str, nodes: int) -> tuple[Write, ...]:
        """Returns writes that request a report from every node that reads the slices concerned."""
        return _annotate(self.draining_pods.slices_to_annotate(key), nonce, nodes)

    def request_counts(self, word: str, nodes: int) -> tuple[Write, ...]:
        """Returns writes that request counts of connections (``consume.flow_counts``) from every
        node.
        """
        return _annotate(self.draining_pods.slices_of_every_node(), word, nodes)

    def check(self) -> None:
        self._caches.check()
        self._leases.check()


def _annotate(slices: Iterable[EndpointSlice], word: str, nodes: int) -> tuple[Write, ...]:
    body = encode({"metadata": {"annotations": {ANNOTATION_REPORT: spread_of(word, nodes)}}})
    return tuple(
        Write(
            verb="patch",
            resource=EndpointSlices,
            namespace=endpoint_slice.metadata.namespace,
            name=endpoint_slice.metadata.name,
            body=body,
            tolerate=("NotFound",),
        )
        for endpoint_slice in slices
    )
