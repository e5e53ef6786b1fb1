"""The writes of a plan, their bodies, and the *trigger time* that they report.

A body is composed of bytes that were encoded when an endpoint changed: writing a slice of a hundred
endpoints after one of them changed encodes one endpoint and the metadata.

The trigger time is the time since which the oldest change in a write has been waiting. Consumers
subtract it from the time at which they have programmed the change; the difference is the network
programming latency SLI. Times are whole nanoseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME
from sliceplane.api.meta import Object, ObjectMeta
from sliceplane.kit.times import format_nano_time, parse_nanoseconds
from sliceplane.slices.content import Content, PortGroup, Ports, Stored, slice_body
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.hinting.hint_policy import Notice
from sliceplane.slices.shape import ServiceShape
from sliceplane.slices.subsets import with_subset
from sliceplane.watch.controller.own_writes import PlannedWrite


class MemberChanges:
    """The members of a Service that changed since the last trigger time was taken, each with its
    version at that time.
    """

    __slots__ = ("_before", "_tracking")

    def __init__(
        self, earlier: MemberChanges | None, members: Iterable[tuple[str, PodFacts]] = ()
    ) -> None:
        """*earlier* and *members* belong to the previous version of the Service. A change of the
        Service alone is no change of a Pod that was a member before.
        """
        self._before: dict[str, PodFacts | None] = dict(members)
        #: False until the first trigger time is taken: before it there is nothing to compare with
        self._tracking = False
        if earlier is not None:
            self._before.update(earlier._before)
            self._tracking = earlier._tracking

    def note(self, pod: str, old: PodFacts | None) -> None:
        """Records that *pod*, which was *old*, has changed."""
        if self._tracking:
            self._before.setdefault(pod, old)

    def take(self, newest: Callable[[str], PodFacts | None]) -> int:
        """Returns the earliest time, in nanoseconds, at which readiness of a member changed since
        the last call; 0 for none.
        """
        self._tracking = True
        earliest = 0
        for pod, old in self._before.items():
            facts = newest(pod)
            if (
                facts is None
                or facts.transition is None
                or (old is not None and facts.transition == old.transition)
            ):
                continue
            time = facts.transition_ns
            if time > (0 if old is None else old.transition_ns) and (
                not earliest or time < earliest
            ):
                earliest = time
        self._before.clear()
        return earliest


class TriggerTime:
    """The time since which the oldest unwritten change of one Service has been waiting. Kept until
    the change is written, so that a retry still reports it.
    """

    __slots__ = ("_began", "since")

    def __init__(self) -> None:
        #: nanoseconds since the epoch; 0: no change waits
        self.since = 0
        self._began = False

    def restart(self) -> None:
        """Starts anew for another Service."""
        self.since = 0
        self._began = False

    def note(self, changed: int, created: str | None) -> None:
        """Adds a change of members at the time *changed* (0: none). The first plan of a Service
        waits since the Service's creation.
        """
        if not self._began:
            changed = parse_nanoseconds(created)
            self._began = True
        if changed and (not self.since or changed < self.since):
            self.since = changed

    def written(self) -> None:
        self.since = 0


class SliceWrite(PlannedWrite, frozen=True, kw_only=True):
    """A planned write. ``ports`` and ``content`` describe the slice after its success."""

    address_type: str
    ports: Ports = ()
    content: Content


class FamilyChanges(NamedTuple):
    """Numbers of one plan for one address type: endpoints added and removed, slices written."""

    added: int
    removed: int
    writes: int


class SliceTotals(NamedTuple):
    """Counts for metrics: desired endpoints, slices once the current plan is applied, and the
    fewest slices that could hold the endpoints.
    """

    endpoints: int = 0
    slices: int = 0
    fewest_slices: int = 0


class SlicePlan(msgspec.Struct, frozen=True):
    """The writes of one sync of a Service, in order.

    ``problems``: sentences about endpoints that were left out, each reported once. ``notices``:
    Events about hints and holds, for after the writes. ``families``: counts for metrics, in no
    order. ``stale``: the cache has not caught up with a conflict, so nothing may be planned yet.
    ``saves``: number of slices that a merge saves. ``hint_problems``: the reasons why the Service
    has no hints; empty if it has, or requests none of ours. ``proof``: the writes change nothing
    but show whether suspect slices are as believed; the next plan has the other writes.
    """

    writes: tuple[SliceWrite, ...] = ()
    problems: tuple[str, ...] = ()
    stale: bool = False
    notices: tuple[Notice, ...] = ()
    families: tuple[FamilyChanges, ...] = ()
    saves: int = 0
    hint_problems: tuple[str, ...] = ()
    proof: bool = False


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


def update_slice(
    shape: ServiceShape, stored: Stored, group: PortGroup, content: Content, trigger: int
) -> SliceWrite:
    """Returns the update of a slice. Labels become the Service's and the subset's; other metadata,
    owners and other annotations stay.
    """
    annotations = _annotations(stored.meta.annotations or {}, trigger)
    labels = with_subset(shape.labels, group.subset) if group.subset else shape.labels
    meta = msgspec.structs.replace(stored.meta, labels=labels, annotations=annotations)
    body = slice_body(meta, stored.address_type, content.values(), group.body)
    return SliceWrite.update(
        meta, body, address_type=stored.address_type, ports=group.ports, content=content
    )


def prove_slice(stored: Stored) -> SliceWrite:
    """Returns an update that changes nothing if the server has the slice as believed, and conflicts
    otherwise.
    """
    return with_content(stored, stored.content)


def with_content(stored: Stored, content: Content) -> SliceWrite:
    """Returns an update that changes only the endpoints of a slice."""
    body = slice_body(
        stored.meta, stored.address_type, content.values(), PortGroup(stored.ports).body
    )
    return SliceWrite.update(
        stored.meta, body, address_type=stored.address_type, ports=stored.ports, content=content
    )


def delete_slice(stored: Stored) -> SliceWrite:
    return SliceWrite.delete(stored.meta, address_type=stored.address_type, content={})


def delete_unowned(
    slices: Mapping[str, Stored], desired_content: Callable[[Stored], Content] | None
) -> tuple[list[SliceWrite], list[SliceWrite]]:
    """Returns the writes that remove *slices*: those before all other writes, and those after.

    The slices stay until other slices have their endpoints. If creates were refused, which a quota
    can do for long, *desired_content* returns the desired versions of a slice's desired endpoints;
    all other endpoints are removed from it first.
    """
    first: dict[str, SliceWrite] = {}
    if desired_content is not None:
        for name, stored in sorted(slices.items()):
            content = desired_content(stored)
            if content != stored.content:
                first[name] = with_content(stored, content) if content else delete_slice(stored)
    last = [delete_slice(slices[name]) for name in sorted(slices.keys() - first.keys())]
    return list(first.values()), last


def written(write: SliceWrite, answer: bytes) -> Stored:
    return Stored(decode(answer, Object).metadata, write.address_type, write.ports, write.content)


def _annotations(existing: dict[str, str], trigger: int) -> dict[str, str] | None:
    kept = {key: value for key, value in existing.items() if key != ANNOTATION_TRIGGER_TIME}
    if trigger:
        kept[ANNOTATION_TRIGGER_TIME] = format_nano_time(trigger)
    return kept or None
