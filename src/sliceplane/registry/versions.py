"""Older versions of a resource as views of what is stored.

Inside the registry there is one version of each resource, the hub, which a ``Target`` addresses from the start.  What
leaves is turned into the version that was asked for (``shown``, ``shown_record``, ``shown_list``) where that is another
one (``Target.converted``); bodies become the hub's when they are decoded.  In between, ``Target.via`` is all that tells
an older version from the hub: it may write what the hub keeps for it alone.

A resource that is a view of another one (``documents.views``) keeps its own target, since its rules and errors are its
own; its bodies go the same way.
"""

from __future__ import annotations

from dataclasses import replace

from sliceplane.api import codec
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Resource, stored_form
from sliceplane.documents import conversion, views
from sliceplane.registry.config import RegistryConfig
from sliceplane.registry.documents import canonical, starts_as
from sliceplane.registry.types import ListOutcome, Outcome, Target
from sliceplane.store.types import Record


def comparable(target: Target, stored: Document) -> Document:
    """What is stored as the request's version would have written it: with topology in its field."""
    return conversion.lift(stored) if target.via else stored


def to_store(config: RegistryConfig, target: Target, document: Document) -> Document:
    """The hub document in the form that the operator wants stored."""
    if target.via and config.topology_storage == "annotation":
        return conversion.stow(document)
    return document


def shown_document(resource: Resource, document: Document) -> Document:
    """A hub document in the version of *resource*."""
    if resource.hub is None:
        return views.from_stored(resource, document)
    return canonical(resource, conversion.from_hub(conversion.lift(document)))


def shown_body(resource: Resource, body: bytes) -> bytes:
    """A stored body in the version of *resource*; the hub's own is handed through untouched."""
    if resource.hub is None:
        return views.shown(resource, body)
    return codec.encode(shown_document(resource, codec.decode_document(body)))


def shown_record(target: Target, record: Record) -> Record:
    return replace(record, body=shown_body(target.spoken, record.body))


def shown_list(target: Target, outcome: ListOutcome) -> ListOutcome:
    return replace(outcome, records=tuple(shown_record(target, record) for record in outcome.records))


def shown(target: Target, outcome: Outcome) -> Outcome:
    """The outcome with its object, if it has one and not a Status, in the version that was asked for."""
    if not starts_as(stored_form(target.resource), outcome.body):
        return outcome
    return replace(outcome, body=shown_body(target.spoken, outcome.body))
