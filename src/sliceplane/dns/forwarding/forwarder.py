"""The forwarder as a state machine: its inputs are questions, replies, failures and the time, its
outputs queries, answers and notices.

The forwarder itself answers a question for a special name, a name in the hosts table, a cached
answer or a recent failure. Otherwise it queries the upstreams of the zone, with one query at a time
for a name, type, DO and CD: clients that ask the same question meanwhile wait for the same reply.
Beyond a limit it refuses a question immediately. Flights and waiting questions are shared fairly by
client: each may have as many as it leaves for all others.

Upstreams have no authority over the cluster's own names: an answer, even a cached one, ends where
its chain of CNAMEs reaches one. The client then asks for that name, and gets the answer of the
cluster.

The forwarder detects a loop by a query for a random name. If this query arrives here, the upstreams
forward to this server; names of their zone then fail immediately until such a query no longer
arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sliceplane.dns.forwarding.asking import EndAttempt, FlightOutcome, QueryScheduler, SendQuery
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

#: seconds after the question until a stale answer is sent (RFC 8767, 5)
STALE_AFTER_S: Final = 1.8
#: bytes of all questions that wait for replies
WAITING_BYTES_MAX: Final = 16 << 20
#: bytes of a waiting question, besides its names
_WAITER_BYTES: Final = 1024
#: answers that one step encodes, and their octets
_ANSWERS_PER_STEP: Final = 64
_ANSWER_BYTES_PER_STEP: Final = 128 * 1024
#: seconds between checks for a loop: after failures, and while there is one
LOOP_AGAIN_S: Final = 30.0
_EDE_OTHER: Final = 0
_EDE_CACHED: Final = 13


class SendAnswer(NamedTuple):
    """An answer to send; ``token`` is the argument of ``on_query``."""

    token: object
    packet: bytes


class ForwardNotice(NamedTuple):
    """A message for the log and an Event.  ``reason``: that of the Event; ``text``: a sentence."""

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
    """The forwarder.  Owned by its runner.

    *random_bits* returns 64 random bits, *is_own* True for a name of the cluster.  *server* is a
    label of metrics.
    """

    def __init__(
        self,
        *,
        random_bits: Callable[[], int],
        is_own: Callable[[bytes], bool] = lambda _: False,
        server: str = "dns://:53",
        max_concurrent: int = MAX_CONCURRENT,
        stale_s: float = 0.0,
    ) -> None:
        counts = ForwardCounts(server)
        self.metrics = counts.metrics
        self._counts = counts
        self._cache = AnswerCache(counts, stale_s=stale_s)
        self._queries = QueryScheduler(random_bits, counts)
        self._random_bits = random_bits
        self._is_own = is_own
        self._flights = Shares(max_concurrent)
        #: the accounts that flights are charged to
        self._payers: dict[CacheKey, str] = {}
        self._configured: tuple[ZoneServers, ...] = ()
        self._zones: dict[bytes, UpstreamZone] = {}
        self._hosts = HostTable()
        self._waiters: dict[CacheKey, list[_Waiter]] = {}
        self._waiting = Shares(WAITING_BYTES_MAX)
        #: answers that are to be encoded, with the questions that wait for them
        self._unsent_answers: deque[tuple[_Waiter, Content, int]] = deque()
        #: when waiting questions get a stale answer; in order, as the delay is constant
        self._stale_deadlines: deque[tuple[float, CacheKey]] = deque()
        #: random names of loop probes; ``None``: the probe arrived here, or its zone was removed
        self._nonces: dict[bytes, UpstreamZone | None] = {}
        self._actions: list[Action] = []

    # -- events

    def on_zones(self, zones: tuple[ZoneServers, ...], now: float) -> None:
        """Sets the upstreams, which ``check_zones`` has validated.  Clears the cache."""
        if zones == self._configured:
            return
        self._configured = zones
        upstreams = {
            upstream.address: upstream
            for zone in self._zones.values()
            for upstream in zone.upstreams
        }
        for address in (server for zone in zones for server in zone.servers):
            upstreams.setdefault(address, Upstream(address))
        self._zones = {
            zone.zone: UpstreamZone(
                zone.zone, [upstreams[server] for server in zone.servers], zone.policy
            )
            for zone in zones
        }
        self._queries.retain_probes(
            upstream for zone in self._zones.values() for upstream in zone.upstreams
        )
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
        """Handles a question of class IN with RD from an admitted client.  *size*: maximum bytes of
        the answer; *account*: that of the client.  Returns True if an upstream is queried for it.

        *target* is the name to resolve if a CNAME of the cluster leads to it; the answer then
        begins with the records *before*, which are that chain.
        """
        name = question.key if target is None else target.lower()
        waiter = _Waiter(question, size, before, token, account)
        if name in self._nonces:
            self._on_loop(name, now)
            self._answer(waiter, Content(REFUSED))
            return False
        content = self._answer_locally(name, question.type)
        if content is not None:
            self._answer(waiter, content)
            return False
        zone = self._find_zone(name)
        if zone is None:
            self._refuse(waiter, EDE_NOT_AUTHORITATIVE, "no upstream is configured for the name")
            return False
        do = question.edns is not None and question.edns.do
        return self._resolve(
            CacheKey(name, question.type, do, bool(question.flags & CD)), zone, waiter, now
        )

    def _answer_locally(self, name: bytes, kind: int) -> Content | None:
        content = answer_meta(name, kind) or self._hosts.answer(name, kind)
        special = special_zone(name)
        if content is None and special is not None:
            stub = self._find_zone(name)
            if stub is None or stub.zone == ROOT:
                content = answer_special(special, name, kind)
        return content

    def _find_zone(self, name: bytes) -> UpstreamZone | None:
        for _, above in names_above(name):
            zone = self._zones.get(above)
            if zone is not None:
                return zone
        return self._zones.get(ROOT)

    def _resolve(self, key: CacheKey, zone: UpstreamZone, waiter: _Waiter, now: float) -> bool:
        hit = self._cache.get(key, now)
        if hit is not None:
            self._answer(waiter, hit.content, age_s=hit.age_s)
        elif self._cache.has_failed(key, now):
            self._answer(
                waiter, self._stale_content(key, now) or Content(SERVFAIL, error=_EDE_CACHED)
            )
        elif zone.looping:
            failed = Content(SERVFAIL, error=_EDE_OTHER)
            self._answer(
                waiter,
                self._stale_content(key, now) or failed,
                text="the upstreams forward to this server",
            )
        elif not self._is_admitted(key, waiter):
            self._counts.rejects.value += 1
            self._refuse(waiter, _EDE_OTHER, "too many queries are in progress")
        else:
            waiting = self._waiters.setdefault(key, [])
            waiting.append(waiter)
            # One entry for each flight; their number is bounded.
            if (
                len(waiting) == 1
                and self._cache.stale_s
                and self._cache.get_stale(key, now) is not None
            ):
                self._stale_deadlines.append((now + STALE_AFTER_S, key))
            if not self._queries.is_in_flight(key):
                self._queries.start_flight(key, zone, now)
                self._take_outcomes(now)
                return True
        return False

    def _is_admitted(self, key: CacheKey, waiter: _Waiter) -> bool:
        """Returns True if the limits allow another waiting question, and another flight if it needs
        one.
        """
        if not self._waiting.take(waiter.account, waiter.cost):
            return False
        if self._queries.is_in_flight(key):
            return True
        if not self._flights.take(waiter.account):
            self._waiting.release(waiter.account, waiter.cost)
            return False
        self._payers[key] = waiter.account
        return True

    def on_reply(self, attempt: int, packet: bytes, source: SocketAddress, now: float) -> None:
        """Handles *packet*, which may be arbitrary bytes, from *source* at the socket of *attempt*."""
        self._queries.on_reply(attempt, packet, source, now)
        self._take_outcomes(now)

    def on_failed(self, attempt: int, now: float) -> None:
        """Handles a failed socket of *attempt*."""
        self._queries.on_failed(attempt, now)
        self._take_outcomes(now)

    def on_time(self, now: float) -> None:
        """Handles all deadlines up to *now*."""
        self._send_answers()
        self._queries.on_time(now)
        self._take_outcomes(now)
        while self._stale_deadlines and self._stale_deadlines[0][0] <= now:
            _, key = self._stale_deadlines.popleft()
            stale = self._stale_content(key, now) if key in self._waiters else None
            if stale is not None:
                self._answer_all(key, stale)
        for zone in self._zones.values():
            if zone.looping and zone.loop_probe_at <= now:
                self._probe_loop(zone, now)

    # -- results

    def _take_outcomes(self, now: float) -> None:
        for outcome in self._queries.take_outcomes():
            if outcome.key.name in self._nonces:
                self._end_loop_probe(outcome)
                continue
            key = outcome.key
            account = self._payers.pop(key)
            self._flights.release(account)
            content = outcome.content
            is_current = self._zones.get(outcome.zone.zone) is outcome.zone
            if content is not None:
                if is_current:
                    self._cache.put(key, content, now, account)
                self._answer_all(key, content)
                continue
            if is_current:
                self._cache.put_failure(key, now)
                if outcome.zone.loop_probe_at <= now:
                    self._probe_loop(outcome.zone, now)
            error = EDE_NO_REACHABLE_AUTHORITY if outcome.error is None else outcome.error
            if outcome.part is not None:
                self._answer_all(key, outcome.part, flags=RA | TC)
            else:
                self._answer_all(
                    key, self._stale_content(key, now) or Content(SERVFAIL, error=error)
                )

    def _stale_content(self, key: CacheKey, now: float) -> Content | None:
        """Returns a stale answer, if there is one that may be used (RFC 8767)."""
        content = self._cache.get_stale(key, now)
        if content is None:
            return None
        self._counts.stale.value += 1
        answer = tuple(record._replace(ttl=STALE_TTL_S) for record in content.answer)
        authority = tuple(record._replace(ttl=STALE_TTL_S) for record in content.authority)
        return content._replace(answer=answer, authority=authority, error=EDE_STALE)

    def _answer_all(self, key: CacheKey, content: Content, flags: int = RA) -> None:
        self._unsent_answers.extend(
            (waiter, content, flags) for waiter in self._waiters.pop(key, ())
        )
        self._send_answers()

    def _send_answers(self) -> None:
        """Encodes some answers; a further step, due immediately, encodes the others: thousands of
        questions may wait for one reply.
        """
        size = 0
        for _ in range(_ANSWERS_PER_STEP):
            if not self._unsent_answers or size > _ANSWER_BYTES_PER_STEP:
                return
            waiter, content, flags = self._unsent_answers.popleft()
            self._waiting.release(waiter.account, waiter.cost)
            size += self._answer(waiter, content, flags=flags)

    def _refuse(self, waiter: _Waiter, error: int, text: str) -> None:
        """Answers without an upstream: the chain before the name is the whole answer."""
        self._answer(waiter, Content(NOERROR if waiter.before else REFUSED, error=error), text=text)

    def _answer(
        self, waiter: _Waiter, content: Content, *, age_s: int = 0, flags: int = RA, text: str = ""
    ) -> int:
        """Sends an answer, and returns its size in octets."""
        question, size, before, token, _ = waiter
        content = self._strip_cluster_names(content, question.key)
        if before:
            flags |= AA  # it refers to the first name (RFC 1035, 4.1.1)
        packet = encode_answer(
            question, content, size, age_s=age_s, before=before, flags=flags, text=text
        )
        self._actions.append(SendAnswer(token, packet))
        return len(packet)

    def _strip_cluster_names(self, content: Content, name: bytes) -> Content:
        """Returns *content*, which answers *name*, without records of the cluster's names.

        If the chain leads to such a name, the answer ends there: it neither denies that name nor
        has its records.
        """
        for at, record in enumerate(content.answer):
            owner = record.owner.lower()
            if owner != name and self._is_own(owner):
                return self._truncate_chain(content, at)
            if record.type == CNAME and self._is_own(record.data.lower()):
                return self._truncate_chain(content, at + 1)
        authority = tuple(
            record for record in content.authority if not self._is_own(record.owner.lower())
        )
        return (
            content
            if len(authority) == len(content.authority)
            else content._replace(authority=authority)
        )

    def _truncate_chain(self, content: Content, at: int) -> Content:
        self._counts.ignored.of("own name").value += 1
        return content._replace(rcode=NOERROR, answer=content.answer[:at], authority=())

    def _probe_loop(self, zone: UpstreamZone, now: float) -> None:
        zone.loop_probe_at = now + LOOP_AGAIN_S
        label = b"%016x" % self._random_bits()
        name = bytes((len(label),)) + label + zone.zone
        if len(name) <= 255:
            self._nonces[name] = zone
            self._queries.start_flight(CacheKey(name, HINFO, do=False, cd=False), zone, now)

    def _on_loop(self, name: bytes, now: float) -> None:
        zone = self._nonces[name]
        self._nonces[name] = None
        if zone is None or zone.looping:
            return
        zone.looping = True
        zone.loop_probe_at = now + LOOP_AGAIN_S
        servers = ", ".join(str(upstream.address) for upstream in zone.upstreams)
        text = (
            f"queries to {servers} for {text_of(zone.zone)} come back to this server: such names "
            "fail until the loop is gone; configure other servers with --forward"
        )
        self._actions.append(ForwardNotice("ForwardingLoop", text, is_well=False))

    def _end_loop_probe(self, outcome: FlightOutcome) -> None:
        zone = self._nonces.pop(outcome.key.name)
        if zone is not None and zone.looping and outcome.content is not None:
            zone.looping = False
            text = f"names under {text_of(zone.zone)} are forwarded again: the loop is gone"
            self._actions.append(ForwardNotice("ForwardingLoopGone", text, is_well=True))

    # -- actions

    def take_actions(self) -> list[Action]:
        """Returns new actions: queries to upstreams, then answers and notices in the order of the
        decisions.
        """
        sends: list[Action] = [*self._queries.take_actions()]
        actions, self._actions = self._actions, []
        return sends + actions

    def next_deadline(self) -> float | None:
        due = [zone.loop_probe_at for zone in self._zones.values() if zone.looping]
        if self._unsent_answers:
            due.append(0.0)
        if self._stale_deadlines:
            due.append(self._stale_deadlines[0][0])
        query_due = self._queries.next_deadline()
        return min(due if query_due is None else [*due, query_due], default=None)

    def check(self) -> None:
        self._queries.check()
        self._cache.check()
        waiting = [waiter for waiters in self._waiters.values() for waiter in waiters]
        waiting += [waiter for waiter, _, _ in self._unsent_answers]
        assert self._waiting.total == sum(waiter.cost for waiter in waiting) <= WAITING_BYTES_MAX
        assert (
            self._flights.total
            == len(self._payers)
            >= self._queries.flight_count - len(self._nonces)
        )
        self._waiting.check()
        self._flights.check()
        for key, waiters in self._waiters.items():
            assert waiters, f"no question waits for {key}"
            assert self._queries.is_in_flight(key), (
                f"{len(waiters)} questions wait for {key}, which is not in flight"
            )
