"""Answers queries from the zone that ``dns.view`` holds.

A question of the usual shape (one question, RD or not, an OPT without options or none) for a name
that was asked before is answered from the bytes built then (``dns.kept``); ``apply`` drops those of
the Services concerned in the same step, so no answer is older than the view. Every other question
takes the slow way, which gives the same bytes and is charged to its client
(``clients.WorkShares``): no client takes the time of all others.

Before the first lists are complete every name of ours is SERVFAIL, never NXDOMAIN: clients would
cache that. While the API server is away answers go on, and say that they may be old (RFC 8914, 3).

Names of other zones are forwarded for clients with that right, and refused to all others: an open
resolver is a weapon (RFC 5358). Owned by one shell.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final, Literal, NamedTuple

from sliceplane.api.meta import Object
from sliceplane.consume.usable import Locality
from sliceplane.dns import wire
from sliceplane.dns.clients import (
    ANSWER_OCTETS_PER_UNIT,
    FORWARD_WORK,
    OCTETS_PER_UNIT,
    QUESTION_WORK,
    SMALL_OCTETS,
    AnswerConfig,
    ClientRights,
    DnsClients,
    RateLimit,
    WorkShares,
)
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.counts import DnsCounts
from sliceplane.dns.kept import KeptResults
from sliceplane.dns.locations import NOWHERE
from sliceplane.dns.records import pointer_to, soa
from sliceplane.dns.view import DnsView, LookupResult
from sliceplane.dns.wire import DnsQuestion, Malformed
from sliceplane.watch.cache import Change

Transport = Literal["udp", "tcp"]
#: length of a chain of our own names (CoreDNS: 10)
ALIASES_MAX: Final = 8
#: octets 2 to 12 of a query of the usual shape: its flags, and whether an OPT is the last of it
_SHAPES: Final = {
    wire.header(0, flags, 1, more=with_opt)[2:]: (flags, bool(with_opt))
    for flags in (0, wire.RD, wire.RD | wire.AD, wire.RD | wire.CD, wire.RD | wire.AD | wire.CD)
    for with_opt in (0, 1)
}
_OPT_HEAD: Final = b"\0\0\x29"
#: what follows the payload of an OPT without options: version 0, with DO or without
_OPT_TAILS: Final = {b"\0\0\0\0\0\0": False, b"\0\0\x80\0\0\0": True}
_CLASS_IN: Final = b"\0\1"
_OVER_SHARE: Final = "this client has used its share of the server's time; ask again in a second"


class Forward(NamedTuple):
    """A question for the forwarder, charged to ``account``. ``target``: the name to look up, if it
    is not the question's; ``before``: owner, TTL and target of each CNAME that leads to it and
    stands before its records.
    """

    question: DnsQuestion
    client: str
    transport: Transport
    account: str = ""
    target: bytes | None = None
    before: tuple[tuple[bytes, int, bytes], ...] = ()


class _Inquiry(NamedTuple):
    """A question that takes the slow way, and its client."""

    question: DnsQuestion
    client: str
    transport: Transport
    rights: ClientRights


class NameServer:
    """See the module."""

    def __init__(self, zone: ZoneConfig, config: AnswerConfig) -> None:
        self.view: Final = DnsView(zone)
        self._config = config
        self._kept = KeptResults()
        self._results: Final = self._kept.by_name
        self._clients = DnsClients(config, self.view.locations.is_in_cluster)
        self._limit = RateLimit(config.rate) if config.rate else None
        self._work = WorkShares()
        self._rotation = 0
        self.synced = False
        self._stale = False
        self._opts = {do: wire.opt(do=do) for do in (False, True)}
        self.metrics = DnsCounts(zone.domains[0] + ".", self._kept)
        self.metrics.include(self.view.metrics.families)

    # -- changes

    def apply(self, changes: Iterable[Change[Object]], now: float) -> None:
        self._kept.drop(self.view.apply(changes, now))
        self._kept.drop_denials()
        self._clients.rights_by_address.clear()

    def on_second(self, *, is_overloaded: bool = False) -> None:
        """A second is over: clients have their shares of work anew.  *is_overloaded*: datagrams
        waited or were lost.
        """
        self._work.begin_second(is_overloaded=is_overloaded)

    def on_upstream_query(self, forward: Forward) -> None:
        """The forwarder had no answer to *forward* and asks an upstream, which costs more."""
        self._work.add(forward.transport, forward.account, FORWARD_WORK)

    def on_synced(self) -> None:
        """Every list is complete."""
        self.synced = True

    def on_stale(self, *, stale: bool) -> None:
        """The API server is disconnected for long, or is connected again."""
        if stale != self._stale:
            self._stale = stale
            ede = wire.EDE_STALE if stale else None
            self._opts = {do: wire.opt(do=do, ede=ede) for do in (False, True)}

    # -- questions

    def answer(
        self, packet: bytes, client: str, transport: Transport, now: float
    ) -> bytes | Forward | None:
        """Returns ``None`` if no answer is sent.  *client*: its address."""
        shape = _SHAPES.get(packet[2:12])
        if shape is None or not self.synced:
            return self.answer_slowly(packet, client, transport, now)
        flags, with_opt = shape
        end = len(packet) - 15 if with_opt else len(packet) - 4
        results = self._results.get(packet[12:end].lower())
        if results is None:
            return self.answer_slowly(packet, client, transport, now)
        kind = packet[end : end + 2]
        result = results.get(kind)
        if result is None or packet[end + 2 : end + 4] != _CLASS_IN:
            return self.answer_slowly(packet, client, transport, now)
        limit = wire.PLAIN_BYTES
        opt = b""
        do = False
        if with_opt:
            tail = _OPT_TAILS.get(packet[-6:])
            if tail is None or packet[-11:-8] != _OPT_HEAD:
                return self.answer_slowly(packet, client, transport, now)
            do = tail
            opt = self._opts[do]
            limit = min(max(int.from_bytes(packet[-8:-6], "big"), limit), wire.PAYLOAD_BYTES)
        if transport != "udp":
            limit = wire.TCP_BYTES
        rights = self._clients.rights_by_address.get(client) or self._clients.of(client)
        if not rights.allowed:
            return self.answer_slowly(packet, client, transport, now)
        self.metrics.on_request(transport, rights, kind, do=do)
        name = packet[12:end]
        if (
            self._limit is not None
            and transport == "udp"
            and (verdict := self._limited(rights, name, result, now))
        ):
            return self._limited_answer(verdict, packet[:2], flags, packet[12 : end + 4], opt)
        return self._composed(
            packet[:2], flags, packet[12 : end + 4], result, limit=limit, opt=opt, rights=rights
        )

    def answer_slowly(
        self, packet: bytes, client: str, transport: Transport, now: float
    ) -> bytes | Forward | None:
        rights = self._clients.of(client)
        if not self._work.take(transport, rights, QUESTION_WORK + len(packet) // OCTETS_PER_UNIT):
            return self._over_share(packet, transport)
        question = wire.read_query(packet)
        if not isinstance(question, DnsQuestion):
            if question is not None:
                self.metrics.on_response(question.rcode)
            return question.answer if isinstance(question, Malformed) else None
        inquiry = _Inquiry(question, client, transport, rights)
        do = question.edns is not None and question.edns.do
        kind = question.type.to_bytes(2, "big")
        # Clients make up types: types without a name are counted together.
        self.metrics.on_request(
            transport, rights, kind if question.type in wire.TYPE_NAMES else b"", do=do
        )
        key = question.name.lower()
        labels = wire.labels_of(key)
        refusal = self._refusal(inquiry, labels)
        if refusal is not None:
            return refusal
        kept = self._results.get(key, {}).get(kind)
        result = kept
        if result is None:
            is_placed = not rights.shared and self.view.zone_of(labels) is not None
            result = self.view.find(
                labels, question.type, self._locality_of(client) if is_placed else NOWHERE
            )
        if result is None:
            return self._not_ours(inquiry)
        if (
            self._limit is not None
            and transport == "udp"
            and (verdict := self._limited(rights, question.name, result, now))
        ):
            number = question.id.to_bytes(2, "big")
            return self._limited_answer(
                verdict, number, question.flags, question.wire, self._opt(question)
            )
        if result.alias and question.type not in (wire.CNAME, wire.ANY):
            return self._followed(inquiry, result)
        if kept is None:
            is_narrowed = result.service is not None and self.view.is_narrowed(result.service)
            result = self._kept.keep(key, question.type, result, is_narrowed=is_narrowed)
        return self._composed_for(inquiry, result)

    def _refusal(self, inquiry: _Inquiry, labels: tuple[bytes, ...]) -> bytes | None:
        """Returns the error that the client gets whatever there is at the name."""
        question, _, _, rights = inquiry
        ra = self._config.forwards and rights.recursion
        if not rights.allowed:
            return self._error(question, wire.REFUSED, ede=wire.EDE_PROHIBITED)
        if question.cls != wire.IN or question.type in (wire.AXFR, wire.IXFR):
            return self._error(question, wire.REFUSED, ra=ra)
        if not self.synced and (self.view.zone_of(labels) is not None or labels[-1:] == (b"arpa",)):
            text = "no list of Services yet"
            return self._error(question, wire.SERVFAIL, ra=ra, ede=wire.EDE_NOT_READY, text=text)
        return None

    def _opt(self, question: DnsQuestion) -> bytes:
        return b"" if question.edns is None else self._opts[question.edns.do]

    def _over_share(self, packet: bytes, transport: Transport) -> bytes | None:
        verdict = self._work.verdict(transport)
        self.metrics.over_share.of(verdict).value += 1
        question = None if verdict == "dropped" else wire.read_query(packet)
        if not isinstance(question, DnsQuestion):
            return None
        if transport != "udp":
            return self._error(question, wire.REFUSED, text=_OVER_SHARE)
        number = question.id.to_bytes(2, "big")
        return self._truncated(number, question.flags, question.wire, self._opt(question))

    def _locality_of(self, client: str) -> Locality:
        own = self.view.config.own_node
        return self.view.locations.of_node(own) if own else self.view.locations.of(client)

    def _limited(self, rights: ClientRights, name: bytes, result: LookupResult, now: float) -> str:
        """Returns the outcome, "" if the client may have an answer.  All names of a zone that do
        not exist share one limit: clients can make them up.
        """
        assert self._limit is not None, "there is a limit"
        of = result.zone if result.rcode == wire.NXDOMAIN else name.lower()
        verdict = self._limit.verdict(rights.packed, of, now)
        if verdict:
            self.metrics.limited.of(verdict).value += 1
        return verdict

    def _limited_answer(
        self, verdict: str, number: bytes, flags: int, question: bytes, opt: bytes
    ) -> bytes | None:
        return self._truncated(number, flags, question, opt) if verdict == "truncated" else None

    # -- answers

    def _composed_for(self, inquiry: _Inquiry, result: LookupResult) -> bytes:
        question, _, transport, rights = inquiry
        return self._composed(
            question.id.to_bytes(2, "big"),
            question.flags,
            question.wire,
            result,
            limit=question.payload_of(transport),
            opt=self._opt(question),
            rights=rights,
        )

    def _composed(
        self,
        number: bytes,
        flags: int,
        question: bytes,
        result: LookupResult,
        *,
        limit: int,
        opt: bytes,
        rights: ClientRights,
    ) -> bytes:
        flags = wire.QR | wire.AA | flags & (wire.RD | wire.CD) | result.rcode
        if self._config.forwards and rights.recursion:
            flags |= wire.RA
        room = limit - wire.HEADER_BYTES - len(question) - len(opt)
        more = 1 if opt else 0
        records = result.records
        if records is None:
            zone = pointer_to(len(question) - 4 - len(result.zone))
            body = self._soa(zone, result)
            counts = (1, 1, 0) if result.is_soa else (1, 0, 1)
        else:
            if room > SMALL_OCTETS and not self._is_paid(records.size, room, rights):
                flags = flags & (wire.RD | wire.CD | wire.RA) | wire.QR | wire.REFUSED
                return number + wire.header(0, flags, 1, more=more)[2:] + question + opt
            self._rotation += 1
            count, body, is_whole = records.window(self._rotation, room)
            counts = (1, count, 0)
            if not is_whole:
                flags |= wire.TC
            elif result.extras:
                parts = [body]
                room -= len(body)
                for extra in result.extras:
                    if len(extra) > room:
                        break
                    room -= len(extra)
                    parts.append(extra)
                    more += 1
                body = b"".join(parts)
        self.metrics.on_response(result.rcode)
        head = (flags << 64 | counts[0] << 48 | counts[1] << 32 | counts[2] << 16 | more).to_bytes(
            10, "big"
        )
        return b"".join((number, head, question, body, opt))

    def _is_paid(self, size: int, room: int, rights: ClientRights) -> bool:
        """Charges for an answer over TCP, before it is built; False: the client's share is used
        up.
        """
        if size <= SMALL_OCTETS:
            return True
        is_paid = self._work.take("tcp", rights, min(size, room) // ANSWER_OCTETS_PER_UNIT)
        if not is_paid:
            self.metrics.over_share.of("refused").value += 1
            self.metrics.on_response(wire.REFUSED)
        return is_paid

    def _soa(self, zone: bytes, result: LookupResult) -> bytes:
        ttl_s = self.view.config.ttl_s
        if result.is_soa:
            return soa(zone, self.view.serial, ttl_s, ttl_s)
        return soa(zone, self.view.serial, result.keep_s, result.keep_s)

    def _truncated(self, number: bytes, flags: int, question: bytes, opt: bytes) -> bytes:
        """Returns an answer with TC and no records: a client that really asked retries over TCP."""
        head = wire.header(0, wire.reply_flags(flags) | wire.AA | wire.TC, 1, more=1 if opt else 0)
        return number + head[2:] + question + opt

    def _error(
        self,
        question: DnsQuestion,
        rcode: int,
        *,
        ra: bool = False,
        ede: int | None = None,
        text: str = "",
    ) -> bytes:
        self.metrics.on_response(rcode, ours=False)
        return wire.error(question, rcode, ra=ra, ede=ede, text=text)

    def _not_ours(self, inquiry: _Inquiry) -> bytes | Forward:
        question, _, _, rights = inquiry
        if not self._config.forwards:
            unknown = self.view.unknown_address(wire.labels_of(question.name.lower()))
            if unknown is not None:
                return self._composed_for(inquiry, unknown)
            why = "not a name of this cluster"
            return self._error(question, wire.REFUSED, ede=wire.EDE_NOT_AUTHORITATIVE, text=why)
        if not rights.recursion:
            why = "names of others are not for you"
            return self._error(question, wire.REFUSED, ede=wire.EDE_PROHIBITED, text=why)
        if not question.flags & wire.RD:
            return self._error(question, wire.REFUSED, ra=True, ede=wire.EDE_NOT_AUTHORITATIVE)
        return self._forward(inquiry)

    def _forward(
        self,
        inquiry: _Inquiry,
        aliases: Iterable[tuple[bytes, bytes]] = (),
        target: bytes | None = None,
    ) -> Forward:
        question, client, transport, rights = inquiry
        ttl_s = self.view.config.ttl_s
        before = tuple((owner, ttl_s, alias) for owner, alias in aliases)
        return Forward(question, client, transport, rights.account, target, before)

    # -- aliases

    def _followed(self, inquiry: _Inquiry, result: LookupResult) -> bytes | Forward:
        """Returns the records of ExternalName Services, and then those of the name that they lead
        to.
        """
        question, client, _, rights = inquiry
        aliases: list[tuple[bytes, bytes]] = []
        owner = question.name
        locality = NOWHERE if rights.shared else self._locality_of(client)
        last: LookupResult | None = result
        while last is not None and last.alias:
            if len(aliases) == ALIASES_MAX:
                return self._error(
                    question, wire.SERVFAIL, text="a chain of externalNames has no end"
                )
            aliases.append((owner, last.alias))
            owner = last.alias
            last = self.view.find(wire.labels_of(owner.lower()), question.type, locality)
        if last is None and self._config.forwards and rights.recursion and question.flags & wire.RD:
            return self._forward(inquiry, aliases, owner)
        return self._chain(inquiry, tuple(aliases), last)

    def _chain(
        self,
        inquiry: _Inquiry,
        aliases: tuple[tuple[bytes, bytes], ...],
        last: LookupResult | None,
    ) -> bytes:
        question, _, transport, rights = inquiry
        ttl_s = self.view.config.ttl_s
        records = [
            wire.encode_record(owner, wire.CNAME, ttl_s, target) for owner, target in aliases
        ]
        records[0] = pointer_to(0) + records[0][len(question.name) :]
        authority: list[bytes] = []
        target: Iterable[bytes] = ()
        if last is not None and last.records is not None:
            end = aliases[-1][1]
            target = (end + record[2:] for record in last.records.records())
        elif last is not None:
            authority = [self._soa(last.zone, last)]
        rcode = wire.NOERROR if last is None else last.rcode
        flags = wire.reply_flags(question.flags) | wire.AA | rcode
        if self._config.forwards and rights.recursion:
            flags |= wire.RA
        self.metrics.on_response(rcode)
        return wire.assembled(
            question,
            flags,
            chain(records, target),
            authority,
            limit=question.payload_of(transport),
            opt=self._opt(question),
        )
