"""Older versions of a resource as views of what is stored.

Inside the registry there is one version of each resource, the hub.  ``Registry`` turns the target of a request around
when it comes in (``at_hub``) and what leaves into the version that was asked for (``shown``, ``shown_record``,
``shown_list``); bodies become the hub's when they are decoded.  In between, ``Target.via`` is all that tells an
older version from the hub: it may write what the hub keeps for it alone.

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


def at_hub(target: Target) -> Target:
    """The same object or collection in the hub version, with the version that was asked for in ``via``."""
    hub = target.resource.hub
    return target if hub is None else replace(target, resource=hub, via=target.resource)


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
    return replace(record, body=shown_body(target.spoken, record.body)) if _differs(target) else record


def shown_list(target: Target, outcome: ListOutcome) -> ListOutcome:
    if not _differs(target):
        return outcome
    return replace(outcome, records=tuple(shown_record(target, record) for record in outcome.records))


def shown(target: Target, outcome: Outcome) -> Outcome:
    """The outcome with its object, if it has one and not a Status, in the version that was asked for."""
    if not _differs(target) or not starts_as(stored_form(target.resource), outcome.body):
        return outcome
    return replace(outcome, body=shown_body(target.spoken, outcome.body))


def _differs(target: Target) -> bool:
    """Whether the request speaks of its objects in another form than the stored one."""
    return target.via is not None or target.resource.is_view
