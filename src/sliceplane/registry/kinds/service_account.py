"""ServiceAccount: a name that Pods and tokens are given to."""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Document
from sliceplane.api.scheme import ServiceAccounts
from sliceplane.documents.table.columns import AGE, NAME, Cell, Printer, age, name_of
from sliceplane.registry.kinds.kind import (
    ADMITTED,
    AT_ONCE,
    COUNTED,
    NO_STATUS,
    Kind,
    created_as_sent,
    edited,
    no_defaults,
    no_rules,
    no_update_rules,
    no_warnings,
    updated_as_sent,
)


def _cells(account: Document, now: float) -> tuple[Cell, ...]:
    return name_of(account), age(account, now)


SERVICE_ACCOUNT: Final = Kind(
    resource=ServiceAccounts,
    defaults=no_defaults,
    prepare_create=created_as_sent,
    prepare_update=updated_as_sent,
    validate=no_rules,
    validate_update=no_update_rules,
    warnings=no_warnings,
    status=NO_STATUS,
    admission=ADMITTED,
    deletion=AT_ONCE,
    quota=COUNTED,
    granted=edited(),
    columns=Printer((NAME, AGE), _cells),
)
