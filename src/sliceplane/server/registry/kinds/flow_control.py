"""FlowSchema and PriorityLevelConfiguration: clients read them, ``server.registry.bootstrap``
writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sliceplane.api.meta import Document
from sliceplane.api.scheme import FlowSchemas, PriorityLevelConfigurations
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    condition,
    member,
    name_of,
    number,
    number_at,
    text,
    text_or,
)
from sliceplane.server.registry.kinds.kind import Kind


def _precedence(schema: Document) -> tuple[int, str]:
    """In the order in which they are tried."""
    return number(schema, "spec", "matchingPrecedence"), name_of(schema)


def _number_of(name: str, *path: str) -> Callable[[Document], Cell]:
    """The number called *name* of the object at *path*, if that is there."""

    def render(level: Document) -> Cell:
        parent = member(level, *path)
        return NONE if parent is None else number(parent, name)

    return render


_LIMITED: Final = ("spec", "limited")
_QUEUING: Final = (*_LIMITED, "limitResponse", "queuing")
FLOW_SCHEMA: Final = Kind(
    resource=FlowSchemas,
    columns=Printer(
        (
            NAME,
            Column(
                "PriorityLevel",
                "The priority level of its requests.",
                "spec.priorityLevelConfiguration.name",
            ),
            Column(
                "MatchingPrecedence",
                "Of the schemas that match, the one with the lowest counts.",
                number_at("spec.matchingPrecedence"),
            ),
            Column(
                "DistinguisherMethod",
                "How its requests are told apart into flows.",
                text_or(NONE, "spec.distinguisherMethod.type"),
            ),
            AGE,
            Column(
                "MissingPL",
                "Whether its priority level is missing.",
                lambda schema: text(condition(schema, "Dangling"), "status") or "?",
            ),
        ),
        order=_precedence,
    ),
)
PRIORITY_LEVEL_CONFIGURATION: Final = Kind(
    resource=PriorityLevelConfigurations,
    columns=Printer(
        (
            NAME,
            Column("Type", "Whether its requests are limited.", "spec.type"),
            Column(
                "NominalConcurrencyShares",
                "Its share of the server's seats.",
                _number_of("nominalConcurrencyShares", *_LIMITED),
            ),
            Column(
                "Queues",
                "How many lines there are for requests that wait.",
                _number_of("queues", *_QUEUING),
            ),
            Column(
                "HandSize", "How many of them one flow may use.", _number_of("handSize", *_QUEUING)
            ),
            Column(
                "QueueLengthLimit",
                "How many requests may wait in one.",
                _number_of("queueLengthLimit", *_QUEUING),
            ),
            AGE,
        )
    ),
)
