"""From which version of the slices on no kernel has a reason to send new connections to a Pod.

**Used** is a Pod of which a slice says ready. Used is, too, one that terminates and still serves
where no other endpoint of the port is ready, or, with a policy ``Local``, no other on its node:
kernels fall back on it (``consume.usable``), so here the write counts that says serving=false, or
takes the endpoint away. Slices of every manager and family count; those of headless Services are
read by no node proxy and do not.

**The goal** is taken when the Pod turns from used to unused: for each reading
(``consume.selections``) the version of the last write of the Service's slices there. A node that
holds it sees none of the states from before. Three things make that more than a maximum of
versions:

* A deleted slice has no version; the next mark of the watch is one. And what happened before we
  began to look at a Pod is not known at all: so every reading must hold the version of then, too.
* With subsets a node reads several selections, each at a version of its own, and may meet a mix of
  states that never was: here an endpoint that is not ready any more, there one that is not ready
  yet, and so the fall-back. While the Pod serves, the goal therefore follows every write of such a
  Service.
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
    """A Pod to be drained.  ``addresses``: by which slices without a reference to a Pod are known
    to mean it.
    """

    namespace: str
    name: str
    uid: str
    node: str
    addresses: frozenset[str]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def subject_of(pod: Pod) -> DrainSubject:
    """The address of a Pod in the host's network is that of others, too, and says nothing."""
    addresses = frozenset(() if pod.spec.host_network else pod.status.ips)
    meta = pod.metadata
    return DrainSubject(meta.namespace, meta.name, meta.uid, pod.spec.node_name, addresses)


def leaves(pod: Pod) -> bool:
    """It is deleted, or ``sliceplane drain`` marked it."""
    return pod.metadata.is_deleting or ANNOTATION_DRAIN in (pod.metadata.annotations or {})


class _Part(NamedTuple):
    """The content of one slice: ready endpoints, in all and by node, and every endpoint of its
    subjects.
    """

    family: str
    readings: frozenset[str]
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
        self.looked = False
        #: it is still there and serves, so that kernels might come back to it
        self.lingers = False


class Departures:
    """The departures of any number of Pods. Gets every slice and Service of their namespaces;
    decides nothing before a mark, which says that every earlier change was delivered. O(the slices
    of a changed Service), and only for subjects.
    """

    def __init__(self, *, services_known: bool = True) -> None:
        """*services_known*: ``on_service`` is told; else any Service may have a policy
        ``Local``.
        """
        self._services_known = services_known
        self._subjects: dict[str, DrainSubject] = {}
        self._slices: dict[str, dict[str, EndpointSlice]] = {}
        self._parts: dict[str, dict[str, _Part]] = {}
        self._services: dict[str, Service] = {}
        #: by Service and reading, the last version that touched it; 0: only the next mark tells
        self._touched: dict[str, dict[str, int]] = {}
        self._going: set[tuple[str, str]] = set()
        self._states: dict[str, dict[str, _State]] = {}
        #: by subject: how far all slices were known when it was first looked at
        self._floors: dict[str, int] = {}
        #: since the last look: how often each Service was written, and versions of slices that were
        #: replaced
        self._changed: dict[str, int] = {}
        self._superseded: dict[str, list[EndpointSlice]] = {}
        self._new: set[str] = set()
        self._fresh: set[str] = set()
        self.revision = 0

    # Events

    def add(self, subject: DrainSubject) -> None:
        """From the next mark on something is known of it.  Again: its addresses may have come."""
        known = self._subjects.get(subject.key)
        if known is not None and known.uid == subject.uid:
            subject = subject._replace(addresses=known.addresses | subject.addresses)
        if known == subject:
            return
        if known is None or known.uid != subject.uid:
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
        for service, seen in ((before, old), (after, new)):
            if service and seen is not None:
                self._count(service)
                self._parts.get(service, {}).pop(seen.metadata.name, None)
                for reading in list_selections_of_slice(seen):
                    if new is None:
                        self._going.add((service, reading))
                    else:
                        self._touch(service, reading, new.metadata.revision)
        if old is not None and before:
            self._slices.get(before, {}).pop(old.metadata.name, None)
            if old.metadata.key in self._new:
                self._superseded.setdefault(before, []).append(old)
        if new is not None and after:
            self._slices.setdefault(after, {})[new.metadata.name] = new
            self._new.add(new.metadata.key)

    def _count(self, service: str) -> None:
        self._changed[service] = self._changed.get(service, 0) + 1

    def _touch(self, service: str, reading: str, revision: int) -> None:
        touched = self._touched.setdefault(service, {})
        touched[reading] = max(touched.get(reading, 0), revision)

    def on_mark(self, revision: int) -> tuple[str, ...]:
        """All slices are known up to *revision*.  The subjects of which something else is known
        now.
        """
        self.revision = revision
        for service, reading in self._going:
            self._touch(service, reading, revision)
        self._going.clear()
        return self.look()

    def look(self) -> tuple[str, ...]:
        """The same without a mark: Services are another watch."""
        if not self.revision:
            return ()
        moved = set(self._fresh)
        spaces = {self._subjects[key].namespace for key in self._fresh}
        for service in self._slices if spaces else ():
            if service.partition("/")[0] in spaces:
                self._parts.pop(service, None)
                self._changed.setdefault(service, 0)
        for service in sorted(self._changed):
            moved.update(self._look_at(service))
        self._changed.clear()
        self._superseded.clear()
        self._new.clear()
        for key in self._fresh:
            self._floors.setdefault(key, self.revision)
        self._fresh.clear()
        return tuple(sorted(moved))

    # Answers

    def uses(self, key: str) -> tuple[Use, ...]:
        """Why kernels may go on using the Pod; none: it has left, see ``goal``."""
        states = self._states.get(key, {})
        return tuple(use for service in sorted(states) for use in states[service].uses)

    def goal(self, key: str) -> dict[Scope, int]:
        """Returns the versions that a node must hold, if there are no ``uses``."""
        goal: dict[Scope, int] = {}
        floor = self._floors.get(key, 0)
        if floor:
            goal[EVERY] = goal[service_scope(f"{key.partition('/')[0]}/*")] = floor
        for service, state in self._states.get(key, {}).items():
            for place, revision in state.goal.items():
                for reader in (place, service_scope(service)) if place[0] == EVERY[0] else (place,):
                    goal[reader] = max(goal.get(reader, 0), revision)
        return goal

    def services(self, key: str) -> tuple[str, ...]:
        """Returns the Services that have, or had, the Pod as an endpoint."""
        return tuple(sorted(self._states.get(key, {})))

    def slices(self, service: str) -> tuple[str, ...]:
        """The keys of those that are known of it and that a kernel reads."""
        return tuple(seen.metadata.key for seen in self._slices.get(service, {}).values())

    def subjects(self) -> tuple[DrainSubject, ...]:
        return tuple(subject for key, subject in self._subjects.items() if key not in self._fresh)

    def is_known(self, key: str) -> bool:
        return key in self._subjects and key not in self._fresh

    def slices_to_ask(self, key: str) -> tuple[EndpointSlice, ...]:
        """One slice for each reading that the goal concerns: who annotates them reaches every node
        that matters. Of a Pod that had left before we looked no Service is known, and the
        namespace's slices have to do.
        """
        chosen: dict[tuple[str, ...], EndpointSlice] = {}
        space = key.partition("/")[0]
        for service in self.services(key) or [
            name for name in sorted(self._slices) if name.startswith(f"{space}/")
        ]:
            slices = self._slices.get(service, {})
            for name in sorted(slices):
                readings = list_selections_of_slice(slices[name])
                if readings:
                    chosen.setdefault(readings, slices[name])
        return tuple(chosen.values())

    # One Service

    def _look_at(self, service: str) -> Iterable[str]:
        slices = self._slices.get(service, {})
        find = subject_finder(self._subjects.values())
        passed = [_part(seen, find) for seen in self._superseded.get(service, ()) if self._subjects]
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
            if (state.uses, state.goal) != before or not state.looked:
                state.looked = True
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
        was_used = bool(state.uses) or not state.looked
        state.uses, state.lingers = _uses(subject, service, parts, self._may_be_local(service))
        if state.uses:
            state.goal = {}
            return
        touched = self._touched.get(service, {})
        often = self._changed[service] > 1 or not touched.keys() <= {ALL, SHARED}
        follows = often and (lingered or state.lingers)
        if was_used or follows:
            state.goal = {
                (EndpointSlices.plural, reading): revision for reading, revision in touched.items()
            }
            known = self._services.get(service)
            if state.lingers and known is not None:
                state.goal[Services.plural, ALL] = known.metadata.revision

    def _may_be_local(self, service: str) -> bool:
        known = self._services.get(service)
        if known is None:
            return not self._services_known
        return "Local" in (known.spec.internal_traffic_policy, known.spec.external_traffic_policy)


