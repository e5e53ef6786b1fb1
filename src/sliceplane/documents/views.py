"""Two forms of one stored object: events.k8s.io/v1 Event is core/v1 Event under other names (KEP-383).

A resource whose ``storage`` names another one is a *view*.  Requests to it are decoded and defaulted in its own form
and turned into the stored one at once; the registry, the store and all rules about objects know the stored form
alone.  Answers are turned back as they leave the registry (``registry.versions``) or a watch.  For all other
resources every function here is the identity, and costs one comparison.

Both directions only rename, so that turning a document there and back changes nothing.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.meta import Document
from sliceplane.api.scheme import EventsV1, Resource, stored_form

#: member of the stored form, member of the view
_EVENT_NAMES: Final = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
)
_TO_VIEW: Final = dict(_EVENT_NAMES)
_TO_STORED: Final = {view: stored for stored, view in _EVENT_NAMES}
#: printed empty by core/v1, left out when empty by events.k8s.io/v1
_OMIT_EMPTY: Final = ("reportingController", "reportingInstance")


def to_stored(resource: Resource, document: Document) -> Document:
    """A document of *resource* as it is stored."""
    if not resource.is_view:
        return document
    _check(resource)
    return _renamed(document, _TO_STORED, stored_form(resource))


def from_stored(resource: Resource, document: Document) -> Document:
    """A stored document as *resource* shows it."""
    if not resource.is_view:
        return document
    _check(resource)
    shown = _renamed(document, _TO_VIEW, resource)
    return {name: value for name, value in shown.items() if value != "" or name not in _OMIT_EMPTY}


def renamed_members(source: Resource, aim: Resource) -> dict[str, str]:
    """How top-level members of *source* are called in *aim*, where that differs; both show the same objects."""
    if source.is_view == aim.is_view:
        return {}
    return _TO_VIEW if aim.is_view else _TO_STORED


def shown(resource: Resource, body: bytes) -> bytes:
    """A stored body as *resource* shows it.  What is no such body (a list, a Status) is left as it is."""
    if not resource.is_view:
        return body
    stored = stored_form(resource)
    if not body.startswith(f'{{"kind":"{stored.kind}","apiVersion":"{stored.api_version}",'.encode()):
        return body
    return encode(from_stored(resource, decode_document(body)))


def _renamed(document: Document, names: dict[str, str], resource: Resource) -> Document:
    """A shallow copy with other names for members and the kind and version of *resource*."""
    made = {names.get(name, name): value for name, value in document.items()}
    if "kind" in made:
        made["kind"] = resource.kind
    if "apiVersion" in made:
        made["apiVersion"] = resource.api_version
    return made


def _check(resource: Resource) -> None:
    assert resource is EventsV1, f"there is no way to store {resource.key} as {resource.storage}"
