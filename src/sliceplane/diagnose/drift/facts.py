"""Facts read for ``sliceplane drift``.  Frozen; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object, revision_of
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    COMPONENT,
    DNS,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    REPORT_LATE_S,
    XDS,
    Place,
    ProgressReport,
    lease_prefix,
    read_report,
)
from sliceplane.consume.selections import readings_of_service, readings_of_slice
from sliceplane.kit.times import time_or_zero


class Listed(NamedTuple):
    """An object as a list shows it.  ``written``: the last write that its managers tell of; 0: none
    does.
    """

    key: str
    version: str
    readings: tuple[str, ...]
    #: of a slice: the Service that it is labelled for
    service: str
    written: float

    @property
    def revision(self) -> int:
        return revision_of(self.version)


def listed(seen: Object, written: float = 0.0) -> Listed:
    """*seen* is a slice or a Service."""
    meta = seen.metadata
    if isinstance(seen, EndpointSlice):
        owner = (meta.labels or {}).get(LABEL_SERVICE_NAME, "")
        service = f"{meta.namespace}/{owner}" if owner else ""
        return Listed(meta.key, meta.resource_version, readings_of_slice(seen), service, written)
    assert isinstance(seen, Service), f"{seen!r} is neither"
    return Listed(meta.key, meta.resource_version, readings_of_service(seen), meta.key, written)


class TellerWords(NamedTuple):
    """Phrases of sentences about a kind of consumer: behind its name, what it is, and where its
    endpoints go.
    """

    suffix: str
    teller: str
    stopped: str
    behind: str
    rules: str


#: what tells how far it is, by kind; who looks at a cluster reads these Leases
TELLERS: Final[dict[str, TellerWords]] = {
    COMPONENT: TellerWords(
        "",
        "proxy",
        "its kernel goes on with the rules of then: what changed since does not reach clients "
        "there",
        "its kernel sends to the endpoints of then",
        "rules",
    ),
    DNS: TellerWords(
        " (names)",
        "name server",
        "its clients ask in vain, or another one",
        "it tells the endpoints of then",
        "answers",
    ),
    XDS: TellerWords(
        " (xDS)",
        "xDS server",
        "its clients go on with the endpoints of then, or ask another one",
        "a client of it has not accepted the endpoints of now: sliceplane xds status",
        "answers",
    ),
}


class ToldNode(NamedTuple):
    """The report in the Lease of one consumer (``kind``: of ``TELLERS``). ``report`` ``None``: one
    of an older release, which tells ``revision`` alone.
    """

    node: str
    report: ProgressReport | None
    revision: int
    renewed: float
    duration_s: float
    #: the name of the Node that owns the Lease; "": none does
    owner: str
    kind: str = COMPONENT

    def age_s(self, now: float) -> float:
        """Seconds since the last report."""
        return now - self.renewed

    def is_late(self, now: float) -> bool:
        """Returns True if a report should have come long ago: the consumer has stopped or stands
        still.
        """
        return self.age_s(now) > min(self.duration_s, REPORT_LATE_S)

    @property
    def is_proxy(self) -> bool:
        return self.kind == COMPONENT

    @property
    def words(self) -> TellerWords:
        return TELLERS[self.kind]

    @property
    def title(self) -> str:
        return f"{self.node}{self.words.suffix}"

    @property
    def lease(self) -> str:
        return f"{lease_prefix(self.kind)}{self.node}"


def told_of(lease: Lease) -> ToldNode:
    """Reads the report in *lease*, which is a consumer's."""
    annotations = lease.metadata.annotations or {}
    kind = (lease.metadata.labels or {}).get(LABEL_COMPONENT, COMPONENT)
    owner = next(
        (owner.name for owner in lease.metadata.owner_references or () if owner.kind == "Node"), ""
    )
    return ToldNode(
        lease.spec.holder_identity or lease.metadata.name.removeprefix(lease_prefix(kind)),
        read_report(annotations.get(ANNOTATION_PROGRESS, "")),
        revision_of(annotations.get(ANNOTATION_REVISION, "")),
        time_or_zero(lease.spec.renew_time or lease.metadata.creation_timestamp),
        lease.spec.lease_duration_seconds or LEASE_DURATION_S,
        owner,
        kind,
    )


class Look(msgspec.Struct, frozen=True):
    """The answer of a node proxy on its own pages.  ``why``: why it did not, or was not asked.

    ``objects``: versions by key, by ``resource/reading``. ``rules``: where the kernel is not as the
    proxy believes, a sentence each; ``None``: that was not looked at. ``is_deep``: it was asked
    for.
    """

    why: str = ""
    objects: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    rules: tuple[str, ...] | None = None
    rules_why: str = ""
    is_deep: bool = False


class DriftFacts(msgspec.Struct, frozen=True):
    """``nodes`` ``None``: they may not be read. ``now_of``: the objects of each resource at the
    moment of the list, and the version of that list. ``past``: the objects at versions that nodes
    tell of; where that could not be had, a sentence why.
    """

    now: float
    told: tuple[ToldNode, ...]
    nodes: tuple[Node, ...] | None
    now_of: Mapping[str, tuple[int, tuple[Listed, ...]]]
    past: Mapping[tuple[str, int], tuple[Listed, ...] | str] = msgspec.field(default_factory=dict)
    looks: Mapping[str, Look] = msgspec.field(default_factory=dict)
    unread: tuple[str, ...] = ()
    #: only this node, or only what concerns this Service
    node: str = ""
    service: str = ""

    def at(self, place: Place, revision: int) -> tuple[Listed, ...] | str:
        """Returns the objects of *place* at *revision*, or why they are not known."""
        plural, reading = place
        known = self.past.get((plural, revision))
        if known is None:
            listed_at, objects = self.now_of.get(plural, (0, ()))
            if not listed_at:
                return f"{plural} may not be read"
            newest = max((item.revision for item in objects if reading in item.readings), default=0)
            if revision < newest:
                return f"{plural} at version {revision} were not read"
            known = objects  # nothing of it changed since, or an object is gone: the digest tells
        return (
            known
            if isinstance(known, str)
            else tuple(item for item in known if reading in item.readings)
        )
