"""Configuration of upstreams: parses flags and ``resolv.conf`` into frozen values.

``--forward`` names servers (``1.1.1.1``, ``[2606:4700::1111]:5353``) or files in the form of
``resolv.conf(5)``, of which only the lines ``nameserver`` and ``options rotate`` are used; ``none``
disables forwarding. ``--stub ZONE=SERVER,...`` names the servers of one zone. An invalid value
raises ``ValueError`` with a sentence for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from sliceplane.dns.forwarding.upstreams import UPSTREAMS_MAX, Policy, SocketAddress
from sliceplane.dns.wire import ROOT, WireError, name_of, text_of
from sliceplane.kit.ip import parse_strict

PORT: Final = 53
MAX_CONCURRENT: Final = 1000
_STUBS_MAX: Final = 100


class ZoneServers(msgspec.Struct, frozen=True):
    """The servers of one zone.

    ``zone`` is in wire form and lower case; the root zone is for names that are in no other zone.
    """

    zone: bytes
    servers: tuple[SocketAddress, ...]
    policy: Policy = "sequential"

    @property
    def text(self) -> str:
        return text_of(self.zone)


def parse_server(text: str, port: int = PORT) -> SocketAddress:
    """Parses ``ADDRESS``, ``ADDRESS:PORT`` or ``[ADDRESS]:PORT``."""
    host, colon, digits = text.strip(), "", ""
    if host.startswith("["):
        host, closing, rest = host[1:].partition("]")
        colon, digits = rest[:1], rest[1:]
        host = host if closing else "["
    elif host.count(":") == 1:
        host, colon, digits = host.partition(":")
    bare, percent, zone = host.partition("%")
    address = parse_strict(bare)
    if address is None or colon not in ("", ":") or (zone and ":" not in bare):
        raise ValueError(
            f"{text!r} is no name server: an IP address is expected, with or without :PORT"
        )
    if colon and not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:6]) < 65536):
        raise ValueError(f"{text!r} is no name server: its port is not a number from 1 to 65535")
    return SocketAddress(f"{address}{percent}{zone}", int(digits) if colon else port)


def parse_resolv_conf(text: str) -> ZoneServers | None:
    """Returns the name servers of a resolv.conf for the root zone; ``None`` if it names none.

    Invalid lines are ignored, as by every resolver.
    """
    servers: dict[SocketAddress, None] = {}
    policy: Policy = "sequential"
    for line in text.splitlines():
        fields = line.partition("#")[0].partition(";")[0].split()
        if fields[:1] == ["options"] and "rotate" in fields:
            policy = "random"
        if len(fields) >= 2 and fields[0] == "nameserver":
            try:
                servers[parse_server(fields[1])] = None
            except ValueError:
                continue
    return ZoneServers(ROOT, tuple(servers)[:UPSTREAMS_MAX], policy) if servers else None


def parse_stub(text: str) -> ZoneServers:
    """Parses ``ZONE=SERVER[,SERVER...]``."""
    zone, equals, servers = text.partition("=")
    try:
        name = name_of(zone.strip()).lower()
    except WireError as error:
        raise ValueError(str(error)) from None
    if not equals or not zone.strip():
        raise ValueError(
            f"{text!r} is no stub zone: ZONE=SERVER is expected, as corp.example=10.0.0.2"
        )
    return ZoneServers(
        name, tuple(dict.fromkeys(parse_server(server) for server in servers.split(",")))
    )


def check_zones(
    zones: Iterable[ZoneServers], own: Callable[[SocketAddress], bool]
) -> tuple[ZoneServers, ...]:
    """Validates *zones*, and returns them with the longest names first.

    *own* returns True for an address of this server, which is refused: a query to it would loop.
    """
    checked: dict[bytes, ZoneServers] = {}
    for zone in zones:
        if zone.zone in checked:
            raise ValueError(f"the zone {zone.text} is given twice; name all its servers at once")
        if len(zone.servers) > UPSTREAMS_MAX:
            raise ValueError(
                f"the zone {zone.text} has {len(zone.servers)} servers; {UPSTREAMS_MAX} is the most"
            )
        for server in zone.servers:
            if own(server):
                raise ValueError(
                    f"{server}, which names under {zone.text} are to be asked of, is this server "
                    "itself: name another "
                    "one with --forward, or listen on another address"
                )
        checked[zone.zone] = zone
    if len(checked) > _STUBS_MAX:
        raise ValueError(f"{len(checked)} zones are given; {_STUBS_MAX} is the most")
    return tuple(sorted(checked.values(), key=lambda zone: (-len(zone.zone), zone.zone)))
