"""The writes that a plan consists of, and their bodies.

A body is put together from bytes that were encoded when an endpoint changed; writing a slice of a hundred
endpoints after one of them flipped encodes one endpoint and the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.own_writes import PlannedWrite
from sliceplane.kit.times import format_nano_time
from sliceplane.slices.content import Content, Stored, slice_body
from sliceplane.slices.hint_policy import Notice
from sliceplane.slices.ports import PortGroup, Ports
from sliceplane.slices.shape import ServiceShape
from sliceplane.slices.subsets import with_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceWrite(PlannedWrite):
    """``ports`` and ``content`` are what the slice holds if the write succeeds."""

    address_type: str
    ports: Ports = ()
    content: Content


class FamilyChanges(NamedTuple):
    """What one plan does for one address type, in numbers: endpoints added and removed, slices written."""

    added: int
    removed: int
    writes: int


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What one sync of a service writes, in this order.

    ``problems``: sentences about endpoints that were left out, each told once.  ``notices``: what became of
    hints, to be told when the writes were tried.  ``families``: for metrics, in no order.  ``stale``: the cache has not
    caught up with a conflict; nothing may be planned before it has.  ``saves``: by how many slices there are fewer for
    the same endpoints, if this is a merge.
    """

    writes: tuple[SliceWrite, ...] = ()
    problems: tuple[str, ...] = ()
    stale: bool = False
    notices: tuple[Notice, ...] = ()
    families: tuple[FamilyChanges, ...] = ()
    saves: int = 0


def create_slice(
    shape: ServiceShape, address_type: str, group: PortGroup, content: Content, trigger: int
) -> SliceWrite:
    meta = ObjectMeta(
        generate_name=f"{shape.name}-",
        namespace=shape.namespace,
        labels=with_subset(shape.labels, group.subset),
        annotations=_annotations({}, trigger),
        owner_references=(shape.owner,),
    )
    body = slice_body(meta, address_type, content.values(), group.body)
    return SliceWrite(
        verb="create",
        namespace=shape.namespace,
        address_type=address_type,
        body=body,
        ports=group.ports,
        content=content,
    )


def update_slice(shape: ServiceShape, stored: Stored, group: PortGroup, content: Content, trigger: int) -> SliceWrite:
    """Labels become the service's and the subset's; other metadata stays as it is, owners and other annotations too."""
    annotations = _annotations(stored.meta.annotations or {}, trigger)
    labels = with_subset(shape.labels, group.subset) if group.subset else shape.labels
    meta = msgspec.structs.replace(stored.meta, labels=labels, annotations=annotations)
    body = slice_body(meta, stored.address_type, content.values(), group.body)
    return SliceWrite.update(meta, body, address_type=stored.address_type, ports=group.ports, content=content)


def delete_slice(stored: Stored) -> SliceWrite:
    return SliceWrite.delete(stored.meta, address_type=stored.address_type, content={})


def _annotations(existing: dict[str, str], trigger: int) -> dict[str, str] | None:
    kept = {key: value for key, value in existing.items() if key != ANNOTATION_TRIGGER_TIME}
    if trigger:
        kept[ANNOTATION_TRIGGER_TIME] = format_nano_time(trigger)
    return kept or None
