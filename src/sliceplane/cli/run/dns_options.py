"""What the commands that answer names have in common: their flags, and what these amount to."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.options import with_options
from sliceplane.cli.values import DurationType, ListenType, SwitchType

if TYPE_CHECKING:
    from sliceplane.dns.clients import AnswerConfig
    from sliceplane.dns.io.upstream import ForwardFlags
    from sliceplane.dns.view import ZoneConfig
    from sliceplane.kit.ip import Network


#: of a record; longer than a Service may keep a stale answer
_TTL_S_MAX: Final = 3600


class NetworkType(click.ParamType["Network"]):
    """``ADDRESS/LENGTH``."""

    name = "cidr"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Network:
        try:
            return ip_network(str(value), strict=False)
        except ValueError:
            self.fail(f"{value!r} is no range of addresses (10.0.0.0/8)", param, ctx)


class ClientZoneType(click.ParamType["tuple[Network, str]"]):
    """``CIDR=ZONE``."""

    name = "cidr=zone"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Network, str]:
        if isinstance(value, tuple):
            return value
        cidr, _, zone = str(value).partition("=")
        if not zone:
            self.fail(f"{value!r} is no CIDR=ZONE (10.1.0.0/16=eu-1a)", param, ctx)
        return NetworkType().convert(cidr, param, ctx), zone


class DomainType(click.ParamType[str]):
    """A domain name."""

    name = "domain"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from sliceplane.dns.wire import WireError, name_of

        try:
            name_of(str(value))
        except WireError as error:
            self.fail(str(error), param, ctx)
        return str(value).lower().removesuffix(".")


def _whole_seconds(_ctx: click.Context, _: click.Parameter, seconds: float) -> int:
    if not 0 <= seconds <= _TTL_S_MAX or seconds % 1:
        raise click.BadParameter("a TTL is of whole seconds, at most 1h")
    return int(seconds)


zone_options = with_options(
    click.option(
        "--cluster-domain",
        type=DomainType(),
        multiple=True,
        default=("cluster.local",),
        metavar="NAME",
        show_default=True,
        help="The zone of the cluster's names; may be given several times.",
    ),
    click.option(
        "--ttl",
        "ttl_s",
        type=DurationType(),
        default="5s",
        show_default=True,
        callback=_whole_seconds,
        help="How long clients may keep a record; at most 1h.",
    ),
    click.option(
        "--pods",
        type=click.Choice(("disabled", "insecure", "verified")),
        default="disabled",
        show_default=True,
        help="Names such as 10-0-0-7.NAMESPACE.pod; insecure: any address, whether a Pod has it "
        "or not; verified: "
        "those that a Pod of the Namespace has, for which all Pods are watched.",
    ),
    click.option(
        "--namespaces", default="", metavar="NAME,...", help="Names of these alone.  [default: all]"
    ),
    click.option(
        "--reverse-cidrs",
        type=NetworkType(),
        multiple=True,
        metavar="CIDR",
        help=(
            "Names of these addresses are the cluster's, also where there is none; may be given "
            "several times."
        ),
    ),
    click.option(
        "--zone-answers",
        type=SwitchType(),
        is_flag=False,
        flag_value=True,
        default=True,
        show_default=True,
        help=(
            "Clients get the endpoints of headless Services that hints name for their zone or node."
        ),
    ),
    click.option(
        "--client-zone",
        "client_zones",
        type=ClientZoneType(),
        multiple=True,
        metavar="CIDR=ZONE",
        help=(
            "Where clients are; may be given several times.  [default: as Pods, endpoints and "
            "Nodes say]"
        ),
    ),
)

forward_options = with_options(
    click.option(
        "--forward",
        multiple=True,
        default=("/etc/resolv.conf",),
        metavar="SERVER|FILE",
        show_default=True,
        help="Ask there for names that are not the cluster's: ADDRESS, ADDRESS:PORT, or a file "
        "that names servers as "
        "resolv.conf does; may be given several times; none: refuse them.",
    ),
    click.option(
        "--forward-skip",
        multiple=True,
        metavar="ADDRESS",
        help="Pass this server over in a file of --forward: an address that leads back here.",
    ),
    click.option(
        "--stub",
        "stubs",
        multiple=True,
        metavar="ZONE=SERVER,...",
        help="Ask these servers for names of the zone; may be given several times.",
    ),
    click.option(
        "--hosts",
        default="",
        metavar="FILE",
        help="Answer from this table, as /etc/hosts is one, before any server is asked.",
    ),
    click.option(
        "--forward-max",
        type=click.IntRange(min=1),
        default=1000,
        show_default=True,
        metavar="N",
        help="Ask for so many names at once; more are refused.",
    ),
    click.option(
        "--serve-stale",
        type=DurationType(),
        default="0s",
        show_default=True,
        help="Where no server answers, use what one said before for so long after its time.",
    ),
)

client_options = with_options(
    click.option(
        "--allow",
        type=NetworkType(),
        multiple=True,
        metavar="CIDR",
        help="Who gets answers; may be given several times.  [default: whoever reaches the address]",
    ),
    click.option(
        "--shared-resolvers",
        type=NetworkType(),
        multiple=True,
        metavar="CIDR",
        help="Caches that ask for clients of many zones: they get every endpoint.",
    ),
    click.option(
        "--rate-limit",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="N",
        help="Answers over UDP a second, of one name, to one /24 or /56; 0: no limit.",
    ),
)

listen_option = click.option(
    "--listen",
    type=ListenType(),
    multiple=True,
    metavar="ADDRESS:PORT",
    default=(("127.0.0.1", 53),),
    show_default="127.0.0.1:53",
    help="Answer there, over UDP and TCP; may be given several times.",
)


def zone_config(
    flags: dict[str, Any], *, addresses: tuple[str, ...] = (), place: str = ""
) -> ZoneConfig:
    """*addresses*: of the server itself.  *place*: the node whose clients it has, if it is a node's
    own.
    """
    from sliceplane.dns.view import ZoneConfig

    return ZoneConfig(
        domains=tuple(flags["cluster_domain"]),
        ttl_s=flags["ttl_s"],
        pods=flags["pods"],
        namespaces=tuple(name.strip() for name in flags["namespaces"].split(",") if name.strip()),
        reverse_cidrs=tuple(flags["reverse_cidrs"]),
        addresses=addresses,
        zone_answers=flags["zone_answers"],
        client_zones=tuple(flags["client_zones"]),
        place=place,
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
