"""IP addresses, domain names and ports in API objects, in upstream's two strictnesses
(staging/src/k8s.io/apimachinery/pkg/util/validation/ip.go, pkg/apis/core/validation/validation.go).

Every function gives the complaints about one value at one path. An address of a slice is looked at
again with each write of that slice, so one answer for each is remembered, and only one:
``plain_version``, by which nearly every address is done with at once.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final

from sliceplane.api.errors import FieldErrors, invalid_value, required, show
from sliceplane.api.service_rules import PROTOCOLS, is_port
from sliceplane.kit.containers import remembered
from sliceplane.kit.ip import CANONICAL_IPV4, parse_lenient, parse_strict
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.server.registry.validation.rules import Field, of_form

#: the members of a port; protocols in the order in which messages list them
PROTOCOL: Final = Field("protocol", required=True, choices=tuple(sorted(PROTOCOLS)))
APP_PROTOCOL: Final = Field("appProtocol", form=check_qualified_name, empty=True)
PORT_RANGE = "must be between 1 and 65535, inclusive"
_IANA_MAX = 15
_NOT_AN_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
_LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
_LINK_LOCAL_MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
#: how an address begins that no endpoint may have, where it is in canonical form
_SPECIAL_V4 = ("127.", "169.254.", "224.0.0.")
_MULTICAST_LOCAL_V4 = ipaddress.IPv4Network("224.0.0.0/24")
_MULTICAST_LOCAL_V6 = ipaddress.IPv6Network("ff02::/16")


#: addresses whose form is remembered, and the characters of the longest one, of IPv6 with an IPv4
#: part
PLAIN_MAX: Final = 65536
_ADDRESS_CHARACTERS_MAX: Final = 45


@remembered(PLAIN_MAX, _ADDRESS_CHARACTERS_MAX)
def plain_version(text: str) -> int:
    """4 or 6 for an address in canonical form that any endpoint may have: there is nothing to say
    of it by any of the functions below; 0 for all else.
    """
    if CANONICAL_IPV4.fullmatch(text):
        return 0 if text.startswith(_SPECIAL_V4) or text == "0.0.0.0" else 4
    address = parse_strict(text)
    if address is None or str(address) != text or special_problem(text):
        return 0
    return address.version


def ip_problem(text: str, *, canonical: bool = False) -> str:
    """Why *text* is not an IP address as new data must spell it; "" if it is."""
    try:
        if "%" in text:
            return _NOT_AN_IP
        address = ipaddress.ip_address(text)
    except ValueError:
        lenient = parse_lenient(text)
        return _NOT_AN_IP if lenient is None else "must not have leading 0s"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return "must not be an IPv4-mapped IPv6 address"
    if canonical and str(address) != text:
        return f'must be in canonical form ("{address}")'
    return ""


def special_problem(text: str) -> str:
    """Why no endpoint may have this (well-formed) address; "" if one may."""
    address = parse_lenient(text)
    assert address is not None, f"{text!r} is not an IP address"
    if address.is_unspecified:
        return f"may not be unspecified ({text})"
    if address.is_loopback:
        return _LOOPBACK
    if address.is_link_local:
        return _LINK_LOCAL
    local = _MULTICAST_LOCAL_V4 if address.version == 4 else _MULTICAST_LOCAL_V6
    if address in local:
        return _LINK_LOCAL_MULTICAST
    return ""


def version_of(text: str) -> int:
    """4 or 6, or 0 for what is no address."""
    address = parse_lenient(text)
    return 0 if address is None else address.version


def check_endpoint_ip(path: str, text: str) -> FieldErrors:
    """An address that traffic can go to."""
    if plain_version(text):
        return []
    problem = ip_problem(text) or special_problem(text)
    return [invalid_value(path, text, problem)] if problem else []


def check_fqdn(path: str, text: str) -> FieldErrors:
    """At least two labels; a trailing dot is fine."""
    if not text:
        return [required(path)]
    name = text.removesuffix(".")
    problems = check_dns_subdomain(name)
    if problems:
        return [invalid_value(path, name, ",".join(problems))]
    labels = name.split(".")
    if len(labels) < 2:
        return [
            invalid_value(
                path, name, "should be a domain with at least two segments separated by dots"
            )
        ]
    for label in labels:
        problems = check_dns_label(label)
        if problems:
            return [invalid_value(path, label, ",".join(problems))]
    return []


def spelling(text: str) -> str:
    """What is wrong with the spelling of an address that was accepted; "" if nothing is, or if it
    is no address.
    """
    if plain_version(text):
        return ""
    address = parse_lenient(text)
    if address is None:
        return ""
    if ip_problem(text):
        until = "will be considered invalid in a future Kubernetes release"
        return f"non-standard IP address {show(text)} {until}: use {show(str(address))}"
    if str(address) != text:
        return (
            f"IPv6 address {show(text)} should be in RFC 5952 canonical format "
            f"({show(str(address))})"
        )
    return ""


def range_spelling(text: str) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return ""
    canonical = str(network)
    if canonical == text or "/" not in text:
        return ""
    return (
        f"IPv6 CIDR value {show(text)} should be in RFC 5952 canonical format ({show(canonical)})"
    )


def check_number(path: str, value: Any) -> FieldErrors:
    return [] if is_port(value) else [invalid_value(path, value, PORT_RANGE)]


def check_port(path: str, port: int | str) -> FieldErrors:
    """A number or the name of a port."""
    if isinstance(port, int):
        return check_number(path, port)
    return of_form(path, port, iana_name_problems)


def iana_name_problems(value: str) -> list[str]:
    """RFC 6335 service names, which container ports and named target ports are."""
    problems = []
    if len(value) > _IANA_MAX:
        problems.append(f"must be no more than {_IANA_MAX} characters")
    if not re.fullmatch("[-a-z0-9]+", value):
        problems.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", value):
        problems.append("must contain at least one letter (a-z)")
    if "--" in value:
        problems.append("must not contain consecutive hyphens")
    if value[:1] == "-" or value[-1:] == "-":
        problems.append("must not begin or end with a hyphen")
    return problems
