"""Endpoints as members of collections (LEDS), which Envoy receives one by one.

The assignment names a collection for each zone, and does not change when an endpoint does. Envoy
keeps the members of a collection over a reconnect and does not report them, so removals in the
meantime must be sent. Therefore a collection retains the names of all removed members (``removed``),
and has an *epoch* in its name, which no process ever uses again. The assignment leads a client with
another epoch to the present one. When there are twice as many removed names as members, a new epoch
begins, and all members are sent again. A rolling update, which replaces each member once, does not
reach that bound.

A zone that lost its last endpoint keeps its empty collection until then. An empty collection is
harmless if it had members before; a new client is told that it is removed (by the stream).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sliceplane.xds.endpoints import body_of
from sliceplane.xds.names import ENDPOINT, PortKey, collection
from sliceplane.xds.resource import XdsResource

#: minimum number of removed names before a new epoch begins
REMEMBERED_MIN: Final = 256


class XdsCollection:
    """The collection of one zone of one pool of *key*, in one epoch. Only its ``Collections`` changes
    it.
    """

    def __init__(self, key: PortKey, glob: str) -> None:
        self.key: Final = key
        self.glob: Final = glob
        #: names of present and former members, by identity
        self.names: Final[dict[str, str]] = {}
        self.by_name: Final[dict[str, XdsResource]] = {}
        self.lost: Final[dict[str, None]] = {}

    @property
    def members(self) -> list[XdsResource]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    @property
    def removed(self) -> tuple[str, ...]:
        """Returns the names of all former members of this epoch."""
        return tuple(sorted(self.lost))

    def name_of(self, identity: str) -> str:
        """Returns the name of a member. Members are numbered in the order of arrival: names are short,
        since each is sent twice for a replaced endpoint, and no client uses the Pod's uid.
        """
        name = self.names.get(identity)
        if name is None:
            name = self.names[identity] = f"{self.glob[:-1]}{len(self.names):x}"
        return name


class Collections:
    """The collections of one pool, by zone. *registry*: all collections that clients may request, by
    glob; shared with the catalog.
    """

    def __init__(
        self, key: PortKey, registry: dict[str, XdsCollection], next_epoch: Callable[[], str]
    ) -> None:
        self._key = key
        self._registry = registry
        self._next_epoch = next_epoch
        self.by_zone: Final[dict[str, XdsCollection]] = {}
        #: names of members that changed since the last call of ``take_changed``
        self._changed: dict[str, None] = {}

    def put(self, zone: str, identity: str, encoded: bytes) -> bool:
        """Adds or changes a member; returns True if the assignment changes."""
        current = self.by_zone.get(zone)
        is_new = current is None
        if current is None:
            current = self._open(zone)
        name = current.name_of(identity)
        current.by_name[name] = XdsResource(ENDPOINT, name, body_of(encoded))
        current.lost.pop(name, None)
        if not is_new:
            self._changed[name] = None
        return is_new

    def discard(self, zone: str, identity: str) -> bool:
        """Removes a member; returns True if the assignment changes."""
        current = self.by_zone[zone]
        name = current.name_of(identity)
        del current.by_name[name]
        current.lost[name] = None
        self._changed[name] = None
        if len(current.lost) <= max(REMEMBERED_MIN, 2 * len(current.by_name)):
            return False
        del self._registry[current.glob]
        for lost in (*current.lost, *current.by_name):
            self._changed.pop(lost, None)
        if not current.by_name:
            del self.by_zone[zone]
            return True
        turned = self._open(zone)
        for other, old in current.names.items():
            if old in current.by_name:
                renamed = turned.name_of(other)
                turned.by_name[renamed] = XdsResource(ENDPOINT, renamed, current.by_name[old].body)
        return True

    def take_changed(self) -> list[str]:
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def close(self) -> None:
        for current in self.by_zone.values():
            del self._registry[current.glob]
        self.by_zone.clear()

    def check(self, pieces: Mapping[str, tuple[str, bytes]]) -> None:
        """Asserts that the members are *pieces*: zone and octets by identity.  O(endpoints)."""
        members = {
            self.by_zone[zone].name_of(identity): body_of(encoded)
            for identity, (zone, encoded) in pieces.items()
        }
        actual = {
            name: resource.body
            for current in self.by_zone.values()
            for name, resource in current.by_name.items()
        }
        assert actual == members, f"members are {actual}, the pool holds {members}"
        for current in self.by_zone.values():
            assert self._registry[current.glob] is current, f"{current.glob} is not to be found"
            assert not current.lost.keys() & current.by_name.keys(), (
                f"{current.glob}: a member is remembered as removed"
            )

    def _open(self, zone: str) -> XdsCollection:
        glob = collection(self._next_epoch())
        created = self.by_zone[zone] = self._registry[glob] = XdsCollection(self._key, glob)
        return created
