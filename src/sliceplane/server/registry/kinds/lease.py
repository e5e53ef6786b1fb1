"""Lease (coordination.k8s.io): who holds it, and for how long."""

from __future__ import annotations

from typing import Final

from sliceplane.api.scheme import Leases
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.validation.rules import POSITIVE, Defaults, Field, Rules

LEASE: Final = kind.Kind(
    resource=Leases,
    defaults=Defaults({"+spec": {}}),
    rules=Rules(
        Field("spec.leaseDurationSeconds", minimum=1, detail=POSITIVE),
        Field("spec.leaseTransitions", minimum=0),
    ),
    quota=kind.Quota(),
    granted=kind.EDITED_NOT_VIEWED,
    columns=Printer((NAME, Column("Holder", "Who holds the lease.", "spec.holderIdentity"), AGE)),
)
