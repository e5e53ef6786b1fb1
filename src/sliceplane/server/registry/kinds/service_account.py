"""ServiceAccount: a name that Pods and tokens are given to."""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.api.scheme import ServiceAccounts
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Printer, age, name_of
from sliceplane.server.registry.kinds import kind


def _cells(account: Document, now: float) -> tuple[Cell, ...]:
    return name_of(account), age(account, now)


SERVICE_ACCOUNT: Final = kind.stored_as_sent(
    resource=ServiceAccounts,
    defaults=kind.no_defaults,
    validate=kind.no_rules,
    validate_update=kind.no_update_rules,
    warnings=kind.no_warnings,
    quota=kind.COUNTED,
    granted=kind.edited(),
    columns=Printer((NAME, AGE), _cells),
)
