"""How far a node is, and when to tell: for each thing that it reads, the version whose consequences
the kernel holds.

A proxy tells in one Lease per node (``kube-node-lease/sliceplane-proxy-NODE``), in two annotations;
the rest of the Lease says that the proxy lives. ``endpointslices-revision`` is the least version of
all readings of EndpointSlices. ``progress`` is a JSON object: for each resource and reading
(``consume.selections``) the version and the digest of the cache at that version (``watch.digest``),
what is wrong with the kernel's rules, in words, and since when the caches hear nothing, if they do.

**Sound.**  A version counts when the informer says that *everything* up to it was told
(``watch.cache.Mark``), so bookmarks and lists count, and a slice that this node does not read holds
nothing up. A write carries the marks of its beginning; the least of the families is told. So a
version is never told early, and late by one report at most.

**When.**  At the proxy's own beat: ``CHANGED_PERIOD_S`` after the last time if anything but
versions changed, else every ``IDLE_PERIOD_S``, as often as a kubelet at the most, whatever Services
do. And on demand: a slice whose annotation ``sliceplane.dev/report`` changes asks every node that
reads it for a report as soon as the kernel has that slice. Its value is any word, or
``WORD/SECONDS``: over how many seconds nodes spread their answers (which node when follows from the
names, so that it needs no dice).

Revisions of one resource are ordered (``store``; KEP-5504 for other servers); one that is no number
is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
from math import inf
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document, Object, OwnerReference
from sliceplane.api.scheme import EndpointSlices, Resource, Services
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_micro_time
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import Digest

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_PREFIX: Final = "sliceplane-proxy-"
LABEL_COMPONENT: Final = "sliceplane.dev/component"
COMPONENT: Final = "node-proxy"
#: of name servers and of xDS servers (``consume.io.reporting``)
DNS: Final = "dns"
XDS: Final = "xds"
ANNOTATION_REVISION: Final = "sliceplane.dev/endpointslices-revision"
ANNOTATION_PROGRESS: Final = "sliceplane.dev/progress"
#: on an EndpointSlice: every node that reads it is to report
ANNOTATION_REPORT: Final = "sliceplane.dev/report"

CHANGED_PERIOD_S: Final = 10.0
IDLE_PERIOD_S: Final = 30.0
#: between two reports on demand
ASKED_PERIOD_S: Final = 0.1
#: between two reports on account of clients that are behind
BEHIND_PERIOD_S: Final = 1.0
#: reports on demand that a server takes, a second; and nodes whose answers need not be spread
REPORTS_PER_S: Final = 500
FEW_NODES: Final = 50
#: over how long nodes spread answers if the request does not say, and at most
SPREAD_S: Final = 1.0
SPREAD_MAX_S: Final = 30.0
#: a proxy that was not heard of for so long has stopped, or its node is gone
LEASE_DURATION_S: Final = 90
#: a consumer reports within its period of 10 s that it holds a change, and the ways take time
BEHIND_S: Final = 15.0
#: a report that has not come by then is late: the proxy has stopped or stands still, though its
#: Lease lasts on
REPORT_LATE_S: Final = 45.0
#: a watch that is quiet and healthy is asked about sooner; a cache that is older hears nothing of
#: the API server
INPUTS_OLD_S: Final = 120.0
#: load balancers ask a health check port every few seconds
UNASKED_S: Final = 600.0
UNASKED_MAX: Final = 50
#: what is told of a kernel in trouble: sentences, and characters of each
PROBLEMS_MAX: Final = 3
PROBLEM_LENGTH_MAX: Final = 200
#: transactions of which is remembered what they carried while large Services wait for their turn;
#: if there are more, the oldest is forgotten and the report is later
TAKEN_MAX: Final = 64

#: resource and reading
Place = tuple[str, str]
FOLLOWED: Final[tuple[Resource, ...]] = (EndpointSlices, Services)
_PLURALS: Final = {resource.key: resource.plural for resource in FOLLOWED}


def lease_prefix(kind: str) -> str:
    """Returns the prefix of the names of Leases of a *kind* of consumer, a word."""
    return LEASE_PREFIX if kind == COMPONENT else f"sliceplane-{kind}-"


class Held(NamedTuple):
    """A version, and the digest of the cache as it was then."""

    revision: int
    digest: str


class ClientLag(NamedTuple):
    """The version of EndpointSlices that a client of the consumer has, and by what people know the
    client.
    """

    revision: int
    client: str


class ProgressReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The annotation ``progress``: ``[version, digest]`` by reading, and what is wrong with the
    rules. ``inputs_since``: seconds since the epoch when what it reads was last known to be
    current, if that is long ago.
    """

    endpointslices: dict[str, Held] = {}
    services: dict[str, Held] = {}
    problems: tuple[str, ...] = ()
    inputs_since: int = 0
    #: health check ports of Services that no load balancer has asked for ``UNASKED_S``
    unasked: tuple[int, ...] = ()
    #: Services (``SERVICE_READING``, ``NAMESPACE_READING``) of which clients of a consumer have
    #: less than it reports
    behind: dict[str, ClientLag] = {}
    #: the same, of clients that drains do not wait for any more
    unacknowledged: dict[str, str] = {}

    def revisions(self) -> dict[Place, int]:
        """By place, those of clients that are behind included."""
        found = {place: held.revision for place, held in self.places().items()}
        for reading, lag in self.behind.items():
            found[EndpointSlices.plural, reading] = lag.revision
        return found

    def places(self) -> dict[Place, Held]:
        readings = ((EndpointSlices, self.endpointslices), (Services, self.services))
        return {
            (resource.plural, name): held for resource, of in readings for name, held in of.items()
        }


