"""Chains of a table: the desired chains, the applied ones, and the commands from one to the other.

**Two kinds of chains.**  A chain that only balances is changed target by target
(``AppliedTargets``). Any other is rewritten whole when its rules change (``AppliedRules``). Such a
chain may own a dynamic set, which is created and deleted with it. The kernel fills the set from
packets, up to a size that follows from the number of sets of the namespace. So a flood from forged
addresses fills at most the namespace's share of the kernel's memory. Dynamic sets outlive every
change but a full transaction; the caller may restore their contents with that one
(``DynamicSetContents``).

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
    DynamicSetContents,
    FlushChain,
    FlushContainer,
    Item,
    NftRule,
    RemainingTime,
)
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX, Slots, map_of, offset_of
from sliceplane.node.nft.statements import Balance

#: maximum numbers of clients that session affinity remembers: for one endpoint of a Service port; in
#: all sets of a namespace (but see ``clients_max``: a set keeps its initial size); and in each set
#: of a namespace with very many sets
CLIENTS_OF_SET_MAX: Final = 65_535
CLIENTS_MAX: Final = 2**20
CLIENTS_MIN: Final = 16


class AppliedTargets(NamedTuple):
    """A balancing chain in the kernel: its slot among those of its protocol, the number of targets
    that its rule draws from (0: it has no rule), and the targets in the slot. Targets from number
    ``live`` on are retired.
    """

    protocol: str
    slot: int
    live: int
    targets: tuple[DnatTarget, ...]


class AppliedRules(NamedTuple):
    """A chain in the kernel that is rewritten whole; it has no rules if it is not ``live``."""

    chain: RuleChain
    live: bool


@dataclass(slots=True)
class TableDraft(ElementsDraft):
    """A transaction that is being built, and the shadow's state if it succeeds (``None``:
    removed).
    """

    created: list[Command] = field(default_factory=list)
    rules: list[Command] = field(default_factory=list)
    removed: list[Command] = field(default_factory=list)
    chains: dict[str, AppliedTargets | AppliedRules | None] = field(default_factory=dict)
    created_counts: tuple[int, ...] = ()


class Chains:
    """See the module.  Call ``on_success`` if the kernel applied the draft of a ``write_*``;
    otherwise the next call is ``write_all``.
    """

    def __init__(self) -> None:
        self._desired: dict[str, Chain] = {}
        self._applied: dict[str, AppliedTargets | AppliedRules] = {}
        self._slots: dict[str, Slots] = {}  # by protocol
        #: times at which the retired parts of chains may be removed, by chain
        self.retired: dict[str, float] = {}
        self._marked: set[str] = set()
        #: sets of clients, by namespace
        self._sets: Counter[str] = Counter()

    def set(self, old: tuple[Chain, ...], new: tuple[Chain, ...]) -> None:
        """Replaces the desired chains *old* of one Service with *new*.  Unchanged chains are not
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
                del self._desired[chain.name]
                self._marked.add(chain.name)
        for name, chain in chains.items():
            if isinstance(chain, BalancedChain):
                assert len(chain.targets) <= TARGETS_PER_CHAIN_MAX, (
                    f"{name} has {len(chain.targets)} targets"
                )
            if self._desired.get(name) != chain:
                self._desired[name] = chain
                self._marked.add(name)

    def write_all(self, draft: TableDraft, contents: DynamicSetContents) -> None:
        """Writes all chains and the *contents* of their sets into an empty table."""
        self._marked = set()
        self._slots = {}  # irreversible: until this succeeds, every transaction is full
        for name in sorted(self._desired):
            desired = self._desired[name]
            self._update(draft, desired, None)
            if isinstance(desired, RuleChain) and desired.own_set is not None:
                clients = desired.own_set.name
                bound_s = desired.own_set.timeout_s
                for ip, seconds in contents.get(clients, ()):
                    if seconds > 0:
                        draft.additions[clients].append(
                            ((ip,), RemainingTime(min(seconds, bound_s)))
                        )

    def write_changes(self, draft: TableDraft) -> None:
        for name in sorted(self._marked):
            desired = self._desired.get(name)
            applied = self._applied.get(name)
            if desired is not None:
                self._update(draft, desired, applied)
            elif applied is not None and applied.live:
                draft.rules.append(FlushChain(name))
                if isinstance(applied, AppliedTargets):
                    draft.chains[name] = applied._replace(live=0)
                    continue
                if applied.chain.own_set is not None:
                    # A client that returns later has used another endpoint since.
                    draft.rules.append(FlushContainer(applied.chain.own_set))
                draft.chains[name] = applied._replace(live=False)
        self._marked = set()

    def remove_retired(self, draft: TableDraft, now: float) -> None:
        """Must be called last, so that the same transaction does not reuse a slot that is released
        here.
        """
        for name in sorted(self.retired):
            if self.retired[name] <= now and name not in draft.chains:
                self._remove_retired(draft, name, self._applied[name])

    def on_success(self, draft: TableDraft, now: float) -> None:
        if draft.full:
            self._applied = {}
            self.retired = {}
        for name, applied in draft.chains.items():
            self.retired.pop(name, None)
            if applied is None:
                del self._applied[name]
                continue
            self._applied[name] = applied
            if _has_retired(applied):
                self.retired[name] = now + RETIRE_AFTER_S

    def _update(
        self, draft: TableDraft, desired: Chain, applied: AppliedTargets | AppliedRules | None
    ) -> None:
        """Brings a chain from *applied* to *desired*."""
        if isinstance(desired, RuleChain):
            assert not isinstance(applied, AppliedTargets), (
                f"{desired.name} changed its kind; the name should have changed with it"
            )
            self._update_rules(draft, desired, applied)
        else:
            assert not isinstance(applied, AppliedRules), (
                f"{desired.name} changed its kind; its name should have too"
            )
            self._update_targets(draft, desired, applied)

    def _update_rules(
        self, draft: TableDraft, desired: RuleChain, applied: AppliedRules | None
    ) -> None:
        name = desired.name
        assert desired.rules, f"{name} has no rules: its Service must not have built it"
        if applied is None:
            if desired.own_set is not None:
                draft.created.append(
                    AddContainer(
                        replace(desired.own_set, size=clients_max(self._sets[desired.account]))
                    )
                )
            draft.created.append(AddChain(name))
        else:
            assert applied.chain.own_set == desired.own_set, (
                f"{name} had {applied.chain.own_set}, needs {desired.own_set}"
            )
            if applied.live and applied.chain == desired:
                return
            if applied.live:
                draft.rules.append(FlushChain(name))
        draft.rules.extend(AddRule(name, rule) for rule in desired.rules)
        draft.chains[name] = AppliedRules(desired, live=True)

    def _update_targets(
        self, draft: TableDraft, desired: BalancedChain, applied: AppliedTargets | None
    ) -> None:
        """Brings a chain's targets and rule to *desired*; targets keep their numbers if possible."""
        name = desired.name
        count = len(desired.targets)
        assert count, f"{name} has no targets: its Service must not have built it"
        if applied is None:
            protocol = desired.protocol
            slot, first = self._slots.setdefault(protocol, Slots(protocol)).allocate()
            if first:
                draft.created.append(AddContainer(map_of(protocol, slot)))
            draft.created.append(AddChain(name))
            applied = AppliedTargets(protocol, slot, 0, ())
            ordered = desired.targets
        else:
            ordered = order_targets(applied.targets, desired.targets)
        assert applied.protocol == desired.protocol, (
            f"{name} was for {applied.protocol}, now for {desired.protocol}"
        )
        container = map_of(applied.protocol, applied.slot).name
        offset = offset_of(applied.slot)
        for number, (before, after) in enumerate(zip(applied.targets, ordered, strict=False)):
            if before != after:
                draft.deletions[container].append((offset + number,))
                draft.additions[container].append(((offset + number,), after))
        appended = enumerate(ordered[len(applied.targets) :], offset + len(applied.targets))
        additions: list[Item] = [((number,), target) for number, target in appended]
        if additions:
            draft.additions[container].extend(additions)
        if count != applied.live:
            if applied.live:
                draft.rules.append(FlushChain(name))
            draft.rules.append(
                AddRule(name, NftRule((Balance(desired.protocol, count, offset, container),)))
            )
        new = applied._replace(live=count, targets=ordered)
        if new != applied:
            draft.chains[name] = new

    def _remove_retired(
        self, draft: TableDraft, name: str, applied: AppliedTargets | AppliedRules
    ) -> None:
        if isinstance(applied, AppliedRules):
            draft.chains[name] = None
            draft.removed.append(DeleteChain(name))
            if applied.chain.own_set is not None:
                draft.removed.append(DeleteContainer(applied.chain.own_set))
            return
        container = map_of(applied.protocol, applied.slot).name
        offset = offset_of(applied.slot)
        retired = range(applied.live, len(applied.targets))
        draft.deletions[container].extend((offset + number,) for number in retired)
        if applied.live:
            draft.chains[name] = applied._replace(targets=applied.targets[: applied.live])
            return
        draft.chains[name] = None
        draft.removed.append(DeleteChain(name))
        if self._slots[applied.protocol].release(applied.slot):
            draft.removed.append(DeleteContainer(map_of(applied.protocol, applied.slot)))

    def shadow(
        self, created: list[Command], items: Mapping[str, list[Item]], rules: list[Command]
    ) -> None:
        """Adds the applied chains: the commands that create them, their elements by container, and
        their rules.
        """
        for name in sorted(self._applied):
            applied = self._applied[name]
            created.append(AddChain(name))
            if isinstance(applied, AppliedRules):
                if applied.chain.own_set is not None:
                    created.append(AddContainer(applied.chain.own_set))
                rules.extend(
                    AddRule(name, rule) for rule in (applied.chain.rules if applied.live else ())
                )
                continue
            container = map_of(applied.protocol, applied.slot)
            offset = offset_of(applied.slot)
            created.append(AddContainer(container))
            items[container.name].extend(
                ((offset + n,), target) for n, target in enumerate(applied.targets)
            )
            if applied.live:
                balance = Balance(applied.protocol, applied.live, offset, container.name)
                rules.append(AddRule(name, NftRule((balance,))))

    def check(self, needed: Iterable[Chain], *, in_kernel: bool) -> None:
        """Asserts every invariant.  *needed*: the chains of all Services; *in_kernel*: the unmarked
        ones are applied.  O(state).
        """
        chains = {chain.name: chain for chain in needed}
        assert chains == self._desired, f"chains {self._desired} should be {chains}"
        sets = Counter(_accounts(chains.values()))
        assert sets == self._sets, f"sets {self._sets} should be {sets}"
        if not in_kernel:
            return
        balanced = [
            applied for applied in self._applied.values() if isinstance(applied, AppliedTargets)
        ]
        for protocol, slots in self._slots.items():
            slots.check({applied.slot for applied in balanced if applied.protocol == protocol})
        assert {applied.protocol for applied in balanced} <= set(self._slots), "a chain has no slot"
        for name, applied in self._applied.items():
            assert _has_retired(applied) == (name in self.retired), (
                f"{name}: {applied}, retired: {self.retired.get(name)}"
            )
            if name in self._marked:
                continue
            if isinstance(applied, AppliedRules):
                assert self._desired.get(name) == (applied.chain if applied.live else None), (
                    f"{name}: {applied} is not desired"
                )
            else:
                desired = self._desired.get(name)
                assert not isinstance(desired, RuleChain), f"{name}: {applied} is not {desired}"
                targets = desired.targets if desired is not None else ()
                assert set(applied.targets[: applied.live]) == set(targets), (
                    f"{name}: {applied} is not {targets}"
                )


