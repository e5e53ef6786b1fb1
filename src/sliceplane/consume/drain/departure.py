"""The revision of the slices from which on no kernel sends new connections to a draining Pod.

A Pod is **used** if a slice has it as ready. It is also used if it terminates and still serves
while no other endpoint of the port is ready, or, with a policy ``Local``, no other on its node:
kernels fall back on it (``consume.usable``) until a write sets serving=false or removes the
endpoint. Slices of every manager and family count, except those of headless Services, which no node
proxy reads.

**The goal** is taken when the Pod turns from used to unused: for each reading
(``consume.selections``) the revision of the last write of the Service's slices there. A node that
has applied it has none of the earlier states. Writes of metadata alone do not count. For three
reasons that is more than a maximum of revisions:

* A deleted slice has no revision; that of the next mark of the watch is used. What happened before
  a Pod was added is not observed at all: so every selection must have applied the revision of that
  time, too.
* With subsets a node reads several selections, each at a revision of its own, and may apply a
  mix of states that never existed: in one an endpoint is no longer ready, in another one is not yet
  ready, and so the node falls back. While the Pod serves, the goal therefore follows every write of
  such a Service.
* Several writes may come before a mark, and the Pod may have been used between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sliceplane.api.core import Pod, Service
from sliceplane.api.discovery import (
    ANNOTATION_DRAIN,
    LABEL_SERVICE_NAME,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.scheme import EndpointSlices, Services
from sliceplane.consume.drain.answer import Use
from sliceplane.consume.flow_counts import FlowTarget
from sliceplane.consume.progress import Scope
from sliceplane.consume.selections import (
    ALL,
    EVERY,
    SHARED,
    list_selections_of_slice,
    service_scope,
)
from sliceplane.kit.ip import FAMILIES

#: name and protocol
PortKey = tuple[str, str]


class DrainSubject(NamedTuple):
    """A Pod to drain. ``addresses`` identify it in slices without a reference to a Pod."""

    namespace: str
    name: str
    uid: str
    node: str
    addresses: frozenset[str]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def subject_of(pod: Pod) -> DrainSubject:
    """Returns the subject for *pod*, without addresses if the Pod is in the host's network."""
    addresses = frozenset(() if pod.spec.host_network else pod.status.ips)
    meta = pod.metadata
    return DrainSubject(meta.namespace, meta.name, meta.uid, pod.spec.node_name, addresses)


def is_draining(pod: Pod) -> bool:
    """Returns True if *pod* is being deleted, or ``sliceplane drain`` marked it."""
    return pod.metadata.is_deleting or ANNOTATION_DRAIN in (pod.metadata.annotations or {})


class _Part(NamedTuple):
    """The content of one slice: ready endpoints, in all and by node, and every endpoint of its
    subjects.
    """

    family: str
    selections: frozenset[str]
    ports: frozenset[PortKey]
    ready: int
    ready_on: Mapping[str, int]
    #: by subject: its endpoints
    subjects: Mapping[str, tuple[SliceEndpoint, ...]]


class _State:
    """The state of one subject in one Service: its uses, or the goal by which it has left."""

    def __init__(self) -> None:
        self.uses: tuple[Use, ...] = ()
        self.goal: dict[Scope, int] = {}
        self.is_judged = False
        #: it still serves, so that kernels may fall back on it again
        self.lingers = False


