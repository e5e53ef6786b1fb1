"""Lease (coordination.k8s.io): who holds it, and for how long."""

from __future__ import annotations

from typing import Final

from sliceplane.api.scheme import Leases
from sliceplane.server.documents.table.columns import AGE, NAME, Column
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.plain import FieldRule, plain_kind, printer

LEASE: Final = plain_kind(
    Leases,
    (
        FieldRule("spec", default={}),
        FieldRule("spec.leaseDurationSeconds", minimum=1, too_small="must be greater than 0"),
        FieldRule("spec.leaseTransitions", minimum=0),
    ),
    printer(NAME, (Column(name="Holder", description="Who holds the lease."), "spec.holderIdentity"), AGE),
    quota=kind.COUNTED,
    granted=kind.EDITED_UNSEEN,
)
