"""Chains of a table: those that Services need, those in the kernel, and the commands from one to
the other.

**Two kinds of chains.**  One that only balances is kept target by target (``HeldTargets``); any
other is rewritten whole when its rules change (``HeldRules``). A dynamic set belongs to such a
chain, and comes and goes with it; its elements are the kernel's, filled by packets, up to a size
that follows from how many sets the namespace has: a flood from made-up addresses fills no more than
the namespace's share of the kernel's memory. They outlive every change but a full transaction, into
which the caller may put their elements of just before (``Memory``).

Owned by one ``table.NftRules``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.node.nft.build import BalancedChain, Chain, RuleChain
from sliceplane.node.nft.elements import RETIRE_AFTER_S, ElementsDraft
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddRule,
    Command,
    DeleteChain,
    DeleteContainer,
    DnatTarget,
    FlushChain,
    FlushContainer,
    Item,
    Memory,
    NftRule,
    RemainingTime,
)
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX, Slots, map_of, offset_of
from sliceplane.node.nft.statements import Balance

#: clients that session affinity remembers for one Service port's endpoint; in all sets of a
#: namespace (but see ``clients_max``: a set keeps the size that it was made with); and in a set of
#: a namespace with very many
CLIENTS_OF_SET_MAX: Final = 65_535
CLIENTS_MAX: Final = 2**20
CLIENTS_MIN: Final = 16


class HeldTargets(NamedTuple):
    """A chain in the kernel: its slot among those of its protocol, how many targets its rule draws
    from (0: it has no rule), and the targets in the slot; those from number ``live`` on are
    retired.
    """

    protocol: str
    slot: int
    live: int
    targets: tuple[DnatTarget, ...]


class HeldRules(NamedTuple):
    """A chain in the kernel that is written whole; without rules if it is not ``live``."""

    chain: RuleChain
    live: bool


@dataclass(slots=True)
class TableDraft(ElementsDraft):
    """A transaction in the making, and what the shadow becomes if it succeeds (``None``: gone)."""

    made: list[Command] = field(default_factory=list)
    rules: list[Command] = field(default_factory=list)
    removed: list[Command] = field(default_factory=list)
    chains: dict[str, HeldTargets | HeldRules | None] = field(default_factory=dict)
    made_rooms: tuple[int, ...] = ()


class Chains:
    """See the module.  After ``write_*`` ``on_success`` if the kernel took it; if not, the next is
    ``write_all``.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, Chain] = {}
        self._held: dict[str, HeldTargets | HeldRules] = {}
        self._slots: dict[str, Slots] = {}  # by protocol
        #: by chain: when its retired part may go
        self.retired: dict[str, float] = {}
        self._marked: set[str] = set()
        #: sets of clients, by namespace
        self._sets: Counter[str] = Counter()

    def set(self, old: tuple[Chain, ...], new: tuple[Chain, ...]) -> None:
        """One Service needs the chains *new* instead of *old*. Chains that did not change are not
        marked.
        """
        chains = {chain.name: chain for chain in new}
        gained = _accounts(chains.values())
        lost = _accounts(old)
        if gained != lost:
            self._sets.update(gained)
            self._sets -= Counter(lost)
        for chain in old:
            if chain.name not in chains:
                del self._wanted[chain.name]
                self._marked.add(chain.name)
        for name, chain in chains.items():
            if isinstance(chain, BalancedChain):
                assert len(chain.targets) <= TARGETS_PER_CHAIN_MAX, (
                    f"{name} has {len(chain.targets)} targets"
                )
            if self._wanted.get(name) != chain:
                self._wanted[name] = chain
                self._marked.add(name)

    def write_all(self, draft: TableDraft, memory: Memory) -> None:
        """Writes all chains into an empty table, and what *memory* has of their sets."""
        self._marked = set()
        self._slots = {}  # no way back: until this succeeds, every transaction is full
        for name in sorted(self._wanted):
            wanted = self._wanted[name]
            self._place(draft, wanted, None)
            if isinstance(wanted, RuleChain) and wanted.own_set is not None:
                clients = wanted.own_set.name
                bound_s = wanted.own_set.timeout_s
                for ip, seconds in memory.get(clients, ()):
                    if seconds > 0:
                        draft.additions[clients].append(
                            ((ip,), RemainingTime(min(seconds, bound_s)))
                        )

    def write_changes(self, draft: TableDraft) -> None:
        for name in sorted(self._marked):
            wanted = self._wanted.get(name)
            held = self._held.get(name)
            if wanted is not None:
                self._place(draft, wanted, held)
            elif held is not None and held.live:
                draft.rules.append(FlushChain(name))
                if isinstance(held, HeldTargets):
                    draft.chains[name] = held._replace(live=0)
                    continue
                if held.chain.own_set is not None:
                    # a client that comes back meanwhile has been somewhere else since
                    draft.rules.append(FlushContainer(held.chain.own_set))
                draft.chains[name] = held._replace(live=False)
        self._marked = set()

    def remove_retired(self, draft: TableDraft, now: float) -> None:
        """Comes last, so that a slot given back here is not handed out again by the same
        transaction.
        """
        for name in sorted(self.retired):
            if self.retired[name] <= now and name not in draft.chains:
                self._remove_retired(draft, name, self._held[name])

    def on_success(self, draft: TableDraft, now: float) -> None:
        if draft.full:
            self._held = {}
            self.retired = {}
        for name, held in draft.chains.items():
            self.retired.pop(name, None)
            if held is None:
                del self._held[name]
                continue
            self._held[name] = held
            if _has_retired(held):
                self.retired[name] = now + RETIRE_AFTER_S

    def _place(
        self, draft: TableDraft, wanted: Chain, held: HeldTargets | HeldRules | None
    ) -> None:
        """Brings a chain to *wanted*."""
        if isinstance(wanted, RuleChain):
            assert not isinstance(held, HeldTargets), (
                f"{wanted.name} changed its kind; the name should have changed with it"
            )
            self._place_rules(draft, wanted, held)
        else:
            assert not isinstance(held, HeldRules), (
                f"{wanted.name} changed its kind; its name should have too"
            )
            self._place_targets(draft, wanted, held)

    def _place_rules(self, draft: TableDraft, wanted: RuleChain, held: HeldRules | None) -> None:
        name = wanted.name
        assert wanted.rules, f"{name} has no rules: its Service must not have built it"
        if held is None:
            if wanted.own_set is not None:
                draft.made.append(
                    AddContainer(
                        replace(wanted.own_set, size=clients_max(self._sets[wanted.account]))
                    )
                )
            draft.made.append(AddChain(name))
        else:
            assert held.chain.own_set == wanted.own_set, (
                f"{name} had {held.chain.own_set}, wants {wanted.own_set}"
            )
            if held.live and held.chain == wanted:
                return
            if held.live:
                draft.rules.append(FlushChain(name))
        draft.rules.extend(AddRule(name, rule) for rule in wanted.rules)
        draft.chains[name] = HeldRules(wanted, live=True)

    def _place_targets(
        self, draft: TableDraft, wanted: BalancedChain, held: HeldTargets | None
    ) -> None:
        """Brings a chain's targets and rule to *wanted*, leaving in place whatever can stay."""
        name = wanted.name
        count = len(wanted.targets)
        assert count, f"{name} has no targets: its Service must not have built it"
        if held is None:
            protocol = wanted.protocol
            slot, first = self._slots.setdefault(protocol, Slots(protocol)).take()
            if first:
                draft.made.append(AddContainer(map_of(protocol, slot)))
            draft.made.append(AddChain(name))
            held = HeldTargets(protocol, slot, 0, ())
            placed = wanted.targets
        else:
            placed = place(held.targets, wanted.targets)
        assert held.protocol == wanted.protocol, (
            f"{name} was for {held.protocol}, now for {wanted.protocol}"
        )
        container = map_of(held.protocol, held.slot).name
        offset = offset_of(held.slot)
        for number, (before, after) in enumerate(zip(held.targets, placed, strict=False)):
            if before != after:
                draft.deletions[container].append((offset + number,))
                draft.additions[container].append(((offset + number,), after))
        new_places = enumerate(placed[len(held.targets) :], offset + len(held.targets))
        newcomers: list[Item] = [((number,), target) for number, target in new_places]
        if newcomers:
            draft.additions[container].extend(newcomers)
        if count != held.live:
            if held.live:
                draft.rules.append(FlushChain(name))
            draft.rules.append(
                AddRule(name, NftRule((Balance(wanted.protocol, count, offset, container),)))
            )
        new = held._replace(live=count, targets=placed)
        if new != held:
            draft.chains[name] = new

    def _remove_retired(self, draft: TableDraft, name: str, held: HeldTargets | HeldRules) -> None:
        if isinstance(held, HeldRules):
            draft.chains[name] = None
            draft.removed.append(DeleteChain(name))
            if held.chain.own_set is not None:
                draft.removed.append(DeleteContainer(held.chain.own_set))
            return
        container = map_of(held.protocol, held.slot).name
        offset = offset_of(held.slot)
        retired = range(held.live, len(held.targets))
        draft.deletions[container].extend((offset + number,) for number in retired)
        if held.live:
            draft.chains[name] = held._replace(targets=held.targets[: held.live])
            return
        draft.chains[name] = None
        draft.removed.append(DeleteChain(name))
        if self._slots[held.protocol].release(held.slot):
            draft.removed.append(DeleteContainer(map_of(held.protocol, held.slot)))

    def shadow(
        self, made: list[Command], items: Mapping[str, list[Item]], rules: list[Command]
    ) -> None:
        """Adds the chains in the kernel: what makes them, their elements by container, and
        rules.
        """
        for name in sorted(self._held):
            held = self._held[name]
            made.append(AddChain(name))
            if isinstance(held, HeldRules):
                if held.chain.own_set is not None:
                    made.append(AddContainer(held.chain.own_set))
                rules.extend(
                    AddRule(name, rule) for rule in (held.chain.rules if held.live else ())
                )
                continue
            container = map_of(held.protocol, held.slot)
            offset = offset_of(held.slot)
            made.append(AddContainer(container))
            items[container.name].extend(
                ((offset + n,), target) for n, target in enumerate(held.targets)
            )
            if held.live:
                balance = Balance(held.protocol, held.live, offset, container.name)
                rules.append(AddRule(name, NftRule((balance,))))

    def check(self, needed: Iterable[Chain], *, in_kernel: bool) -> None:
        """*needed*: the chains of all Services; *in_kernel*: unmarked ones are there.  O(state)."""
        chains = {chain.name: chain for chain in needed}
        assert chains == self._wanted, f"chains {self._wanted} should be {chains}"
        sets = Counter(_accounts(chains.values()))
        assert sets == self._sets, f"sets {self._sets} should be {sets}"
        if not in_kernel:
            return
        balanced = [held for held in self._held.values() if isinstance(held, HeldTargets)]
        for protocol, slots in self._slots.items():
            slots.check({held.slot for held in balanced if held.protocol == protocol})
        assert {held.protocol for held in balanced} <= set(self._slots), "a chain has no slot"
        for name, held in self._held.items():
            assert _has_retired(held) == (name in self.retired), (
                f"{name}: {held}, retired: {self.retired.get(name)}"
            )
            if name in self._marked:
                continue
            if isinstance(held, HeldRules):
                assert self._wanted.get(name) == (held.chain if held.live else None), (
                    f"{name}: {held} is not wanted"
                )
            else:
                wanted = self._wanted.get(name)
                assert not isinstance(wanted, RuleChain), f"{name}: {held} is not {wanted}"
                targets = wanted.targets if wanted is not None else ()
                assert set(held.targets[: held.live]) == set(targets), (
                    f"{name}: {held} is not {targets}"
                )


