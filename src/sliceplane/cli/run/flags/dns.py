"""The flags that DNS commands share, and the settings from them."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.flags import (
    boolean,
    choice,
    duration,
    number,
    option,
    string,
    strings,
    with_options,
)
from sliceplane.cli.values import LISTEN, ParsedType, names_in

if TYPE_CHECKING:
    from sliceplane.dns.clients import AnswerConfig
    from sliceplane.dns.cluster_names import ZoneConfig
    from sliceplane.dns.io.upstream import ForwardFlags
    from sliceplane.kit.ip import Network


#: of a record; longer than a Service may keep a stale answer
_TTL_S_MAX: Final = 3600


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise ValueError(f"{text!r} is no range of addresses (10.0.0.0/8)") from error


def _client_zone(text: str) -> tuple[Network, str]:
    cidr, _, zone = text.partition("=")
    if not zone:
        raise ValueError(f"{text!r} is no CIDR=ZONE (10.1.0.0/16=eu-1a)")
    return _network(cidr), zone


def _domain(text: str) -> str:
    from sliceplane.dns.wire import WireError, name_of

    try:
        name_of(text)
    except WireError as error:
        raise ValueError(str(error)) from error
    return text.lower().removesuffix(".")


NETWORK: Final = ParsedType("cidr", _network)
DOMAIN: Final = ParsedType("name", _domain)


def _whole_seconds(_ctx: click.Context, _: click.Parameter, seconds: float) -> int:
    if not 0 <= seconds <= _TTL_S_MAX or seconds % 1:
        raise click.BadParameter("a TTL is of whole seconds, at most 1h")
    return int(seconds)


zone_options = with_options(
    option(
        "--cluster-domain",
        "The zone of the cluster's names; may be given several times.",
        ("cluster.local",),
        type=DOMAIN,
        multiple=True,
    ),
    duration(
        "--ttl ttl_s",
        "How long clients may keep a record; at most 1h.",
        "5s",
        callback=_whole_seconds,
    ),
    choice(
        "--pods",
        "Names such as 10-0-0-7.NAMESPACE.pod; insecure: any address, whether a Pod has it "
        "or not; verified: those that a Pod of the Namespace has, for which all Pods are "
        "watched.",
        ("disabled", "insecure", "verified"),
        "disabled",
    ),
    string("--namespaces", "NAME,...", "Names of these alone.  [default: all]"),
    option(
        "--reverse-cidrs",
        "Names of these addresses are the cluster's, also where there is none; may be given "
        "several times.",
        type=NETWORK,
        multiple=True,
    ),
    boolean(
        "--zone-answers",
        "Clients get the endpoints of headless Services that hints name for their zone or node.",
        True,
    ),
    option(
        "--client-zone client_zones",
        "Where clients are; may be given several times.  [default: as Pods, endpoints and "
        "Nodes say]",
        type=ParsedType("cidr=zone", _client_zone),
        multiple=True,
    ),
)

forward_options = with_options(
    strings(
        "--forward",
        "SERVER|FILE",
        "Ask there for names that are not the cluster's: ADDRESS, ADDRESS:PORT, or a file "
        "that names servers as resolv.conf does; may be given several times; none: refuse "
        "them.",
        ("/etc/resolv.conf",),
    ),
    strings(
        "--forward-skip",
        "ADDRESS",
        "Pass this server over in a file of --forward: an address that leads back here.",
    ),
    strings(
        "--stub stubs",
        "ZONE=SERVER,...",
        "Ask these servers for names of the zone; may be given several times.",
    ),
    string(
        "--hosts",
        "FILE",
        "Answer from this table, as /etc/hosts is one, before any server is asked.",
    ),
    number("--forward-max", "Ask for so many names at once; more are refused.", 1000, least=1),
    duration(
        "--serve-stale",
        "Where no server answers, use what one said before for so long after its time.",
        "0s",
    ),
)

client_options = with_options(
    option(
        "--allow",
        "Who gets answers; may be given several times.  [default: whoever reaches the address]",
        type=NETWORK,
        multiple=True,
    ),
    option(
        "--shared-resolvers",
        "Caches that ask for clients of many zones: they get every endpoint.",
        type=NETWORK,
        multiple=True,
    ),
    option(
        "--rate-limit",
        "Answers over UDP a second, of one name, to one /24 or /56; 0: no limit.",
        0.0,
        type=click.FloatRange(min=0),
        metavar="N",
    ),
)

listen_option = option(
    "--listen",
    "Answer there, over UDP and TCP; may be given several times.  [default: 127.0.0.1:53]",
    (("127.0.0.1", 53),),
    type=LISTEN,
    multiple=True,
    show_default=False,
)


def zone_config(
    flags: dict[str, Any], *, addresses: tuple[str, ...] = (), own_node: str = ""
) -> ZoneConfig:
    """*addresses*: the server's own.  *own_node*: the node of all its clients, if the server is a
    node's own.
    """
    from sliceplane.dns.cluster_names import ZoneConfig

    return ZoneConfig(
        domains=tuple(flags["cluster_domain"]),
        ttl_s=flags["ttl_s"],
        pods=flags["pods"],
        namespaces=names_in(flags["namespaces"]),
        reverse_cidrs=tuple(flags["reverse_cidrs"]),
        addresses=addresses,
        zone_answers=flags["zone_answers"],
        client_zones=tuple(flags["client_zones"]),
        own_node=own_node,
    )


def forward_flags(flags: dict[str, Any]) -> ForwardFlags | None:
    """``None``: nothing is forwarded."""
    from sliceplane.dns.io.upstream import ForwardFlags

    forward = tuple(text for text in flags["forward"] if text != "none")
    if not (forward or flags["stubs"] or flags["hosts"]):
        return None
    return ForwardFlags(
        forward=forward,
        skip=tuple(flags["forward_skip"]),
        stubs=tuple(flags["stubs"]),
        hosts=flags["hosts"],
        max_concurrent=flags["forward_max"],
        stale_s=flags["serve_stale"],
    )


def answer_config(flags: dict[str, Any]) -> AnswerConfig:
    from sliceplane.dns.clients import AnswerConfig

    return AnswerConfig(
        forwards=forward_flags(flags) is not None,
        allow=tuple(flags["allow"]),
        shared_resolvers=tuple(flags["shared_resolvers"]),
        rate=flags["rate_limit"],
    )
