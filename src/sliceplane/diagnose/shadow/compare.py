"""Compares the desired endpoints of one service with the slices that another controller wrote.

The content that a consumer can read counts: addresses, conditions, hints, ports, topology,
targetRef, labels, owner and address type. The slice of an endpoint does not. Values are compared by
their meaning (an absent condition has the value that consumers assume), and three things are
ignored on purpose:

- the zones of hints with ``topology-mode: Auto``, where only their presence is compared: zones are
  the allocator's choice, and two correct allocators choose differently;
- hints of endpoints that should not be ready: no consumer reads them, and upstream does not remove
  old ones;
- slices of a deleted Service: the garbage collector removes them.

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


class _ActualEndpoint(NamedTuple):
    """An endpoint as the other controller wrote it."""

    slice: str
    ports: Ports
    body: bytes


def compare(
    snapshot: ServiceSnapshot, unlabelled: Iterable[str] = (), *, keeps_inactive: bool = False
) -> tuple[SliceDifference, ...]:
    """Returns all differences, sorted. *unlabelled*: slices that the service controls and that lack
    the ``managed-by`` label. *keeps_inactive*: our controller, too, keeps the slices of a service
    without a selector.
    """
    differences = [
        SliceDifference(
            DifferenceKind.MANAGED_BY, "", f"EndpointSlice {name}", MANAGED_BY_CONTROLLER, NOTHING
        )
        for name in unlabelled
    ]
    if snapshot.shape.active or not keeps_inactive:
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
    """Yields address types without a slice, and slices of a type that the service lacks."""
    shape = snapshot.shape
    counts: dict[str, int] = {}
    for stored in snapshot.slices.values():
        # without a selector, slices that the service does not own are another writer's, whatever
        # their labels
        if shape.active or (stored.content and shape.owns(stored.meta.owner_references)):
            counts[stored.address_type] = counts.get(stored.address_type, 0) + len(stored.content)
    for family in snapshot.desired:
        if family not in counts and not shape.terminating:
            yield SliceDifference(DifferenceKind.ADDRESS_TYPE, family, "", family, NOTHING)
    for other, count in counts.items():
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
        desired = {k: v for k, v in shape.labels.items() if k not in _SUBSET_LABELS}
        if labels != desired:
            keys = [
                key for key in sorted({*labels, *desired}) if labels.get(key) != desired.get(key)
            ]
            yield SliceDifference(
                DifferenceKind.LABELS,
                family,
                subject,
                labels_text(desired, keys),
                labels_text(labels, keys),
            )
        owners = stored.meta.owner_references
        if not shape.owns(owners):
            actual = (
                ", ".join(sorted(f"{o.kind} {o.name} uid={o.uid}" for o in owners or ())) or NOTHING
            )
            yield SliceDifference(
                DifferenceKind.OWNER,
                family,
                subject,
                f"Service {shape.name} uid={shape.uid}",
                actual,
            )


def _endpoints(
    snapshot: ServiceSnapshot, family: str, desired: Mapping[str, Desired], slices: Sequence[Stored]
) -> Iterator[SliceDifference]:
    actual: dict[str, list[_ActualEndpoint]] = {}
    for stored in slices:
        for identity, body in stored.content.items():
            one = _ActualEndpoint(stored.meta.name, stored.ports, body)
            if identity.startswith("\0"):
                yield from _stray(family, one, f"{snapshot.shape.namespace}/", actual)
            else:
                actual.setdefault(pod_of(identity), []).append(one)
    for pod, expected in desired.items():
        if not expected.identity:
            continue
        candidates = actual.pop(pod, None)
        if candidates is None:
            if not snapshot.shape.terminating:
                yield _missing(family, pod, expected)
        elif (
            len(candidates) > 1
            or candidates[0].body != expected.body
            or candidates[0].ports != expected.group.ports
        ):
            yield from _judge(snapshot, family, pod, expected, candidates)
    for pod, stale in actual.items():
        text = "; ".join(sorted({addresses_text(_read(endpoint.body)) for endpoint in stale}))
        yield SliceDifference(
            DifferenceKind.ENDPOINT_STALE, family, f"Pod {pod}", NOTHING, text, pod
        )


def _stray(
    family: str, stray: _ActualEndpoint, namespace: str, actual: dict[str, list[_ActualEndpoint]]
) -> Iterator[SliceDifference]:
    """Handles an endpoint of no pod of the namespace, or one that its slice has twice."""
    endpoint = _read(stray.body)
    target = endpoint.target_ref
    if target is not None and target.kind == "Pod" and f"{target.namespace}/" == namespace:
        actual.setdefault(target.name, []).append(stray)
        return
    addresses = addresses_text(endpoint)
    yield SliceDifference(
        DifferenceKind.ENDPOINT_STALE,
        family,
        f"address {addresses}",
        NOTHING,
        f"{addresses} of {target_text(endpoint)}",
    )


def _missing(family: str, pod: str, expected: Desired) -> SliceDifference:
    text = addresses_text(_read(expected.body))
    return SliceDifference(
        DifferenceKind.ENDPOINT_MISSING, family, f"Pod {pod}", text, NOTHING, pod
    )


def _judge(
    snapshot: ServiceSnapshot,
    family: str,
    pod: str,
    expected: Desired,
    candidates: Sequence[_ActualEndpoint],
) -> Iterator[SliceDifference]:
    """Compares an endpoint that exists, perhaps more than once; the one most like ours counts."""
    best = min(
        candidates,
        key=lambda actual: (
            actual.ports != expected.group.ports,
            actual.body != expected.body,
            actual.slice,
        ),
    )
    subject = f"Pod {pod}"
    if len(candidates) > 1:
        where = "in " + ", ".join(sorted(actual.slice for actual in candidates))
        yield SliceDifference(
            DifferenceKind.ENDPOINT_DUPLICATE, family, subject, "once", where, pod
        )
    if best.ports != expected.group.ports:
        yield SliceDifference(
            DifferenceKind.PORTS,
            family,
            subject,
            ports_text(expected.group.ports),
            ports_text(best.ports),
            pod,
        )
    if best.body == expected.body:
        return
    ours = _read(expected.body)
    theirs = _read(best.body)
    for kind, ours_text, theirs_text in _fields(ours, theirs):
        if ours_text != theirs_text:
            yield SliceDifference(kind, family, subject, ours_text, theirs_text, pod)
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
    # an absent condition has the value that consumers assume
    yield DifferenceKind.READY, truth(mine.ready is not False), truth(other.ready is not False)
    if mine.serving is not None:  # our side sets it only with the feature gate
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
    ours_text = hints_text(ours.hints)
    theirs_text = hints_text(theirs.hints)
    if ours_text == theirs_text:
        return None
    if theirs_text == NOTHING:
        return DifferenceKind.HINT_MISSING
    if ours_text == NOTHING:
        return DifferenceKind.HINT_UNEXPECTED
    return DifferenceKind.HINTS if exact else None
