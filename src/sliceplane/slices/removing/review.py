"""The review of one Service's inferred removals before each plan: they wait for confirmation, are
then retained, or take effect.

``guard`` decides how many removals are many and how long they are retained; ``losses`` has the
endpoints concerned. The review feeds both from the Service, its Namespace and its members.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from sliceplane.api.core import Pod
from sliceplane.slices.cluster import ClusterFacts
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.members import SliceMembers
from sliceplane.slices.removing.guard import (
    REASON_EXPIRED,
    REASON_REFUTED,
    REASON_RETAINED,
    Losses,
    ServiceGuard,
)
from sliceplane.slices.removing.losses import (
    NAMESPACE_S,
    ConfirmationQuery,
    RemovalVerdict,
    confirms_removal,
)
from sliceplane.slices.shape import ServiceShape

_WARNINGS: Final = (REASON_RETAINED, REASON_EXPIRED, REASON_REFUTED)


class RemovalReview:
    """Reviews removals. Owned by a ``ServiceState``. *retain_by_default*: removals are retained for
    Services and Namespaces without the annotation.
    """

    def __init__(self, cluster: ClusterFacts, *, retain_by_default: bool) -> None:
        self._cluster = cluster
        self._retains_by_default = retain_by_default
        self.guard: Final = ServiceGuard()
        #: the time of the next review
        self.deadline: float | None = None

    def apply(self, members: SliceMembers, shape: ServiceShape, now: float) -> tuple[Notice, ...]:
        """Decides which of the lost endpoints of *members* stay. Costs O(1) if none is lost."""
        guard = self.guard
        losses = members.losses
        if not losses and guard.retention is None and not guard.pending_notices:
            guard.on_no_losses(members.ready, now)
            self.deadline = None
            return ()
        burst = bool(losses) and self._cluster.burst.is_active(now)
        unknown = losses.may_be_confirmed and self._needs_namespace(shape, now)
        lost = len(losses.unconfirmed)
        if not guard.needs_confirmation(lost, members.ready, now, burst=burst, unknown=unknown):
            members.confirm_losses(tuple(losses.unconfirmed))
        keep = guard.update_retention(
            Losses(
                ready=members.ready,
                missed=len(losses.confirmed),
                retention_requested=self._requests_retention(shape),
                released_at=shape.released_at,
                burst=burst,
            ),
            now,
        )
        if losses:
            members.retain_losses(keep)
        self.deadline = guard.deadline(now)
        notices, guard.pending_notices = guard.pending_notices, []
        return tuple(Notice(reason in _WARNINGS, reason, text) for reason, text in notices)

    def _requests_retention(self, shape: ServiceShape) -> bool:
        """Returns the Service's annotation; else its Namespace's, if it was read; else the flag."""
        requested = shape.retention_requested
        if requested is None:
            requested = self._cluster.namespaces.get(shape.namespace, (None, 0.0))[0]
        return self._retains_by_default if requested is None else requested

    def _needs_namespace(self, shape: ServiceShape, now: float) -> bool:
        if shape.retention_requested is not None:
            return False
        cached = self._cluster.namespaces.get(shape.namespace)
        return cached is None or now >= cached[1] + NAMESPACE_S

    def confirmation_query(
        self, members: SliceMembers, shape: ServiceShape
    ) -> ConfirmationQuery | None:
        """Returns the reads that must come before endpoints are removed."""
        confirmation = self.guard.confirmation
        if not members.losses.unconfirmed or confirmation.due is None:
            return None
        return ConfirmationQuery(
            due=confirmation.due,
            pods=confirmation.needs_pods,
            nodes=confirmation.needs_pods and bool(members.unconfirmed_without_node()),
            namespace=members.losses.may_be_confirmed
            and self._needs_namespace(shape, confirmation.due),
        )

    def on_listed(
        self, members: SliceMembers, pods: Mapping[str, Pod], nodes: Container[str], now: float
    ) -> RemovalVerdict:
        """Handles a fresh list of the Service's Pods, and of Nodes if the query requested them."""
        unconfirmed = members.losses.unconfirmed
        if not unconfirmed:
            return RemovalVerdict()
        without_node = members.unconfirmed_without_node()
        confirmed = [
            name
            for name, lost in unconfirmed.items()
            if (name in without_node and lost.node_name not in nodes)
            or confirms_removal(lost, pods.get(name))
        ]
        members.confirm_losses(confirmed)
        refuted = len(unconfirmed)
        relist = self.guard.confirmation.on_list(refuted, now)
        if relist and self.guard.confirmation.is_first_proof:
            text = (
                f"{refuted} endpoints stay: their Pods are ready, although a watch or a list "
                "reported their removal"
            )
            self.guard.pending_notices.append((REASON_REFUTED, text))
        return RemovalVerdict(
            confirmed=len(confirmed),
            refuted=refuted,
            relist_pods=relist and not unconfirmed.keys() <= without_node,
            relist_nodes=relist and not unconfirmed.keys().isdisjoint(without_node),
        )
