"""Destinations with several endpoints: buckets in maps that many destinations share, selected by
random numbers without a rule for each Service.

With one rule per Service, a change of any Service costs time in proportion to all of them. For each
new rule, and each new element that leads to a chain, the kernel walks every chain behind every
verdict map, from each base chain (``benchmarks.tools.kernel_walk`` measures it). The kernel does not
walk data. Here all that belongs to a Service is data, and all Services share the rules.

*Buckets.*  A destination has 4, 16, 64 ... buckets (``BUCKET_COUNTS``). It is an element of the set
``room-COUNT``. Each of its endpoints is an element of the map ``endpoints-COUNT``: its key is the
destination and the number of a bucket, its value the target. ``numgen random mod COUNT`` selects a
bucket. If the bucket is empty, the rule ends and the next rule draws again. Each full bucket is
equally likely, so shares are equal. Adding or removing an endpoint changes one element and no rule.

*Draws.*  Each count has ``NUMGEN_ATTEMPTS`` draws: four levels of chains that jump to the next
level four times. A destination gets another count when its buckets are full, or when at most 3/16
of them are in use. So all draws fail with a probability of less than 2**-76 (``numgen`` itself has
32 bits). Two draws are usual.

*Another count* changes all elements of the destination at once. A packet in flight may have been
looked up in the new set too early, and in the old map too late. Therefore the lookups that translate
cluster IPs are done twice (``layout``).
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
from sliceplane.node.nft.statements import DESTINATION, DnatBucket, InSet, Jump

BUCKET_COUNTS: Final = tuple(4**power for power in range(1, 11))
_LEVELS: Final = 4
_TRIES: Final = 4
NUMGEN_ATTEMPTS: Final = _TRIES**_LEVELS
#: the chain that looks up a cluster IP's only endpoint, and the buckets
DIRECT: Final = "cluster-ip-endpoints"


class Buckets(NamedTuple):
    """The number of a destination's buckets, and the target in each; ``None``: empty (never the last
    one).
    """

    size: int
    targets: tuple[DnatTarget | None, ...]

    def items(self, key: Key) -> list[Item]:
        return [
            ((*key, number), target)
            for number, target in enumerate(self.targets)
            if target is not None
        ]

    def has_only(self, desired: tuple[DnatTarget, ...]) -> bool:
        return len(self.targets) - self.targets.count(None) == len(desired) and set(desired) <= set(
            self.targets
        )


def bucket_set(size: int) -> NftContainer:
    """Returns the set of the destinations that have *size* buckets."""
    return NftContainer(f"room-{size}", ("addr", "proto", "port"))


def bucket_map(size: int) -> NftContainer:
    return NftContainer(f"endpoints-{size}", ("addr", "proto", "port", "numgen"), "target")


def bucket_commands(size: int) -> tuple[Command, ...]:
    """Returns the commands that create the set, the map and the chains of *size* buckets, empty."""
    chains = [f"draw-{size}-{NUMGEN_ATTEMPTS // _TRIES**level}" for level in range(_LEVELS)]
    steps: list[Jump | DnatBucket] = [
        *(Jump(chain) for chain in chains[1:]),
        DnatBucket(DESTINATION, size, bucket_map(size).name),
    ]
    return (
        AddContainer(bucket_set(size)),
        AddContainer(bucket_map(size)),
        *(AddChain(chain) for chain in chains),
        *(
            AddRule(chain, NftRule((step,)))
            for chain, step in zip(chains, steps, strict=True)
            for _ in range(_TRIES)
        ),
        AddRule(DIRECT, NftRule((InSet(DESTINATION, bucket_set(size).name), Jump(chains[0])))),
    )


def bucket_count(chains: tuple[str, ...]) -> int:
    """Returns the number of buckets that the chains of a trail draw from; 0 if none does."""
    return next((int(chain.split("-")[1]) for chain in chains if chain.startswith("draw-")), 0)


def fill_buckets(desired: tuple[DnatTarget, ...], before: Buckets | None = None) -> Buckets:
    """Returns the buckets of *desired*.  Each target stays in its bucket of *before*, if the number
    of buckets can stay.
    """
    count = len(desired)
    if before is None or not before.size * 3 < count * 16 <= before.size * 16:
        return Buckets(next(size for size in BUCKET_COUNTS if size >= count), desired)
    missing = dict.fromkeys(desired)
    targets: list[DnatTarget | None] = []
    for target in before.targets:
        if target in missing:
            del missing[target]
            targets.append(target)
        else:
            targets.append(None)
    for number, target in enumerate(targets):
        if not missing:
            break
        if target is None:
            unplaced = next(iter(missing))
            del missing[unplaced]
            targets[number] = unplaced
    targets.extend(missing)
    while targets[-1] is None:
        targets.pop()
    return Buckets(before.size, tuple(targets))
