"""IP addresses: one strict parse, one lenient parse, one canonical spelling.

*Strict* is what new data must be: no leading zeros, no IPv4-mapped IPv6, canonical IPv6. *Lenient*
is what old data may contain and what kube-proxy accepts; its result is always spelled canonically.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, Literal

Family = Literal["IPv4", "IPv6"]
FAMILIES: Final[tuple[Family, ...]] = ("IPv4", "IPv6")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: the canonical spelling of ``ipaddress``; anything else is parsed slowly
CANONICAL_IPV4: Final = re.compile(
    r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)", re.ASCII
)


def join_host_port(host: str, port: int) -> str:
    """Returns ``host:port`` as URLs and flags have it, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_strict(text: str) -> Address | None:
    """Returns the address, or ``None``. Zones (``%eth0``), leading zeros and IPv4-mapped forms are
    refused.
    """
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return None
    return address


def parse_lenient(text: str) -> Address | None:
    """Returns the address, or ``None``. Leading zeros are decimal; an IPv4-mapped IPv6 address is
    IPv4.
    """
    strict = parse_strict(text)
    if strict is not None:
        return strict
    parts = text.split(".")
    if len(parts) == 4 and all(
        part.isascii() and part.isdigit() and len(part) <= 6 for part in parts
    ):
        numbers = [int(part) for part in parts]
        if max(numbers) <= 255:
            return ipaddress.IPv4Address(".".join(map(str, numbers)))
        return None
    if "%" in text:
        return None
    try:
        return ipaddress.IPv6Address(text).ipv4_mapped
    except ValueError:
        return None


def parse_network_lenient(text: str) -> Network | None:
    """Returns the network of ``address/length``, or ``None``. Host bits, surrounding spaces and
    leading zeros are ignored; a length is required.
    """
    address_text, slash, length_text = text.strip().partition("/")
    address = parse_lenient(address_text)
    if (
        address is None
        or not slash
        or not (length_text.isascii() and length_text.isdigit() and len(length_text) <= 3)
    ):
        return None
    if int(length_text) > address.max_prefixlen:
        return None
    return ipaddress.ip_network((address, int(length_text)), strict=False)


def networks(texts: Iterable[str], family_name: Family) -> tuple[str, ...]:
    """Returns the networks of *family_name* among *texts*, disjoint, sorted, in canonical form;
    others are ignored.
    """
    parsed = [network for text in texts if (network := parse_network_lenient(text)) is not None]
    if family_name == "IPv4":
        four = [network for network in parsed if isinstance(network, ipaddress.IPv4Network)]
        return tuple(str(network) for network in ipaddress.collapse_addresses(four))
    six = [network for network in parsed if isinstance(network, ipaddress.IPv6Network)]
    return tuple(str(network) for network in ipaddress.collapse_addresses(six))


def family(address: Address) -> Family:
    return "IPv4" if address.version == 4 else "IPv6"


def canonical_with_family(text: str) -> tuple[Family, str] | None:
    """Returns family and canonical spelling of a leniently parsed address; fast for canonical IPv4."""
    if CANONICAL_IPV4.fullmatch(text):
        return "IPv4", text
    address = parse_lenient(text)
    return None if address is None else (family(address), str(address))


def canonical(text: str) -> str | None:
    """Returns the canonical spelling of a leniently parsed address, or ``None``."""
    address = parse_lenient(text)
    return None if address is None else str(address)
