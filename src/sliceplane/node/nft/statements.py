"""Statements of our rules.  A statement matches a packet, decides on it, or changes it; it renders
in the syntax of nft.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

#: the bit of the packet mark that requests masquerading, upstream's default; not an interface for
#: other programs
MASQUERADE_MARK = 1 << 14

NftFamily = Literal["ip", "ip6"]
Field = Literal["saddr", "daddr", "proto", "dport"]
DESTINATION: tuple[Field, ...] = ("daddr", "proto", "dport")


def _fields(fields: tuple[Field, ...], family: NftFamily) -> str:
    texts = {
        "saddr": f"{family} saddr",
        "daddr": f"{family} daddr",
        "proto": "meta l4proto",
        "dport": "th dport",
    }
    return " . ".join(texts[field] for field in fields)


class _Always:
    """A statement without operands: the same text in every rule."""

    __slots__ = ()
    TEXT: ClassVar[str]

    def render(self, _family: NftFamily) -> str:
        return self.TEXT


class CtStateNew(_Always, msgspec.Struct, frozen=True):
    """Matches the first packet of a connection."""

    TEXT = "ct state new"


class CtStatusDnat(_Always, msgspec.Struct, frozen=True):
    """Matches connections whose destination was translated, by us or by others."""

    TEXT = "ct status dnat"


class InSet(msgspec.Struct, frozen=True):
    """Matches if the fields are an element."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"{_fields(self.fields, family)} @{self.container}"


class Vmap(msgspec.Struct, frozen=True):
    """Looks the fields up and follows the verdict; without an element the rule ends."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"{_fields(self.fields, family)} vmap @{self.container}"


class DnatMap(msgspec.Struct, frozen=True):
    """Looks the fields up; the destination becomes the value.  Without an element the rule ends."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"dnat {family} to {_fields(self.fields, family)} map @{self.container}"


class DnatBucket(msgspec.Struct, frozen=True):
    """Looks the fields up with a random number below ``count``; the destination becomes the value.
    Without an element the rule ends.
    """

    fields: tuple[Field, ...]
    count: int
    container: str

    def render(self, family: NftFamily) -> str:
        return (
            f"dnat {family} to {_fields(self.fields, family)} . numgen random mod {self.count} "
            f"map @{self.container}"
        )


class Jump(msgspec.Struct, frozen=True):
    """Evaluates a chain and returns."""

    chain: str

    def render(self, _family: NftFamily) -> str:
        return f"jump {self.chain}"


class Reject(_Always, msgspec.Struct, frozen=True):
    """Answers with ICMP port unreachable."""

    TEXT = "reject"


class ResetTcp(_Always, msgspec.Struct, frozen=True):
    """Answers TCP with a reset; other protocols go on to the next rule."""

    TEXT = "meta l4proto tcp reject with tcp reset"


class Masquerade(_Always, msgspec.Struct, frozen=True):
    """Translates the source to an address of this node, with a random port."""

    TEXT = "masquerade fully-random"


class Balance(msgspec.Struct, frozen=True):
    """Translates the destination to one of the targets ``offset`` to ``offset + count - 1`` of a
    map, all equally likely.
    """

    protocol: str
    count: int
    offset: int
    container: str

    def render(self, family: NftFamily) -> str:
        number = f"numgen random mod {self.count} offset {self.offset}"
        return f"meta l4proto {self.protocol} dnat {family} to {number} map @{self.container}"


class AddressIn(msgspec.Struct, frozen=True):
    """Matches if the address is in one of ``networks`` (``inside``), or in none of them."""

    field: Literal["saddr", "daddr"]
    networks: tuple[str, ...]
    inside: bool = True

    def render(self, family: NftFamily) -> str:
        return (
            f"{family} {self.field} {'' if self.inside else '!= '}{{ {', '.join(self.networks)} }}"
        )


class FromInterface(msgspec.Struct, frozen=True):
    """Matches if the packet came in through the interface (``inside``), or did not; a name may end
    with ``*``.
    """

    name: str
    inside: bool = True

    def render(self, _family: NftFamily) -> str:
        return f'iifname {"" if self.inside else "!= "}"{self.name}"'


class IsOwnAddress(msgspec.Struct, frozen=True):
    """Matches if the address is one of this host's, including loopback addresses."""

    field: Literal["saddr", "daddr"]

    def render(self, _family: NftFamily) -> str:
        return f"fib {self.field} type local"


class Goto(msgspec.Struct, frozen=True):
    """Continues in a chain and does not return to this one."""

    chain: str

    def render(self, _family: NftFamily) -> str:
        return f"goto {self.chain}"


class Drop(_Always, msgspec.Struct, frozen=True):
    """Drops the packet without an answer."""

    TEXT = "drop"


class SetMark(_Always, msgspec.Struct, frozen=True):
    """Marks the packet for masquerading in postrouting."""

    TEXT = f"meta mark set meta mark or {MASQUERADE_MARK:#x}"


class ClearMark(_Always, msgspec.Struct, frozen=True):
    """Matches if the packet has the masquerading mark, and clears it."""

    TEXT = f"meta mark & {MASQUERADE_MARK:#x} != 0 meta mark set meta mark xor {MASQUERADE_MARK:#x}"


class Remember(msgspec.Struct, frozen=True):
    """Adds the source address to a dynamic set, or restarts its timeout there."""

    container: str

    def render(self, family: NftFamily) -> str:
        return f"update @{self.container} {{ {family} saddr }}"


class Dnat(msgspec.Struct, frozen=True):
    """Translates the destination to this one."""

    protocol: str
    ip: str
    port: int

    def render(self, family: NftFamily) -> str:
        address = self.ip if family == "ip" else f"[{self.ip}]"
        return f"meta l4proto {self.protocol} dnat {family} to {address}:{self.port}"


class GotoOneOf(msgspec.Struct, frozen=True):
    """Continues in one of ``chains``, all equally likely."""

    chains: tuple[str, ...]

    def render(self, _family: NftFamily) -> str:
        entries = ", ".join(f"{number} : goto {chain}" for number, chain in enumerate(self.chains))
        return f"numgen random mod {len(self.chains)} vmap {{ {entries} }}"


Statement = (
    CtStateNew
    | CtStatusDnat
    | InSet
    | Vmap
    | DnatMap
    | DnatBucket
    | Jump
    | Reject
    | ResetTcp
    | Masquerade
    | Balance
    | AddressIn
    | FromInterface
    | IsOwnAddress
    | Goto
    | Drop
    | SetMark
    | ClearMark
    | Remember
    | Dnat
    | GotoOneOf
)