def clients_max(sets: int) -> int:
    """Returns the size of a new set of clients in a namespace with *sets* sets."""
    return max(CLIENTS_MIN, min(CLIENTS_OF_SET_MAX, CLIENTS_MAX // sets))


def _accounts(chains: Iterable[Chain]) -> list[str]:
    """Returns the namespace of each set of clients."""
    return [
        chain.account
        for chain in chains
        if isinstance(chain, RuleChain) and chain.own_set is not None
    ]


def _has_retired(applied: AppliedTargets | AppliedRules) -> bool:
    """Returns True if a part of the chain is out of use, and will be removed later."""
    return (
        not applied.live
        if isinstance(applied, AppliedRules)
        else applied.live < len(applied.targets)
    )


def order_targets(
    applied: tuple[DnatTarget, ...], desired: tuple[DnatTarget, ...]
) -> tuple[DnatTarget, ...]:
    """Returns *desired*, ordered so that as few targets of *applied* as possible change their
    number, then the rest of *applied*.

    ``result[:len(desired)]`` has exactly the targets of *desired*; ``result[len(desired):]`` is
    ``applied[len(desired):]``.
    """
    count = len(desired)
    missing = dict.fromkeys(desired)
    result: list[DnatTarget | None] = [None] * count
    for number, target in enumerate(applied[:count]):
        if target in missing:
            del missing[target]
            result[number] = target
    additions = iter(missing)
    return (
        *(target if target is not None else next(additions) for target in result),
        *applied[count:],
    )