class DrainingPods:
    """Pods that are being drained. Observes every slice and Service of their namespaces, and
    decides at marks, when every earlier change was delivered. O(the slices of a changed Service),
    and only for subjects.
    """

    def __init__(self, *, reads_services: bool = True) -> None:
        """*reads_services*: ``on_service`` is called; else any Service may have a policy
        ``Local``.
        """
        self._reads_services = reads_services
        self._subjects: dict[str, DrainSubject] = {}
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        self._parts: dict[str, dict[str, _Part]] = {}
        self._services: dict[str, Service] = {}
        #: by Service and selection: the revision of the last write; 0: that of the next mark
        self._touched: dict[str, dict[str, int]] = {}
        self._going: set[tuple[str, str]] = set()
        self._states: dict[str, dict[str, _State]] = {}
        #: by subject: the observed revision of all slices at its first update
        self._floors: dict[str, int] = {}
        #: since the last update: number of writes by Service, and replaced versions of slices
        self._changed: dict[str, int] = {}
        self._superseded: dict[str, list[EndpointSlice]] = {}
        self._new: set[str] = set()
        self._fresh: set[str] = set()
        self.revision = 0

    # Events

    def add(self, subject: DrainSubject) -> None:
        """Tracks *subject* from the next mark on. Call again when it has further addresses."""
        cached = self._subjects.get(subject.key)
        if cached is not None and cached.uid == subject.uid:
            subject = subject._replace(addresses=cached.addresses | subject.addresses)
        if cached == subject:
            return
        if cached is None or cached.uid != subject.uid:
            self._states[subject.key] = {}
            self._floors.pop(subject.key, None)
        self._subjects[subject.key] = subject
        self._fresh.add(subject.key)

    def discard(self, key: str) -> None:
        self._subjects.pop(key, None)
        self._states.pop(key, None)
        self._floors.pop(key, None)
        self._fresh.discard(key)

    def on_service(self, old: Service | None, new: Service | None) -> None:
        for service in (old, new):
            if service is not None:
                self._count(service.metadata.key)
        if new is not None:
            self._services[new.metadata.key] = new
        elif old is not None:
            self._services.pop(old.metadata.key, None)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        before, after = _service_of(old), _service_of(new)
        if before == after and old is not None and new is not None and _is_same(old, new):
            self._slices.get(before, {})[new.metadata.name] = new
            return
        for service, endpoint_slice in ((before, old), (after, new)):
            if service and endpoint_slice is not None:
                self._count(service)
                self._parts.get(service, {}).pop(endpoint_slice.metadata.name, None)
                for selection in list_selections_of_slice(endpoint_slice):
                    if new is None:
                        self._going.add((service, selection))
                    else:
                        self._touch(service, selection, new.metadata.revision)
        if old is not None and before:
            self._slices.get(before, {}).pop(old.metadata.name, None)
            if old.metadata.key in self._new:
                self._superseded.setdefault(before, []).append(old)
        if new is not None and after:
            self._slices.setdefault(after, {})[new.metadata.name] = new
            self._new.add(new.metadata.key)

    def _count(self, service: str) -> None:
        self._changed[service] = self._changed.get(service, 0) + 1

    def _touch(self, service: str, selection: str, revision: int) -> None:
        touched = self._touched.setdefault(service, {})
        touched[selection] = max(touched.get(selection, 0), revision)

    def on_mark(self, revision: int) -> tuple[str, ...]:
        """Notes that all slices are observed up to *revision*. Returns the keys of the subjects
        that changed.
        """
        self.revision = revision
        for service, selection in self._going:
            self._touch(service, selection, revision)
        self._going.clear()
        return self.update()

    def update(self) -> tuple[str, ...]:
        """Does the same without a mark, for Services, which have a watch of their own."""
        if not self.revision:
            return ()
        moved = set(self._fresh)
        spaces = {self._subjects[key].namespace for key in self._fresh}
        for service in self._slices if spaces else ():
            if service.partition("/")[0] in spaces:
                self._parts.pop(service, None)
                self._changed.setdefault(service, 0)
        for service in sorted(self._changed):
            moved.update(self._update_service(service))
        self._changed.clear()
        self._superseded.clear()
        self._new.clear()
        for key in self._fresh:
            self._floors.setdefault(key, self.revision)
        self._fresh.clear()
        return tuple(sorted(moved))

    # Queries

    def uses(self, key: str) -> tuple[Use, ...]:
        """Returns why kernels may still use the Pod; none: it is unused, see ``goal``."""
        states = self._states.get(key, {})
        return tuple(use for service in sorted(states) for use in states[service].uses)

    def goal(self, key: str) -> dict[Scope, int]:
        """Returns the revisions that a node must have applied, if there are no ``uses``."""
        goal: dict[Scope, int] = {}
        floor = self._floors.get(key, 0)
        if floor:
            goal[EVERY] = goal[service_scope(f"{key.partition('/')[0]}/*")] = floor
        for service, state in self._states.get(key, {}).items():
            for scope, revision in state.goal.items():
                for reader in (scope, service_scope(service)) if scope[0] == EVERY[0] else (scope,):
                    goal[reader] = max(goal.get(reader, 0), revision)
        return goal

    def services(self, key: str) -> tuple[str, ...]:
        """Returns the Services that have, or had, the Pod as an endpoint."""
        return tuple(sorted(self._states.get(key, {})))

    def slices(self, service: str) -> tuple[str, ...]:
        """Returns the keys of the observed slices of *service* that kernels read."""
        return tuple(
            endpoint_slice.metadata.key for endpoint_slice in self._slices.get(service, {}).values()
        )

    def subjects(self) -> tuple[DrainSubject, ...]:
        return tuple(subject for key, subject in self._subjects.items() if key not in self._fresh)

    def is_tracked(self, key: str) -> bool:
        return key in self._subjects and key not in self._fresh

    def slices_to_annotate(self, key: str) -> tuple[EndpointSlice, ...]:
        """Returns one slice for each selection of the goal, so that an annotation reaches every
        node concerned. If the Pod was unused before it was added, its Services are unknown, and
        all slices of the namespace are considered.
        """
        chosen: dict[tuple[str, ...], EndpointSlice] = {}
        space = key.partition("/")[0]
        for service in self.services(key) or [
            name for name in sorted(self._slices) if name.startswith(f"{space}/")
        ]:
            slices = self._slices.get(service, {})
            for name in sorted(slices):
                selections = list_selections_of_slice(slices[name])
                if selections:
                    chosen.setdefault(selections, slices[name])
        return tuple(chosen.values())

    def slices_of_every_node(self) -> tuple[EndpointSlice, ...]:
        """Returns one slice that every node reads, of the subjects' Services if they have one;
        else one for each selection.
        """
        own = {service for states in self._states.values() for service in states}
        chosen: dict[tuple[str, ...], EndpointSlice] = {}
        for service in sorted(self._slices, key=lambda service: (service not in own, service)):
            for endpoint_slice in self._slices[service].values():
                selections = list_selections_of_slice(endpoint_slice)
                if SHARED in selections:
                    return (endpoint_slice,)
                chosen.setdefault(selections, endpoint_slice)
        return tuple(chosen.values())

    def targets(self, key: str) -> tuple[FlowTarget, ...]:
        """Returns where connections to the Pod end: at its addresses, or at its ports in slices if
        it shares its node's addresses.
        """
        subject = self._subjects[key]
        if subject.addresses:
            return tuple(sorted(FlowTarget(address) for address in subject.addresses))
        find = subject_finder((subject,))
        targets = {
            FlowTarget(address, port.port)
            for service in self._states.get(key, ())
            for endpoint_slice in self._slices.get(service, {}).values()
            for endpoint in endpoint_slice.endpoints or ()
            if find(subject.namespace, endpoint) is not None
            for address in endpoint.addresses
            for port in endpoint_slice.ports or ()
            if port.port
        }
        return tuple(sorted(targets))

    # One Service

    def _update_service(self, service: str) -> Iterable[str]:
        slices = self._slices.get(service, {})
        find = subject_finder(self._subjects.values())
        passed = [
            _part(endpoint_slice, find)
            for endpoint_slice in self._superseded.get(service, ())
            if self._subjects
        ]
        parts = self._parts.setdefault(service, {}) if self._subjects else {}
        for name, endpoint_slice in slices.items() if self._subjects else ():
            if name not in parts:
                parts[name] = _part(endpoint_slice, find)
        concerned = {key for key, states in self._states.items() if service in states}
        concerned.update(key for part in (*parts.values(), *passed) for key in part.subjects)
        if not slices:
            self._slices.pop(service, None)
            self._parts.pop(service, None)
        for key in concerned:
            state = self._states[key].setdefault(service, _State())
            before = (state.uses, state.goal)
            lingered = state.lingers or any(
                _serves(endpoint) for part in passed for endpoint in part.subjects.get(key, ())
            )
            self._judge(self._subjects[key], service, parts, state, lingered=lingered)
            if (state.uses, state.goal) != before or not state.is_judged:
                state.is_judged = True
                yield key
        if not slices and not concerned:
            self._touched.pop(service, None)

    def _judge(
        self,
        subject: DrainSubject,
        service: str,
        parts: Mapping[str, _Part],
        state: _State,
        *,
        lingered: bool,
    ) -> None:
        was_used = bool(state.uses) or not state.is_judged
        state.uses, state.lingers = _uses(subject, service, parts, self._may_be_local(service))
        if state.uses:
            state.goal = {}
            return
        touched = self._touched.get(service, {})
        often = self._changed[service] > 1 or not touched.keys() <= {ALL, SHARED}
        follows = often and (lingered or state.lingers)
        if was_used or follows:
            state.goal = {
                (EndpointSlices.plural, selection): revision
                for selection, revision in touched.items()
            }
            cached = self._services.get(service)
            if state.lingers and cached is not None:
                state.goal[Services.plural, ALL] = cached.metadata.revision

    def _may_be_local(self, service: str) -> bool:
        cached = self._services.get(service)
        if cached is None:
            return not self._reads_services
        return "Local" in (cached.spec.internal_traffic_policy, cached.spec.external_traffic_policy)


