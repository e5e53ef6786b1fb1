"""CoreDNS reads our API server, and answers as our name server does: all names of generated
objects, asked for every type, with no difference but those that docs/dns.md lists.

Its Corefile has no cache and forwards nothing. Compared are the code, AA, and the records of the
answer; of a denial that it has an SOA, for what that says differs by design.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.tools import peers
from benchmarks.tools.cluster import Wanted, populate
from benchmarks.tools.process import PlaneProcess

from benchmarks import name_server
from sliceplane.api.scheme import EndpointSlices, Namespaces, Services
from sliceplane.dns.forwarding.message import encode_query, read_reply
from sliceplane.dns.wire import AA, CNAME, HINFO, NOERROR, NXDOMAIN, SOA, TYPE_NAMES, name_of
from sliceplane.kit.rng import Rng

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]

ZONE = "cluster.local"
KINDS = {
    text: kind
    for kind, text in TYPE_NAMES.items()
    if text in ["A", "AAAA", "SRV", "PTR", "TXT", "SOA", "NS", "ANY", "HTTPS"]
}
OBJECTS = 10_000
_NAMESPACES = 20
_AT_ONCE = 256


class Told(NamedTuple):
    """What is compared of a reply."""

    rcode: int
    authoritative: bool
    answer: tuple[tuple[bytes, int, int, bytes], ...]
    denial: tuple[int, ...]


class Generated:
    """Objects drawn from a seed, and every name that they have, could have, or nearly have."""

    def __init__(self, seed: int, count: int) -> None:
        self._rng = Rng(seed)
        self._addresses = iter(range(count * 10))
        self.names: dict[str, None] = {}
        self._name(
            f"{ZONE}.",
            f"svc.{ZONE}.",
            f"pod.{ZONE}.",
            f"dns-version.{ZONE}.",
            f"ns.dns.{ZONE}.",
            f"x.{ZONE}.",
        )
        self.objects: list[Wanted] = []
        for number in range(_NAMESPACES):
            self.objects.append((Namespaces, "", {"metadata": {"name": f"team-{number}"}}, None))
            self._name(
                f"team-{number}.svc.{ZONE}.",
                f"team-{number}.pod.{ZONE}.",
                f"none.team-{number}.svc.{ZONE}.",
            )
        self._name(f"a.nowhere.svc.{ZONE}.", f"nowhere.svc.{ZONE}.")
        number = 0
        while len(self.objects) < count:
            self._service(f"s{number}", f"team-{self._rng.below(_NAMESPACES)}")
            number += 1

    def _name(self, *names: str) -> None:
        self.names |= dict.fromkeys(names)

    def _service(self, name: str, namespace: str) -> None:
        own = f"{name}.{namespace}.svc.{ZONE}."
        ports = [
            {"name": port, "port": 80 + at, "protocol": protocol}
            for at, (port, protocol) in enumerate(
                [("http", "TCP"), ("dns", "UDP"), ("metrics", "TCP")]
            )
        ][: 1 + self._rng.below(3)]
        labels = [f"_{port['name']}._{str(port['protocol']).lower()}" for port in ports]
        self._name(
            own,
            f"_tcp.{own}",
            f"none.{own}",
            f"_none._tcp.{own}",
            *(f"{label}.{own}" for label in labels),
        )
        spec: dict[str, Any] = {"ports": ports}
        kind = self._rng.below(10)
        if kind == 0:
            target = f"s{self._rng.below(1000)}.{namespace}.svc.{ZONE}"
            spec = {"type": "ExternalName", "externalName": target}
        elif kind <= 5:
            spec["clusterIP"] = "None"
        elif kind <= 7:
            spec |= {"ipFamilyPolicy": "PreferDualStack"}
        self.objects.append((Services, namespace, {"metadata": {"name": name}, "spec": spec}, None))
        if kind:
            for at in range(self._rng.below(3) + 1):
                self._slice(name, namespace, at, ports, own)

    def _slice(
        self, name: str, namespace: str, at: int, ports: list[dict[str, Any]], own: str
    ) -> None:
        endpoints = []
        for _ in range(self._rng.below(5)):
            number = next(self._addresses)
            address = (
                f"fd10::{number:x}"
                if at == 2
                else f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
            )
            endpoint: dict[str, Any] = {
                "addresses": [address],
                "conditions": {"ready": self._rng.below(4) > 0} if self._rng.below(5) else {},
            }
            if self._rng.below(3) == 0:
                endpoint["hostname"] = f"h{self._rng.below(3)}"
                self._name(f"{endpoint['hostname']}.{own}")
            self._name(f"{str(ip_address(address)).replace('.', '-').replace(':', '-')}.{own}")
            self._name(f"{ip_address(address).reverse_pointer}.")
            endpoints.append(endpoint)
        document = {
            "metadata": {"name": f"{name}-{at}", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv6" if at == 2 else "IPv4",
            "endpoints": endpoints,
            "ports": [port | {"port": int(port["port"]) + 8000} for port in ports],
        }
        self.objects.append((EndpointSlices, namespace, document, None))


async def told(port: int, questions: list[tuple[str, int]]) -> list[Told]:
    """The answers over one TCP connection, so many at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers: list[Told] = []
    for begin in range(0, len(questions), _AT_ONCE):
        some = questions[begin : begin + _AT_ONCE]
        for number, (name, kind) in enumerate(some):
            packet = encode_query(number, name_of(name), kind, edns=False, do=False, flags=0)
            writer.write(len(packet).to_bytes(2, "big") + packet)
        came: dict[int, Told] = {}
        while len(came) < len(some):
            packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            reply = read_reply(packet)
            records = sorted(
                {(r.owner.lower(), r.type, r.ttl, r.data.lower()) for r in reply.answer}
            )
            denial = tuple(sorted(record.type for record in reply.authority))
            came[reply.id] = Told(reply.rcode, bool(reply.flags & AA), tuple(records), denial)
        answers += [came[number] for number in range(len(some))]
    writer.close()
    return answers