_decoder = msgspec.json.Decoder(ProgressReport)


def read_report(text: str) -> ProgressReport | None:
    """``None``: *text* is no such annotation."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


class _Request(NamedTuple):
    """ProgressReport when *place* is held at *revision*, but not before *due*."""

    place: Place
    revision: int
    due: float


class Progress:
    """Owned by one node proxy.  Times are seconds since the epoch."""

    def __init__(
        self,
        node: str,
        families: tuple[Family, ...],
        *,
        changed_period_s: float = CHANGED_PERIOD_S,
        idle_period_s: float = IDLE_PERIOD_S,
        kind: str = COMPONENT,
        namespace: str = LEASE_NAMESPACE,
    ) -> None:
        """*node*: its name, or that of another *kind* of consumer (a word), whose Lease is in
        *namespace*.
        """
        self.changed_period_s: Final = changed_period_s
        self._idle_period_s = idle_period_s
        self.name: Final = f"{lease_prefix(kind)}{node}"
        self.namespace: Final = namespace
        self._kind = kind
        self._node = node
        #: the Node, with which the Lease goes
        self._owner: OwnerReference | None = None
        self._digests: dict[Place, Digest] = {}
        #: what the model was told, what the transaction under way carries of it, and what the
        #: kernel holds
        self._seen: dict[Place, Held] = {}
        self._carried: dict[Family, deque[tuple[int, dict[Place, Held]]]] = {
            family: deque(maxlen=TAKEN_MAX) for family in families
        }
        self._held: dict[Family, dict[Place, Held]] = {family: {} for family in families}
        self._problems: tuple[str, ...] = ()
        self._inputs_since = 0
        self._unasked: tuple[int, ...] = ()
        self._behind: Mapping[str, ClientLag] = {}
        self._unacknowledged: Mapping[str, str] = {}
        self._requests: list[_Request] = []
        self._told: ProgressReport | None = None
        self._told_at: float | None = None
        #: of these, the last at the beat: a report on demand takes the place of none
        self._beat_at = 0.0

    # -- what happens

    def on_change(self, change: Change[Object], reading: str, now: float) -> None:
        """The model was told of it, as of *reading*."""
        subject = change.object
        if isinstance(subject, Node):
            if subject.metadata.name == self._node:
                uid = "" if change.new is None else subject.metadata.uid
                self._owner = (
                    OwnerReference(api_version="v1", kind="Node", name=self._node, uid=uid)
                    if uid
                    else None
                )
            return
        plural = _PLURALS.get(change.resource)
        if plural is None:
            return
        place = (plural, reading)
        self._digests.setdefault(place, Digest()).on_change(change.old, change.new)
        if isinstance(change.new, EndpointSlice):
            asked = (change.new.metadata.annotations or {}).get(ANNOTATION_REPORT, "")
            before = (
                (change.old.metadata.annotations or {}).get(ANNOTATION_REPORT, "")
                if change.old
                else ""
            )
            if asked and asked != before and self._told_at is not None:
                due = now + _spread_s(asked) * _fraction(self._node, asked)
                self._requests.append(_Request(place, change.new.metadata.revision, due))

    def on_mark(self, resource: str, reading: str, mark: Mark | None) -> None:
        """The model was told of everything of *resource* (its key) up to *mark*; ``None``: it
        begins to read it.
        """
        plural = _PLURALS.get(resource)
        if plural is not None:
            place = (plural, reading)
            digest = self._digests.setdefault(place, Digest())
            self._seen[place] = Held(0 if mark is None else mark.revision, digest.text)

    def on_dropped(self, resource: str, reading: str) -> None:
        """It is read no more."""
        plural = _PLURALS.get(resource)
        if plural is not None:
            self._digests.pop((plural, reading), None)
            self._seen.pop((plural, reading), None)

    def on_taken(self, family: Family, number: int = 0) -> None:
        """Transaction *number* begins; it carries everything seen so far, but for what is left for
        a later one.
        """
        if not number:
            self._carried[family].clear()
        self._carried[family].append((number, dict(self._seen)))

    def on_written(self, family: Family, complete: int = 0) -> None:
        """The kernel took the last one, and has all that was seen before transaction *complete* and
        with it.
        """
        carried = self._carried[family]
        while carried and carried[0][0] <= complete:
            self._held[family] = carried.popleft()[1]

    def on_idle(self, family: Family) -> None:
        """Nothing waits to be written: what was seen had no consequences here, or they are
        there.
        """
        self._held[family] = dict(self._seen)
        self._carried[family].clear()

    def on_problems(self, problems: tuple[str, ...]) -> None:
        """Notes problems of the kernel's rules, present or recent; a sentence each."""
        self._problems = tuple(problem[:PROBLEM_LENGTH_MAX] for problem in problems[:PROBLEMS_MAX])

    def on_inputs(self, age_s: float, now: float) -> None:
        """So long ago the oldest of the caches was known to be current."""
        if age_s < INPUTS_OLD_S:
            self._inputs_since = 0
        elif not self._inputs_since and age_s < inf:
            self._inputs_since = int(now - age_s)

    def on_asked(self, asked: Mapping[int, float], now: float) -> None:
        """When each health check port was asked last, or opened."""
        unasked = sorted(port for port, at in asked.items() if now - at >= UNASKED_S)
        self._unasked = tuple(unasked[:UNASKED_MAX])

    def on_behind(self, behind: Mapping[str, ClientLag], unacknowledged: Mapping[str, str]) -> None:
        """Clients of this consumer that have less than it reports, by reading."""
        self._behind = behind
        self._unacknowledged = unacknowledged

    @property
    def held(self) -> dict[Place, Held]:
        """Returns the versions that every family's rules hold; including former readings until no
        rules depend on them.
        """
        families = list(self._held.values())
        places = sorted(self._seen.keys() | set[Place]().union(*families))
        return {place: min(held.get(place, Held(0, "")) for held in families) for place in places}

    @property
    def revision(self) -> int:
        """The least version of EndpointSlices; 0: nothing yet."""
        return _least(self.held)

    # -- telling

    def next_deadline(self) -> float:
        """When the Lease is to be written at the beat, if nothing changes before."""
        if self._told_at is None:
            return 0.0
        told = self._told
        same = told is not None and _content(told) == _content(self.report())
        return self._beat_at + (self._idle_period_s if same else self.changed_period_s)

    @property
    def asked(self) -> bool:
        """Reports are due on demand, now or when the kernel has what they are to tell of."""
        return bool(self._requests)

    def asked_deadline(self) -> float | None:
        """When the Lease is to be written on demand, or since other problems are to be told;
        ``None``: not before the next write of rules, or request.
        """
        held = self.held
        due = [item.due for item in self._requests if _revision(held, item.place) >= item.revision]
        if self._told is not None and self._told.problems != self._problems:
            due.append(0.0)
        if self._told is not None and self._told.behind.keys() != self._behind.keys():
            due.append((self._told_at or 0.0) + BEHIND_PERIOD_S)
        return max(min(due), (self._told_at or 0.0) + ASKED_PERIOD_S) if due else None

    def holds(self, wanted: Mapping[Place, int]) -> bool:
        """All versions that are wanted of what it reads."""
        held = self.report().revisions()
        return all(held.get(place, revision) >= revision for place, revision in wanted.items())

    def on_failure(self) -> None:
        """The last report did not arrive: it is due again as if something had changed."""
        self._told = None

    def take_report(self, now: float, *, at_beat: bool = True) -> bytes:
        """The Lease as it is to be now: a document to create, and a merge patch."""
        report = self._told = self.report()
        self._told_at = now
        if at_beat:
            self._beat_at = now
        held = report.places()
        self._requests = [
            item for item in self._requests if _revision(held, item.place) < item.revision
        ]
        metadata: Document = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": {LABEL_COMPONENT: self._kind},
            "annotations": {
                ANNOTATION_REVISION: str(_least(held)),
                ANNOTATION_PROGRESS: encode(report).decode(),
            },
        }
        if self._owner is not None:
            metadata["ownerReferences"] = [self._owner]
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(now),
        }
        return encode(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": spec,
            }
        )

    def report(self) -> ProgressReport:
        """As it is now; nothing counts as told by it."""
        by_resource: dict[str, dict[str, Held]] = {resource.plural: {} for resource in FOLLOWED}
        for (resource, reading), held in self.held.items():
            by_resource[resource][reading] = held
        return ProgressReport(
            by_resource[EndpointSlices.plural],
            by_resource[Services.plural],
            self._problems,
            self._inputs_since,
            self._unasked,
            dict(self._behind),
            dict(self._unacknowledged),
        )

    def check(self) -> None:
        for digest in self._digests.values():
            digest.check()


