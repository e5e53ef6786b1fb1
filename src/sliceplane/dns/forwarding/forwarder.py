"""Forwarding as a machine: questions, replies, failures and moments in; queries, answers and
notices out.

A question is answered here if it is special, in the hosts table, in the cache, or failed lately.
Else it is asked of the upstreams of its zone, once at a time for a name, type, DO and CD: clients
that ask the same meanwhile wait for the same reply. What is beyond a limit is refused at once;
questions under way, and those that wait for them, are shared by client: each may have as many as it
leaves for all others.

Upstreams say nothing about the cluster's own names: an answer ends where its chain of CNAMEs
reaches one, also an answer of the cache. The client asks for that name next, if it wants to, and
gets what the cluster says.

A loop is found by asking for a random name: if it comes in here, the upstreams forward to us, and
names of their zone fail at once until such a name stays away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sliceplane.dns.forwarding.asking import Asker, EndAttempt, FlightOutcome, SendQuery
from sliceplane.dns.forwarding.cache import STALE_TTL_S, AnswerCache, CacheKey
from sliceplane.dns.forwarding.configuration import MAX_CONCURRENT, ZoneServers
from sliceplane.dns.forwarding.counts import ForwardCounts
from sliceplane.dns.forwarding.local import HostTable, answer_meta, answer_special, special_zone
from sliceplane.dns.forwarding.message import Content, WholeRecord, encode_answer, names_above
from sliceplane.dns.forwarding.upstreams import SocketAddress, Upstream, UpstreamZone
from sliceplane.dns.wire import (
    AA,
    CD,
    CNAME,
    EDE_NO_REACHABLE_AUTHORITY,
    EDE_NOT_AUTHORITATIVE,
    EDE_STALE,
    HINFO,
    NOERROR,
    RA,
    REFUSED,
    ROOT,
    SERVFAIL,
    TC,
    DnsQuestion,
    text_of,
)
from sliceplane.kit.shares import Shares

#: a stale answer is given so long after the question (RFC 8767, 5)
STALE_AFTER_S: Final = 1.8
#: memory of the questions that wait for replies, all together
WAITING_BYTES_MAX: Final = 16 << 20
#: of one, besides the names in it
_WAITER_BYTES: Final = 1024
#: answers that one step makes: so many, or so many octets
_ANSWERS_AT_ONCE: Final = 64
_ANSWER_BYTES_AT_ONCE: Final = 128 * 1024
#: between two looks whether upstreams loop: after failures, and while they do
LOOP_AGAIN_S: Final = 30.0
_EDE_OTHER: Final = 0
_EDE_CACHED: Final = 13


class SendAnswer(NamedTuple):
    """*token* is what ``on_query`` was given."""

    token: object
    packet: bytes


class ForwardNotice(NamedTuple):
    """For the log and an Event: *reason* as Events have it, *text* for a person."""

    reason: str
    text: str
    is_well: bool


Action = SendQuery | EndAttempt | SendAnswer | ForwardNotice


class _Waiter(NamedTuple):
    question: DnsQuestion
    size: int
    before: tuple[WholeRecord, ...]
    token: object
    account: str

    @property
    def cost(self) -> int:
        names = sum(len(record.owner) + len(record.data) for record in self.before)
        return _WAITER_BYTES + len(self.question.name) + names


class Forwarder:
    """Owned by one shell. *draw* gives 64 random bits; *is_own*: a name is the cluster's; *server*
    is a label of metrics.
    """

    def __init__(
        self,
        *,
        draw: Callable[[], int],
        is_own: Callable[[bytes], bool] = lambda _: False,
        server: str = "dns://:53",
        max_concurrent: int = MAX_CONCURRENT,
        stale_s: float = 0.0,
    ) -> None:
        counts = ForwardCounts(server)
        self.metrics = counts.metrics
        self._counts = counts
        self._cache = AnswerCache(counts, stale_s=stale_s)
        self._asker = Asker(draw, counts)
        self._draw = draw
        self._is_own = is_own
        self._flights = Shares(max_concurrent)
        #: the accounts that questions under way are charged to
        self._payers: dict[CacheKey, str] = {}
        self._configured: tuple[ZoneServers, ...] = ()
        self._zones: dict[bytes, UpstreamZone] = {}
        self._hosts = HostTable()
        self._waiters: dict[CacheKey, list[_Waiter]] = {}
        self._waiting = Shares(WAITING_BYTES_MAX)
        #: replies that came, and who waits for them
        self._owed: deque[tuple[_Waiter, Content, int]] = deque()
        #: when waiters may be given a stale answer: always the same time after they came, so in
        #: order
        self._impatient: deque[tuple[float, CacheKey]] = deque()
        #: names that are asked for to see whether they come back; ``None``: one that did, or that
        #: is of no zone now
        self._nonces: dict[bytes, UpstreamZone | None] = {}
        self._actions: list[Action] = []

    # -- what happens

    def on_zones(self, zones: tuple[ZoneServers, ...], now: float) -> None:
        """Where to ask from now on (``check_zones`` has seen them).  What others answered is
        forgotten.
        """
        if zones == self._configured:
            return
        self._configured = zones
        known = {
            upstream.address: upstream
            for zone in self._zones.values()
            for upstream in zone.upstreams
        }
        for address in (server for zone in zones for server in zone.servers):
            known.setdefault(address, Upstream(address))
        self._zones = {
            zone.zone: UpstreamZone(
                zone.zone, [known[server] for server in zone.servers], zone.policy
            )
            for zone in zones
        }
        self._asker.keep(upstream for zone in self._zones.values() for upstream in zone.upstreams)
        self._cache.clear()
        self._nonces = dict.fromkeys(self._nonces)
        for zone in self._zones.values():
            self._probe_loop(zone, now)

    def on_hosts(self, hosts: HostTable) -> None:
        self._hosts = hosts
        self._counts.hosts.value = len(hosts.names)

    def on_query(
        self,
        question: DnsQuestion,
        token: object,
        now: float,
        *,
        size: int,
        account: str = "",
        target: bytes | None = None,
        before: tuple[WholeRecord, ...] = (),
    ) -> bool:
        """A question of class IN, with RD, of a client that may ask it; its answer may have *size*
        bytes. *account*: of its client. Returns True if an upstream is asked for it.

        With a *target* this name is asked for, and the answer stands after the records *before*:
        how a CNAME of our own leads to it.
        """
        name = question.key if target is None else target.lower()
        waiter = _Waiter(question, size, before, token, account)
        if name in self._nonces:
            self._loop_found(name, now)
            self._answer(waiter, Content(REFUSED))
            return False
        content = self._own_answer(name, question.type)
        if content is not None:
            self._answer(waiter, content)
            return False
        zone = self._zone_of(name)
        if zone is None:
            self._refuse(waiter, EDE_NOT_AUTHORITATIVE, "no upstream is named for it")
            return False
        do = question.edns is not None and question.edns.do
        return self._look_up(
            CacheKey(name, question.type, do, bool(question.flags & CD)), zone, waiter, now
        )

    def _own_answer(self, name: bytes, kind: int) -> Content | None:
        content = answer_meta(name, kind) or self._hosts.answer(name, kind)
        special = special_zone(name)
        if content is None and special is not None:
            stub = self._zone_of(name)
            if stub is None or stub.zone == ROOT:
                content = answer_special(special, name, kind)
        return content

    def _zone_of(self, name: bytes) -> UpstreamZone | None:
        for _, above in names_above(name):
            zone = self._zones.get(above)
            if zone is not None:
                return zone
        return self._zones.get(ROOT)

    def _look_up(self, key: CacheKey, zone: UpstreamZone, waiter: _Waiter, now: float) -> bool:
        hit = self._cache.get(key, now)
        if hit is not None:
            self._answer(waiter, hit.content, age_s=hit.age_s)
        elif self._cache.has_failed(key, now):
            self._answer(waiter, self._stale(key, now) or Content(SERVFAIL, error=_EDE_CACHED))
        elif zone.looping:
            failed = Content(SERVFAIL, error=_EDE_OTHER)
            self._answer(
                waiter, self._stale(key, now) or failed, text="the upstreams forward to this server"
            )
        elif not self._is_admitted(key, waiter):
            self._counts.rejects.value += 1
            self._refuse(waiter, _EDE_OTHER, "too many questions are under way")
        else:
            waiting = self._waiters.setdefault(key, [])
            waiting.append(waiter)
            # One entry for each question under way, which are bounded.
            if (
                len(waiting) == 1
                and self._cache.stale_s
                and self._cache.get_stale(key, now) is not None
            ):
                self._impatient.append((now + STALE_AFTER_S, key))
            if not self._asker.is_asked(key):
                self._asker.ask(key, zone, now)
                self._take_outcomes(now)
                return True
        return False

    def _is_admitted(self, key: CacheKey, waiter: _Waiter) -> bool:
        """There is room for another that waits, and for another question under way if it
        needs one.
        """
        if not self._waiting.take(waiter.account, waiter.cost):
            return False
        if self._asker.is_asked(key):
            return True
        if not self._flights.take(waiter.account):
            self._waiting.give(waiter.account, waiter.cost)
            return False
        self._payers[key] = waiter.account
        return True

    def on_reply(self, attempt: int, packet: bytes, source: SocketAddress, now: float) -> None:
        """*packet* came from *source* to the socket of *attempt*; it may be anything."""
        self._asker.on_reply(attempt, packet, source, now)
        self._take_outcomes(now)

    def on_failed(self, attempt: int, now: float) -> None:
        """The socket of *attempt* gives nothing more."""
        self._asker.on_failed(attempt, now)
        self._take_outcomes(now)

    def on_time(self, now: float) -> None:
        """What is due by *now* happens."""
        self._answer_owed()
        self._asker.on_time(now)
        self._take_outcomes(now)
        while self._impatient and self._impatient[0][0] <= now:
            _, key = self._impatient.popleft()
            stale = self._stale(key, now) if key in self._waiters else None
            if stale is not None:
                self._answer_all(key, stale)
        for zone in self._zones.values():
            if zone.looping and zone.loop_probe_at <= now:
                self._probe_loop(zone, now)

    # -- what follows

    def _take_outcomes(self, now: float) -> None:
        for outcome in self._asker.take_outcomes():
            if outcome.key.name in self._nonces:
                self._end_loop_probe(outcome)
                continue
            key = outcome.key
            account = self._payers.pop(key)
            self._flights.give(account)
            content = outcome.content
            current = self._zones.get(outcome.zone.zone) is outcome.zone
            if content is not None:
                if current:
                    self._cache.put(key, content, now, account)
                self._answer_all(key, content)
                continue
            if current:
                self._cache.put_failure(key, now)
                if outcome.zone.loop_probe_at <= now:
                    self._probe_loop(outcome.zone, now)
            error = EDE_NO_REACHABLE_AUTHORITY if outcome.error is None else outcome.error
            if outcome.part is not None:
                self._answer_all(key, outcome.part, flags=RA | TC)
            else:
                self._answer_all(key, self._stale(key, now) or Content(SERVFAIL, error=error))

    def _stale(self, key: CacheKey, now: float) -> Content | None:
        """An answer after its time, if we have one and may use it (RFC 8767)."""
        content = self._cache.get_stale(key, now)
        if content is None:
            return None
        self._counts.stale.value += 1
        answer = tuple(record._replace(ttl=STALE_TTL_S) for record in content.answer)
        authority = tuple(record._replace(ttl=STALE_TTL_S) for record in content.authority)
        return content._replace(answer=answer, authority=authority, error=EDE_STALE)

    def _answer_all(self, key: CacheKey, content: Content, flags: int = RA) -> None:
        self._owed.extend((waiter, content, flags) for waiter in self._waiters.pop(key, ()))
        self._answer_owed()

    def _answer_owed(self) -> None:
        """The rest is due at once, in a step of its own: thousands may wait for one reply."""
        size = 0
        for _ in range(_ANSWERS_AT_ONCE):
            if not self._owed or size > _ANSWER_BYTES_AT_ONCE:
                return
            waiter, content, flags = self._owed.popleft()
            self._waiting.give(waiter.account, waiter.cost)
            size += self._answer(waiter, content, flags=flags)

    def _refuse(self, waiter: _Waiter, error: int, text: str) -> None:
        """Without an upstream: what stands before is all that there is."""
        self._answer(waiter, Content(NOERROR if waiter.before else REFUSED, error=error), text=text)

    def _answer(
        self, waiter: _Waiter, content: Content, *, age_s: int = 0, flags: int = RA, text: str = ""
    ) -> int:
        """The octets of the answer."""
        question, size, before, token, _ = waiter
        content = self._without_own(content, question.key)
        if before:
            flags |= AA  # which is said of the first name (RFC 1035, 4.1.1)
        packet = encode_answer(
            question, content, size, age_s=age_s, before=before, flags=flags, text=text
        )
        self._actions.append(SendAnswer(token, packet))
        return len(packet)

    def _without_own(self, content: Content, name: bytes) -> Content:
        """*content*, which answers *name*, without what an upstream says of the cluster's names.
        Where its chain leads to one, neither is the name at the chain's end denied, nor are there
        records of it.
        """
        for at, record in enumerate(content.answer):
            owner = record.owner.lower()
            if owner != name and self._is_own(owner):
                return self._cut(content, at)
            if record.type == CNAME and self._is_own(record.data.lower()):
                return self._cut(content, at + 1)
        authority = tuple(
            record for record in content.authority if not self._is_own(record.owner.lower())
        )
        return (
            content
            if len(authority) == len(content.authority)
            else content._replace(authority=authority)
        )

    def _cut(self, content: Content, at: int) -> Content:
        self._counts.ignored.of("own name").value += 1
        return content._replace(rcode=NOERROR, answer=content.answer[:at], authority=())

    def _probe_loop(self, zone: UpstreamZone, now: float) -> None:
        zone.loop_probe_at = now + LOOP_AGAIN_S
        label = b"%016x" % self._draw()
        name = bytes((len(label),)) + label + zone.zone
        if len(name) <= 255:
            self._nonces[name] = zone
            self._asker.ask(CacheKey(name, HINFO, do=False, cd=False), zone, now)

    def _loop_found(self, name: bytes, now: float) -> None:
        zone = self._nonces[name]
        self._nonces[name] = None
        if zone is None or zone.looping:
            return
        zone.looping = True
        zone.loop_probe_at = now + LOOP_AGAIN_S
        servers = ", ".join(str(upstream.address) for upstream in zone.upstreams)
        text = (
            f"what is asked of {servers} for {text_of(zone.zone)} comes back to this server: such "
            "names fail until the "
            "loop is gone; name other servers with --forward"
        )
        self._actions.append(ForwardNotice("ForwardingLoop", text, is_well=False))

    def _end_loop_probe(self, outcome: FlightOutcome) -> None:
        zone = self._nonces.pop(outcome.key.name)
        if zone is not None and zone.looping and outcome.content is not None:
            zone.looping = False
            text = f"names under {text_of(zone.zone)} are forwarded again: the loop is gone"
            self._actions.append(ForwardNotice("ForwardingLoopGone", text, is_well=True))

    # -- what is to be done

    def take_actions(self) -> list[Action]:
        """Answers and notices in the order in which they were decided, after what is sent to
        upstreams.
        """
        sends: list[Action] = [*self._asker.take_actions()]
        actions, self._actions = self._actions, []
        return sends + actions

    def next_deadline(self) -> float | None:
        due = [zone.loop_probe_at for zone in self._zones.values() if zone.looping]
        if self._owed:
            due.append(0.0)
        if self._impatient:
            due.append(self._impatient[0][0])
        asked = self._asker.next_deadline()
        return min(due if asked is None else [*due, asked], default=None)

    def check(self) -> None:
        self._asker.check()
        self._cache.check()
        waiting = [waiter for waiters in self._waiters.values() for waiter in waiters]
        waiting += [waiter for waiter, _, _ in self._owed]
        assert self._waiting.total == sum(waiter.cost for waiter in waiting) <= WAITING_BYTES_MAX
        assert self._flights.total == len(self._payers) >= self._asker.under_way - len(self._nonces)
        self._waiting.check()
        self._flights.check()
        for key, waiters in self._waiters.items():
            assert waiters, f"none waits for {key}"
            assert self._asker.is_asked(key), f"{len(waiters)} wait for {key}, which is not asked"