def listed(name: str, kind: str, ours: Told, theirs: Told, external: frozenset[str]) -> str:
    """The row of the list of differences that this one is; "": none."""
    first = name.partition(".")[0]
    reverse = name.endswith(".arpa.")
    nothing = (
        ours.rcode == NOERROR
        and not ours.answer
        and ours.denial == (SOA,)
        and theirs.rcode == NXDOMAIN
    )
    if kind == "ANY" and [record[1] for record in ours.answer] == [HINFO] and not theirs.answer:
        return "ANY has one record"
    if nothing and first in ("_tcp", "_udp", "dns-version"):
        return "a name above names, or of another type, is there"
    if nothing and (kind != "PTR" if reverse else kind in ("TXT", "PTR", "HTTPS")):
        return "a name above names, or of another type, is there"
    if kind == "SOA" and ours.rcode == NXDOMAIN and theirs == Told(NOERROR, True, (), (SOA,)):
        return "no name is there for SOA, too"
    if first.startswith("_") and kind in ("A", "AAAA") and not ours.answer and theirs.answer:
        return "a port has no addresses"
    if (
        name in external
        and kind != "ANY"
        and not theirs.answer
        and CNAME in {record[1] for record in ours.answer}
    ):
        return "an alias stands for every type"
    if reverse and kind == "PTR" and ours.answer and set(ours.answer) < set(theirs.answer):
        return "an address has its best names"
    if (
        (name, kind) in ((f"{ZONE}.", "NS"), (f"ns.dns.{ZONE}.", "A"))
        and ours.answer
        and not theirs.answer
    ):
        return "a server has its own address without a Service"
    if kind == "SOA" and ours.answer and without_serials(ours) == without_serials(theirs):
        return "a serial of the last change"
    if first == "dns-version" and kind == "TXT" and ours.answer[0][3] == theirs.answer[0][3]:
        return "one TTL"
    return ""


def without_serials(told: Told) -> list[tuple[bytes, int, int, bytes]]:
    return [
        (owner, kind, ttl, data[:-20] + data[-16:])
        for owner, kind, ttl, data in told.answer
        if kind == SOA
    ]


def differences(
    questions: Iterable[tuple[str, int]],
    ours: Iterable[Told],
    theirs: Iterable[Told],
    external: frozenset[str],
) -> Iterator[tuple[str, str]]:
    """Row of the list, and what differs."""
    for (name, kind), own, other in zip(questions, ours, theirs, strict=True):
        if own != other:
            text = TYPE_NAMES[kind]
            yield (
                listed(name, text, own, other, external),
                f"{name} {text}\n  ours   {own}\n  theirs {other}",
            )


def test_every_name_of_generated_objects_is_answered_as_coredns_does(tmp_path: Path) -> None:
    generated = Generated(seed=7, count=OBJECTS)
    assert len(generated.objects) >= OBJECTS
    headless = [f"peers.default.svc.{ZONE}."]  # by which the benchmark sees that CoreDNS is there
    asyncio.run(populate(tmp_path / "data", [*name_server.objects(0), *generated.objects]))
    program = peers.build("coredns")
    assert program is not None
    with PlaneProcess(tmp_path, command="apiserver") as plane, ExitStack() as stack:
        process, port = name_server.ours(plane.kubeconfig, tmp_path)
        stack.enter_context(process)
        other, their_port = name_server.coredns(program, plane.kubeconfig, tmp_path, cache=False)
        stack.enter_context(other)
        questions = [
            (name, kind) for name in [*headless, *generated.names] for kind in KINDS.values()
        ]
        ours = asyncio.run(told(port, questions))
        theirs = asyncio.run(told(their_port, questions))
    external = frozenset(
        f"{document['metadata']['name']}.{namespace}.svc.{ZONE}."
        for _, namespace, document, _ in generated.objects
        if document.get("spec", {}).get("type") == "ExternalName"
    )
    rows: Counter[str] = Counter()
    unlisted = []
    for row, text in differences(questions, ours, theirs, external):
        rows[row] += 1
        if not row:
            unlisted.append(text)
    print(
        f"{len(generated.objects)} objects, {len(questions)} questions, differences: "
        f"{dict(sorted(rows.items()))}"
    )
    assert not unlisted, f"{len(unlisted)} that are not listed:\n" + "\n".join(unlisted[:20])
