"""The query as a user writes it, and sentences for queries without an answer."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from sliceplane.api.service_rules import PORT_MAX, is_port
from sliceplane.kit.ip import Family, canonical

Protocol = Literal["TCP", "UDP", "SCTP"]

NAMESPACE_DEFAULT: Final = "default"
OUTSIDE: Final = "outside"
#: source addresses of ``outside``: addresses for documentation (RFC 5737, RFC 3849), which no
#: cluster has
OUTSIDE_ADDRESSES: Final[dict[Family, str]] = {"IPv4": "203.0.113.1", "IPv6": "2001:db8::1"}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Unanswerable(Exception):
    """The query is invalid, or names an object that does not exist; the text is a sentence."""


class AddressTarget(msgspec.Struct, frozen=True):
    """An address in canonical form and a port; 0: not given."""

    ip: str
    port: int

    def __str__(self) -> str:
        return joined(self.ip, self.port)


class NameTarget(msgspec.Struct, frozen=True):
    """A Service; *port* is a name or a number, and may be "" if there is one port."""

    namespace: str
    name: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NamedSource(msgspec.Struct, frozen=True):
    """A Pod, or with an empty *namespace* a Node, whose address is in the cluster's objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"Pod {self.namespace}/{self.name}" if self.namespace else f"Node {self.name}"


class Question(msgspec.Struct, frozen=True):
    """*source* is canonical; without *protocol* it is the Service's, or TCP; *node* may be "" if it
    can be derived.
    """

    source: str
    to: AddressTarget | NameTarget
    protocol: Protocol | None = None
    node: str = ""


def parse_source(text: str, namespace: str = NAMESPACE_DEFAULT) -> str | NamedSource:
    """Parses an IP address, ``[pod/]NAME`` (a Pod of *namespace*) or ``node/NAME``."""
    ip = canonical(text.removeprefix("[").removesuffix("]"))
    if ip is not None:
        return ip
    kind, _, name = text.rpartition("/")
    if kind not in ("", "pod", "node") or not _NAME.fullmatch(name):
        raise Unanswerable(
            f"--from {text!r} is neither an IP address nor [pod/]NAME nor node/NAME nor {OUTSIDE}"
        )
    return NamedSource("" if kind == "node" else namespace, name)


def parse_to(text: str, in_namespace: str = NAMESPACE_DEFAULT) -> AddressTarget | NameTarget:
    """Parses ``ADDRESS:PORT``, ``[ADDRESS]:PORT`` or ``SERVICE[.NAMESPACE][:PORT]``; the DNS suffix
    of a Service's name (``.svc`` and the cluster's domain) is ignored. A name alone is of
    *in_namespace*.
    """
    bare = canonical(text.removeprefix("[").removesuffix("]"))
    if bare is not None:
        return AddressTarget(bare, 0)
    host, colon, port = text.rpartition(":")
    if not colon:
        host = text
        port = ""
    ip = canonical(host.removeprefix("[").removesuffix("]"))
    if ip is not None:
        if not (port.isascii() and port.isdigit() and is_port(int(port))):
            raise Unanswerable(f"--to {text!r}: a port is a number from 1 to {PORT_MAX}")
        return AddressTarget(ip, int(port))
    name, _, rest = host.partition(".")
    namespace = re.sub(r"(^|\.)svc(\..*)?$", "", rest) or in_namespace
    if not _NAME.fullmatch(host) or "." in namespace:
        raise Unanswerable(
            f"--to {text!r} is neither an address and a port nor SERVICE[.NAMESPACE][:PORT]"
        )
    return NameTarget(namespace, name, port)


def family_of(ip: str) -> Family:
    return "IPv6" if ":" in ip else "IPv4"


def joined(ip: str, port: int) -> str:
    if not port:
        return ip
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
