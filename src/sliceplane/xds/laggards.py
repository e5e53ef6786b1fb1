"""Laggards: clients that do not acknowledge changes, the Services concerned, and how long drains
wait.

An xDS server reports one version for all Services (``xds.io.progress``), so a client that stays
behind would delay drains of unrelated Services. A client that is behind for ``GRACE_S`` therefore
no longer counts for that version. It is listed here with the Services of which it lacks changes,
and only drains of these wait for it. The Services of a client are those that it subscribes to and
may see.

The wait is bounded by account: ``WAIT_S`` initially, refilled with ``REFILL`` of the elapsed time.
The number of clients of an account, their names and their reconnects do not matter: a new stream
uses the bound of the same account. A client beyond the bound is reported as unacknowledged, and no
drain waits for it. An account is *watched* after such a client, or after a client disconnected
while it was behind: its clients are listed here as soon as they are behind.

Guarantee: a client that uses a Service and is within its bound never counts as up to date while it
lacks a change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from sliceplane.consume.model import ServiceKey
from sliceplane.consume.progress import ClientLag
from sliceplane.consume.selections import NAMESPACE_SELECTION_PREFIX, SERVICE_SELECTION_PREFIX

C = TypeVar("C", bound=Hashable)

#: seconds, up to twice, for which a client that is behind delays drains of all Services
GRACE_S: Final = 0.5
#: seconds for which drains wait for the clients of an account, and the part of elapsed time that
#: refills them
WAIT_S: Final = 30.0
REFILL: Final = 0.05
#: seconds for which an account is watched
WATCH_S: Final = 600.0
#: accounts that are watched, the newest
ACCOUNTS_MAX: Final = 10_000
#: entries of a report; more Services are reported by namespace, beginning with the largest, then as
#: one entry
ENTRIES_MAX: Final = 64
#: characters of a client's name
NAME_MAX: Final = 120


class LagReport(NamedTuple):
    """Laggards by selection: version and name of the slowest client; and names of clients for which
    no drain waits.
    """

    behind: Mapping[str, ClientLag]
    unacknowledged: Mapping[str, str]


class _Account:
    """An account; at the time ``at``, drains wait for its clients for another ``remaining_s``."""

    __slots__ = ("at", "remaining_s", "until", "waited")

    def __init__(self, now: float) -> None:
        self.remaining_s = WAIT_S
        self.at = now
        self.until = now + WATCH_S
        #: clients that drains wait for
        self.waited = 0

    def advance(self, now: float) -> None:
        passed_s = max(0.0, now - self.at)
        self.at = now
        self.remaining_s = (
            self.remaining_s - passed_s
            if self.waited
            else min(WAIT_S, self.remaining_s + passed_s * REFILL)
        )


class _Laggard:
    """A client that is behind."""

    __slots__ = ("account", "is_waited", "name", "services")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.is_waited = False
        #: versions that the client has by Service
        self.services: dict[ServiceKey, int] = {}


class Laggards(Generic[C]):
    """The laggards of one server, which owns them.  Times are seconds of one clock."""

    def __init__(self) -> None:
        self._clients: dict[C, _Laggard] = {}
        self._accounts: dict[str, _Account] = {}
        #: ``None``: outdated
        self._report: LagReport | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    @property
    def abandoned(self) -> int:
        """Returns the number of clients for which no drain waits."""
        return sum(not laggard.is_waited for laggard in self._clients.values())

    @property
    def watches(self) -> bool:
        """Returns True if any account may be watched."""
        return bool(self._accounts)

    def is_watched(self, account: str, now: float) -> bool:
        state = self._accounts.get(account)
        return state is not None and now < state.until

    def watch(self, account: str, now: float) -> None:
        """Watches *account*: its clients are listed here as soon as they are behind."""
        self._account(account, now).until = now + WATCH_S

    def begin(self, client: C, account: str, name: str, now: float) -> None:
        """Lists *client*, whose name in reports is *name*; ``add`` adds its Services."""
        assert client not in self._clients, "it is behind already"
        self.watch(account, now)
        self._report = None
        laggard = self._clients[client] = _Laggard(account, _printable(name))
        state = self._account(account, now)
        state.advance(now)
        if state.remaining_s > 0.0:
            laggard.is_waited = True
            state.waited += 1

    def add(self, client: C, services: Iterable[ServiceKey], revision: int) -> None:
        """Notes that *client* lacks changes of *services* after the version *revision*."""
        laggard = self._clients[client]
        for service in services:
            if service not in laggard.services:
                laggard.services[service] = revision
                self._report = None

    def abandon(self, client: C, now: float) -> None:
        """Ends the wait of drains for *client*.  Idempotent."""
        laggard = self._clients[client]
        if laggard.is_waited:
            state = self._account(laggard.account, now)
            state.advance(now)
            state.waited -= 1
            laggard.is_waited = False
            self._report = None

    def end(self, client: C, now: float) -> None:
        """Removes *client*: it is up to date, or disconnected."""
        self.abandon(client, now)
        del self._clients[client]
        self._report = None

    def on_time(self, now: float) -> bool:
        """Gives up clients of accounts beyond their bound; returns True if there were any.  Called
        twice a second.
        """
        before = self.abandoned
        for client, laggard in self._clients.items():
            if laggard.is_waited:
                state = self._account(laggard.account, now)
                state.advance(now)
                if state.remaining_s <= 0.0:
                    self.abandon(client, now)
        return self.abandoned != before

    def report(self) -> LagReport:
        """Returns the report, with at most ``ENTRIES_MAX`` entries of each kind."""
        if self._report is None:
            self._report = self._build_report()
        return self._report

    def _build_report(self) -> LagReport:
        behind: dict[ServiceKey, ClientLag] = {}
        unacknowledged: dict[str, str] = {}
        for laggard in self._clients.values():
            for service, revision in laggard.services.items():
                if laggard.is_waited:
                    state = behind.get(service)
                    if state is None or revision < state.revision:
                        behind[service] = ClientLag(revision, laggard.name)
                elif len(unacknowledged) < ENTRIES_MAX:
                    unacknowledged.setdefault(_selection_of(service), laggard.name)
        return LagReport(_fold(behind), unacknowledged)

    def _account(self, account: str, now: float) -> _Account:
        state = self._accounts.get(account)
        if state is None:
            while len(self._accounts) >= ACCOUNTS_MAX:
                del self._accounts[self._oldest()]
            state = self._accounts[account] = _Account(now)
        return state

    def _oldest(self) -> str:
        """The oldest account for whose clients no drain waits, else the oldest."""
        idle = (name for name, state in self._accounts.items() if not state.waited)
        return next(idle, next(iter(self._accounts)))

    def check(self) -> None:
        for name, state in self._accounts.items():
            waited = sum(
                laggard.is_waited and laggard.account == name for laggard in self._clients.values()
            )
            assert waited == state.waited, (
                f"drains wait for {waited} clients of {name}, not {state.waited}"
            )


def _selection_of(service: ServiceKey) -> str:
    return f"{SERVICE_SELECTION_PREFIX}{service.namespace}/{service.name}"


def _fold(behind: Mapping[ServiceKey, ClientLag]) -> dict[str, ClientLag]:
    """Folds *behind* into ``ENTRIES_MAX`` entries by selection.

    Namespaces with the most Services are folded first, so that the clients of one tenant do not
    make the entries of another coarser.
    """
    by_namespace: dict[str, dict[str, ClientLag]] = {}
    for service, lag in behind.items():
        by_namespace.setdefault(service.namespace, {})[_selection_of(service)] = lag
    entries = len(behind)
    for namespace in sorted(by_namespace, key=lambda name: len(by_namespace[name]), reverse=True):
        if entries <= ENTRIES_MAX:
            break
        lags = by_namespace[namespace]
        entries -= len(lags) - 1
        by_namespace[namespace] = {f"{NAMESPACE_SELECTION_PREFIX}{namespace}": min(lags.values())}
    if entries > ENTRIES_MAX:
        return {f"{NAMESPACE_SELECTION_PREFIX}*": min(behind.values())}
    return {selection: lag for lags in by_namespace.values() for selection, lag in lags.items()}


def _printable(name: str) -> str:
    """Returns a client's own text, made safe for terminals and logs."""
    return "".join(mark if mark.isprintable() else "?" for mark in name[:NAME_MAX])
