"""Canonical addresses of one family, fast for the spelling that nearly every object has; and special ones.

A proxy that starts in a large cluster reads hundreds of thousands of addresses; the general parser of
``kit.ip`` costs some 4 us each, one regular expression a tenth of that.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from sliceplane.kit.ip import Family, family, parse_lenient

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_SPECIAL_IPV4 = r"0\.0\.0\.0$|127\.|169\.254\.|2(?:2[4-9]|3[0-9])\.|255\.255\.255\.255$"
_ORDINARY_IPV4 = re.compile(rf"(?!{_SPECIAL_IPV4}){_OCTET}(?:\.{_OCTET}){{3}}")
#: addresses that mean another host on each host, or none (RFC 6890); no API server lets them into a Service or a slice
_SPECIAL: Final = (
    ("unspecified", "is_unspecified"),
    ("loopback", "is_loopback"),
    ("link-local", "is_link_local"),
    ("multicast", "is_multicast"),
)
_BROADCAST: Final = "255.255.255.255"


def canonical_of(text: str, wanted: Family) -> str | None:
    """*text* spelled canonically if it is an address of the family *wanted*, else ``None``.

    Leading zeros are decimal and an IPv4-mapped IPv6 address is IPv4 (as ``ParseIPSloppy`` of k8s.io/utils).  A
    canonical IPv4 text comes back as the same object, so that a model shares it with the cache it came from.
    """
    if _CANONICAL_IPV4.fullmatch(text):
        return text if wanted == "IPv4" else None
    address = parse_lenient(text)
    if address is None or family(address) != wanted:
        return None
    return str(address)


def ordinary_of(text: str, wanted: Family) -> str | None:
    """``canonical_of``, but ``None`` for a special address too: a node that led traffic to its own loopback would open
    what listens there to the network (CVE-2020-8558)."""
    if _ORDINARY_IPV4.fullmatch(text):
        return text if wanted == "IPv4" else None
    ip = canonical_of(text, wanted)
    return None if ip is None or special(ip) else ip


def special(ip: str) -> str:
    """What kind of special address the canonical *ip* is; "": none."""
    address = ipaddress.ip_address(ip)
    for kind, member in _SPECIAL:
        if getattr(address, member):
            return kind
    return "broadcast" if ip == _BROADCAST else ""
