"""How far a node is: the newest revision of EndpointSlices whose consequences the kernel holds, and when to tell.

A proxy tells in one Lease per node (``kube-node-lease/sliceplane-proxy-NODE``), in an annotation; the rest of the
Lease says that the proxy lives.  It tells ``CHANGED_PERIOD_S`` after the last time if something changed, else every
``IDLE_PERIOD_S``: as often as a kubelet at the most, whatever Services do.

Revisions of one resource are ordered (``store``; KEP-5504 for other servers); one that is no number is passed over.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.codec import encode
from sliceplane.api.core import Node
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import Document, Object, OwnerReference
from sliceplane.kit.ip import Family
from sliceplane.kit.times import format_micro_time

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_PREFIX: Final = "sliceplane-proxy-"
LABEL_COMPONENT: Final = "sliceplane.dev/component"
COMPONENT: Final = "node-proxy"
ANNOTATION_REVISION: Final = "sliceplane.dev/endpointslices-revision"

CHANGED_PERIOD_S: Final = 10.0
IDLE_PERIOD_S: Final = 30.0
#: a proxy that was not heard of for so long has stopped, or its node is gone
LEASE_DURATION_S: Final = 90


class Progress:
    """Owned by one node proxy.  Times are seconds since the epoch."""

    def __init__(
        self,
        node: str,
        families: tuple[Family, ...],
        *,
        changed_period_s: float = CHANGED_PERIOD_S,
        idle_period_s: float = IDLE_PERIOD_S,
    ) -> None:
        self.changed_period_s: Final = changed_period_s
        self._idle_period_s = idle_period_s
        self.name: Final = f"{LEASE_PREFIX}{node}"
        self._node = node
        #: the Node, with which the Lease goes
        self._owner: OwnerReference | None = None
        self._seen = 0
        #: what the transaction under way carries, and what the kernel holds
        self._carried = dict.fromkeys(families, 0)
        self._held = dict.fromkeys(families, 0)
        self._told = -1
        self._told_at: float | None = None

    # -- what happens -----------------------------------------------------------------------------------

    def on_object(self, subject: Object) -> None:
        """The cache shows *found*, or that it went in this version."""
        meta = subject.metadata
        if isinstance(subject, EndpointSlice):
            self._seen = max(self._seen, meta.revision)
        elif isinstance(subject, Node) and meta.name == self._node and meta.uid:
            self._owner = OwnerReference(api_version="v1", kind="Node", name=meta.name, uid=meta.uid)

    def on_taken(self, family: Family) -> None:
        """A transaction begins; it carries everything seen so far."""
        self._carried[family] = self._seen

    def on_written(self, family: Family) -> None:
        """The kernel took it."""
        self._held[family] = max(self._held[family], self._carried[family])

    def on_idle(self, family: Family) -> None:
        """Nothing waits to be written: what was seen had no consequences here, or they are there."""
        self._held[family] = self._seen

    @property
    def revision(self) -> int:
        """What every family's rules hold; 0: nothing yet."""
        return min(self._held.values())

    # -- telling ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """When the Lease is to be written, if nothing changes before."""
        if self._told_at is None:
            return 0.0
        return self._told_at + (self.changed_period_s if self.revision != self._told else self._idle_period_s)

    def on_failure(self) -> None:
        """The last report did not arrive: it is due again as if something had changed."""
        self._told = -1

    def take_report(self, now: float) -> bytes:
        """The Lease as it is to be now: a document to create, and a merge patch."""
        self._told, self._told_at = self.revision, now
        metadata: Document = {
            "name": self.name,
            "namespace": LEASE_NAMESPACE,
            "labels": {LABEL_COMPONENT: COMPONENT},
            "annotations": {ANNOTATION_REVISION: str(self._told)},
        }
        if self._owner is not None:
            metadata["ownerReferences"] = [self._owner]
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(now),
        }
        return encode({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
