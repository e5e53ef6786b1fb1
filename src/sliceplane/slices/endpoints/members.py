"""The Pods that a Service selects, as the subsets of its Endpoints; and the writes of the object.

Pods are kept in *groups* whose service ports resolve to the same endpoint ports. Each group keeps
its addresses sorted and encoded, so a Pod's change moves one entry. A Service with one group, as
nearly all have, is written by joining existing texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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
from sliceplane.kit.containers import SortedDict
from sliceplane.kit.ip import family, parse_lenient
from sliceplane.kit.times import format_nano_time
from sliceplane.slices.content import PortGroup, PortResolver, Ports
from sliceplane.slices.endpoints.shape import EndpointsShape
from sliceplane.slices.endpoints.subsets import (
    ADDRESSES_MAX,
    AddressKey,
    Capacity,
    RenderedSubsets,
    Subset,
    pod_address,
    render,
    text_of,
)
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.pod_routes import Effect
from sliceplane.slices.writes import MemberChanges
from sliceplane.watch.controller.own_writes import PlannedWrite


@dataclass(slots=True, eq=False)
class AddressGroup:
    """Addresses of the Pods with one set of ports. The key is IP, uid and name, so that no two Pods
    share an entry.
    """

    ports: Ports
    ready: SortedDict[AddressKey, bytes] = field(default_factory=SortedDict)
    not_ready: SortedDict[AddressKey, bytes] = field(default_factory=SortedDict)


class _Placed(NamedTuple):
    """The location of a Pod's address; ``group`` None if it has none."""

    facts: PodFacts
    group: AddressGroup | None
    key: AddressKey
    ready: bool


class _Cut(NamedTuple):
    """The last content of a single group with more ready addresses than an object may hold: those
    up to *last*.
    """

    last: AddressKey
    content: EndpointsContent