def _service_of(endpoint_slice: EndpointSlice | None) -> str:
    name = (
        (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
        if endpoint_slice is not None
        else ""
    )
    return (
        f"{endpoint_slice.metadata.namespace}/{name}"
        if endpoint_slice is not None and name and list_selections_of_slice(endpoint_slice)
        else ""
    )


def _is_same(old: EndpointSlice, new: EndpointSlice) -> bool:
    """Returns True if kernels read the same from both, of one Service: only metadata differs, such
    as the requests for reports of other drains. A goal that followed these would never be reached
    while many Pods are drained.
    """
    return (
        old.endpoints == new.endpoints
        and old.ports == new.ports
        and list_selections_of_slice(old) == list_selections_of_slice(new)
    )


#: the subject that an endpoint in a namespace means, or ``None``
FindSubject = Callable[[str, SliceEndpoint], DrainSubject | None]


def subject_finder(subjects: Iterable[DrainSubject]) -> FindSubject:
    """Returns a function that finds a subject by the reference to a Pod; without one by an
    address.
    """
    by_name: dict[tuple[str, str], DrainSubject] = {}
    by_address: dict[tuple[str, str], DrainSubject] = {}
    for subject in subjects:
        by_name[subject.namespace, subject.name] = subject
        by_address |= {(subject.namespace, address): subject for address in subject.addresses}

    def find(namespace: str, endpoint: SliceEndpoint) -> DrainSubject | None:
        target = endpoint.target_ref
        if target is not None and target.kind == "Pod":
            named = by_name.get((namespace, target.name))
            return named if named is not None and target.uid in ("", named.uid) else None
        matches = (by_address.get((namespace, address)) for address in endpoint.addresses)
        return next(filter(None, matches), None)

    return find


def _part(endpoint_slice: EndpointSlice, find: FindSubject) -> _Part:
    """Returns the part of a slice. No kernel reads slices with names instead of addresses."""
    endpoints_by_subject: dict[str, list[SliceEndpoint]] = {}
    ready, ready_on = 0, dict[str, int]()
    for endpoint in (
        (endpoint_slice.endpoints or ()) if endpoint_slice.address_type in FAMILIES else ()
    ):
        subject = find(endpoint_slice.metadata.namespace, endpoint)
        if subject is not None:
            endpoints_by_subject.setdefault(subject.key, []).append(endpoint)
        if endpoint.conditions.ready is not False:
            ready += 1
            node = endpoint.node_name or ""
            ready_on[node] = ready_on.get(node, 0) + 1
    ports = frozenset(
        (port.name or "", port.protocol or "TCP")
        for port in endpoint_slice.ports or ()
        if port.port is not None
    )
    selections = frozenset(list_selections_of_slice(endpoint_slice))
    return _Part(
        endpoint_slice.address_type,
        selections,
        ports,
        ready,
        ready_on,
        {key: tuple(endpoints) for key, endpoints in endpoints_by_subject.items()},
    )


def _serves(endpoint: SliceEndpoint) -> bool:
    """Returns True if *endpoint* is ready, or kernels may fall back on it."""
    conditions = endpoint.conditions
    return conditions.ready is not False or bool(
        conditions.terminating and conditions.serving is not False
    )


def _uses(
    subject: DrainSubject, service: str, parts: Mapping[str, _Part], may_be_local: bool
) -> tuple[tuple[Use, ...], bool]:
    """Returns the uses of *subject*, and True if it serves while it terminates."""
    uses: set[Use] = set()
    lingers = False
    for part in parts.values():
        for endpoint in part.subjects.get(subject.key, ()):
            conditions = endpoint.conditions
            if conditions.ready is not False:
                uses.add(Use(service, part.family, "ready"))
            elif conditions.terminating and conditions.serving is not False:
                lingers = True
                why = _fall_back(endpoint, part, parts, may_be_local)
                if why:
                    uses.add(Use(service, part.family, why))
    return tuple(sorted(uses)), lingers


def _fall_back(
    endpoint: SliceEndpoint, part: _Part, parts: Mapping[str, _Part], may_be_local: bool
) -> str:
    """Returns why some node may fall back on *endpoint*, "" if none may. Only slices count that
    every reader of *endpoint* reads: other nodes may fall back.
    """
    node = endpoint.node_name or ""
    readable = [
        other
        for other in parts.values()
        if other.family == part.family
        and (SHARED in other.selections or other.selections >= part.selections)
    ]
    for port in sorted(part.ports):
        peers = [other for other in readable if port in other.ports]
        if not any(peer.ready for peer in peers):
            return "nobody else"
        if may_be_local and node and not any(peer.ready_on.get(node) for peer in peers):
            return "nobody local"
    return ""
