"""Endpoints from EndpointSlices, for readers of Endpoints only (the reverse of KEP-0752's
mirroring).

A ``ReverseSource`` has the contents of the slices of one Service, and renders the subsets of its
Endpoints. Slices with the same ports are one *group* whose addresses are kept sorted and encoded,
so a changed endpoint costs its own address. A Service with one group, as nearly all have, is
written by joining existing texts. Several groups are packed anew (``slices.endpoints.subsets``), in
the form that readers of Endpoints expect.

Endpoints cannot contain everything. Host names as addresses, ports without a number, addresses of
an endpoint beyond its first (the only one that consumers of slices use), and addresses beyond 1,000
are left out. A terminating endpoint is in Endpoints only if its slice reports it as ready, as
``publishNotReadyAddresses`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sliceplane.api.discovery import EndpointSlice, SliceEndpoint
from sliceplane.kit.containers import SortedDict
from sliceplane.kit.ip import Family
from sliceplane.slices.content import Ports, canonical_ports
from sliceplane.slices.endpoints.subsets import (
    AddressKey,
    RenderedSubsets,
    Subset,
    address_text,
    render,
)


class AddressEntry(NamedTuple):
    """An encoded address in one slice."""

    ready: bool
    text: bytes


class SliceContent(NamedTuple):
    """The part of a slice that Endpoints depend on. Equal contents need equal Endpoints."""

    family: Family
    ports: Ports
    entries: dict[AddressKey, AddressEntry]


def read_content(observed: EndpointSlice) -> SliceContent | None:
    """Returns the content of a slice; ``None`` if Endpoints can hold nothing of it."""
    if observed.address_type not in ("IPv4", "IPv6"):
        return None
    ports = tuple(port for port in canonical_ports(observed.ports or ()) if port.port is not None)
    if observed.ports and not ports:
        return None  # no port has a number, so a reader could not connect
    entries: dict[AddressKey, AddressEntry] = {}
    for endpoint in observed.endpoints or ():
        ready = _readiness(endpoint)
        if ready is None or not endpoint.addresses:
            continue
        target = endpoint.target_ref
        key = endpoint.addresses[0], target.uid if target is not None else ""
        if key not in entries or (ready and not entries[key].ready):
            entries[key] = AddressEntry(
                ready, address_text(key[0], endpoint.hostname or "", endpoint.node_name, target)
            )
    return SliceContent("IPv6" if observed.address_type == "IPv6" else "IPv4", ports, entries)


def _readiness(endpoint: SliceEndpoint) -> bool | None:
    """Returns readiness; ``None`` for an endpoint that is not in Endpoints at all."""
    conditions = endpoint.conditions
    if conditions.ready is None or conditions.ready:
        return True
    return None if conditions.terminating else False


class SharedGroup:
    """The addresses of all slices of one family with the same ports. Changed only by
    ``ReverseSource``.

    An address in several slices (while it moves between them, for example) is ready if one of them
    reports it as ready.
    """

    __slots__ = ("_entries", "not_ready", "ready")

    def __init__(self) -> None:
        #: the slices that have an address, by name, with their entries
        self._entries: dict[AddressKey, tuple[tuple[str, AddressEntry], ...]] = {}
        self.ready: SortedDict[AddressKey, bytes] = SortedDict()
        self.not_ready: SortedDict[AddressKey, bytes] = SortedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: AddressKey, name: str, entry: AddressEntry | None) -> None:
        """Replaces the *entry* of the slice *name*, or removes it."""
        others = [entry for entry in self._entries.get(key, ()) if entry[0] != name]
        entries = others if entry is None else [*others, (name, entry)]
        self.ready.pop(key, None)
        self.not_ready.pop(key, None)
        if not entries:
            self._entries.pop(key, None)
            return
        self._entries[key] = tuple(sorted(entries, key=lambda entry: entry[0]))
        effective = _effective(self._entries[key])
        (self.ready if effective.ready else self.not_ready)[key] = effective.text

    def check(self) -> None:
        assert self._entries.keys() == self.ready.keys() | self.not_ready.keys(), (
            "an address has entries and no text"
        )
        assert not self.ready.keys() & self.not_ready.keys(), "an address is ready and not"
        for key, entries in self._entries.items():
            effective = _effective(entries)
            assert (self.ready if effective.ready else self.not_ready)[key] == effective.text, (
                f"{key} is not shown as {effective}"
            )


def _effective(entries: Sequence[tuple[str, AddressEntry]]) -> AddressEntry:
    return next((entry for _, entry in entries if entry.ready), entries[0][1])


class ReverseSource:
    """The contents of the slices of one Service. Owned by the controller."""

    def __init__(self) -> None:
        self._contents: dict[str, SliceContent] = {}
        self._groups: dict[tuple[Family, Ports], SharedGroup] = {}

    def __bool__(self) -> bool:
        """Returns True if there is a slice, even an empty one."""
        return bool(self._contents)

    @property
    def families(self) -> frozenset[Family]:
        return frozenset(content.family for content in self._contents.values())

    def put(self, name: str, content: SliceContent | None) -> bool:
        """Replaces or removes the content of the slice *name*. Returns True if Endpoints may
        change.
        """
        before = self._contents.pop(name, None)
        if content is not None:
            self._contents[name] = content
        if before == content:
            return False
        if before is not None and (content is None or before[:2] != content[:2]):
            self._move(name, before[:2], before.entries, {})
            before = None
        if content is not None:
            self._move(name, content[:2], {} if before is None else before.entries, content.entries)
        return True

    def _move(
        self,
        name: str,
        group_key: tuple[Family, Ports],
        before: dict[AddressKey, AddressEntry],
        after: dict[AddressKey, AddressEntry],
    ) -> None:
        if not (before or after):
            return
        group = self._groups.get(group_key)
        if group is None:
            group = self._groups[group_key] = SharedGroup()
        for key in before:
            if key not in after:
                group.put(key, name, None)
        for key, entry in after.items():
            if before.get(key) != entry:
                group.put(key, name, entry)
        if not group:
            del self._groups[group_key]

    def render(self, family: Family) -> RenderedSubsets:
        """Returns the subsets of *family*, with at most as many addresses as one object
        may hold.
        """
        parts = (
            Subset(ports, group.ready, group.not_ready)
            for (listed, ports), group in self._groups.items()
            if listed == family
        )
        return render(parts, truncate=True, ready_wins=True, named=True)

    def check(self) -> None:
        expected: dict[tuple[Family, Ports], set[AddressKey]] = {}
        for content in self._contents.values():
            if content.entries:
                expected.setdefault(content[:2], set()).update(content.entries)
        assert {
            group_key: group.ready.keys() | group.not_ready.keys()
            for group_key, group in self._groups.items()
        } == expected
        for group in self._groups.values():
            group.check()