def _least(held: dict[Place, Held]) -> int:
    slices = [
        at.revision for (resource, _), at in held.items() if resource == EndpointSlices.plural
    ]
    return min(slices, default=0)


def _revision(held: dict[Place, Held], place: Place) -> int:
    """A reading that was given up holds up no request."""
    return held[place].revision if place in held else 2**64


def _content(report: ProgressReport) -> tuple[object, ...]:
    """All but versions, which bookmarks raise every minute."""
    digests = {place: held.digest for place, held in report.places().items() if held.revision}
    clients = (report.behind, report.unacknowledged)
    return (digests, report.problems, report.inputs_since, report.unasked, clients)


def spread_of(word: str, nodes: int) -> str:
    """Returns the request *word* with the seconds over which many *nodes* must spread their
    answers.
    """
    return f"{word}/{0 if nodes <= FEW_NODES else -(-nodes // REPORTS_PER_S)}"


def _spread_s(asked: str) -> float:
    seconds = asked.rpartition("/")[2] if "/" in asked else ""
    return (
        min(float(seconds), SPREAD_MAX_S) if seconds.isascii() and seconds.isdecimal() else SPREAD_S
    )


def _fraction(node: str, asked: str) -> float:
    """At which point of the spread *node* answers, from 0 to 1: any, but the same each time."""
    return (
        int.from_bytes(blake2b(f"{node}\0{asked}".encode(), digest_size=4).digest(), "big") / 2**32
    )
