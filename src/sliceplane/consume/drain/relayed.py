"""Reports of many nodes in one Lease of a relay (``kube-node-lease/sliceplane-relay-NAME``).

A relay with ``--aggregate-reports`` writes its children's reports (``consume.progress``) as groups,
in the annotation ``sliceplane.dev/nodes``. A group has the names of its nodes and one report that
holds for each of them: the least revision of every selection. Nodes that differ from others are
groups of one, at most ``EXCEPTIONS_MAX``.

``nodes_of`` turns such a Lease back into the Lease of each node, so readers judge both forms by the
same rules. A node that has several (it moved to another relay, or its relay passes its Lease on)
counts with the newest.

**A group's age.** Its report is as old as the oldest of its nodes. The relay vouches when it writes
that each node of a group that is not ``late`` has reported in time; so these nodes are late only
when the relay is.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import Lease, LeaseSpec
from sliceplane.api.meta import ObjectMeta, OwnerReference
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    CHANGED_PERIOD_S,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    ProgressReport,
    lease_prefix,
)
from sliceplane.kit.times import format_micro_time, time_or_zero

#: the kind of consumer that a relay is
RELAY: Final = "relay"
RELAY_PREFIX: Final = lease_prefix(RELAY)
ANNOTATION_NODES: Final = "sliceplane.dev/nodes"
#: on a Lease of ``nodes_of`` alone: ``Relayed``
ANNOTATION_RELAYED: Final = "sliceplane.dev/relayed"
#: label selector of the Leases of node proxies in both forms
NODE_LEASES_SELECTOR: Final = f"{LABEL_COMPONENT} in ({COMPONENT},{RELAY})"
EXCEPTIONS_MAX: Final = 100
#: seconds by which a revision is reported later than by the node itself
RELAY_DELAY_S: Final = CHANGED_PERIOD_S
#: bytes of the names of one group, unpacked
_NAMES_BYTES_MAX: Final = 1024 * 1024


class NodeGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nodes with one report. ``heard``: when the oldest of them reported, seconds since the epoch
    by the relay's clock.
    """

    report: ProgressReport
    heard: float
    #: seconds by which the newest is younger
    spread_s: float = 0.0
    #: the name of a group of one, or the packed names of others
    node: str = ""
    packed: str = ""
    is_late: bool = False
    #: the relay saw that the caches lost an event
    has_lost_event: bool = False
    #: a Node of that name owns the Lease of each
    has_owner: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.node,) if self.node else unpack_names(self.packed)


class RelayedNodes(msgspec.Struct, frozen=True):
    """The annotation.  ``nodes``: their number."""

    nodes: int
    groups: tuple[NodeGroup, ...]


class NodeReport(NamedTuple):
    """A Lease of a node, and how old its report was when the Lease was written; 0 if the node
    itself wrote it.
    """

    lease: Lease
    age_s: float = 0.0


class Relayed(msgspec.Struct, frozen=True, array_like=True):
    """How a node's report came: the name of the relay's Lease, when the relay vouched that the node
    is not late (0: it is), the seconds by which the report may be younger than it says, and
    ``NodeGroup.has_lost_event``.
    """

    lease: str = ""
    vouched: float = 0.0
    spread_s: float = 0.0
    has_lost_event: bool = False


_decoder = msgspec.json.Decoder(RelayedNodes)
_relayed = msgspec.json.Decoder(Relayed)


def pack_names(names: Iterable[str]) -> str:
    return b64encode(zlib.compress("\n".join(sorted(names)).encode(), 9)).decode()


def unpack_names(packed: str) -> tuple[str, ...]:
    """Raises ``ValueError``."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(b64decode(packed, validate=True), _NAMES_BYTES_MAX)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacking.eof:
        raise ValueError("names are too long, or not complete")
    return tuple(text.decode().split("\n"))


def is_relay_lease(lease: Lease) -> bool:
    """Returns True for a Lease that reports many nodes. A node that may write only the Lease of its
    own name cannot report others.
    """
    meta = lease.metadata
    return (
        meta.name.startswith(RELAY_PREFIX)
        and meta.namespace == LEASE_NAMESPACE
        and (meta.labels or {}).get(LABEL_COMPONENT) == RELAY
    )


def nodes_of(lease: Lease) -> list[NodeReport]:
    """Returns the Lease of each node in *lease*, a relay's; or *lease* itself."""
    if not is_relay_lease(lease):
        return [NodeReport(lease)]
    text = (lease.metadata.annotations or {}).get(ANNOTATION_NODES, "")
    try:
        relayed = _decoder.decode(text)
        return [each for group in relayed.groups for each in _leases_of(lease, group)]
    except (msgspec.DecodeError, ValueError):
        return []  # its nodes never reported, as far as is known


