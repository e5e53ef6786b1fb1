"""List, then watch, for ever: the state machine that keeps a cache equal to what a server holds.

::

                    +---------------- relist: 410, or the version is no good ---------------+
                    v                                                                       |
    NEW --start--> LISTING --last page--> WATCHING --ended or silent--> WATCHING ... ------+
                    |  ^                    |  ^
               failed  | deadline      failed  | deadline
                    v  |                    v  |
                   WAITING (list)          WAITING (watch)

What the machine promises, and how:

- **The cache never holds half a list.**  Pages are collected and reach the cache together, as a
  difference. A list that lacks most of what the cache holds is asked for a second time first
  (``watch.unconfirmed``).
- **Nothing is lost between two watches.**  A watch resumes from the version of the last event or
  bookmark. Where that is impossible (410) or seems so (see below) a new list is compared with the
  cache, and what it lacks is deleted.
- **A version that does not work is given up.**  410 under its reasons Expired and Gone, 504 "Too
  large resource version", 500 without a reason, and also ``BARREN_WATCHES_MAX`` watches in a row
  that ended without a word: some servers close the stream instead of answering 410.
- **Going backwards is noticed.**  A version lower than the last one means that the server was
  restored from a backup; events in between never happened, so a new list is due.
- **Silence is looked into.**  A stream without a byte for ``idle_timeout_s`` may have a dead peer,
  or be of a kind that nothing happens to (kube-apiserver sends no bookmarks before its first
  event). So it is opened anew, without a word: with a dead peer that fails, which is an error.
  After a second silent watch in a row the version is doubted as well: a server that is behind it is
  silent, too.
- **An accepted watch is news.**  A server that opens a watch at our version would send at once what
  came after it; so a stream that stays quiet for ``QUIET_WATCH_S`` proves that the cache was
  current when it was opened.
- **What can be done without is.**  Where a cluster lacks a dispensable kind, or keeps it from us,
  the cache counts as filled with nothing (or with what it had) and as current, and is looked for
  again every ``ABSENT_PERIOD_S``.
- **No tight loop.**  Each failure backs off, and a watch without news that ends within
  ``SHORT_WATCH_S`` is a failure. After one with news the next begins ``SHORT_WATCH_S`` after it at
  the earliest.
- **No list without an end.**  A list that is too large or does not go on fails (``watch.paging``);
  so does a watch whose objects would make the cache larger than *cache_bytes_max*. The cache stays
  as it is.

Lists ask for the most recent state (no resourceVersion) rather than for "any cached state"
(``"0"``, as client-go begins): with several API servers behind one address ``"0"`` may travel back
in time, and it switches paging off. Servers answer such a list from memory since 1.31.

The shell has one request open at a time: it performs the actions in order, feeds what comes back,
and feeds nothing more of a stream after ``StopWatch``. What lists and watches promise: Kubernetes
API concepts, "Resource versions" and "Efficient detection of changes".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import msgspec

from sliceplane.api.errors import StatusError, internal
from sliceplane.api.meta import Object, is_older
from sliceplane.api.scheme import is_done_without
from sliceplane.kit.delays import Backoff
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import (
    Action,
    Counters,
    Phase,
    StartList,
    StartWatch,
    StopWatch,
    bookmark_version,
    is_bad_version,
    is_expired,
    is_overload,
    status_of,
)
from sliceplane.watch.cache import Cache, Change, Mark, Undecodable, Unreadable, key_of
from sliceplane.watch.paging import VERSION_CHARACTERS_MAX, BadList, CacheSize
from sliceplane.watch.unconfirmed import CONFIRM_PAUSE_S, UnconfirmedRemovals

T = TypeVar("T", bound=Object)

PAGE_LIMIT = 500
WATCH_TIMEOUT_MIN_S = 300
WATCH_TIMEOUT_MAX_S = 600
IDLE_TIMEOUT_S = 90.0
SHORT_WATCH_S = 1.0
#: how late an event may be that a server knew of when it opened a watch
QUIET_WATCH_S = 5.0
#: client-go's: 0.8 s doubled up to 30 s, jitter up to as much again, from the start after two quiet
#: minutes; or after a watch that was open for half a minute, which is no server in trouble
BACKOFF = Backoff(base_s=0.8, cap_s=30.0, jitter=1.0)
BACKOFF_RESET_S = 120.0
HEALTHY_WATCH_S = 30.0
#: a server that asks for more patience than this is asked again anyway
RETRY_AFTER_MAX_S = 300
#: so many watches in a row without an event, a bookmark or an honest reason make the version
#: suspect
BARREN_WATCHES_MAX = 2
#: so many expired continue tokens in a row, and the next list is asked for whole
EXPIRED_PAGES_MAX = 2
#: how soon a kind that this cluster does not have is looked for again: it comes with an upgrade, or
#: with a role
ABSENT_PERIOD_S = 300.0


class ReflectorConfig(msgspec.Struct, frozen=True):
    """*cache_bytes_max*: for programs that follow servers of others; ``None``: only lists have a
    bound. *only_reads*: another program writes the objects, and writes them again.
    """

    idle_timeout_s: float = IDLE_TIMEOUT_S
    absent_period_s: float = ABSENT_PERIOD_S
    only_reads: bool = False
    cache_bytes_max: int | None = None


DEFAULTS: Final = ReflectorConfig()


class Reflector(Generic[T]):
    """Owns and changes *cache*; driven by one shell (``watch.io.reflect``, or a simulator).

    After every ``start`` and ``on_...``: perform ``take_actions()`` in order, deliver
    ``take_changes()`` and after them ``take_mark()``. Times are seconds since the epoch.
    """

    def __init__(
        self,
        cache: Cache[T],
        rng: Rng,
        config: ReflectorConfig = DEFAULTS,
    ) -> None:
        self.cache = cache
        self.counters = Counters()
        self.phase = Phase.NEW
        #: the cache has been filled by a complete list, or there is none to be had and none is
        #: needed
        self.synced = False
        #: why we do without this kind at the moment
        self.absent: StatusError | None = None
        #: why the last list or watch failed, and when; ``None`` once things go well again
        self.last_error: tuple[StatusError, float] | None = None
        self._rng = rng
        self._idle_timeout_s = config.idle_timeout_s
        self._absent_period_s = config.absent_period_s
        self._is_bounded = config.cache_bytes_max is not None
        self._size = CacheSize(config.cache_bytes_max)
        self._bounds = self._size.bounds_of_list()
        self._actions: list[Action] = []
        self._changes: list[Change[T]] = []
        #: up to where the cache has everything; unlike ``resource_version`` it stays while a list
        #: is due
        self.reached = ""
        self._mark = Mark(cache.resource.key, "")
        self._listed = False
        #: where a watch continues; "" means that only a list helps
        self._version = ""
        self._deadline: float | None = None
        self._current_at = -math.inf
        # The list in progress.
        self._pages: list[T | Unreadable] = []
        self._list_version = ""
        self._list_token = ""
        self._list_began = 0.0
        self._expired_pages = 0
        self.unconfirmed = UnconfirmedRemovals(only_reads=config.only_reads)
        # The watch in progress, and those before it.
        self._watch_began = 0.0
        self._watch_opened_at: float | None = None
        self._watch_moved = False
        self._watch_had_event = False
        self._barren = 0
        self._silent = 0
        # Back-off.
        self._attempt = 0
        self._failed_at = -math.inf

    # What the shell reads

    def take_actions(self) -> tuple[Action, ...]:
        actions, self._actions = tuple(self._actions), []
        return actions

    def take_changes(self) -> tuple[Change[T], ...]:
        """Returns the changes of the cache since the last call, in order."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def take_mark(self) -> Mark | None:
        """How far the cache is, if that moved since the last call: what ``take_changes`` gave leads
        there.
        """
        if self.reached == self._mark.version and not self._listed:
            return None
        self._mark, self._listed = Mark(self.cache.resource.key, self.reached, self._listed), False
        return self._mark

    def next_deadline(self) -> float | None:
        """When to call ``on_deadline``."""
        return self._deadline

    def staleness(self, now: float) -> float:
        """Returns the seconds since the cache was last known to equal the server's state;
        ``math.inf`` before the first list.

        A quiet and healthy watch stays below ``idle_timeout_s`` and a little; more means that the
        server has not been heard of. What we do without is never stale.
        """
        if self.absent is not None:
            return 0.0
        return max(now - max(self._current_at, self._quiet_since(now)), 0.0)

    @property
    def resource_version(self) -> str:
        """The version that the cache stands for; "" before the first list and while a list is
        due.
        """
        return self._version

    # What the shell feeds

    def start(self, now: float) -> None:
        assert self.phase is Phase.NEW, f"started when {self.phase}"
        self._begin_list(now)

    def stop(self) -> None:
        """For good.  The cache stays as it is."""
        if self.phase is Phase.WATCHING:
            self._actions.append(StopWatch())
        self.phase = Phase.STOPPED
        self._deadline = None

    def on_page(
        self, items: Sequence[bytes], resource_version: str, continue_token: str, now: float
    ) -> None:
        """The answer to ``StartList``."""
        assert self.phase is Phase.LISTING, f"a page when {self.phase}"
        self.counters.pages += 1
        if not self._list_version:
            if resource_version in ("", "0") or len(resource_version) > VERSION_CHARACTERS_MAX:
                excerpt = resource_version[:VERSION_CHARACTERS_MAX]
                self._list_failed(internal(f"a list with resourceVersion {excerpt!r}"), now)
                return
            # The first page fixes the version of the whole; and no later page makes the list more
            # current.
            self._list_version = resource_version
            self._list_began = now
        try:
            self._bounds.on_page(items, continue_token)
            loaded = [self.cache.load(item) for item in items]
        except (Undecodable, BadList) as error:
            why = (
                f"an item of the list cannot be read: {error}"
                if isinstance(error, Undecodable)
                else str(error)
            )
            self._list_failed(internal(why), now)
            return
        self._pages += loaded
        self._size.on_page(map(key_of, loaded), items)
        if continue_token:
            self._list_token = continue_token
            self._request_page()
            return
        self._finish_list(now)

    def on_list_failed(self, error: StatusError, now: float) -> None:
        """``StartList`` got no page (``api.errors.unreachable`` if it got no answer)."""
        assert self.phase is Phase.LISTING, f"a list failed when {self.phase}"
        if is_done_without(self.cache.resource, error):
            self._do_without(error, now)
            return
        if self._list_token and not is_expired(error) and error.code != 400:
            # The pages so far are still good: the token names the version that they are of.
            self._fail(error, now)
            return
        if self._list_token:
            self._expired_pages += 1
        self._list_failed(error, now)

    def on_watch_opened(self, now: float) -> None:
        """The server accepted ``StartWatch``."""
        assert self.phase is Phase.WATCHING, f"a watch opened when {self.phase}"
        self._watch_began = self._watch_opened_at = now
        self._deadline = now + self._idle_timeout_s
        self.last_error = self.absent = None

    def on_watch_event(self, kind: str, body: bytes, now: float) -> None:
        """One message of the stream, ``kind`` as sent: ADDED, MODIFIED, DELETED, BOOKMARK or
        ERROR.
        """
        assert self.phase is Phase.WATCHING, f"an event when {self.phase}"
        self._deadline = now + self._idle_timeout_s
        self._watch_had_event = True
        self._silent = 0
        if kind == "ERROR":
            self._actions.append(StopWatch())
            self.on_watch_ended(now, status_of(body))
            return
        try:
            if kind == "BOOKMARK":
                self.counters.bookmarks += 1
                if self._advance(bookmark_version(body), now):
                    self.reached = self._version
                return
            if kind not in ("ADDED", "MODIFIED", "DELETED"):
                raise Undecodable(f"unknown event type {kind!r}")
            self.counters.events += 1
            loaded = self.cache.load(body)
            if isinstance(loaded, Unreadable):
                key = loaded.key
                version = loaded.resource_version
            else:
                key = loaded.metadata.key
                version = loaded.metadata.resource_version
            if self._is_bounded:
                self._size.on_event(kind, key, len(body))
            if self._advance(version, now):
                self._changes.extend(
                    self.cache.remove(key, version) if kind == "DELETED" else self.cache.put(loaded)
                )
                self.reached = self._version
        except BadList as error:
            self._relist(internal(str(error)), now)
        except Undecodable as error:
            # An event that cannot be read is an event lost: only a list brings back what it said.
            self._relist(internal(f"a {kind} event cannot be read: {error}"), now)

    def on_watch_ended(self, now: float, error: StatusError | None = None) -> None:
        """The stream ended, or never opened.  *error* ``None``: it ended cleanly."""
        assert self.phase is Phase.WATCHING, f"a watch ended when {self.phase}"
        self._leave_watch(now)
        if error is not None and is_done_without(self.cache.resource, error):
            self._do_without(error, now)
            return
        if error is None and not self._watch_moved and now - self._watch_began < SHORT_WATCH_S:
            error = internal("a watch ended within a second and without news")
        if error is None:
            self._barren = 0 if self._watch_had_event else self._barren + 1
            if self._barren >= BARREN_WATCHES_MAX:
                self._relist(
                    internal(f"{self._barren} watches in a row ended without an event"),
                    now,
                    open_=False,
                )
                return
            if now - self._watch_began < SHORT_WATCH_S:
                # It moved, so it was no failure; but a server can do that thousands of times a
                # second.
                self.phase = Phase.WAITING
                self._deadline = self._watch_began + SHORT_WATCH_S
                return
            self._begin_watch(now)
            return
        if is_bad_version(error):
            self.counters.expired += 1
            self._version = ""
        elif self._watch_moved:
            self._barren = 0
        elif not is_overload(error):
            self._barren += 1
            if self._barren >= BARREN_WATCHES_MAX:
                self._version = ""
        self._fail(error, now)

    def on_fault(self, error: StatusError, now: float) -> None:
        """The shell or a function of the cache broke.  Whatever was lost by it is in a new list."""
        if self.phase in (Phase.LISTING, Phase.WATCHING):
            self._list_version = self._list_token = ""
            self._relist(error, now, open_=self.phase is Phase.WATCHING)

    def list_again(self, now: float) -> None:
        """Lists again because the owner found that the cache is wrong.  Without a back-off: the
        owner bounds how often it calls this.
        """
        if self.phase is Phase.WATCHING:
            self._leave_watch(now)
            self._actions.append(StopWatch())
            self._version = ""
            self._begin_list(now)

    def on_deadline(self, now: float) -> None:
        """``next_deadline`` has come.  Harmless if it has not."""
        if self._deadline is None or now < self._deadline:
            return
        if self.phase is Phase.WATCHING:
            self._on_silence(now)
            return
        assert self.phase is Phase.WAITING, f"a deadline when {self.phase}"
        if self._list_token:
            self.phase = Phase.LISTING
            self._deadline = None
            self._request_page()
        elif self._version:
            self._begin_watch(now)
        else:
            self._begin_list(now)

    # Lists

    def _begin_list(self, now: float) -> None:
        self.phase = Phase.LISTING
        self._deadline = None
        self._forget_pages()
        self._list_began = now
        self.counters.lists += 1
        self._request_page()

    def _request_page(self) -> None:
        limit = 0 if self._expired_pages >= EXPIRED_PAGES_MAX else PAGE_LIMIT
        self._actions.append(StartList(None, limit, self._list_token))

    def _list_failed(self, error: StatusError, now: float) -> None:
        self._forget_pages()
        self._fail(error, now)

    def _forget_pages(self) -> None:
        self._pages = []
        self._bounds = self._size.bounds_of_list()
        self._list_version = self._list_token = ""

    def _finish_list(self, now: float) -> None:
        if self.unconfirmed.needs_second_list(self.cache, self._pages, self._list_version, now):
            self._forget_pages()
            self.phase = Phase.WAITING
            self._deadline = now + CONFIRM_PAUSE_S
            return
        self._changes.extend(self.cache.replace(self._pages))
        self._size.on_list()
        self._expired_pages = self._barren = self._silent = 0
        self._version = self._list_version
        self._forget_pages()
        self.reached = self._version
        self._listed = True
        self.synced = True
        self.last_error = self.absent = None
        self._current_at = max(self._current_at, self._list_began)
        self._begin_watch(now)

    # Watches

    def _begin_watch(self, now: float) -> None:
        assert self._version, "a watch needs a version to start from"
        self.phase = Phase.WATCHING
        self._watch_began = now
        self._watch_opened_at = None
        self._watch_moved = self._watch_had_event = False
        self._deadline = now + self._idle_timeout_s
        self.counters.watches += 1
        spread = WATCH_TIMEOUT_MAX_S - WATCH_TIMEOUT_MIN_S + 1
        self._actions.append(
            StartWatch(self._version, WATCH_TIMEOUT_MIN_S + self._rng.below(spread))
        )

    def _advance(self, version: str, now: float) -> bool:
        """Take over the version of an event or a bookmark; false if it goes backwards and a list is
        due.
        """
        if not version:
            raise Undecodable("it has no resourceVersion")
        if len(version) > VERSION_CHARACTERS_MAX:
            raise Undecodable(f"its resourceVersion has {len(version):,} characters")
        if is_older(version, self._version):
            self.counters.backwards += 1
            self._relist(
                internal(f"the server went back from version {self._version} to {version}"), now
            )
            return False
        if version != self._version:
            self._version = version
            self._watch_moved = True
        self._barren = 0
        self._current_at = max(self._current_at, now)
        return True

    def _quiet_since(self, now: float) -> float:
        """When the cache was current because a watch was opened that has been quiet since;
        ``-math.inf``: no such.
        """
        opened = self._watch_opened_at
        is_quiet = (
            self.phase is Phase.WATCHING and opened is not None and now - opened >= QUIET_WATCH_S
        )
        return opened if is_quiet and opened is not None else -math.inf

    def _leave_watch(self, now: float) -> None:
        """Notes the result of a watch that has ended, however it did."""
        self._current_at = max(self._current_at, self._quiet_since(now))
        if self._watch_opened_at is not None and now - self._watch_opened_at >= HEALTHY_WATCH_S:
            self._attempt = 0

    def _on_silence(self, now: float) -> None:
        self.counters.silent += 1
        if self._watch_opened_at is None:
            self._relist(internal(f"no answer to a watch for {self._idle_timeout_s:g} s"), now)
            return
        self._leave_watch(now)
        self._silent += 1
        self._actions.append(StopWatch())
        if self._silent >= 2:
            self._version = ""
            self._silent = 0
            self._begin_list(now)
        else:
            self._begin_watch(now)

    def _relist(self, error: StatusError, now: float, *, open_: bool = True) -> None:
        """The version is no good: list again, after a back-off."""
        if self.phase is Phase.WATCHING:
            self._leave_watch(now)
        if open_:
            self._actions.append(StopWatch())
        self._version = ""
        self._fail(error, now)

    # Failures

    def _fail(self, error: StatusError, now: float) -> None:
        """Wait, then go on with whatever the state says: the next page, a watch, or a list from the
        start.
        """
        self.counters.failures += 1
        self.last_error = (error, now)
        if now - self._failed_at > BACKOFF_RESET_S:
            self._attempt = 0
        delay = BACKOFF.delay_s(self._attempt, self._rng)
        if error.retry_after_s is not None:
            retry_after_s = min(max(error.retry_after_s, 0), RETRY_AFTER_MAX_S)
            delay = max(delay, retry_after_s + self._rng.uniform(0.0, 0.1 * retry_after_s))
        self._attempt += 1
        # The wait itself is no quiet time.
        self._failed_at = now + delay
        self._deadline = now + delay
        self.phase = Phase.WAITING

    def _do_without(self, error: StatusError, now: float) -> None:
        """Goes on without the kind; the cache keeps its objects, as nothing says that they are
        wrong.
        """
        self._forget_pages()
        self.unconfirmed.forget()
        self._version = ""
        self.synced = True
        self.absent = error
        self.last_error = None
        self._deadline = (
            now + self._absent_period_s + self._rng.uniform(0.0, 0.1 * self._absent_period_s)
        )
        self.phase = Phase.WAITING

    def check(self) -> None:
        """Assert every invariant.  O(cache)."""
        self.cache.check()
        if self.phase is Phase.WATCHING:
            assert self.synced, "a watch goes on from a list"
            assert self._version, "a watch has a version to start from"
            assert self._deadline is not None, "a watch has an idle time limit"
        if self.phase is Phase.WAITING:
            assert self._deadline is not None, "it waits for nothing"
        if self.phase is Phase.LISTING:
            assert self._deadline is None, "the shell bounds the time of a list"
        if self.absent is not None:
            assert self.synced, "it does without the kind and is not synced"
            assert self.last_error is None, "to do without is no error"
        assert bool(self._list_token) <= bool(self._list_version), "a token belongs to a list"