class EndpointsMembers:
    """The members of one active Service. Owned by its ``EndpointsState``."""

    def __init__(
        self, shape: EndpointsShape, pods: Iterable[PodFacts], earlier: EndpointsMembers | None
    ) -> None:
        self._shape = shape
        self._resolver = PortResolver(shape.ports)
        self._groups: dict[PortGroup, AddressGroup] = {}
        self._placed: dict[str, _Placed] = {}
        self._changes = MemberChanges(None)
        self._cut: _Cut | None = None
        if earlier is not None:
            members = ((name, placed.facts) for name, placed in earlier._placed.items())
            self._changes = MemberChanges(earlier._changes, members)
        for facts in pods:
            self.set(facts)

    def set(self, facts: PodFacts) -> Effect:
        """Adds or replaces a member."""
        old = self._placed.get(facts.name)
        self._changes.note(facts.name, None if old is None else old.facts)
        group, key, text = self._place(facts)
        ready = group is not None and (self._shape.publish_not_ready or facts.serving)
        self._placed[facts.name] = _Placed(facts, group, key, ready)
        if old is not None and old.group is not None:
            if old.group is group and old.key == key and old.ready is ready:
                side = group.ready if ready else group.not_ready
                if side[key] == text:
                    return Effect.NONE
                self._side(group, key, ready=ready)[key] = text
                return Effect.CHANGE
            self._take_out(old)
        if group is not None:
            self._side(group, key, ready=ready)[key] = text
        if old is None or old.group is None:
            return Effect.NONE if group is None else Effect.CHANGE
        stays = group is old.group and key == old.key and (ready or not old.ready)
        return Effect.CHANGE if stays else Effect.REMOVAL

    def drop(self, pod: str) -> Effect:
        """Removes a member."""
        old = self._placed.pop(pod, None)
        if old is None:
            return Effect.NONE
        self._changes.note(pod, old.facts)
        if old.group is None:
            return Effect.NONE
        self._take_out(old)
        return Effect.REMOVAL

    def _take_out(self, placed: _Placed) -> None:
        assert placed.group is not None, f"{placed.facts.name} has no address"
        del self._side(placed.group, placed.key, ready=placed.ready)[placed.key]

    def _side(
        self, group: AddressGroup, key: AddressKey, *, ready: bool
    ) -> SortedDict[AddressKey, bytes]:
        """Returns the side of *group* in which the address *key* is about to change."""
        if ready and self._cut is not None and key <= self._cut.last:
            self._cut = None
        return group.ready if ready else group.not_ready

    def _place(self, facts: PodFacts) -> tuple[AddressGroup | None, AddressKey, bytes]:
        """Returns group, key and text of the Pod's address; no group if the Pod is not in these
        Endpoints.
        """
        shape = self._shape
        nowhere = (None, (), b"")
        if facts.excluded or (facts.terminating and not shape.publish_not_ready):
            return nowhere
        ip = self._address(facts)
        ports = self._resolver.group_of(facts)
        if not ip or (not ports.ports and (shape.ports or not shape.headless)):
            return nowhere
        group = self._groups.get(ports)
        if group is None:
            group = self._groups[ports] = AddressGroup(ports.ports)
        hostname = facts.hostname if facts.subdomain == shape.name else ""
        text = pod_address(ip, hostname, facts.node_name, facts.target)
        return group, (ip, facts.pod.metadata.uid, facts.name), text

    def _address(self, facts: PodFacts) -> str:
        """Returns the Pod's first address of the Service's family; "" for none."""
        address_family = self._shape.family
        if address_family is None:
            parsed = parse_lenient(facts.pod.status.pod_ip)
            if parsed is None:
                return ""
            address_family = family(parsed)
        addresses = facts.addresses.get(address_family)
        return "" if addresses is None else addresses.first

    # -- desired content

    def content(self, capacity: Capacity) -> EndpointsContent:
        """Returns the desired content of the object. Costs O(addresses that are written), or
        O(addresses) with several groups; O(1) if no address that an object may hold has changed
        since the last call.
        """
        groups = list(self._groups.values())
        is_cut = (
            capacity is Capacity.TRUNCATE
            and len(groups) == 1
            and len(groups[0].ready) > ADDRESSES_MAX
        )
        if is_cut and self._cut is not None:
            return self._cut.content
        parts = (Subset(group.ports, group.ready, group.not_ready) for group in groups)
        content = content_of(render(parts, truncate=capacity is Capacity.TRUNCATE), capacity)
        self._cut = (
            _Cut(groups[0].ready.peekitem(ADDRESSES_MAX - 1)[0], content) if is_cut else None
        )
        return content

    # -- trigger time

    def take_trigger_time(self) -> int:
        """Returns the earliest time, in nanoseconds, at which a member changed since the last call;
        0 for none.
        """
        return self._changes.take(self._facts)

    def _facts(self, pod: str) -> PodFacts | None:
        placed = self._placed.get(pod)
        return None if placed is None else placed.facts

    def check(self) -> None:
        """Asserts that every address follows from its Pod's newest version, and that there are no
        others.
        """
        expected: dict[tuple[int, bool, AddressKey], bytes] = {}
        for placed in self._placed.values():
            group, key, text = self._place(placed.facts)
            assert (group, key) == (placed.group, placed.key), f"{placed.facts.name} is out of date"
            if group is not None:
                expected[id(group), placed.ready, key] = text
        actual = {
            (id(group), ready, key): text
            for group in self._groups.values()
            for ready, side in ((True, group.ready), (False, group.not_ready))
            for key, text in side.items()
        }
        assert actual == expected, f"{self._shape.key}: {actual.keys() ^ expected.keys()} differ"
        before = self.content(Capacity.TRUNCATE)
        self._cut = None
        assert self.content(Capacity.TRUNCATE) == before, (
            f"{self._shape.key}: the desired content is out of date"
        )


_EMPTY = b"[]"


class EndpointsWrite(PlannedWrite, frozen=True, kw_only=True):
    """A planned write. ``digest`` is that of the subsets after the write."""

    digest: bytes = b""


