"""What our rules are made of.  A statement matches, decides, or changes the packet; it renders as nft writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_FamilyName = Literal["ip", "ip6"]
Field = Literal["saddr", "daddr", "proto", "dport"]


def _fields(fields: tuple[Field, ...], family: _FamilyName) -> str:
    words = {"saddr": f"{family} saddr", "daddr": f"{family} daddr", "proto": "meta l4proto", "dport": "th dport"}
    return " . ".join(words[field] for field in fields)


@dataclass(frozen=True, slots=True)
class CtStateNew:
    """Matches the first packet of a connection."""

    def render(self, _family: _FamilyName) -> str:
        return "ct state new"


@dataclass(frozen=True, slots=True)
class CtStatusDnat:
    """Matches connections whose destination was translated, by us or by others."""

    def render(self, _family: _FamilyName) -> str:
        return "ct status dnat"


@dataclass(frozen=True, slots=True)
class InSet:
    """Matches if the fields are an element."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: _FamilyName) -> str:
        return f"{_fields(self.fields, family)} @{self.container}"


@dataclass(frozen=True, slots=True)
class Vmap:
    """Looks the fields up and follows the verdict; without an element the rule ends."""

    fields: tuple[Field, ...]
    container: str

    def render(self, family: _FamilyName) -> str:
        return f"{_fields(self.fields, family)} vmap @{self.container}"


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes through a chain and comes back."""

    chain: str

    def render(self, _family: _FamilyName) -> str:
        return f"jump {self.chain}"


@dataclass(frozen=True, slots=True)
class Reject:
    """Answers with ICMP port unreachable."""

    def render(self, _family: _FamilyName) -> str:
        return "reject"


@dataclass(frozen=True, slots=True)
class ResetTcp:
    """Answers TCP with a reset; other protocols go on to the next rule."""

    def render(self, _family: _FamilyName) -> str:
        return "meta l4proto tcp reject with tcp reset"


@dataclass(frozen=True, slots=True)
class Masquerade:
    """The source becomes an address of this node, with a random port."""

    def render(self, _family: _FamilyName) -> str:
        return "masquerade fully-random"


@dataclass(frozen=True, slots=True)
class Balance:
    """DNAT to one of the targets number ``offset`` to ``offset + count - 1`` of a map, all equally likely."""

    protocol: str
    count: int
    offset: int
    container: str

    def render(self, family: _FamilyName) -> str:
        number = f"numgen random mod {self.count} offset {self.offset}"
        return f"meta l4proto {self.protocol} dnat {family} to {number} map @{self.container}"


Statement = CtStateNew | CtStatusDnat | InSet | Vmap | Jump | Reject | ResetTcp | Masquerade | Balance
