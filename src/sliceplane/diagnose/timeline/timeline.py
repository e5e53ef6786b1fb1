"""The timeline of a Service: each change as a sentence, with its author and its effects.

A line is a *cause*: a change by a person or a program, with everything that belongs to it. A
rollout is one line: changes of Pods with one owner, each at most ``GAP_S`` after the previous one,
begin with the change of their Deployment (or other owner), if any. Its effects are the slices that
the controller wrote for the Service until the next cause, and the nodes that reported that they
applied them.

The Service's Pods are those that its slices name, and those that its selector matches among their
owners' Pods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from sliceplane.api.meta import Object
from sliceplane.api.scheme import (
    DaemonSets,
    Deployments,
    EndpointSlices,
    Leases,
    Pods,
    ReplicaSets,
    ReplicationControllers,
    Resource,
    Services,
    StatefulSets,
)
from sliceplane.consume.drain.relayed import RELAY_PREFIX, nodes_of
from sliceplane.consume.progress import ANNOTATION_REVISION, LEASE_NAMESPACE, LEASE_PREFIX
from sliceplane.diagnose.timeline.index import NONE, Index, RecordedStep
from sliceplane.diagnose.timeline.reader import ObjectKey
from sliceplane.diagnose.timeline.wording import change_text, field_changes
from sliceplane.watch.cache import Change
from sliceplane.watch.recorder.entries import SentVersion

#: seconds between changes of one owner's Pods that are parts of one cause
GAP_S: Final = 30.0
#: seconds between the informers of one process, at most
_ECHO_S: Final = 1.0
#: seconds from a cause to the write of a slice that is its effect, at most
_FOLLOW_S: Final = 30.0
_OWNERS: Final = {
    resource.kind: resource
    for resource in (ReplicaSets, Deployments, StatefulSets, DaemonSets, ReplicationControllers)
}
_READY: Final = "Ready"
#: transitions of Pods, in the order of a line
POD_TRANSITIONS: Final = ("made", "ready", "not ready", "terminating", "gone")


class SubLine(NamedTuple):
    """``pod``: the Pod concerned, and ``became`` its transition, one of ``POD_TRANSITIONS``; or "".
    ``status_only``: no other member changed.
    """

    at: float
    what: str
    author: str
    pod: str = ""
    became: str = ""
    status_only: bool = False


class TimelineSent(NamedTuple):
    """Events of slices: the fewest and the most watchers to which the server sent one, and the
    bytes sent in total.
    """

    fewest: int
    most: int
    size_bytes: int


class TimelineEffect(NamedTuple):
    """``size_bytes``: as the controller wrote them. ``sent``: ``None`` if it was not recorded for
    each event. ``nodes``: node -> seconds from the last of these writes to the report that the node
    applied them. ``nodes_total``: node proxies that report.
    """

    slices: int = 0
    #: writes of these slices, by the controller or others
    writes: int = 0
    size_bytes: int = 0
    sent: TimelineSent | None = None
    nodes: dict[str, float] = {}
    nodes_total: int = 0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """``pods``: transitions of Pods, if *what* is about another object. ``effect``: ``None`` if
    unknown. ``next_at``: when the next line begins; later effects belong to it.
    """

    at: float
    until: float
    author: str
    what: str
    pods: str = ""
    effect: TimelineEffect | None
    opened: tuple[SubLine, ...]
    next_at: float = math.inf


class Membership(NamedTuple):
    """The endpoints at two times: address -> state."""

    before: dict[str, str]
    after: dict[str, str]


@dataclass(slots=True)
class _Cause:
    root: str
    steps: list[RecordedStep] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.steps[-1].at


class Timeline:
    """Questions about one Service, answered from one index."""

    def __init__(self, index: Index, namespace: str, name: str) -> None:
        self._index = index
        self._service = ObjectKey(Services.key, namespace, name)
        self._leases: tuple[ObjectKey, ...] = ()
        self._slices = index.slices(namespace, name)
        self._pods = self._find_pods()
        index.load((self._service, *self._pods), (f"{namespace}/{name}",))

    @property
    def ended(self) -> float:
        """Time of the newest entry."""
        return self._index.ended

    @property
    def is_recorded(self) -> bool:
        """Returns True if the recording has an object of the Service."""
        return (
            bool(self._slices)
            or self._service in self._index.steps
            or self._service in self._index.first
        )

    def lines(self, since: float) -> list[Line]:
        """Returns the lines in the order of time, without those that began before *since*."""
        self._find_leases(since)
        causes = self._causes(since)
        lines: list[Line] = []
        for position, cause in enumerate(causes):
            next_at = causes[position + 1].steps[0].at if position + 1 < len(causes) else math.inf
            if cause.steps[0].at >= since:
                lines.append(self._line(cause, next_at))
        return lines

    def membership(self, before: float, after: float) -> Membership:
        return Membership(self._endpoints(before), self._endpoints(after))

    # -- what belongs to the Service

    def _any_version(self, key: ObjectKey) -> Any:
        return next(iter(self._index.versions(key)), None)

    def _find_pods(self) -> tuple[ObjectKey, ...]:
        names: dict[str, None] = {}
        for key in self._slices:
            for version in self._index.versions(key):
                for endpoint in version.endpoints or ():
                    if endpoint.target_ref is not None and endpoint.target_ref.kind == Pods.kind:
                        names[endpoint.target_ref.name] = None
        namespace = self._service.namespace
        return tuple(ObjectKey(Pods.key, namespace, name) for name in names)

    def _find_leases(self, since: float) -> None:
        """Loads the Leases of node proxies. Proxies report all the time, so older ones are not
        read.
        """
        keys = self._index.keys(Leases.key, LEASE_NAMESPACE)
        prefixes = (LEASE_PREFIX, RELAY_PREFIX)
        self._leases = tuple(key for key in keys if key.name.startswith(prefixes))
        self._index.load(self._leases, since=since)

    # -- causes

    def _causes(self, since: float) -> list[_Cause]:
        causes: list[_Cause] = []
        open_of: dict[str, _Cause] = {}
        for step, root, begins in self._rooted_steps(since):
            cause = open_of.get(root)
            if cause is not None and begins and _is_echo(cause, step):
                # Another informer was quicker: a controller's writes were observed before their
                # cause.
                cause.steps.insert(0, step)
                continue
            if cause is None or begins or step.at - cause.last > GAP_S:
                cause = open_of[root] = _Cause(root)
                causes.append(cause)
            cause.steps.append(step)
        return causes

    def _rooted_steps(self, since: float) -> list[tuple[RecordedStep, str, bool]]:
        """Returns the steps that may be causes or parts of them, each with its root, and True if it
        is a cause by itself.
        """
        earliest = since - GAP_S
        rooted: list[tuple[RecordedStep, str, bool]] = []
        owners: dict[ObjectKey, str] = {}
        for key in self._pods:
            steps = [step for step in self._index.steps.get(key, ()) if step.at >= earliest]
            if not steps:
                continue
            root = self._root(key, owners)
            rooted += [(step, root, False) for step in steps if self._is_about_traffic(step)]
        for key, root in owners.items():
            for step in self._index.steps.get(key, ()):
                if step.at >= earliest and self._changes_more_than_status(step):
                    rooted.append(
                        (step, root, bool(step.writer) and not _is_controller(step.writer))
                    )
        for key in (self._service, *self._slices):
            own = key is not self._service
            for step in self._index.steps.get(key, ()):
                if step.at < earliest or (own and (not step.writer or _is_controller(step.writer))):
                    continue  # the controller's writes are effects, not causes
                if own or self._changes_more_than_status(step):
                    rooted.append((step, f"{key.resource} {key.name}", True))
        rooted.sort(key=lambda entry: entry[0][:2])
        return rooted

    def _root(self, key: ObjectKey, owners: dict[ObjectKey, str]) -> str:
        """Returns kind and name of the Deployment behind a Pod, or of its other owner. Owners on
        the way are added to *owners*.
        """
        path: list[ObjectKey] = []
        kind = Pods.kind
        while True:
            version = self._any_version(key)
            references = () if version is None else version.metadata.owner_references or ()
            owner = next((reference for reference in references if reference.controller), None)
            resource: Resource | None = None if owner is None else _OWNERS.get(owner.kind)
            if owner is None or resource is None:
                break
            key = ObjectKey(resource.key, key.namespace, owner.name)
            self._index.load((key,))
            kind = owner.kind
            path.append(key)
        root = f"{kind} {key.name}"
        for owner_key in path:
            owners.setdefault(owner_key, root)
        return root

    def _is_about_traffic(self, step: RecordedStep) -> bool:
        """Returns True if a Pod was created or deleted, or a change affects slices."""
        if NONE in (step.old, step.new):
            return True
        old, new = self._index.version(step.old), self._index.version(step.new)
        return (
            _is_ready(old) != _is_ready(new)
            or _is_terminating(old) != _is_terminating(new)
            or old.metadata.labels != new.metadata.labels
            or old.status.pod_ips != new.status.pod_ips
            or old.status.phase != new.status.phase
        )

    def _changes_more_than_status(self, step: RecordedStep) -> bool:
        """Returns True if not only the status changed."""
        if NONE in (step.old, step.new):
            return True
        old, new = self._index.version(step.old), self._index.version(step.new)
        changes = field_changes(old, new)
        return any(
            not change.path.startswith(("status", "metadata.annotations[deployment"))
            for change in changes
        )

    # -- lines

    def _line(self, cause: _Cause, next_at: float) -> Line:
        head = cause.steps[0]
        if head.key.resource == Pods.key:
            pods = [step for step in cause.steps if step.key.resource == Pods.key]
            what, became = f"{cause.root}: {self._pods_text(pods)}", ""
        else:
            rest = [step for step in cause.steps if step.key.resource == Pods.key]
            what = f"{_kind(head.key)} {head.key.name}: {self._what(head)}"
            became = f"Pods: {self._pods_text(rest)}" if rest else ""
        return Line(
            at=head.at,
            until=cause.last,
            author=next((step.writer for step in cause.steps if step.writer), ""),
            what=what,
            pods=became,
            effect=self._effect(head.at, min(next_at, cause.last + _FOLLOW_S)),
            opened=tuple(map(self._opened, cause.steps)),
            next_at=next_at,
        )

    def _opened(self, step: RecordedStep) -> SubLine:
        if step.key.resource != Pods.key:
            return SubLine(
                step.at, f"{_kind(step.key)} {step.key.name}: {self._what(step)}", step.writer
            )
        became = self._pod_text(step)
        transition = became if became in POD_TRANSITIONS else ""
        what = f"{Pods.kind} {step.key.name}: {became}"
        return SubLine(
            step.at,
            what,
            step.writer,
            step.key.name,
            transition,
            not transition and not self._changes_more_than_status(step),
        )

    def _what(self, step: RecordedStep) -> str:
        old, new = self._index.version(step.old), self._index.version(step.new)
        change: Change[Object] = Change(step.key.resource, old, new)
        if old is None or new is None:
            return change_text(change)
        changes = [item for item in field_changes(old, new) if not item.path.startswith("status")]
        return ", ".join(map(str, changes[:4])) if changes else change_text(change)

    def _pod_text(self, step: RecordedStep) -> str:
        old, new = self._index.version(step.old), self._index.version(step.new)
        if old is None:
            return "made"
        if new is None:
            return "gone"
        if _is_terminating(new) and not _is_terminating(old):
            return "terminating"
        if _is_ready(old) != _is_ready(new):
            return "ready" if _is_ready(new) else "not ready"
        return change_text(Change(step.key.resource, old, new))

    def _pods_text(self, steps: list[RecordedStep]) -> str:
        """Returns the changes of Pods, counted: ``3 Pods made, 2 ready``."""
        counts: dict[str, set[str]] = {}
        for step in steps:
            counts.setdefault(self._pod_text(step), set()).add(step.key.name)
        if len(steps) == 1:
            return f"Pod {steps[0].key.name} {self._pod_text(steps[0])}"
        parts = [
            f"{len(counts[transition])} {transition}"
            for transition in POD_TRANSITIONS
            if transition in counts
        ]
        return (
            ", ".join(parts) if parts else f"{len({step.key.name for step in steps})} Pods changed"
        )

    # -- what followed

    def _effect(self, since: float, until: float) -> TimelineEffect:
        service = f"{self._service.namespace}/{self._service.name}"
        slices: set[str] = set()
        versions: dict[SentVersion, None] = {}
        newest = 0
        last = since
        for key in self._slices:
            for step in self._index.steps.get(key, ()):
                if since <= step.at < until:
                    slices.add(key.name)
                    version = self._index.version(step.new if step.new != NONE else step.old)
                    revision = version.metadata.revision
                    versions[SentVersion(key.name, revision, step.new == NONE)] = None
                    newest = max(newest, revision)
                    last = max(last, step.at)
        size = sum(
            write[2]
            for plan in self._index.plans.get(service, ())
            if since <= plan.at < until
            for write in plan.writes
            if write[1].startswith("endpointslices")
        )
        nodes, total = self._nodes(newest, last) if slices else ({}, 0)
        return TimelineEffect(len(slices), len(versions), size, self._sent(versions), nodes, total)

    def _sent(self, versions: Iterable[SentVersion]) -> TimelineSent | None:
        sent = [self._index.sent.get(version) for version in versions]
        recorded = [event for event in sent if event is not None]
        if not recorded or len(recorded) < len(sent):
            return None
        watchers = [event.watchers for event in recorded]
        return TimelineSent(
            min(watchers), max(watchers), sum(event.size_bytes for event in recorded)
        )

    def _nodes(self, revision: int, since: float) -> tuple[dict[str, float], int]:
        """Returns the seconds until each node proxy reported *revision*, and the number of node
        proxies.
        """
        delays: dict[str, float] = {}
        names: set[str] = set()
        for key in self._leases:
            for step in self._index.steps.get(key, ()):
                if step.at < since or step.new == NONE:
                    continue
                for lease, _ in nodes_of(self._index.version(step.new)):
                    name = lease.metadata.name.removeprefix(LEASE_PREFIX)
                    names.add(name)
                    applied = (lease.metadata.annotations or {}).get(ANNOTATION_REVISION, "")
                    if applied.isdecimal() and int(applied) >= revision:
                        delays[name] = min(step.at - since, delays.get(name, math.inf))
        alone = {key.name for key in self._leases if key.name.startswith(LEASE_PREFIX)}
        return delays, len(alone | {f"{LEASE_PREFIX}{name}" for name in names})

    def _endpoints(self, at: float) -> dict[str, str]:
        members: dict[str, str] = {}
        for key in self._slices:
            number = self._index.first.get(key, NONE)
            for step in self._index.steps.get(key, ()):
                if step.at > at:
                    break
                number = step.new
            version = self._index.version(number)
            for endpoint in () if version is None else version.endpoints or ():
                name = endpoint.target_ref.name if endpoint.target_ref is not None else ""
                member = f"{endpoint.addresses[0]} {name}".rstrip()
                members[member] = _state(endpoint)
        return dict(sorted(members.items()))


def _is_echo(cause: _Cause, step: RecordedStep) -> bool:
    """Returns True if *cause* has just begun, and only with writes of controllers, which react to
    *step*.
    """
    first = cause.steps[0]
    return step.at - first.at < _ECHO_S and all(_is_controller(part.writer) for part in cause.steps)


def _state(endpoint: Any) -> str:
    conditions = endpoint.conditions
    if conditions.terminating:
        return "terminating"
    return "ready" if conditions.ready is not False else "not ready"


def _is_terminating(pod: Any) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _is_ready(pod: Any) -> bool:
    return any(
        condition.type == _READY and condition.status == "True"
        for condition in pod.status.conditions or ()
    )


def _kind(key: ObjectKey) -> str:
    kinds = {resource.key: kind for kind, resource in _OWNERS.items()}
    kinds |= {
        Services.key: Services.kind,
        Pods.key: Pods.kind,
        EndpointSlices.key: EndpointSlices.kind,
    }
    return kinds.get(key.resource, key.resource)


def _is_controller(writer: str) -> bool:
    """Returns True for a field manager that acts on behalf of others."""
    return writer.startswith(("kube-controller-manager", "sliceplane", "kubelet", "kube-scheduler"))