def _service_of(seen: EndpointSlice | None) -> str:
    name = (seen.metadata.labels or {}).get(LABEL_SERVICE_NAME, "") if seen is not None else ""
    return (
        f"{seen.metadata.namespace}/{name}"
        if seen is not None and name and list_selections_of_slice(seen)
        else ""
    )


#: the subject that an endpoint in a namespace means, or ``None``
FindSubject = Callable[[str, SliceEndpoint], DrainSubject | None]


def subject_finder(subjects: Iterable[DrainSubject]) -> FindSubject:
    """By the reference to a Pod; without one by an address."""
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
        found = (by_address.get((namespace, address)) for address in endpoint.addresses)
        return next(filter(None, found), None)

    return find


def _part(seen: EndpointSlice, find: FindSubject) -> _Part:
    """Slices with names instead of addresses are read by no kernel."""
    of: dict[str, list[SliceEndpoint]] = {}
    ready, ready_on = 0, dict[str, int]()
    for endpoint in (seen.endpoints or ()) if seen.address_type in FAMILIES else ():
        subject = find(seen.metadata.namespace, endpoint)
        if subject is not None:
            of.setdefault(subject.key, []).append(endpoint)
        if endpoint.conditions.ready is not False:
            ready += 1
            node = endpoint.node_name or ""
            ready_on[node] = ready_on.get(node, 0) + 1
    ports = frozenset(
        (port.name or "", port.protocol or "TCP")
        for port in seen.ports or ()
        if port.port is not None
    )
    readings = frozenset(list_selections_of_slice(seen))
    return _Part(
        seen.address_type,
        readings,
        ports,
        ready,
        ready_on,
        {key: tuple(found) for key, found in of.items()},
    )


def _serves(endpoint: SliceEndpoint) -> bool:
    """It is ready, or what kernels may fall back on."""
    conditions = endpoint.conditions
    return conditions.ready is not False or bool(
        conditions.terminating and conditions.serving is not False
    )


def _uses(
    subject: DrainSubject, service: str, parts: Mapping[str, _Part], may_be_local: bool
) -> tuple[tuple[Use, ...], bool]:
    """Also whether it is there and serves, and terminates."""
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
    seen = [
        other
        for other in parts.values()
        if other.family == part.family
        and (SHARED in other.readings or other.readings >= part.readings)
    ]
    for port in sorted(part.ports):
        peers = [other for other in seen if port in other.ports]
        if not any(peer.ready for peer in peers):
            return "nobody else"
        if may_be_local and node and not any(peer.ready_on.get(node) for peer in peers):
            return "nobody local"
    return ""
