"""One service: what the production engine desires against the slices that another controller wrote.

What counts is what a consumer can read: addresses, conditions, hints, ports, topology, targetRef,
labels, owner and address type. Which slice an endpoint is in does not count. Values are compared by
their meaning (a condition that is not said is the one that consumers assume), and three things are
left alone on purpose:

- with ``topology-mode: Auto`` only whether there are hints is compared: which endpoint serves which
  zone is the allocator's choice, and two sound ones choose differently;
- hints of endpoints that should not be ready: no consumer reads them, and upstream leaves old ones;
- slices of a Service that is gone: they are the garbage collector's.

Costs O(endpoints of the service); an endpoint whose bytes are equal costs one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from sliceplane.api.discovery import (
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    MANAGED_BY_CONTROLLER,
    SliceEndpoint,
)
from sliceplane.diagnose.shadow.differences import (
    NOTHING,
    DifferenceKind,
    SliceDifference,
    addresses_text,
    hints_text,
    labels_text,
    ports_text,
    target_text,
    truth,
)
from sliceplane.slices.content import Ports, Stored
from sliceplane.slices.facts import pod_of
from sliceplane.slices.packing.placement import Desired, ServiceSnapshot
from sliceplane.slices.shape import HintMode

_read = msgspec.json.Decoder(SliceEndpoint).decode
_SUBSET_LABELS = (LABEL_FOR_ZONE, LABEL_FOR_REGION)


class _Shown(NamedTuple):
    """An endpoint in a slice."""

    slice: str
    ports: Ports
    body: bytes


def compare(
    snapshot: ServiceSnapshot, unlabelled: Iterable[str] = (), *, leaves: bool = False
) -> tuple[SliceDifference, ...]:
    """All differences, sorted. *unlabelled*: slices that the service controls and no label says who
    manages. *leaves*: our controller, too, lets the slices of a service be that has no endpoints
    for it to make (any more).
    """
    differences = [
        SliceDifference(
            DifferenceKind.MANAGED_BY, "", f"EndpointSlice {name}", MANAGED_BY_CONTROLLER, NOTHING
        )
        for name in unlabelled
    ]
    if snapshot.shape.active or not leaves:
        differences += _address_types(snapshot)
    if snapshot.shape.active:
        for family, desired in snapshot.desired.items():
            slices = [
                stored
                for _, stored in sorted(snapshot.slices.items())
                if stored.address_type == family
            ]
            differences += _metadata(snapshot, family, slices)
            differences += _endpoints(snapshot, family, desired, slices)
    return tuple(sorted(differences))


def _address_types(snapshot: ServiceSnapshot) -> Iterator[SliceDifference]:
    """A type without any slice, and slices of a type that the service does not have."""
    shape = snapshot.shape
    there: dict[str, int] = {}
    for stored in snapshot.slices.values():
        # without a selector, slices that the service does not own are another writer's whatever
        # their labels say
        if shape.active or (stored.content and shape.owns(stored.meta.owner_references)):
            there[stored.address_type] = there.get(stored.address_type, 0) + len(stored.content)
    for family in snapshot.desired:
        if family not in there and not shape.terminating:
            yield SliceDifference(DifferenceKind.ADDRESS_TYPE, family, "", family, NOTHING)
    for other, count in there.items():
        if other not in snapshot.desired:
            yield SliceDifference(
                DifferenceKind.ADDRESS_TYPE, other, "", NOTHING, f"{other} with {count} endpoints"
            )


def _metadata(
    snapshot: ServiceSnapshot, family: str, slices: Iterable[Stored]
) -> Iterator[SliceDifference]:
    shape = snapshot.shape
    for stored in slices:
        subject = f"EndpointSlice {stored.meta.name}"
        labels = {k: v for k, v in (stored.meta.labels or {}).items() if k not in _SUBSET_LABELS}
        wanted = {k: v for k, v in shape.labels.items() if k not in _SUBSET_LABELS}
        if labels != wanted:
            keys = [key for key in sorted({*labels, *wanted}) if labels.get(key) != wanted.get(key)]
            yield SliceDifference(
                DifferenceKind.LABELS,
                family,
                subject,
                labels_text(wanted, keys),
                labels_text(labels, keys),
            )
        owners = stored.meta.owner_references
        if not shape.owns(owners):
            shown = (
                ", ".join(sorted(f"{o.kind} {o.name} uid={o.uid}" for o in owners or ())) or NOTHING
            )
            yield SliceDifference(
                DifferenceKind.OWNER,
                family,
                subject,
                f"Service {shape.name} uid={shape.uid}",
                shown,
            )


def _endpoints(
    snapshot: ServiceSnapshot, family: str, desired: Mapping[str, Desired], slices: Sequence[Stored]
) -> Iterator[SliceDifference]:
    shown: dict[str, list[_Shown]] = {}
    for stored in slices:
        for identity, body in stored.content.items():
            one = _Shown(stored.meta.name, stored.ports, body)
            if identity.startswith("\0"):
                yield from _stray(family, one, f"{snapshot.shape.namespace}/", shown)
            else:
                shown.setdefault(pod_of(identity), []).append(one)
    for pod, wanted in desired.items():
        if not wanted.identity:
            continue
        candidates = shown.pop(pod, None)
        if candidates is None:
            if not snapshot.shape.terminating:
                yield _missing(family, pod, wanted)
        elif (
            len(candidates) > 1
            or candidates[0].body != wanted.body
            or candidates[0].ports != wanted.group.ports
        ):
            yield from _judge(snapshot, family, pod, wanted, candidates)
    for pod, stale in shown.items():
        text = "; ".join(
            sorted({addresses_text(_read(shown_endpoint.body)) for shown_endpoint in stale})
        )
        yield SliceDifference(
            DifferenceKind.ENDPOINT_STALE, family, f"Pod {pod}", NOTHING, text, pod
        )


def _stray(
    family: str, stray: _Shown, namespace: str, shown: dict[str, list[_Shown]]
) -> Iterator[SliceDifference]:
    """An endpoint of no pod of the namespace; or one that its slice has twice."""
    endpoint = _read(stray.body)
    target = endpoint.target_ref
    if target is not None and target.kind == "Pod" and f"{target.namespace}/" == namespace:
        shown.setdefault(target.name, []).append(stray)
        return
    addresses = addresses_text(endpoint)
    yield SliceDifference(
        DifferenceKind.ENDPOINT_STALE,
        family,
        f"address {addresses}",
        NOTHING,
        f"{addresses} of {target_text(endpoint)}",
    )


def _missing(family: str, pod: str, wanted: Desired) -> SliceDifference:
    text = addresses_text(_read(wanted.body))
    return SliceDifference(
        DifferenceKind.ENDPOINT_MISSING, family, f"Pod {pod}", text, NOTHING, pod
    )


def _judge(
    snapshot: ServiceSnapshot, family: str, pod: str, wanted: Desired, candidates: Sequence[_Shown]
) -> Iterator[SliceDifference]:
    """The endpoint is there, maybe more than once; the one most like ours counts."""
    best = min(
        candidates,
        key=lambda shown: (
            shown.ports != wanted.group.ports,
            shown.body != wanted.body,
            shown.slice,
        ),
    )
    subject = f"Pod {pod}"
    if len(candidates) > 1:
        where = "in " + ", ".join(sorted(shown.slice for shown in candidates))
        yield SliceDifference(
            DifferenceKind.ENDPOINT_DUPLICATE, family, subject, "once", where, pod
        )
    if best.ports != wanted.group.ports:
        yield SliceDifference(
            DifferenceKind.PORTS,
            family,
            subject,
            ports_text(wanted.group.ports),
            ports_text(best.ports),
            pod,
        )
    if best.body == wanted.body:
        return
    ours = _read(wanted.body)
    theirs = _read(best.body)
    for kind, left, right in _fields(ours, theirs):
        if left != right:
            yield SliceDifference(kind, family, subject, left, right, pod)
    if ours.conditions.ready is not False:
        difference = _hints(ours, theirs, exact=snapshot.shape.hints is not HintMode.AUTO)
        if difference is not None:
            yield SliceDifference(
                difference, family, subject, hints_text(ours.hints), hints_text(theirs.hints), pod
            )


def _fields(
    ours: SliceEndpoint, theirs: SliceEndpoint
) -> Iterator[tuple[DifferenceKind, str, str]]:
    mine = ours.conditions
    other = theirs.conditions
    yield DifferenceKind.ADDRESSES, addresses_text(ours), addresses_text(theirs)
    # what is not said is what consumers assume
    yield DifferenceKind.READY, truth(mine.ready is not False), truth(other.ready is not False)
    if mine.serving is not None:  # our side says it only with the feature gate
        yield DifferenceKind.SERVING, truth(mine.serving), truth(other.serving is not False)
        yield (
            DifferenceKind.TERMINATING,
            truth(mine.terminating is True),
            truth(other.terminating is True),
        )
    yield DifferenceKind.HOSTNAME, ours.hostname or NOTHING, theirs.hostname or NOTHING
    yield DifferenceKind.NODE, ours.node_name or NOTHING, theirs.node_name or NOTHING
    yield DifferenceKind.ZONE, ours.zone or NOTHING, theirs.zone or NOTHING
    yield DifferenceKind.TARGET_REF, target_text(ours), target_text(theirs)


def _hints(ours: SliceEndpoint, theirs: SliceEndpoint, *, exact: bool) -> DifferenceKind | None:
    left = hints_text(ours.hints)
    right = hints_text(theirs.hints)
    if left == right:
        return None
    if right == NOTHING:
        return DifferenceKind.HINT_MISSING
    if left == NOTHING:
        return DifferenceKind.HINT_UNEXPECTED
    return DifferenceKind.HINTS if exact else None
