"""FlowSchema and PriorityLevelConfiguration: clients read them, ``server.registry.bootstrap`` writes them."""

from __future__ import annotations

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
    age,
    condition,
    member,
    name_of,
    number,
    text,
)
from sliceplane.server.registry.kinds.kind import bare_kind


def _schema_cells(schema: Document, now: float) -> tuple[Cell, ...]:
    return (
        name_of(schema),
        text(schema, "spec", "priorityLevelConfiguration", "name"),
        number(schema, "spec", "matchingPrecedence"),
        text(schema, "spec", "distinguisherMethod", "type") or NONE,
        age(schema, now),
        text(condition(schema, "Dangling"), "status") or "?",
    )


def _precedence(schema: Document) -> tuple[int, str]:
    """In the order in which they are tried."""
    return number(schema, "spec", "matchingPrecedence"), name_of(schema)


def _level_cells(level: Document, now: float) -> tuple[Cell, ...]:
    limited = member(level, "spec", "limited")
    queuing = member(limited, "limitResponse", "queuing")
    queues = ("queues", "handSize", "queueLengthLimit")
    return (
        name_of(level),
        text(level, "spec", "type"),
        number(limited, "nominalConcurrencyShares") if limited is not None else NONE,
        *(number(queuing, name) if queuing is not None else NONE for name in queues),
        age(level, now),
    )


FLOW_SCHEMA: Final = bare_kind(
    FlowSchemas,
    Printer(
        (
            NAME,
            Column(name="PriorityLevel", description="The priority level of its requests."),
            Column(name="MatchingPrecedence", description="Of the schemas that match, the one with the lowest counts."),
            Column(name="DistinguisherMethod", description="How its requests are told apart into flows."),
            AGE,
            Column(name="MissingPL", description="Whether its priority level is missing."),
        ),
        _schema_cells,
        order=_precedence,
    ),
)
PRIORITY_LEVEL_CONFIGURATION: Final = bare_kind(
    PriorityLevelConfigurations,
    Printer(
        (
            NAME,
            Column(name="Type", description="Whether its requests are limited."),
            Column(name="NominalConcurrencyShares", description="Its share of the server's seats."),
            Column(name="Queues", description="How many lines there are for requests that wait."),
            Column(name="HandSize", description="How many of them one flow may use."),
            Column(name="QueueLengthLimit", description="How many requests may wait in one."),
            AGE,
        ),
        _level_cells,
    ),
)
