"""ServiceAccount: a name that Pods and tokens are given to."""

from __future__ import annotations

from typing import Final

from sliceplane.api.scheme import ServiceAccounts
from sliceplane.server.documents.table.columns import AGE, NAME, Printer
from sliceplane.server.registry.kinds import kind

SERVICE_ACCOUNT: Final = kind.Kind(
    resource=ServiceAccounts,
    quota=kind.Quota(),
    granted=kind.edited(),
    columns=Printer((NAME, AGE)),
)