class EndpointsPlan(msgspec.Struct, frozen=True):
    """The result of one plan. ``write`` None: nothing is due. ``stale``: the cache has not caught
    up with a conflict.
    """

    write: EndpointsWrite | None = None
    stale: bool = False


def digest_of(text: bytes) -> bytes:
    """Returns sixteen bytes that represent canonical subsets; the text of a large
    object is 150 KB.
    """
    return blake2b(text, digest_size=16).digest()


def digest_of_subsets(subsets: tuple[EndpointSubset, ...] | None, *, named: bool = False) -> bytes:
    """Returns the digest of an object's subsets. *named* as in ``pack``. Costs O(addresses)."""
    return digest_of(text_of(subsets, named=named) if subsets else _EMPTY)


class EndpointsContent(NamedTuple):
    """The desired content of an object: its subsets as text, their digest, and the value of its
    capacity annotation ("": none).
    """

    text: bytes
    digest: bytes
    capacity: str

    def matches(self, meta: ObjectMeta, digest: bytes, labels: dict[str, str]) -> bool:
        """Returns True if the object with this metadata, and subsets of this *digest*, needs no
        write.
        """
        noted = (meta.annotations or {}).get(ANNOTATION_OVER_CAPACITY, "")
        return digest == self.digest and noted == self.capacity and (meta.labels or {}) == labels


def content_of(rendered: RenderedSubsets, capacity: Capacity) -> EndpointsContent:
    over = capacity.value if rendered.total > ADDRESSES_MAX else ""
    return EndpointsContent(rendered.text, digest_of(rendered.text), over)


def create_endpoints(
    shape: EndpointsShape, content: EndpointsContent, trigger: int
) -> EndpointsWrite:
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
    shape: EndpointsShape, current: ObjectMeta, content: EndpointsContent, trigger: int
) -> EndpointsWrite:
    """Returns the update of an object. Labels become the shape's; other metadata stays, foreign
    annotations included.
    """
    annotations = _annotations(current.annotations or {}, content.capacity, trigger)
    meta = msgspec.structs.replace(current, labels=shape.labels, annotations=annotations)
    return EndpointsWrite.update(current, _body(meta, content.text), digest=content.digest)


def hand_over(
    current: ObjectMeta, subsets: tuple[EndpointSubset, ...] | None, digest: bytes
) -> EndpointsWrite:
    """Returns an update that only removes the labels which mark the object as ours and exclude it
    from mirroring.
    """
    labels = {
        k: v
        for k, v in (current.labels or {}).items()
        if k not in (LABEL_ENDPOINTS_MANAGED_BY, LABEL_SKIP_MIRROR)
    }
    meta = msgspec.structs.replace(current, labels=labels or None)
    return EndpointsWrite.update(
        current, _body(meta, encode(subsets) if subsets else _EMPTY), digest=digest
    )


def is_ours(meta: ObjectMeta) -> bool:
    return (meta.labels or {}).get(LABEL_ENDPOINTS_MANAGED_BY) == ENDPOINTS_MANAGED_BY_CONTROLLER


def _annotations(existing: dict[str, str], capacity: str, trigger: int) -> dict[str, str] | None:
    kept = {
        k: v
        for k, v in existing.items()
        if k not in (ANNOTATION_TRIGGER_TIME, ANNOTATION_OVER_CAPACITY)
    }
    if capacity:
        kept[ANNOTATION_OVER_CAPACITY] = capacity
    if trigger:
        kept[ANNOTATION_TRIGGER_TIME] = format_nano_time(trigger)
    return kept or None


def _body(meta: ObjectMeta, text: bytes) -> OwnJson:
    subsets = b"" if text == _EMPTY else b',"subsets":' + text
    return OwnJson(
        b"".join(
            (b'{"apiVersion":"v1","kind":"Endpoints","metadata":', encode(meta), subsets, b"}")
        )
    )
