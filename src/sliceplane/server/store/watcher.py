"""One watch: what it wants, what waits for it, and how it ended; and which watches an event can
concern (``Routes``).

What waits is in two parts, delivered in this order:

1. the *backlog*: the state at the start (synthetic ADDED), or the history after the revision to
   resume from. It is read from the store page by page while the client takes it, so a watch that
   has just begun costs no memory, however large the collection is;
2. the *queue*: live items, encoded already, shared between watchers, bounded in bytes. A watcher
   that lets it grow over the bound is closed with a 410; nothing ever waits for it.

Since a bookmark enters at the end of the queue, everything that it vouches for is taken before it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple, Protocol

import msgspec

from sliceplane.api.errors import StatusError, expired, internal
from sliceplane.server.store.mvcc import Compacted
from sliceplane.server.store.types import EventType, Key, Record, StoreEvent

#: about how much one ``take`` returns; a larger single item is returned whole
TAKE_BYTES = 256 * 1024
#: default bound of a watcher's queue; must exceed the largest encoded object
QUEUE_BYTES_MAX = 16 * 1024 * 1024
_Groups = dict[Hashable, "WatcherGroup"]


class Encoder(Protocol):
    """A representation: JSON, protobuf, Table, metadata only, of one served resource.

    Hashable by identity; watchers that share the object share the bytes, so callers keep one for
    each representation. ``record.body`` always carries ``record.revision``. Must not raise for a
    stored record.
    """

    def event(self, kind: EventType, record: Record) -> bytes: ...

    def bookmark(self, revision: int, initial_events_end: bool) -> bytes: ...


class Item(NamedTuple):
    """One frame of a watch stream, shared by all watchers that get it."""

    #: ADDED, MODIFIED, DELETED or BOOKMARK
    type: str
    revision: int
    data: bytes


class Interest(msgspec.Struct, frozen=True, kw_only=True):
    """The objects and the form that a watch is about.

    ``matches`` is asked about the records of *namespace* ("": all) and *name* ("": all) only.
    ``selector`` names it: watchers with equal selectors, encoders and scopes are served as one, and
    the predicate of any of them speaks for all. Without a name only watchers with the same callable
    are.
    """

    resource: str  # Resource.storage_key
    encoder: Encoder
    namespace: str = ""
    name: str = ""
    matches: Callable[[Record], bool] | None = None
    selector: str = ""
    #: in this process, so that nothing is sent
    local: bool = False

    def covers(self, record: Record) -> bool:
        key = record.key
        return (not self.namespace or key.namespace == self.namespace) and (
            not self.name or key.name == self.name
        )

    def group_key(self) -> Hashable:
        return self.encoder, self.selector or self.matches


class Delivery(NamedTuple):
    """The event that one watcher gets. ``stopped_matching``: ``record`` is the version before the
    change, as the new one no longer matches.
    """

    kind: EventType
    record: Record
    stopped_matching: bool = False


def classify(event: StoreEvent, matches: Callable[[Record], bool] | None) -> Delivery | None:
    """Returns the delivery of *event* to a watcher with this predicate; ``None``: nothing.

    As upstream: to leave a selection is a DELETED
    (``apiserver/pkg/storage/cacher/cache_watcher.go``).
    """
    if matches is None:
        return Delivery(event.type, event.record)
    previous = event.previous
    if previous is None:
        return Delivery(EventType.ADDED, event.record) if matches(event.record) else None
    before = matches(previous)
    if event.type is EventType.DELETED:
        return Delivery(EventType.DELETED, event.record) if before else None
    if matches(event.record):
        return Delivery(EventType.MODIFIED if before else EventType.ADDED, event.record)
    return Delivery(EventType.DELETED, previous, stopped_matching=True) if before else None


def nothing() -> None:
    """Does nothing, for a watcher without a reader."""


class Watcher:
    """Made by ``Hub.subscribe``; its owner calls ``take`` and sets ``notify``, the hub does
    everything else.

    ``notify`` is called when there is something to take after there was nothing, and when the watch
    is closed. It must not raise, and must not call ``Hub.publish``; ``take`` and
    ``Hub.unsubscribe`` are fine.
    """

    __slots__ = (
        "_after_close",
        "_backlog",
        "bookmarks",
        "bound",
        "closed",
        "ends_at",
        "error",
        "interest",
        "notify",
        "number",
        "queue",
        "since",
        "size",
        "taken_revision",
    )

    def __init__(
        self,
        number: int,
        interest: Interest,
        *,
        since: int,
        bound: int,
        bookmarks: bool,
        ends_at: float | None,
        after_close: Callable[[Watcher], None],
    ) -> None:
        self.number = number
        self.interest = interest
        #: events after this revision belong to the watch
        self.since = since
        #: bound of ``queue`` in bytes
        self.bound = bound
        self.bookmarks = bookmarks
        self.ends_at = ends_at
        self.notify: Callable[[], None] = nothing
        #: live items and their bytes; only the hub adds, only ``take`` removes
        self.queue: list[Item] = []
        self.size = 0
        #: revision of the newest item taken
        self.taken_revision = 0
        self.closed = False
        #: why, if it was not a clean end: to be sent as an ERROR event
        self.error: StatusError | None = None
        self._backlog: Iterator[Item | None] | None = None
        self._after_close = after_close

    def start(self, backlog: Iterator[Item | None]) -> None:
        """Hub only.  *backlog* yields ``None`` where it may pause."""
        self._backlog = backlog

    @property
    def pending(self) -> bool:
        """There may be something to take now."""
        return bool(self.queue) or self._backlog is not None

    def take(self, limit_bytes: int = TAKE_BYTES) -> list[Item]:
        """The next items, in order; their bytes no longer count towards the bound.

        The backlog comes in portions of about *limit_bytes*, the queue whole. May be empty while
        ``pending`` is true (a selector passed over a page), so: take until ``pending`` is false,
        then wait for ``notify``. A watch that ended cleanly still gives what it held.
        """
        items: list[Item] = []
        if self._backlog is not None:
            self._take_backlog(items, limit_bytes)
        if self._backlog is None and self.queue:
            if items:
                items.extend(self.queue)
                self.queue.clear()
            else:
                items, self.queue = self.queue, items
            self.size = 0
        if items and items[-1].revision > self.taken_revision:
            self.taken_revision = items[-1].revision
        return items

    def _take_backlog(self, items: list[Item], limit_bytes: int) -> None:
        assert self._backlog is not None, "there is a backlog"
        taken = 0
        try:
            for item in self._backlog:
                if item is None:
                    return
                items.append(item)
                taken += len(item.data)
                if taken >= limit_bytes:
                    return
        except Compacted as error:
            # Slower than the history is long.
            self.close(too_old(error.revision, error.oldest))
            return
        except Exception as error:
            # As with live events: what cannot be shown must not be a silent gap, nor harm the
            # taker.
            self.close(internal(f"the watch cannot show what is there: {error!r}"))
            return
        self._backlog = None

    def close(self, error: StatusError | None, *, keep: bool = False) -> None:
        """End the watch.  What it holds is dropped, unless *keep*.  Does not notify.

        May be called again: an ended watch that finds its backlog gone gets its error then.
        """
        if not keep:
            self._backlog = None
            self.queue.clear()
            self.size = 0
        if self.error is None:
            self.error = error
        if not self.closed:
            self.closed = True
            self._after_close(self)


def too_old(revision: int, oldest: int) -> StatusError:
    """The 410 of a watch."""
    return expired(f"too old resource version: {revision} ({oldest})")


class WatcherGroup:
    """Watchers that see the same stream: one scope, one selector, one representation."""

    __slots__ = ("interest", "key", "members", "since")

    def __init__(self, interest: Interest, key: Hashable, since: int) -> None:
        self.interest = interest
        self.key = key
        #: events up to this revision are not theirs (a watch may start from the future)
        self.since = since
        #: by number, oldest first
        self.members: dict[int, Watcher] = {}


class Routes:
    """Index of the watchers that an event can concern, which the hub alone calls.

        resource -> (namespace, name) -> group key -> Group(members)

    "" stands for "any". An event of ``ns/a`` concerns four scopes at most, so watches of other
    namespaces and of other single objects cost it nothing, however many there are.
    """

    __slots__ = ("_groups_by_resource",)

    def __init__(self) -> None:
        self._groups_by_resource: dict[str, dict[tuple[str, str], _Groups]] = {}

    def join(self, watcher: Watcher, revision: int) -> WatcherGroup:
        """File *watcher*; *revision* is the newest published one."""
        interest = watcher.interest
        groups = self._groups_by_resource.setdefault(interest.resource, {}).setdefault(
            (interest.namespace, interest.name), {}
        )
        # A watch from the future must not hold back the others, so it is in a group of its kind.
        since = watcher.since if watcher.since > revision else 0
        key = (interest.group_key(), since)
        group = groups.get(key)
        if group is None:
            group = groups[key] = WatcherGroup(interest, key, since)
        group.members[watcher.number] = watcher
        return group

    def leave(self, group: WatcherGroup, watcher: Watcher) -> None:
        """Remove *watcher*; empty groups and scopes go with it."""
        del group.members[watcher.number]
        if group.members:
            return
        interest = group.interest
        groups_by_scope = self._groups_by_resource[interest.resource]
        groups = groups_by_scope[interest.namespace, interest.name]
        del groups[group.key]
        if not groups:
            del groups_by_scope[interest.namespace, interest.name]
            if not groups_by_scope:
                del self._groups_by_resource[interest.resource]

    def concerned(self, key: Key) -> Iterator[WatcherGroup]:
        """The groups whose scope covers *key*, in a fixed order."""
        groups_by_scope = self._groups_by_resource.get(key.resource)
        if not groups_by_scope:
            return
        scopes = [("", ""), ("", key.name)]
        if key.namespace:
            scopes += [(key.namespace, ""), (key.namespace, key.name)]
        for scope in scopes:
            groups = groups_by_scope.get(scope)
            if groups:
                yield from groups.values()

    def check(self, members: dict[int, Watcher]) -> None:
        """Assert that exactly *members* are filed, each where its interest says, and no empty scope
        remains.
        """
        filed: dict[int, Watcher] = {}
        for resource, groups_by_scope in self._groups_by_resource.items():
            assert groups_by_scope, f"{resource}: empty"
            for scope, groups in groups_by_scope.items():
                assert groups, f"{resource} {scope}: empty"
                for key, group in groups.items():
                    assert group.members, f"{resource} {scope}: empty group"
                    for number, watcher in group.members.items():
                        interest = watcher.interest
                        assert (interest.resource, (interest.namespace, interest.name)) == (
                            resource,
                            scope,
                        ), interest
                        assert (interest.group_key(), group.since) == key, (
                            f"{interest} in group {key}"
                        )
                        filed[number] = watcher
        assert filed == members, f"filed {sorted(filed)}, open {sorted(members)}"
