"""The writes that a plan for one mirrored object consists of, and their bodies."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.meta import ObjectMeta
from sliceplane.slices.content import PortGroup, canonical_ports, slice_body
from sliceplane.slices.endpoints.mirroring.desired import MirrorGroup, SliceMeta
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.watch.controller.own_writes import PlannedWrite


class MirrorSizes(NamedTuple):
    """What a sync means for endpoints, for metrics."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    skipped: int = 0


class MirrorPlan(msgspec.Struct, frozen=True):
    """What one sync writes, in this order.  ``stale``: the cache has not caught up with a conflict.

    ``counted`` False: slices of something that is not mirrored go, which metrics do not count.
    ``proof``: the writes change nothing, and show whether what is known is so; the next plan has
    the others.
    """

    writes: tuple[PlannedWrite, ...] = ()
    notices: tuple[Notice, ...] = ()
    sizes: MirrorSizes | None = None
    stale: bool = False
    counted: bool = True
    proof: bool = False


def create_slice(namespace: str, name: str, wanted: SliceMeta, group: MirrorGroup) -> PlannedWrite:
    meta = ObjectMeta(
        generate_name=f"{name}-",
        namespace=namespace,
        labels=wanted.labels,
        annotations=wanted.annotations,
        owner_references=(wanted.owner,),
    )
    return PlannedWrite(verb="create", namespace=namespace, body=_body(meta, group))


def update_slice(known: EndpointSlice, wanted: SliceMeta, group: MirrorGroup) -> PlannedWrite:
    """The slice becomes what *group* asks for under its own name."""
    meta = known.metadata
    new = msgspec.structs.replace(
        meta, labels=wanted.labels, annotations=wanted.annotations, owner_references=(wanted.owner,)
    )
    return PlannedWrite.update(meta, _body(new, group))


def prove_slice(known: EndpointSlice) -> PlannedWrite:
    """The slice as it is known: nothing happens if the server has it so, and else it is a
    conflict.
    """
    ports = PortGroup(canonical_ports(known.ports or ())).body
    body = slice_body(known.metadata, known.address_type, map(encode, known.endpoints or ()), ports)
    return PlannedWrite.update(known.metadata, body)


def _body(meta: ObjectMeta, group: MirrorGroup) -> bytes:
    return slice_body(meta, group.address_type, group.texts, PortGroup(group.ports).body)