def _leases_of(lease: Lease, group: NodeGroup) -> Iterator[NodeReport]:
    written = time_or_zero(lease.spec.renew_time)
    revisions = [applied.revision for applied in group.report.endpointslices.values()]
    relayed = Relayed(
        lease.metadata.name,
        0.0 if group.is_late else written,
        group.spread_s,
        group.has_lost_event,
    )
    annotations = {
        ANNOTATION_PROGRESS: encode(group.report).decode(),
        ANNOTATION_REVISION: str(min(revisions, default=0)),
        ANNOTATION_RELAYED: encode(relayed).decode(),
    }
    labels = {LABEL_COMPONENT: COMPONENT}
    heard = format_micro_time(group.heard)
    for name in group.names:
        owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=name)
        meta = ObjectMeta(
            name=f"{LEASE_PREFIX}{name}",
            namespace=LEASE_NAMESPACE,
            resource_version=lease.metadata.resource_version,
            labels=labels,
            annotations=annotations,
            owner_references=(owner,) if group.has_owner else None,
        )
        spec = LeaseSpec(
            holder_identity=name, lease_duration_seconds=LEASE_DURATION_S, renew_time=heard
        )
        yield NodeReport(Lease(metadata=meta, spec=spec), max(written - group.heard, 0.0))


def relayed_by(lease: Lease) -> Relayed:
    """Returns how the report in *lease* came; without a name: by its own Lease."""
    text = (lease.metadata.annotations or {}).get(ANNOTATION_RELAYED, "")
    try:
        return _relayed.decode(text) if text else Relayed()
    except msgspec.DecodeError:
        return Relayed()  # it is no Lease of ``nodes_of``


def flatten(leases: Iterable[Lease]) -> list[Lease]:
    """Returns *leases* with one Lease for each node, the newest."""
    newest: dict[str, Lease] = {}
    for lease in leases:
        for report in nodes_of(lease):
            key = report.lease.metadata.key
            if key not in newest or _renewed(newest[key]) <= _renewed(report.lease):
                newest[key] = report.lease
    return list(newest.values())


class NodeLeases:
    """Turns changes of Leases, in both forms, into changes of the Leases of nodes. Owned by one
    reader of them.
    """

    def __init__(self) -> None:
        #: by key of a node's Lease: its versions by key of the Lease that was read
        self._versions: dict[str, dict[str, NodeReport]] = {}
        #: by key of a relay's Lease: the keys of its nodes' Leases
        self._nodes: dict[str, frozenset[str]] = {}

    def on_lease(
        self, old: Lease | None, new: Lease | None
    ) -> Iterator[tuple[Lease | None, Lease | None, float]]:
        """Yields old and new Lease of each node that changed, and the age of its report."""
        subject = new or old
        assert subject is not None, "a change has an old or a new object"
        source = subject.metadata.key
        reports = {} if new is None else {each.lease.metadata.key: each for each in nodes_of(new)}
        before = self._nodes.pop(source, frozenset({source}))
        if new is not None and is_relay_lease(new):
            self._nodes[source] = frozenset(reports)
        for key in sorted(before | reports.keys()):
            versions = self._versions.setdefault(key, {})
            former = _newest(versions)
            versions.pop(source, None)
            if key in reports:
                versions[source] = reports[key]
            current = _newest(versions)
            if not versions:
                del self._versions[key]
            if former is not current:
                yield (
                    None if former is None else former.lease,
                    None if current is None else current.lease,
                    0.0 if current is None else current.age_s,
                )

    def check(self) -> None:
        assert all(self._versions.values()), "a node without a Lease is kept"


def _newest(versions: dict[str, NodeReport]) -> NodeReport | None:
    return max(versions.values(), key=lambda each: _renewed(each.lease), default=None)


def _renewed(lease: Lease) -> float:
    return time_or_zero(lease.spec.renew_time or lease.metadata.creation_timestamp)
