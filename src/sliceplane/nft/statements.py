"""What our rules are made of.  A statement matches, decides, or changes the packet; it renders as nft writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

#: the bit of the packet mark that says "to be masqueraded", upstream's default; not an interface for others
MASQUERADE_MARK = 1 << 14

NftFamily = Literal["ip", "ip6"]
Field = Literal["saddr", "daddr", "proto", "dport"]
DESTINATION: tuple[Field, ...] = ("daddr", "proto", "dport")


def _fields(fields: tuple[Field, ...], family: NftFamily) -> str:
    words = {"saddr": f"{family} saddr", "daddr": f"{family} daddr", "proto": "meta l4proto", "dport": "th dport"}
    return " . ".join(words[field] for field in fields)


class _Always:
    """A statement without operands: the same text in every rule."""

    __slots__ = ()
    TEXT: ClassVar[str]

    def render(self, _family: NftFamily) -> str:
        return self.TEXT


@dataclass(frozen=True, slots=True)
class CtStateNew(_Always):
    """Matches the first packet of a connection."""

    TEXT = "ct state new"


@dataclass(frozen=True, slots=True)
class CtStatusDnat(_Always):
    """Matches connections whose destination was translated, by us or by others."""

    TEXT = "ct status dnat"


@dataclass(frozen=True, slots=True)
class InSet:
    """Matches if the fields are an element."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"{_fields(self.fields, family)} @{self.container}"


@dataclass(frozen=True, slots=True)
class Vmap:
    """Looks the fields up and follows the verdict; without an element the rule ends."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"{_fields(self.fields, family)} vmap @{self.container}"


@dataclass(frozen=True, slots=True)
class DnatMap:
    """Looks the fields up; the destination becomes what is found there.  Without an element the rule ends."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: NftFamily) -> str:
        return f"dnat {family} to {_fields(self.fields, family)} map @{self.container}"


@dataclass(frozen=True, slots=True)
class Draw:
    """Looks the fields up with a number below ``count``, all equally likely; the destination becomes what is found
    there.  Without an element the rule ends."""

    fields: tuple[Field, ...]
    count: int
    container: str

    def render(self, family: NftFamily) -> str:
        return f"dnat {family} to {_fields(self.fields, family)} . numgen random mod {self.count} map @{self.container}"


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes through a chain and comes back."""

    chain: str

    def render(self, _family: NftFamily) -> str:
        return f"jump {self.chain}"


@dataclass(frozen=True, slots=True)
class Reject(_Always):
    """Answers with ICMP port unreachable."""

    TEXT = "reject"


@dataclass(frozen=True, slots=True)
class ResetTcp(_Always):
    """Answers TCP with a reset; other protocols go on to the next rule."""

    TEXT = "meta l4proto tcp reject with tcp reset"


@dataclass(frozen=True, slots=True)
class Masquerade(_Always):
    """The source becomes an address of this node, with a random port."""

    TEXT = "masquerade fully-random"


@dataclass(frozen=True, slots=True)
class Balance:
    """DNAT to one of the targets number ``offset`` to ``offset + count - 1`` of a map, all equally likely."""

    protocol: str
    count: int
    offset: int
    container: str

    def render(self, family: NftFamily) -> str:
        number = f"numgen random mod {self.count} offset {self.offset}"
        return f"meta l4proto {self.protocol} dnat {family} to {number} map @{self.container}"


@dataclass(frozen=True, slots=True)
class AddressIn:
    """Matches if the address is in one of ``networks`` (``inside``), or in none of them."""

    field: Literal["saddr", "daddr"]
    networks: tuple[str, ...]
    inside: bool = True

    def render(self, family: NftFamily) -> str:
        return f"{family} {self.field} {'' if self.inside else '!= '}{{ {', '.join(self.networks)} }}"


@dataclass(frozen=True, slots=True)
class FromInterface:
    """Matches if the packet came in through the interface (``inside``), or did not; a name may end with ``*``."""

    name: str
    inside: bool = True

    def render(self, _family: NftFamily) -> str:
        return f'iifname {"" if self.inside else "!= "}"{self.name}"'


@dataclass(frozen=True, slots=True)
class IsOwnAddress:
    """Matches if the address is one of this host's, loopback ones among them."""

    field: Literal["saddr", "daddr"]

    def render(self, _family: NftFamily) -> str:
        return f"fib {self.field} type local"


@dataclass(frozen=True, slots=True)
class Goto:
    """Goes on in a chain and does not come back to this one."""

    chain: str

    def render(self, _family: NftFamily) -> str:
        return f"goto {self.chain}"


@dataclass(frozen=True, slots=True)
class Drop(_Always):
    """The packet is not answered."""

    TEXT = "drop"


@dataclass(frozen=True, slots=True)
class SetMark(_Always):
    """Notes on the packet that it is to be masqueraded when it leaves."""

    TEXT = f"meta mark set meta mark or {MASQUERADE_MARK:#x}"


@dataclass(frozen=True, slots=True)
class TakeMark(_Always):
    """Matches if the note is there, and takes it away."""

    TEXT = f"meta mark & {MASQUERADE_MARK:#x} != 0 meta mark set meta mark xor {MASQUERADE_MARK:#x}"


@dataclass(frozen=True, slots=True)
class Remember:
    """The source address becomes an element of a dynamic set, for as long as the set says from now on."""

    container: str

    def render(self, family: NftFamily) -> str:
        return f"update @{self.container} {{ {family} saddr }}"


@dataclass(frozen=True, slots=True)
class Dnat:
    """The destination becomes this one."""

    protocol: str
    ip: str
    port: int

    def render(self, family: NftFamily) -> str:
        address = self.ip if family == "ip" else f"[{self.ip}]"
        return f"meta l4proto {self.protocol} dnat {family} to {address}:{self.port}"


@dataclass(frozen=True, slots=True)
class GotoOneOf:
    """Goes on in one of ``chains``, all equally likely."""

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
    | Draw
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
    | TakeMark
    | Remember
    | Dnat
    | GotoOneOf
)
