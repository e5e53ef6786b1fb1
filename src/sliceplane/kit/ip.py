"""IP addresses: one strict parse, one lenient parse, one canonical spelling.

*Strict* is what new data must be: no leading zeros, no IPv4-mapped IPv6, canonical IPv6.  *Lenient* is
what old data may contain and what kube-proxy accepts; its result is always spelled canonically.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Literal

Family = Literal["IPv4", "IPv6"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: spelled as ``ipaddress`` would spell it; anything else takes the slow way
CANONICAL_IPV4: Final = re.compile(
    r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)", re.ASCII
)


def parse_strict(text: str) -> Address | None:
    """The address, or ``None``.  Zones (``%eth0``), leading zeros and IPv4-mapped forms are refused."""
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
    """The address, or ``None``.  Leading zeros are decimal; an IPv4-mapped IPv6 address is IPv4."""
    strict = parse_strict(text)
    if strict is not None:
        return strict
    parts = text.split(".")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and len(part) <= 6 for part in parts):
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


def family(address: Address) -> Family:
    return "IPv4" if address.version == 4 else "IPv6"


def canonical_with_family(text: str) -> tuple[Family, str] | None:
    """Family and canonical spelling of a leniently parsed address; quick for IPv4 that is spelled so already."""
    if CANONICAL_IPV4.fullmatch(text):
        return "IPv4", text
    address = parse_lenient(text)
    return None if address is None else (family(address), str(address))


def canonical(text: str) -> str | None:
    """The canonical spelling of a leniently parsed address, or ``None``."""
    address = parse_lenient(text)
    return None if address is None else str(address)
