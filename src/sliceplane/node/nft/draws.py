"""Destinations with several endpoints: numbered places in maps that many destinations share, drawn
from without a rule of their own.

A rule for each Service makes a change of any Service cost what there is of all of them: whenever a
rule comes, or an element that leads to a chain, the kernel walks every chain behind every verdict
map, from each base chain (``benchmarks.tools.kernel_walk`` measures it). Data are not walked. So
here everything that belongs to a Service is data, and the rules are the same for all.

*Room.*  A destination has room for 4, 16, 64 ... endpoints (``ROOMS``). It is an element of the set
of its room, and each of its endpoints is an element of the room's map: from the destination and a
number below the room to the target. ``numgen random mod ROOM`` draws a number; where nobody is, the
rule ends, and the next one draws again. Whoever is found was as likely as each other, so shares are
equal. An endpoint that comes or goes is one element, no rule.

*Draws.*  Each room has ``DRAWS`` draws: four levels of chains that lead to the next four times. A
room is left when it is filled, or no more than 3/16 of it are: all draws fail with a probability of
less than 2**-76 (``numgen`` itself has no more than 32 bits). Two draws are usual.

*Moving to another room* changes all elements of the destination at once. A packet under way may
have asked the set of the new room too early, and look in the old map too late; therefore what
translates cluster IPs is asked twice (``layout``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddRule,
    Command,
    DnatTarget,
    Item,
    Key,
    NftContainer,
    NftRule,
)
from sliceplane.node.nft.statements import DESTINATION, Draw, InSet, Jump

ROOMS: Final = tuple(4**power for power in range(1, 11))
_LEVELS: Final = 4
_AGAIN: Final = 4
DRAWS: Final = _AGAIN**_LEVELS
#: where a cluster IP's only endpoint, and the rooms, are asked
DIRECT: Final = "cluster-ip-endpoints"


class RoomPlaces(NamedTuple):
    """A destination's room, and who is at each number; ``None``: nobody (never the last one)."""

    room: int
    targets: tuple[DnatTarget | None, ...]

    def items(self, key: Key) -> list[Item]:
        return [
            ((*key, number), target)
            for number, target in enumerate(self.targets)
            if target is not None
        ]

    def holds(self, wanted: tuple[DnatTarget, ...]) -> bool:
        return len(self.targets) - self.targets.count(None) == len(wanted) and set(wanted) <= set(
            self.targets
        )


def members_of(room: int) -> NftContainer:
    """The destinations with that room."""
    return NftContainer(f"room-{room}", ("addr", "proto", "port"))


def endpoints_of(room: int) -> NftContainer:
    return NftContainer(f"endpoints-{room}", ("addr", "proto", "port", "numgen"), "target")


def commands_of(room: int) -> tuple[Command, ...]:
    """Returns the commands that create an empty map slot."""
    chains = [f"draw-{room}-{DRAWS // _AGAIN**level}" for level in range(_LEVELS)]
    steps: list[Jump | Draw] = [
        *(Jump(chain) for chain in chains[1:]),
        Draw(DESTINATION, room, endpoints_of(room).name),
    ]
    return (
        AddContainer(members_of(room)),
        AddContainer(endpoints_of(room)),
        *(AddChain(chain) for chain in chains),
        *(
            AddRule(chain, NftRule((step,)))
            for chain, step in zip(chains, steps, strict=True)
            for _ in range(_AGAIN)
        ),
        AddRule(DIRECT, NftRule((InSet(DESTINATION, members_of(room).name), Jump(chains[0])))),
    )


def room_of(chains: tuple[str, ...]) -> int:
    """Whose draws are among *chains*; 0: nobody's."""
    return next((int(chain.split("-")[1]) for chain in chains if chain.startswith("draw-")), 0)


def placed(wanted: tuple[DnatTarget, ...], held: RoomPlaces | None = None) -> RoomPlaces:
    """*wanted*, each where it was in *held*, in the same room if it can be."""
    count = len(wanted)
    if held is None or not held.room * 3 < count * 16 <= held.room * 16:
        return RoomPlaces(next(room for room in ROOMS if room >= count), wanted)
    missing = dict.fromkeys(wanted)
    targets: list[DnatTarget | None] = []
    for target in held.targets:
        if target in missing:
            del missing[target]
            targets.append(target)
        else:
            targets.append(None)
    for number, target in enumerate(targets):
        if not missing:
            break
        if target is None:
            newcomer = next(iter(missing))
            del missing[newcomer]
            targets[number] = newcomer
    targets.extend(missing)
    while targets[-1] is None:
        targets.pop()
    return RoomPlaces(held.room, tuple(targets))
