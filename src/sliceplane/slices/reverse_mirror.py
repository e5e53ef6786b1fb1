"""The way back from EndpointSlices to Endpoints, for readers that know nothing else (the reverse of KEP-0752's
mirroring).

A ``ReverseSource`` holds what the slices of one Service say, and gives the subsets of its Endpoints.  Slices with the
same ports are one *group* whose addresses are kept sorted and encoded, so a changed endpoint costs its own address;
where a Service has one group, as nearly all have, writing joins texts that are there.  Several groups are put together
anew: each port ends in one subset, and ports with the same addresses share it, as readers of Endpoints expect.

What Endpoints cannot say is left out: host names as addresses, ports without a number, addresses of an endpoint beyond
its first (which is all that consumers of slices use), more than 1,000 addresses.  An endpoint that is terminating is
in Endpoints only if it is said to be ready, which is what ``publishNotReadyAddresses`` does to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from sliceplane.api.codec import encode
from sliceplane.api.core import CoreEndpointPort, EndpointAddress, EndpointSubset
from sliceplane.api.discovery import Endpoint, EndpointSlice
from sliceplane.kit.ip import Family
from sliceplane.kit.ordered import SortedDict
from sliceplane.slices.ports import Port, Ports

ADDRESSES_MAX: Final = 1000
EMPTY: Final = b"[]"

#: IP and uid of the target: what addresses are sorted by, and what makes two of them one
AddressKey = tuple[str, str]


class Entry(NamedTuple):
    """An address, encoded, as one slice has it."""

    ready: bool
    text: bytes


class SliceView(NamedTuple):
    """What counts of a slice.  Equal views need equal Endpoints."""

    family: Family
    ports: Ports
    entries: dict[AddressKey, Entry]


class Rendered(NamedTuple):
    """``text``: the subsets as a JSON list of at most ``ADDRESSES_MAX`` addresses; ``total``: how many there are."""

    text: bytes
    total: int

    @property
    def truncated(self) -> bool:
        return self.total > ADDRESSES_MAX


def view_of(observed: EndpointSlice) -> SliceView | None:
    """``None``: nothing in it that Endpoints could hold."""
    if observed.address_type not in ("IPv4", "IPv6"):
        return None
    numbered = (
        Port(each.name or "", each.protocol or "TCP", each.port, each.app_protocol)
        for each in observed.ports or ()
        if each.port is not None
    )
    ports = tuple(sorted(numbered, key=lambda port: port.order))
    if observed.ports and not ports:
        return None  # all ports by name alone: there is nothing that a reader could dial
    entries: dict[AddressKey, Entry] = {}
    for endpoint in observed.endpoints or ():
        ready = _is_ready(endpoint)
        if ready is None or not endpoint.addresses:
            continue
        target = endpoint.target_ref
        key = endpoint.addresses[0], target.uid if target is not None else ""
        if key not in entries or (ready and not entries[key].ready):
            address = EndpointAddress(
                ip=key[0], hostname=endpoint.hostname or "", node_name=endpoint.node_name or None, target_ref=target
            )
            entries[key] = Entry(ready, encode(address))
    return SliceView("IPv6" if observed.address_type == "IPv6" else "IPv4", ports, entries)


def _is_ready(endpoint: Endpoint) -> bool | None:
    """``None``: not in Endpoints at all."""
    said = endpoint.conditions
    if said.ready is None or said.ready:
        return True
    return None if said.terminating else False


class Group:
    """The addresses of all slices of one family with the same ports.  Changed by ``ReverseSource`` alone.

    An address that several slices have (it moves from one to another, say) is ready if one of them says so.
    """

    __slots__ = ("_held", "ready", "waiting")

    def __init__(self) -> None:
        #: who has it: (slice, entry), by the slice's name
        self._held: dict[AddressKey, tuple[tuple[str, Entry], ...]] = {}
        self.ready: SortedDict[AddressKey, bytes] = SortedDict()
        self.waiting: SortedDict[AddressKey, bytes] = SortedDict()

    def __len__(self) -> int:
        return len(self._held)

    def put(self, key: AddressKey, name: str, entry: Entry | None) -> None:
        """The slice *name* has this *entry* now, or none."""
        others = [each for each in self._held.get(key, ()) if each[0] != name]
        held = others if entry is None else [*others, (name, entry)]
        self.ready.pop(key, None)
        self.waiting.pop(key, None)
        if not held:
            self._held.pop(key, None)
            return
        self._held[key] = tuple(sorted(held, key=lambda each: each[0]))
        shown = _shown(self._held[key])
        (self.ready if shown.ready else self.waiting)[key] = shown.text

    def check(self) -> None:
        assert self._held.keys() == self.ready.keys() | self.waiting.keys(), "an address is held and not shown"
        assert not self.ready.keys() & self.waiting.keys(), "an address is ready and not"
        for key, held in self._held.items():
            shown = _shown(held)
            assert (self.ready if shown.ready else self.waiting)[key] == shown.text, f"{key} is not shown as {shown}"


def _shown(held: Sequence[tuple[str, Entry]]) -> Entry:
    return next((entry for _, entry in held if entry.ready), held[0][1])


class ReverseSource:
    """What the slices of one Service say.  Owned by the controller."""

    def __init__(self) -> None:
        self._views: dict[str, SliceView] = {}
        self._groups: dict[tuple[Family, Ports], Group] = {}

    def __bool__(self) -> bool:
        """Whether there is a slice at all, be it an empty one."""
        return bool(self._views)

    @property
    def families(self) -> frozenset[Family]:
        return frozenset(view.family for view in self._views.values())

    def put(self, name: str, view: SliceView | None) -> bool:
        """The slice *name* is so now, or gone.  Whether that can make a difference to Endpoints."""
        before = self._views.pop(name, None)
        if view is not None:
            self._views[name] = view
        if before == view:
            return False
        if before is not None and (view is None or before[:2] != view[:2]):
            self._move(name, before[:2], before.entries, {})
            before = None
        if view is not None:
            self._move(name, view[:2], {} if before is None else before.entries, view.entries)
        return True

    def _move(
        self,
        name: str,
        which: tuple[Family, Ports],
        before: dict[AddressKey, Entry],
        after: dict[AddressKey, Entry],
    ) -> None:
        if not (before or after):
            return
        group = self._groups.get(which)
        if group is None:
            group = self._groups[which] = Group()
        for key in before:
            if key not in after:
                group.put(key, name, None)
        for key, entry in after.items():
            if before.get(key) != entry:
                group.put(key, name, entry)
        if not group:
            del self._groups[which]

    def render(self, family: Family) -> Rendered:
        groups = [(ports, group) for (each, ports), group in self._groups.items() if each == family]
        if len(groups) == 1:
            ports, group = groups[0]
            subsets = [_Subset(part, group.ready, group.waiting) for part in _split(ports)]
        else:
            subsets = _merged(groups)
        kept = shares([(len(each.ready), len(each.waiting)) for each in subsets])
        total = sum(len(each.ready) + len(each.waiting) for each in subsets)
        texts = [
            _text(islice(each.ready.values(), ready), islice(each.waiting.values(), waiting), _ports_text(each.ports))
            for each, (ready, waiting) in zip(subsets, kept, strict=True)
            if ready or waiting
        ]
        return Rendered(b"[" + b",".join(texts) + b"]", total)

    def check(self) -> None:
        expected: dict[tuple[Family, Ports], set[AddressKey]] = {}
        for view in self._views.values():
            if view.entries:
                expected.setdefault(view[:2], set()).update(view.entries)
        assert {which: group.ready.keys() | group.waiting.keys() for which, group in self._groups.items()} == expected
        for group in self._groups.values():
            group.check()


class _Subset(NamedTuple):
    ports: Ports
    ready: SortedDict[AddressKey, bytes]
    waiting: SortedDict[AddressKey, bytes]


def _split(ports: Ports) -> list[Ports]:
    """A subset of several ports needs a name for each, so one without gets a subset of its own."""
    if len(ports) <= 1 or ports[0].name:
        return [ports]
    unnamed = tuple(port for port in ports if not port.name)
    return [*((port,) for port in unnamed), tuple(port for port in ports if port.name)]


def _merged(groups: list[tuple[Ports, Group]]) -> list[_Subset]:
    """Costs O(addresses) for each port.  "No ports" stands by itself."""
    by_port: dict[Port | None, dict[AddressKey, Entry]] = {}
    for ports, group in sorted(groups, key=lambda each: [port.order for port in each[0]]):
        for port in ports or (None,):
            merged = by_port.setdefault(port, {})
            for key, text in group.waiting.items():
                merged.setdefault(key, Entry(False, text))
            for key, text in group.ready.items():
                if key not in merged or not merged[key].ready:
                    merged[key] = Entry(True, text)
    alike: dict[object, tuple[list[Port], dict[AddressKey, Entry]]] = {}
    for port, merged in by_port.items():
        # Named ports may share a subset; one without a name, or no port at all, stays alone.
        which: object = frozenset((key, each.ready) for key, each in merged.items()) if port and port.name else port
        alike.setdefault((bool(port and port.name), which), ([], merged))[0].extend([port] if port else [])
    subsets = [
        _Subset(
            tuple(sorted(ports, key=lambda port: port.order)),
            SortedDict({key: each.text for key, each in merged.items() if each.ready}),
            SortedDict({key: each.text for key, each in merged.items() if not each.ready}),
        )
        for ports, merged in alike.values()
    ]
    return sorted(subsets, key=lambda each: [port.order for port in each.ports])


def shares(sizes: Sequence[tuple[int, int]], limit: int = ADDRESSES_MAX) -> list[tuple[int, int]]:
    """How many (ready, not ready) addresses each subset keeps.

    Ready ones first; in proportion, rounded up, so the last subsets may get less.
    """
    ready, waiting = sum(size[0] for size in sizes), sum(size[1] for size in sizes)
    if ready + waiting <= limit:
        return list(sizes)
    if ready > limit:
        return [(kept, 0) for kept in _proportional([size[0] for size in sizes], ready, limit)]
    rest = _proportional([size[1] for size in sizes], waiting, limit - ready)
    return [(size[0], kept) for size, kept in zip(sizes, rest, strict=True)]


def _proportional(counts: list[int], total: int, limit: int) -> list[int]:
    left, kept = limit, []
    for count in counts:
        kept.append(min(-(-count * limit // total), left))
        left -= kept[-1]
    return kept


# Texts: the one place that spells subsets, so that what is read back is compared byte by byte


def text_of(subsets: Iterable[EndpointSubset] | None) -> bytes:
    """Subsets as they were read, in the spelling of ``ReverseSource.render``."""
    texts = [
        _text(map(encode, each.addresses or ()), map(encode, each.not_ready_addresses or ()), encode(each.ports or ()))
        for each in subsets or ()
    ]
    return b"[" + b",".join(texts) + b"]"


def _text(ready: Iterable[bytes], waiting: Iterable[bytes], ports: bytes) -> bytes:
    members = [
        b'"%s":[%s]' % (name, addresses)
        for name, addresses in ((b"addresses", b",".join(ready)), (b"notReadyAddresses", b",".join(waiting)))
        if addresses
    ]
    if ports != EMPTY:
        members.append(b'"ports":' + ports)
    return b"{" + b",".join(members) + b"}"


def _ports_text(ports: Ports) -> bytes:
    listed = []
    for port in ports:
        assert port.port is not None, f"{port} has no number"
        listed.append(
            CoreEndpointPort(name=port.name, port=port.port, protocol=port.protocol, app_protocol=port.app_protocol)
        )
    return encode(listed)
