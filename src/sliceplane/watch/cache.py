"""The objects of one resource as the server last told them, by key, with optional indexes; and the
changes to them.

The cache decides what a *change* is, for single events and for whole lists alike, so that handlers
that apply the changes one after another always hold exactly what the cache holds:

====================================  ==================================================================
what the server says                  changes
====================================  ==================================================================
a key that is not cached              ``(None, new)``
the same uid, other version           ``(old, new)``
the same uid and version              none; only if the content differs all the same (a server that was
                                      restored from a backup reuses versions) ``(old, new)``
another uid                           ``(old, None)`` and then ``(None, new)``: a delete is never lost
an older version than the one cached  none (a duplicate from the past); lists are always believed
a list without a key that is cached   ``(old, None)``
====================================  ==================================================================

An object that does not decode as its projection is *unreadable*: the cached version stays,
as hiding an object that exists would be worse than showing it as it was; ``unreadable`` names it
and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from sliceplane.api import codec
from sliceplane.api.meta import Object, Projection, is_older, revision_of
from sliceplane.api.scheme import Resource
from sliceplane.kit.containers import SortedDict

T = TypeVar("T", bound=Object)
T_co = TypeVar("T_co", bound=Object, covariant=True)
IndexFunction = Callable[[T], Iterable[str]]


class Change(msgspec.Struct, Generic[T_co], frozen=True):
    """The difference that one event or one relist made to the cache, for one object.

    ``old`` None: the object is new to us. ``new`` None: it is gone. Never both. A relist yields
    exactly the changes between the cache and the server's list.

    ``missing``: it is gone because a list lacks it; no event said that it was deleted.
    """

    resource: str  # Resource.key
    old: T_co | None
    new: T_co | None
    missing: bool = False

    @property
    def object(self) -> T_co:
        """The newest version known: ``new``, else ``old``."""
        newest = self.new if self.new is not None else self.old
        assert newest is not None, "a change has an old or a new object"
        return newest

    def typed(self, kind: type[T]) -> tuple[T | None, T | None]:
        """``old`` and ``new`` as *kind*, which they are."""
        old = self.old
        new = self.new
        assert old is None or isinstance(old, kind), f"{old!r} is no {kind.__name__}"
        assert new is None or isinstance(new, kind), f"{new!r} is no {kind.__name__}"
        return old, new


class Mark(msgspec.Struct, frozen=True):
    """Every change of a selection up to *version* has been told: an event, a bookmark or a list
    says so.

    ``listed``: by a list, so what happened since the mark before is told in its sum and not one by
    one. A mark may be lower than the one before: the server was restored from a backup, and says so
    in a list.
    """

    resource: str  # Resource.key
    version: str
    listed: bool = False

    @property
    def revision(self) -> int:
        return revision_of(self.version)


class Coalesced(Generic[T]):
    """Changes for a reader who may be slow: what it has not taken yet, one difference for each
    object.

    Owned by one reader. Bounded by the objects that there were and are, not by the events. Taking
    and applying in order gives exactly the cache as it was at the time; what came and went between
    two looks is no part of it, and an object that was deleted and made anew is always a delete and
    an add.
    """

    def __init__(self) -> None:
        self._resource = ""
        #: key -> (what the reader knows, what is now)
        self._pending: dict[str, tuple[T | None, T | None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def note(self, change: Change[T]) -> None:
        self._resource = change.resource
        key = change.object.metadata.key
        earlier = self._pending.get(key)
        self._pending[key] = (change.old if earlier is None else earlier[0], change.new)

    def take(self) -> tuple[Change[T], ...]:
        """In the order of keys."""
        pending, self._pending = self._pending, {}
        changes: list[Change[T]] = []
        for key in sorted(pending):
            old, new = pending[key]
            if old == new:
                continue
            if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
                changes += [Change(self._resource, old, None), Change(self._resource, None, new)]
            else:
                changes.append(Change(self._resource, old, new))
        return tuple(changes)


class Undecodable(Exception):
    """The server sent something that is no object at all: not JSON, or without a name."""


class Unreadable(msgspec.Struct, frozen=True):
    """An object of which only the metadata could be read."""

    key: str
    uid: str
    resource_version: str
    reason: str


class Cache(Generic[T]):
    """Changed by its reflector only; anyone may read. Objects are frozen and shared, never to be
    changed.

    *indexes* maps a name to a function from an object to the values under which ``by_index`` finds
    it. The functions must be pure; one that raises is a programmer's fault, changes nothing, and
    makes the informer list again. *decode* is for bodies that are not to be decoded as *kind*; it
    raises ``msgspec.DecodeError`` for a bad one.
    """

    def __init__(
        self,
        resource: Resource,
        kind: type[T] | None = None,
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        decode: Callable[[bytes], T] | None = None,
    ) -> None:
        self.resource = resource
        chosen: type[T] = kind if kind is not None else resource.projection  # type: ignore[assignment]  # a Resource cannot know T
        self._decode = decode if decode is not None else partial(codec.decode, kind=chosen)
        self._objects: SortedDict[str, T] = SortedDict()
        self._functions = dict(indexes or {})
        #: index name -> value -> keys
        self._indexes: dict[str, dict[str, set[str]]] = {name: {} for name in self._functions}
        #: keys whose newest version does not decode, and why
        self.unreadable: dict[str, str] = {}

    # Reading

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[T]:
        """The objects in the order of their keys.  The cache must not change meanwhile."""
        return iter(self._objects.values())

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def get(self, key: str) -> T | None:
        """*key* is ``ObjectMeta.key``: ``namespace/name``, or the name alone."""
        return self._objects.get(key)

    def by_index(self, name: str, value: str) -> tuple[T, ...]:
        """The objects filed under *value*, in the order of their keys.  O(found * log found)."""
        return tuple(self._objects[key] for key in sorted(self._indexes[name].get(value, ())))

    def snapshot(self) -> tuple[Change[T], ...]:
        """The changes that take a new handler from nothing to here."""
        return tuple(Change(self.resource.key, None, cached) for cached in self)

    # Decoding

    def load(self, body: bytes) -> T | Unreadable:
        """Decode a body.  Raises ``Undecodable``.  kind and apiVersion, which items of lists lack,
        are filled in.
        """
        try:
            loaded = self._decode(body)
        except codec.UNREADABLE as error:
            return self._load_metadata(body, str(error))
        if not loaded.metadata.name:
            raise Undecodable("the object has no name")
        if not loaded.kind:
            # Frozen objects are filled in here and nowhere else: no other code has seen this one
            # yet.
            msgspec.structs.force_setattr(loaded, "kind", self.resource.kind)
            msgspec.structs.force_setattr(loaded, "api_version", self.resource.api_version)
        return loaded

    @staticmethod
    def _load_metadata(body: bytes, reason: str) -> Unreadable:
        try:
            metadata = codec.decode(body, Object).metadata
        except codec.UNREADABLE as error:
            raise Undecodable(str(error)) from error
        if not metadata.name:
            raise Undecodable("the object has no name")
        return Unreadable(metadata.key, metadata.uid, metadata.resource_version, reason)

    # Changing (reflector only)

    def put(self, loaded: T | Unreadable) -> tuple[Change[T], ...]:
        """An object was added or modified, says an event."""
        if isinstance(loaded, Unreadable):
            cached = self._objects.get(loaded.key)
            if cached is not None and is_older(
                loaded.resource_version, cached.metadata.resource_version
            ):
                return ()
            return self._put_unreadable(loaded)
        cached = self._objects.get(loaded.metadata.key)
        if cached is not None and is_older(
            loaded.metadata.resource_version, cached.metadata.resource_version
        ):
            return ()
        return self._put(loaded)

    def remove(self, key: str, resource_version: str = "") -> tuple[Change[T], ...]:
        """An object was deleted at *resource_version*, says an event."""
        cached = self._objects.get(key)
        if cached is not None and is_older(resource_version, cached.metadata.resource_version):
            return ()
        self.unreadable.pop(key, None)
        return self._drop(key)

    def replace(self, items: Iterable[T | Unreadable]) -> tuple[Change[T], ...]:
        """A complete list: what is not in it is gone.  Deletes come first, then the rest, each by
        key.
        """
        listed: dict[str, T | Unreadable] = {}
        for item in items:
            listed[item.key if isinstance(item, Unreadable) else item.metadata.key] = item
        changes: list[Change[T]] = []
        for key in [key for key in self.unreadable if key not in listed]:
            del self.unreadable[key]
        for key, cached in list(self._objects.items()):
            if key not in listed:
                changes.extend(self._drop(key, missing=True))
            elif _uid(listed[key]) != cached.metadata.uid:
                changes.extend(self._drop(key))
        for key in sorted(listed):
            item = listed[key]
            changes.extend(
                self._put_unreadable(item) if isinstance(item, Unreadable) else self._put(item)
            )
        return tuple(changes)

    def _put(self, new: T) -> tuple[Change[T], ...]:
        key = new.metadata.key
        if self.unreadable:
            self.unreadable.pop(key, None)
        old = self._objects.get(key)
        if old is None:
            for neighbour in self._objects.irange(maximum=key, reverse=True):
                share(new, self._objects[neighbour])
                break
            self._store(key, None, new)
            return (Change(self.resource.key, None, new),)
        if old.metadata.uid != new.metadata.uid:
            return (*self._drop(key), *self._put(new))
        if old == new:
            return ()
        share(new, old)
        self._store(key, old, new)
        return (Change(self.resource.key, old, new),)

    def _put_unreadable(self, item: Unreadable) -> tuple[Change[T], ...]:
        self.unreadable[item.key] = item.reason
        cached = self._objects.get(item.key)
        if cached is not None and cached.metadata.uid != item.uid:
            return self._drop(item.key)
        return ()

    def _drop(self, key: str, *, missing: bool = False) -> tuple[Change[T], ...]:
        old = self._objects.get(key)
        if old is None:
            return ()
        self._store(key, old, None)
        return (Change(self.resource.key, old, None, missing),)

    def _store(self, key: str, old: T | None, new: T | None) -> None:
        # Values first: if a function raises, nothing has changed.
        values = [
            (
                self._indexes[name],
                set(function(old)) if old is not None else set(),
                set(function(new)) if new is not None else set(),
            )
            for name, function in self._functions.items()
        ]
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
        for index, before, after in values:
            for value in before - after:
                keys = index[value]
                keys.discard(key)
                if not keys:
                    del index[value]
            for value in after - before:
                index.setdefault(value, set()).add(key)

    def check(self) -> None:
        """Assert every invariant.  O(objects * indexes)."""
        assert list(self._objects) == sorted(self._objects), "keys are in order"
        for key, cached in self._objects.items():
            assert cached.metadata.key == key, f"{cached.metadata.key!r} is filed as {key!r}"
            assert cached.kind, f"{key}: kind is not filled in"
        for name, function in self._functions.items():
            expected: dict[str, set[str]] = {}
            for key, cached in self._objects.items():
                for value in function(cached):
                    expected.setdefault(value, set()).add(key)
            assert self._indexes[name] == expected, (
                f"index {name}: {self._indexes[name]} is not {expected}"
            )


def share(new: Object, like: Object) -> None:
    """Replaces members of *new* by equal ones of *like*, its older version or its neighbour by
    name.

    The Pods of one template have half of their bytes in common. *new* is frozen for all but this
    cache, which alone has it so far.
    """
    pairs: list[tuple[Projection, Any, tuple[str, ...]]] = [(new, like, ("kind", "api_version"))]
    for part in ("metadata", "spec"):
        ours, theirs = getattr(new, part, None), getattr(like, part, None)
        if isinstance(ours, Projection) and isinstance(theirs, type(ours)):
            pairs.append((ours, theirs, ours.__struct_fields__))
    for ours, theirs, names in pairs:
        for name in names:
            value, other = getattr(ours, name), getattr(theirs, name)
            if value is not other and value == other:
                msgspec.structs.force_setattr(ours, name, other)


def key_of(item: Object | Unreadable) -> str:
    return item.key if isinstance(item, Unreadable) else item.metadata.key


def _uid(item: Object | Unreadable) -> str:
    return item.uid if isinstance(item, Unreadable) else item.metadata.uid
