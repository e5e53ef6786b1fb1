"""The write that a plan for one Endpoints object consists of, and its body."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from sliceplane.api.codec import OwnJson, encode
from sliceplane.api.core import EndpointSubset
from sliceplane.api.discovery import (
    ANNOTATION_OVER_CAPACITY,
    ANNOTATION_TRIGGER_TIME,
    ENDPOINTS_MANAGED_BY_CONTROLLER,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_SKIP_MIRROR,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.own_writes import PlannedWrite
from sliceplane.endpoints.shape import EndpointsShape
from sliceplane.endpoints.subsets import ADDRESSES_MAX, Capacity, RenderedSubsets, text_of
from sliceplane.kit.times import format_nano_time

_EMPTY = b"[]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsWrite(PlannedWrite):
    """``digest`` is that of the subsets after the write."""

    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class EndpointsPlan:
    """``write`` None: nothing to do.  ``stale``: the cache has not caught up with a conflict."""

    write: EndpointsWrite | None = None
    stale: bool = False


def digest_of(text: bytes) -> bytes:
    """Sixteen bytes that stand for canonical subsets; the text of a large object is 150 KB."""
    return blake2b(text, digest_size=16).digest()


def digest_of_subsets(subsets: tuple[EndpointSubset, ...] | None, *, named: bool = False) -> bytes:
    """*named* as in ``pack``.  Costs O(addresses)."""
    return digest_of(text_of(subsets, named=named) if subsets else _EMPTY)


class EndpointsContent(NamedTuple):
    """What an object must hold: its subsets as text, their digest, and what its capacity annotation says ("": none)."""

    text: bytes
    digest: bytes
    capacity: str

    def is_in(self, meta: ObjectMeta, digest: bytes, labels: dict[str, str]) -> bool:
        """The object with this metadata, and subsets of this *digest*, needs no write."""
        noted = (meta.annotations or {}).get(ANNOTATION_OVER_CAPACITY, "")
        return digest == self.digest and noted == self.capacity and (meta.labels or {}) == labels


def content_of(rendered: RenderedSubsets, capacity: Capacity) -> EndpointsContent:
    over = capacity.value if rendered.total > ADDRESSES_MAX else ""
    return EndpointsContent(rendered.text, digest_of(rendered.text), over)


def create_endpoints(shape: EndpointsShape, content: EndpointsContent, trigger: int) -> EndpointsWrite:
    meta = ObjectMeta(
        name=shape.name,
        namespace=shape.namespace,
        labels=shape.labels,
        annotations=_annotations({}, content.capacity, trigger),
    )
    return EndpointsWrite(
        verb="create",
        namespace=shape.namespace,
        name=shape.name,
        body=_body(meta, content.text),
        digest=content.digest,
    )


def update_endpoints(
    shape: EndpointsShape, known: ObjectMeta, content: EndpointsContent, trigger: int
) -> EndpointsWrite:
    """Labels become the shape's; other metadata stays as it is, foreign annotations included."""
    annotations = _annotations(known.annotations or {}, content.capacity, trigger)
    meta = msgspec.structs.replace(known, labels=shape.labels, annotations=annotations)
    return EndpointsWrite.update(known, _body(meta, content.text), digest=content.digest)


def hand_over(known: ObjectMeta, subsets: tuple[EndpointSubset, ...] | None, digest: bytes) -> EndpointsWrite:
    """The object as it is, without the labels that say that it is ours and not to be mirrored."""
    labels = {k: v for k, v in (known.labels or {}).items() if k not in (LABEL_ENDPOINTS_MANAGED_BY, LABEL_SKIP_MIRROR)}
    meta = msgspec.structs.replace(known, labels=labels or None)
    return EndpointsWrite.update(known, _body(meta, encode(subsets) if subsets else _EMPTY), digest=digest)


def is_ours(meta: ObjectMeta) -> bool:
    return (meta.labels or {}).get(LABEL_ENDPOINTS_MANAGED_BY) == ENDPOINTS_MANAGED_BY_CONTROLLER


def _annotations(existing: dict[str, str], capacity: str, trigger: int) -> dict[str, str] | None:
    kept = {k: v for k, v in existing.items() if k not in (ANNOTATION_TRIGGER_TIME, ANNOTATION_OVER_CAPACITY)}
    if capacity:
        kept[ANNOTATION_OVER_CAPACITY] = capacity
    if trigger:
        kept[ANNOTATION_TRIGGER_TIME] = format_nano_time(trigger)
    return kept or None


def _body(meta: ObjectMeta, text: bytes) -> OwnJson:
    subsets = b"" if text == _EMPTY else b',"subsets":' + text
    return OwnJson(b"".join((b'{"apiVersion":"v1","kind":"Endpoints","metadata":', encode(meta), subsets, b"}")))