def clients_max(sets: int) -> int:
    """Returns how many clients a new set takes if its namespace has *sets* of them."""
    return max(CLIENTS_MIN, min(CLIENTS_OF_SET_MAX, CLIENTS_MAX // sets))


def _accounts(chains: Iterable[Chain]) -> list[str]:
    """Returns the namespace of each set of clients."""
    return [
        chain.account
        for chain in chains
        if isinstance(chain, RuleChain) and chain.own_set is not None
    ]


def _has_retired(held: HeldTargets | HeldRules) -> bool:
    """Returns True if a part of the chain is out of use, and goes later."""
    return not held.live if isinstance(held, HeldRules) else held.live < len(held.targets)


def place(held: tuple[DnatTarget, ...], wanted: tuple[DnatTarget, ...]) -> tuple[DnatTarget, ...]:
    """*wanted*, ordered so that as few as possible of *held* change their number, then the rest of
    *held*.

    ``result[:len(wanted)]`` has exactly the targets of *wanted*; ``result[len(wanted):]`` is
    ``held[len(wanted):]``.
    """
    count = len(wanted)
    missing = dict.fromkeys(wanted)
    result: list[DnatTarget | None] = [None] * count
    for number, target in enumerate(held[:count]):
        if target in missing:
            del missing[target]
            result[number] = target
    newcomers = iter(missing)
    return (
        *(target if target is not None else next(newcomers) for target in result),
        *held[count:],
    )
