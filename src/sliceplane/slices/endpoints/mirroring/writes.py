"""The writes of a plan for one mirrored object, and their bodies."""

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
    """Numbers of endpoints that a sync adds, updates, removes and skips, for metrics."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    skipped: int = 0


class MirrorPlan(msgspec.Struct, frozen=True):
    """The writes of one sync, in order. ``stale``: the cache has not caught up with a conflict.

    ``counted`` False: slices of an object that is not mirrored are deleted, which metrics do not
    count. ``proof``: the writes change nothing but show whether suspect slices are as believed; the
    next plan has the other writes.
    """

    writes: tuple[PlannedWrite, ...] = ()
    notices: tuple[Notice, ...] = ()
    sizes: MirrorSizes | None = None
    stale: bool = False
    counted: bool = True
    proof: bool = False


def create_slice(
    namespace: str, name: str, desired_meta: SliceMeta, group: MirrorGroup
) -> PlannedWrite:
    meta = ObjectMeta(
        generate_name=f"{name}-",
        namespace=namespace,
        labels=desired_meta.labels,
        annotations=desired_meta.annotations,
        owner_references=(desired_meta.owner,),
    )
    return PlannedWrite(verb="create", namespace=namespace, body=_body(meta, group))


def update_slice(
    stored: EndpointSlice, desired_meta: SliceMeta, group: MirrorGroup
) -> PlannedWrite:
    """Returns an update that gives the slice the content of *group* and keeps its name."""
    meta = stored.metadata
    new = msgspec.structs.replace(
        meta,
        labels=desired_meta.labels,
        annotations=desired_meta.annotations,
        owner_references=(desired_meta.owner,),
    )
    return PlannedWrite.update(meta, _body(new, group))


def prove_slice(stored: EndpointSlice) -> PlannedWrite:
    """Returns an update that changes nothing if the server has the slice as believed, and conflicts
    otherwise.
    """
    ports = PortGroup(canonical_ports(stored.ports or ())).body
    body = slice_body(
        stored.metadata, stored.address_type, map(encode, stored.endpoints or ()), ports
    )
    return PlannedWrite.update(stored.metadata, body)


def _body(meta: ObjectMeta, group: MirrorGroup) -> bytes:
    return slice_body(meta, group.address_type, group.texts, PortGroup(group.ports).body)
