"""Clients that do not acknowledge changes: which Services they concern, and how long drains wait
for them.

What an xDS server reports is one version for all Services (``xds.io.progress``), so a client that
stays behind would hold up drains of Services that it has nothing to do with. A client that is
behind for ``GRACE_S`` is therefore taken out of that version and kept here, with the Services of
which it lacks changes: a drain waits for it where it concerns one of these. The Services of a
client are those that it subscribes to and may see.

The wait is bounded by account: ``WAIT_S`` at once, and ``REFILL`` of the time that passes
afterwards. It does not matter how many clients an account has, what they call themselves, or how
often they come again: a new stream takes from the same account. A client beyond the bound is named
as one that has not acknowledged, and not waited for. An account that has had such a client, or
whose client left while it was behind, is *watched*: its clients are kept here as soon as they are
behind.

Never: a client that uses a Service and is within its bound counts as if it had what changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from sliceplane.consume.model import ServiceKey
from sliceplane.consume.progress import ClientLag
from sliceplane.consume.selections import NAMESPACE_READING, SERVICE_READING

C = TypeVar("C", bound=Hashable)

#: seconds for which a client that is behind holds up drains of all Services, or twice as long
GRACE_S: Final = 0.5
#: seconds for which drains wait for the clients of an account, and the part of later time that is
#: added to them
WAIT_S: Final = 30.0
REFILL: Final = 0.05
#: seconds for which an account is watched
WATCH_S: Final = 600.0
#: accounts that are watched, the newest
ACCOUNTS_MAX: Final = 10_000
#: entries of a report; more Services are reported by namespace, those of the largest first, then as
#: one
ENTRIES_MAX: Final = 64
#: characters by which a client is named
NAME_MAX: Final = 120


class LagReport(NamedTuple):
    """By reading: the version that the slowest client has and its name; and clients that are not
    waited for.
    """

    behind: Mapping[str, ClientLag]
    unacknowledged: Mapping[str, str]


class _Account:
    """``left_s``: how long drains still wait for its clients, at ``at``."""

    __slots__ = ("at", "left_s", "until", "waited")

    def __init__(self, now: float) -> None:
        self.left_s = WAIT_S
        self.at = now
        self.until = now + WATCH_S
        #: clients that drains wait for
        self.waited = 0

    def advance(self, now: float) -> None:
        passed_s = max(0.0, now - self.at)
        self.at = now
        self.left_s = (
            self.left_s - passed_s if self.waited else min(WAIT_S, self.left_s + passed_s * REFILL)
        )


class _Laggard:
    __slots__ = ("account", "is_waited", "name", "services")

    def __init__(self, account: str, name: str) -> None:
        self.account = account
        self.name = name
        self.is_waited = False
        #: by Service: the version that the client has
        self.services: dict[ServiceKey, int] = {}


class Laggards(Generic[C]):
    """Owned by one server.  Times are seconds of one clock."""

    def __init__(self) -> None:
        self._clients: dict[C, _Laggard] = {}
        self._accounts: dict[str, _Account] = {}
        #: ``None``: something changed since
        self._report: LagReport | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    @property
    def given_up(self) -> int:
        """Clients that drains do not wait for."""
        return sum(not laggard.is_waited for laggard in self._clients.values())

    @property
    def watches(self) -> bool:
        """Some account may be watched."""
        return bool(self._accounts)

    def is_watched(self, account: str, now: float) -> bool:
        known = self._accounts.get(account)
        return known is not None and now < known.until

    def watch(self, account: str, now: float) -> None:
        """Its clients are kept here as soon as they are behind."""
        self._account(account, now).until = now + WATCH_S

    def begin(self, client: C, account: str, name: str, now: float) -> None:
        """*client*, which people know by *name*, is behind; ``add`` says of which Services."""
        assert client not in self._clients, "it is behind already"
        self.watch(account, now)
        self._report = None
        laggard = self._clients[client] = _Laggard(account, _printable(name))
        known = self._account(account, now)
        known.advance(now)
        if known.left_s > 0.0:
            laggard.is_waited = True
            known.waited += 1

    def add(self, client: C, services: Iterable[ServiceKey], revision: int) -> None:
        """It lacks changes of *services* behind the version *revision*."""
        laggard = self._clients[client]
        for service in services:
            if service not in laggard.services:
                laggard.services[service] = revision
                self._report = None

    def give_up(self, client: C, now: float) -> None:
        """Drains wait for it no longer.  Idempotent."""
        laggard = self._clients[client]
        if laggard.is_waited:
            known = self._account(laggard.account, now)
            known.advance(now)
            known.waited -= 1
            laggard.is_waited = False
            self._report = None

    def end(self, client: C, now: float) -> None:
        """It has everything, or is gone."""
        self.give_up(client, now)
        del self._clients[client]
        self._report = None

    def on_time(self, now: float) -> bool:
        """Gives up clients of accounts beyond their bound; returns True if there were any.  Called
        twice a second.
        """
        before = self.given_up
        for client, laggard in self._clients.items():
            if laggard.is_waited:
                known = self._account(laggard.account, now)
                known.advance(now)
                if known.left_s <= 0.0:
                    self.give_up(client, now)
        return self.given_up != before

    def report(self) -> LagReport:
        """At most ``ENTRIES_MAX`` entries of each kind, whatever clients do."""
        if self._report is None:
            self._report = self._made_report()
        return self._report

    def _made_report(self) -> LagReport:
        behind: dict[ServiceKey, ClientLag] = {}
        unacknowledged: dict[str, str] = {}
        for laggard in self._clients.values():
            for service, revision in laggard.services.items():
                if laggard.is_waited:
                    known = behind.get(service)
                    if known is None or revision < known.revision:
                        behind[service] = ClientLag(revision, laggard.name)
                elif len(unacknowledged) < ENTRIES_MAX:
                    unacknowledged.setdefault(_reading(service), laggard.name)
        return LagReport(_folded(behind), unacknowledged)

    def _account(self, account: str, now: float) -> _Account:
        known = self._accounts.get(account)
        if known is None:
            while len(self._accounts) >= ACCOUNTS_MAX:
                del self._accounts[self._oldest()]
            known = self._accounts[account] = _Account(now)
        return known

    def _oldest(self) -> str:
        """The oldest account for whose clients no drain waits, else the oldest."""
        idle = (name for name, known in self._accounts.items() if not known.waited)
        return next(idle, next(iter(self._accounts)))

    def check(self) -> None:
        for name, known in self._accounts.items():
            waited = sum(
                laggard.is_waited and laggard.account == name for laggard in self._clients.values()
            )
            assert waited == known.waited, (
                f"drains wait for {waited} clients of {name}, not {known.waited}"
            )


def _reading(service: ServiceKey) -> str:
    return f"{SERVICE_READING}{service.namespace}/{service.name}"


def _folded(behind: Mapping[ServiceKey, ClientLag]) -> dict[str, ClientLag]:
    """By reading. The namespace with the most Services is the first that is reported as one: what
    one tenant's clients lack makes no entry of another coarser.
    """
    by_namespace: dict[str, dict[str, ClientLag]] = {}
    for service, lag in behind.items():
        by_namespace.setdefault(service.namespace, {})[_reading(service)] = lag
    entries = len(behind)
    for namespace in sorted(by_namespace, key=lambda name: len(by_namespace[name]), reverse=True):
        if entries <= ENTRIES_MAX:
            break
        lags = by_namespace[namespace]
        entries -= len(lags) - 1
        by_namespace[namespace] = {f"{NAMESPACE_READING}{namespace}": min(lags.values())}
    if entries > ENTRIES_MAX:
        return {f"{NAMESPACE_READING}*": min(behind.values())}
    return {reading: lag for lags in by_namespace.values() for reading, lag in lags.items()}


def _printable(name: str) -> str:
    """Returns a client's own text, made safe for terminals and logs."""
    return "".join(mark if mark.isprintable() else "?" for mark in name[:NAME_MAX])
