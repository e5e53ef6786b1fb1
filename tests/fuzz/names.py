"""Hostile datagrams to a name server's core and its forwarder, in process and without sockets.

``python -m tests.fuzz.names --seconds 3600``. What must hold, for queries and for replies of
upstreams that were changed, cut, joined or made up: nothing raises; an answer parses, has its
query's number and is no longer than it may be; the quick way and the slow one say the same; what is
kept is bounded; none takes ``ANSWER_CPU_S_MAX``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import dns.message
from tests.dns.world import (
    NOW,
    ZONE,
    Cluster,
    endpoint,
    headless,
    namespace,
    node,
    service,
    slice_of,
)

from sliceplane.dns.clients import AnswerConfig
from sliceplane.dns.forwarding.asking import SendQuery
from sliceplane.dns.forwarding.configuration import ZoneServers, parse_server
from sliceplane.dns.forwarding.forwarder import Forwarder, SendAnswer
from sliceplane.dns.forwarding.message import WholeRecord, read_reply
from sliceplane.dns.server import Forward
from sliceplane.dns.wire import CNAME, IN, ROOT, DnsQuestion, read_query

ANSWER_CPU_S_MAX = 0.25
_KINDS = (
    "A",
    "AAAA",
    "SRV",
    "PTR",
    "TXT",
    "ANY",
    "SOA",
    "NS",
    "CNAME",
    "HTTPS",
    "AXFR",
    "TYPE65280",
    "OPT",
)
_NAMES = [
    *(
        f"made-up-{at}.{word}._zone.peers.default.svc.{ZONE}"
        for at in range(4)
        for word in ("pin", "prefer")
    ),
    *(
        f"{label}.peers.default.svc.{ZONE}"
        for label in ("_made-up._tcp", "_made-up", "10-1-0-1", "_http._tcp")
    ),
    *(
        f"{name}.svc.{ZONE}"
        for name in (
            "demo.default",
            "PEERS.default",
            "peer-0.peers.default",
            "out.default",
            "_http._tcp.demo.default",
            "_tcp.peers.default",
            "z1.pin._zone.peers.default",
            "z9.prefer._zone.peers.default",
            "ring.default",
            "none.default",
            "a.b.c.d.default",
            "default",
        )
    ),
    ZONE,
    f"dns-version.{ZONE}",
    f"ns.dns.{ZONE}",
    f"10-0-0-1.default.pod.{ZONE}",
    "1.0.1.10.in-addr.arpa.",
    ".",
    "7.0.96.10.in-addr.arpa.",
    f"{'0.' * 31}f.ip6.arpa.",
    "www.example.org.",
    "localhost.",
    "x.invalid.",
    f"{'a' * 63}.{'b' * 63}.example.org.",
    f"{'1.' * 100}example.org.",
]
_SERVER = parse_server("192.0.2.1")
_PIECES = (
    b"".join(b"\xc0" + bytes((12 + 2 * at,)) for at in range(40)),
    b"\1a" * 100 + b"\xc0\x0c",
    b"\0\0\x29\x04\xd0\0\0\0\0\x00\xa0" + b"\0\x0a\0\0" * 40,
    b"\xc0\x0c",
    b"\xc0\x00",
    b"\xff\xff",
    b"\0\0\x29\x04\xd0\0\0\x80\0\0\0",
    b"\x3f" + b"a" * 63,
    b"\0",
    b"\x40",
)


@dataclass
class NameFindings:
    """``done``: packets by what became of them."""

    done: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)
    slowest_s: float = 0.0

    def add(self, kind: str, detail: str) -> None:
        if kind not in self.told:
            self.told[kind] = detail
            print(f"\n{kind}\n  {detail[:2000]}", flush=True)


def mangled(rng: Random, packet: bytes, other: bytes) -> bytes:
    """*packet* after none, one or a few of the changes that a hostile sender makes."""
    made = bytearray(packet)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(8):
            case 0 | 1 if made:
                made[at % len(made)] = rng.randrange(256)
            case 2 if len(made) >= 12:
                made[2 + rng.randrange(10)] = rng.choice((0, 1, 2, 128, 255, rng.randrange(256)))
            case 3:
                del made[at:]
            case 4:
                made[at:at] = rng.choice(_PIECES)
            case 5:
                made[at:] = other[rng.randrange(len(other) + 1) :]
            case 6:
                made[at:at] = rng.randbytes(rng.choice((1, 2, 16)))
            case _:
                del made[at : at + rng.choice((1, 2, 4, 11))]
    return bytes(made[:65535])


class NameFuzz:
    """One server, one forwarder, and a cluster that changes under them."""

    def __init__(self, seed: int, findings: NameFindings) -> None:
        self._rng = Random(seed)
        self._findings = findings
        self._now = NOW
        self._cluster = Cluster(
            namespace("default"),
            node("n1", "z1", pods="10.1.0.0/24"),
            service(clusterIP="10.96.0.7", ports=[{"name": "http", "port": 80}]),
            service("out", type="ExternalName", externalName="www.example.org"),
            service("ring", type="ExternalName", externalName=f"ring.default.svc.{ZONE}"),
            headless(),
            config=AnswerConfig(forwards=True),
            pods="insecure",
        )
        self._change()
        self._forwarder = Forwarder(
            random_bits=lambda: self._rng.getrandbits(64), is_own=self._cluster.server.view.is_own
        )
        self._forwarder.on_zones((ZoneServers(ROOT, (_SERVER,)),), self._now)
        self._sent: list[SendQuery] = []
        self._take()
        queries = [
            (name, kind, edns) for name in _NAMES for kind in _KINDS for edns in (False, True)
        ]
        self._bases = [
            bytes(
                dns.message.make_query(
                    name, kind, use_edns=0 if edns else False, want_dnssec=edns
                ).to_wire()
            )
            for name, kind, edns in queries
        ]

    def _change(self) -> None:
        """Endpoints come and go, so that what is kept is dropped and made anew."""
        rng = self._rng
        hints = rng.choice(([], ["z1"]))
        members = [
            endpoint(
                f"10.1.0.{at + 1}",
                hostname=rng.choice((None, f"peer-{at % 3}")),
                zone="z1",
                hints=hints,
            )
            for at in range(rng.choice((0, 1, 3, 100)))
        ]
        self._cluster.put(
            slice_of(
                "peers",
                *members,
                ports=[{"name": "http", "port": 8080}],
                version=rng.getrandbits(30),
            )
        )

    def step(self) -> None:
        rng = self._rng
        base, other = rng.choice(self._bases), rng.choice(self._bases)
        if rng.random() < 0.02:
            packet = rng.randbytes(rng.randrange(80))
        elif rng.random() < 0.3 and self._sent:
            self._reply(rng.choice(self._sent), other)
            return
        else:
            packet = mangled(rng, base, other)
        began = time.thread_time()
        try:
            self._query(packet)
        except Exception as error:  # that is what is looked for
            self._findings.add(f"a query raises {type(error).__name__}", f"{error}: {packet.hex()}")
        self._took(time.thread_time() - began, packet)

    def _query(self, packet: bytes) -> None:
        rng = self._rng
        transport = rng.choice(("udp", "udp", "tcp"))
        client = rng.choice(("10.1.0.9", "8.8.8.8", "fd00::1"))
        server = self._cluster.server
        turn = server._rotation
        answer = server.answer(packet, client, transport, self._now)  # type: ignore[arg-type]
        server._rotation = turn
        if answer != server.answer_slowly(packet, client, transport, self._now):  # type: ignore[arg-type]
            self._findings.add("the two ways differ", packet.hex())
        if isinstance(answer, Forward):
            size = answer.question.payload_of(transport)
            before = tuple(
                WholeRecord(owner, CNAME, ttl, alias) for owner, ttl, alias in answer.before
            )
            self._forwarder.on_query(
                answer.question, packet, self._now, size=size, target=answer.target, before=before
            )
            self._findings.done["forwarded"] += 1
            self._take()
        elif answer is not None:
            self._check_answer(packet, answer, 1232 if transport == "udp" else 65535, ours=True)
            self._findings.done["answered"] += 1
        else:
            self._findings.done["no answer"] += 1

    def _check_answer(self, packet: bytes, answer: bytes, limit: int, *, ours: bool) -> None:
        """Of others a record's data may be any bytes: they are passed on."""
        if answer[:2] != packet[:2] or len(answer) > limit:
            self._findings.add(
                "an answer to another query, or too long", f"{packet.hex()} -> {answer.hex()}"
            )
        question = read_query(packet)
        if isinstance(question, DnsQuestion) and question.cls == IN:
            read_reply(answer)
        if ours and self._rng.random() < 0.05:
            dns.message.from_wire(answer)

    def _reply(self, sent: SendQuery, other: bytes) -> None:
        """What an upstream may send, or what another may in its name."""
        rng = self._rng
        asked = read_query(sent.packet)
        assert isinstance(asked, DnsQuestion), sent.packet.hex()
        records = b"".join(
            b"\xc0\x0c"
            + rng.choice((b"\0\1", b"\0\5", b"\0\6", b"\0\x2e"))
            + b"\0\1\0\0\0\x1e"
            + data
            for data in rng.choices(
                (b"\0\4\xcb\0\x71\1", b"\0\2\xc0\x0c", b"\0\0", b"\0\5\3abc\0"), k=rng.randrange(3)
            )
        )
        head = sent.packet[:2] + rng.choice(
            (b"\x81\x80", b"\x83\x80", b"\x81\x83", b"\x81\x82", b"\x81\x81")
        )
        whole = (
            head
            + b"\0\1"
            + rng.choice((b"\0\0", b"\0\1", b"\0\2"))
            + b"\0\0\0\0"
            + asked.wire
            + records
        )
        packet = mangled(rng, whole, other)
        self._findings.done["reply"] += 1
        began = time.thread_time()
        try:
            if rng.random() < 0.05:
                self._forwarder.on_failed(sent.attempt, self._now)
            else:
                self._forwarder.on_reply(sent.attempt, packet, _SERVER, self._now)
            self._take()
        except Exception as error:
            self._findings.add(
                f"a reply raises {type(error).__name__}", f"{error}: {sent} {packet.hex()}"
            )
        self._took(time.thread_time() - began, packet)

    def _take(self) -> None:
        for action in self._forwarder.take_actions():
            if isinstance(action, SendQuery):
                self._sent.append(action)
            elif isinstance(action, SendAnswer):
                assert isinstance(action.token, bytes), action
                self._check_answer(action.token, action.packet, 65535, ours=False)
        del self._sent[:-200]

    def _took(self, took_s: float, packet: bytes) -> None:
        self._findings.slowest_s = max(self._findings.slowest_s, took_s)
        if took_s > ANSWER_CPU_S_MAX:
            self._findings.add("an answer took long", f"{took_s:.3f} s: {packet.hex()}")

    def pause(self) -> None:
        """Time goes on, the cluster changes, and everything is looked at."""
        self._now += 0.7
        self._forwarder.on_time(self._now)
        self._take()
        self._forwarder.check()
        server = self._cluster.server
        server._kept.check()
        self._change()
        server._kept.check()
        server.on_second(is_overloaded=True)


def run(seconds: float, seed: int, rounds: int | None = None) -> NameFindings:
    findings = NameFindings()
    fuzz = NameFuzz(seed, findings)
    until = time.monotonic() + seconds
    done = 0
    while time.monotonic() < until and (rounds is None or done < rounds):
        for _ in range(500):
            fuzz.step()
        fuzz.pause()
        done += 1
    return findings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = run(options.seconds, options.seed)
    print(
        f"{found.done.total():,} packets: {dict(found.done)}; the slowest took "
        f"{found.slowest_s * 1000:.1f} ms of CPU"
    )
    sys.exit(1 if found.told else 0)
