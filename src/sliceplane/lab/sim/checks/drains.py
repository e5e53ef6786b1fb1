"""``drained-is-drained``: an observing barrier, checked against the kernels of all nodes.

It runs the production core (``consume.drain.cluster``) over the simulator's informers, which lose,
delay and relist like those of controllers. Every Pod counts as draining. When the barrier first
reports a used Pod as drained, each node's kernel is inspected directly, whatever the node reports.
Its slices of the Pod's Services must not use the Pod, unless the kernel is already ahead of the
barrier (``is_ahead``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Pods
from sliceplane.consume.drain.barrier import FORGET_S, UnknownPolicy
from sliceplane.consume.drain.cluster import SELECTIONS, DrainCluster
from sliceplane.consume.drain.departure import DrainSubject, subject_of
from sliceplane.consume.usable import Locality, choose, choose_local
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.network import Actor, Network
from sliceplane.lab.sim.proxies import Proxies
from sliceplane.lab.sim.streams import informers_of
from sliceplane.server.store.types import Key
from sliceplane.watch.cache import Change, Mark

_PAUSE_ONE_IN: Final = 48
#: most Nodes of a simulation have no proxy, so unknown nodes do not block
_PROCEED: Final = UnknownPolicy("after", 0.0)


class DrainWatch(Actor):
    """One barrier for all Pods. ``proven``: number of Pods that it reported as drained."""

    def __init__(self, network: Network, proxies: Proxies, rng: Rng) -> None:
        super().__init__("drain-watch", network)
        self._proxies = proxies
        self._rng = rng
        self._cluster = DrainCluster()
        self._drains = self._cluster.draining_pods
        self._services: dict[str, Service] = {}
        #: Pods that were used since they were last reported as drained
        self._used: set[tuple[str, str]] = set()
        self._synced = False
        self.proven = 0
        self._informers = informers_of(
            (Selection(Pods), *SELECTIONS),
            network,
            rng,
            receive=self._receive,
            deliver=self._on_changes,
            on_synced=self._on_synced,
            on_mark=self._on_mark,
        )

    def start(self) -> None:
        for informer in self._informers:
            informer.start()

    def step(self) -> None:
        if self._rng.below(_PAUSE_ONE_IN) == 0:
            self.pause(self._rng.uniform(1.0, 60.0))

    def _on_synced(self) -> None:
        self._synced = True

    def _on_changes(self, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            match change.object:
                case Pod() as pod:
                    self._drains.add(subject_of(pod))  # a deleted Pod may still be in slices
                    continue
                case Service() as service:
                    self._services[service.metadata.key] = service
            self._cluster.on_change(change, self._scheduler.now)
        self._inspect()

    def _on_mark(self, mark: Mark) -> None:
        self._cluster.on_mark(mark, self._scheduler.now)
        self._inspect()

    def _inspect(self) -> None:
        facts = self._cluster.facts() if self._synced else []
        now = self._scheduler.now
        for subject in self._drains.subjects() if self._synced else ():
            key, one = subject.key, (subject.key, subject.uid)
            if self._drains.uses(key):
                self._used.add(one)
                continue
            if one not in self._used:
                continue
            verdict = self._cluster.verdict(key, facts, now, policy=_PROCEED)
            if verdict.state == "proven":
                self._used.discard(one)
                self.proven += 1
                self._trace.note(now, self.actor, "drained", key)
                for node in (
                    node
                    for node in facts
                    if node.applied is not None and now - node.until <= FORGET_S
                ):
                    self._check(subject, node.name)

    def _check(self, subject: DrainSubject, node: str) -> None:
        """Raises ``Broken`` if the kernel of *node* sends to the Pod."""
        key = subject.key
        for service in self._drains.services(key):
            slices = self._proxies.kernel_slices(node, service)
            listed = self._drains.slices(service)
            if is_ahead(slices, listed, self._drains.revision, self._exists):
                continue
            for family in ("IPv4", "IPv6"):
                endpoints = [
                    _Endpoint(endpoint, node)
                    for observed in slices
                    if observed.address_type == family
                    for endpoint in observed.endpoints or ()
                ]
                used = [
                    *choose(endpoints, Locality(node)).endpoints
                ]  # without hints, which only exclude more
                own = self._services.get(service)
                if own and "Local" in (
                    own.spec.internal_traffic_policy,
                    own.spec.external_traffic_policy,
                ):
                    used += choose_local(endpoints, Locality(node)).endpoints
                if any(endpoint.pod == subject.uid for endpoint in used):
                    text = (
                        f"{self.actor} says that {key} is drained, and {node} sends to it for "
                        f"{service} ({family})"
                    )
                    raise Broken("drained-is-drained", key, text)

    def _exists(self, slice_key: str) -> bool:
        namespace, _, name = slice_key.partition("/")
        return (
            self._network.server.store.get(Key(EndpointSlices.storage_key, namespace, name))
            is not None
        )


def is_ahead(
    kernel: Iterable[EndpointSlice],
    listed: Iterable[str],
    revision: int,
    exists: Callable[[str], bool],
) -> bool:
    """Returns True if a kernel with these slices is ahead of *revision*, up to which the barrier is
    informed: it has a newer slice, or lacks one of the *listed* keys that the server has no longer
    either.
    """
    revisions = {observed.metadata.key: observed.metadata.revision for observed in kernel}
    return any(newest > revision for newest in revisions.values()) or any(
        key not in revisions and not exists(key) for key in listed
    )


class _Endpoint:
    """The part of an endpoint that ``consume.usable`` reads."""

    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()

    def __init__(self, endpoint: SliceEndpoint, node: str) -> None:
        conditions: Any = endpoint.conditions
        self.ready = conditions.ready is not False
        self.serving = conditions.serving is not False
        self.terminating = conditions.terminating is True
        self.is_local = endpoint.node_name == node
        self.pod = endpoint.target_ref.uid if endpoint.target_ref is not None else ""
