"""Facts read for ``sliceplane drift``.  Frozen; times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.core import Lease, Node, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object, revision_of
from sliceplane.consume.drain.relayed import RELAY_DELAY_S, Relayed, relayed_by
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    BEHIND_S,
    COMPONENT,
    DNS,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    REPORT_LATE_S,
    XDS,
    ProgressReport,
    Scope,
    lease_prefix,
    read_report,
)
from sliceplane.consume.selections import list_selections_of_service, list_selections_of_slice
from sliceplane.diagnose.drift.relays import RelayRow
from sliceplane.kit.times import time_or_zero


class Listed(NamedTuple):
    """An object of a list. ``written``: time of the last write in ``managedFields``; 0: unknown."""

    key: str
    version: str
    selections: tuple[str, ...]
    #: the Service of a slice, by its label
    service: str
    written: float

    @property
    def revision(self) -> int:
        return revision_of(self.version)


def listed(observed: Object, written: float = 0.0) -> Listed:
    """*observed* is a slice or a Service."""
    meta = observed.metadata
    if isinstance(observed, EndpointSlice):
        owner = (meta.labels or {}).get(LABEL_SERVICE_NAME, "")
        service = f"{meta.namespace}/{owner}" if owner else ""
        return Listed(
            meta.key, meta.resource_version, list_selections_of_slice(observed), service, written
        )
    assert isinstance(observed, Service), f"{observed!r} is neither"
    return Listed(
        meta.key, meta.resource_version, list_selections_of_service(observed), meta.key, written
    )


class ConsumerWording(NamedTuple):
    """Phrases for sentences about one kind of consumer: the suffix of its name, the program, and
    the effect of outdated endpoints.
    """

    suffix: str
    program: str
    stopped: str
    behind: str
    rules: str


#: kinds of consumers that report their progress in Leases
CONSUMER_WORDINGS: Final[dict[str, ConsumerWording]] = {
    COMPONENT: ConsumerWording(
        "",
        "proxy",
        "its kernel keeps its last rules: later changes do not reach clients there",
        "its kernel sends to outdated endpoints",
        "rules",
    ),
    DNS: ConsumerWording(
        " (names)",
        "name server",
        "its clients get no answer, or query another one",
        "it answers with outdated endpoints",
        "answers",
    ),
    XDS: ConsumerWording(
        " (xDS)",
        "xDS server",
        "its clients keep their last endpoints, or query another one",
        "one of its clients has not accepted the current endpoints: sliceplane xds status",
        "answers",
    ),
}


class LeaseReport(NamedTuple):
    """The report in the Lease of one consumer (``kind``: of ``CONSUMER_WORDINGS``). ``report``
    ``None``: an older release, which reports only ``revision``.
    """

    node: str
    report: ProgressReport | None
    revision: int
    renewed: float
    duration_s: float
    #: the name of the Node that owns the Lease; "": no owner
    owner: str
    kind: str = COMPONENT
    #: the relay that reports for it, if it does not report itself
    relayed: Relayed = Relayed()

    def age_s(self, now: float) -> float:
        """Seconds since the last report."""
        return now - self.renewed

    def is_late(self, now: float) -> bool:
        """Returns True if the report is overdue: the consumer has stopped or hangs."""
        age_s = now - max(self.renewed, self.relayed.vouched)
        return age_s > min(self.duration_s, REPORT_LATE_S)

    @property
    def behind_after_s(self) -> float:
        """Seconds within which a change is reported as applied."""
        return BEHIND_S + (RELAY_DELAY_S if self.relayed.lease else 0.0)

    @property
    def is_proxy(self) -> bool:
        return self.kind == COMPONENT

    @property
    def wording(self) -> ConsumerWording:
        return CONSUMER_WORDINGS[self.kind]

    @property
    def title(self) -> str:
        return f"{self.node}{self.wording.suffix}"

    @property
    def lease(self) -> str:
        return self.relayed.lease or f"{lease_prefix(self.kind)}{self.node}"


def report_of_lease(lease: Lease) -> LeaseReport:
    """Reads the report in *lease*, which is a consumer's."""
    annotations = lease.metadata.annotations or {}
    kind = (lease.metadata.labels or {}).get(LABEL_COMPONENT, COMPONENT)
    owner = next(
        (owner.name for owner in lease.metadata.owner_references or () if owner.kind == "Node"), ""
    )
    return LeaseReport(
        lease.spec.holder_identity or lease.metadata.name.removeprefix(lease_prefix(kind)),
        read_report(annotations.get(ANNOTATION_PROGRESS, "")),
        revision_of(annotations.get(ANNOTATION_REVISION, "")),
        time_or_zero(lease.spec.renew_time or lease.metadata.creation_timestamp),
        lease.spec.lease_duration_seconds or LEASE_DURATION_S,
        owner,
        kind,
        relayed_by(lease),
    )


class ProxyPages(msgspec.Struct, frozen=True):
    """The pages of a node proxy. ``why``: why they were not read; "" if they were.

    ``objects``: versions by key, by ``resource/selection``. ``rules``: a sentence for each
    difference between the kernel and the proxy's belief; ``None``: not compared. ``is_deep``: the
    comparison was requested.
    """

    why: str = ""
    objects: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    rules: tuple[str, ...] | None = None
    rules_why: str = ""
    is_deep: bool = False


class DriftFacts(msgspec.Struct, frozen=True):
    """``nodes`` ``None``: reading them is forbidden. ``now_of``: the version of the list of each
    resource, and its objects. ``past``: the objects at versions that nodes report, or a sentence
    why they are unavailable.
    """

    now: float
    consumers: tuple[LeaseReport, ...]
    nodes: tuple[Node, ...] | None
    now_of: Mapping[str, tuple[int, tuple[Listed, ...]]]
    past: Mapping[tuple[str, int], tuple[Listed, ...] | str] = msgspec.field(default_factory=dict)
    pages: Mapping[str, ProxyPages] = msgspec.field(default_factory=dict)
    unread: tuple[str, ...] = ()
    #: those above nodes
    relays: tuple[RelayRow, ...] = ()
    #: limits the answer to this node, or to this Service
    node: str = ""
    service: str = ""

    def at(self, scope: Scope, revision: int) -> tuple[Listed, ...] | str:
        """Returns the objects of *scope* at *revision*, or why they are unknown."""
        plural, selection = scope
        result = self.past.get((plural, revision))
        if result is None:
            listed_at, objects = self.now_of.get(plural, (0, ()))
            if not listed_at:
                return f"{plural} may not be read"
            newest = max(
                (item.revision for item in objects if selection in item.selections), default=0
            )
            if revision < newest:
                return f"{plural} at version {revision} were not read"
            result = objects  # unchanged since, or an object was deleted: the digest tells which
        return (
            result
            if isinstance(result, str)
            else tuple(item for item in result if selection in item.selections)
        )
