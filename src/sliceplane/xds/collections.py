"""Endpoints as members of collections (LEDS), which Envoy takes one by one.

The assignment names a collection for each zone, and does not change when an endpoint does. Envoy
keeps the members of a collection over a reconnect and says nothing of them, so what went meanwhile
must be told: a collection remembers the names that it ever lost (``removed``), and has an *epoch*
in its name, which is never used again, neither by this process nor by another. A client that holds
another epoch is led to this one by the assignment. When twice as many names are remembered as there
are members, the epoch turns, and all of them are sent again: a rolling update, which replaces each
once, does not get there.

A zone that lost its last endpoint stays, empty, until then: an empty collection is harmless where
it was not empty before, and to a client that is new it is told as removed itself (the stream does).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sliceplane.xds.endpoints import body_of
from sliceplane.xds.names import ENDPOINT, PortKey, collection
from sliceplane.xds.resource import XdsResource

#: a collection remembers so many names at least before its epoch turns
REMEMBERED_MIN: Final = 256


class XdsCollection:
    """The collection of one zone of one pool of *key*, in one epoch. Changed by its ``Collections``
    alone.
    """

    def __init__(self, key: PortKey, glob: str) -> None:
        self.key: Final = key
        self.glob: Final = glob
        #: of endpoints that are members or were, by identity
        self.names: Final[dict[str, str]] = {}
        self.by_name: Final[dict[str, XdsResource]] = {}
        self.lost: Final[dict[str, None]] = {}

    @property
    def members(self) -> list[XdsResource]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    @property
    def removed(self) -> tuple[str, ...]:
        """Every name that was a member in this epoch and is none now."""
        return tuple(sorted(self.lost))

    def name_of(self, identity: str) -> str:
        """Numbered in the order of their coming: a name is said twice for an endpoint that is
        replaced, and of a Pod's uid no client makes sense.
        """
        name = self.names.get(identity)
        if name is None:
            name = self.names[identity] = f"{self.glob[:-1]}{len(self.names):x}"
        return name


class Collections:
    """The collections of one pool, by zone. *registry*: all that clients may ask for, by glob;
    shared with the catalog.
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
        """True if the assignment must say something else now."""
        held = self.by_zone.get(zone)
        is_new = held is None
        if held is None:
            held = self._open(zone)
        name = held.name_of(identity)
        held.by_name[name] = XdsResource(ENDPOINT, name, body_of(encoded))
        held.lost.pop(name, None)
        if not is_new:
            self._changed[name] = None
        return is_new

    def discard(self, zone: str, identity: str) -> bool:
        """As ``put``."""
        held = self.by_zone[zone]
        name = held.name_of(identity)
        del held.by_name[name]
        held.lost[name] = None
        self._changed[name] = None
        if len(held.lost) <= max(REMEMBERED_MIN, 2 * len(held.by_name)):
            return False
        del self._registry[held.glob]
        for lost in (*held.lost, *held.by_name):
            self._changed.pop(lost, None)
        if not held.by_name:
            del self.by_zone[zone]
            return True
        turned = self._open(zone)
        for other, old in held.names.items():
            if old in held.by_name:
                renamed = turned.name_of(other)
                turned.by_name[renamed] = XdsResource(ENDPOINT, renamed, held.by_name[old].body)
        return True

    def take_changed(self) -> list[str]:
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def close(self) -> None:
        for held in self.by_zone.values():
            del self._registry[held.glob]
        self.by_zone.clear()

    def check(self, pieces: Mapping[str, tuple[str, bytes]]) -> None:
        """The members are *pieces*: zone and octets by identity.  O(endpoints)."""
        members = {
            self.by_zone[zone].name_of(identity): body_of(encoded)
            for identity, (zone, encoded) in pieces.items()
        }
        kept = {
            name: resource.body
            for held in self.by_zone.values()
            for name, resource in held.by_name.items()
        }
        assert kept == members, f"members are {kept}, the pool holds {members}"
        for held in self.by_zone.values():
            assert self._registry[held.glob] is held, f"{held.glob} is not to be found"
            assert not held.lost.keys() & held.by_name.keys(), (
                f"{held.glob}: a member is remembered as removed"
            )

    def _open(self, zone: str) -> XdsCollection:
        glob = collection(self._next_epoch())
        made = self.by_zone[zone] = self._registry[glob] = XdsCollection(self._key, glob)
        return made
