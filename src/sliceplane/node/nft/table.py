"""One table: what it shall hold, what the kernel holds (the shadow), and the transaction from one
to the other.

```
set_service()  ->  desired chains, claims on elements  --diff of what is marked-->  Transaction
                                                            |
                   shadow  <------- on_success ------------ '      on_failure -> everything, from nothing
```

The shadow changes only when the kernel has taken the transaction; the kernel is never asked. If it
refuses one (an administrator deleted our table, say), the shadow is worth nothing: the next
transaction is *full*. A full one deletes the table and builds it again **in the same transaction**,
so traffic never meets an empty table; the first is full too, and thereby adopts or replaces
whatever an earlier process left.

**Two kinds of chains.**  One that only balances is kept target by target (``HeldTargets``); any
other is rewritten whole when its rules change (``HeldRules``). A dynamic set belongs to such a
chain, and comes and goes with it; its elements are the kernel's, filled by packets, up to a size
that follows from how many sets the namespace has: a flood from made-up addresses fills no more than
the namespace's share of the kernel's memory. They outlive every change but a full transaction, into
which the caller may give what was in them just before (``remember``; ``wants_memory`` says whether
it matters).

**Order of commands.**  0. see whose table it is, and make the rooms that are missing, in a step of
their own (``node.nft.layout.steps``), since a packet that asks for its destination must have met
their rules; 1. make the maps and chains that are missing; 2. delete elements; 3. add elements,
whose verdicts need the chains (a changed value is a deletion and an addition); 4. flush and add
rules, which need the maps, and which the kernel checks against the elements already there; 5.
delete chains and maps.

**Retirement.**  The kernel evaluates a packet against the rules that were there when the packet
entered the hook, but looks elements up in the newest version of a map; and kernels before 6.2
refuse to delete a chain in the transaction that takes the last reference away. Therefore what a
transaction takes out of use (targets beyond a rule's new count, a chain that nothing leads to)
stays for ``RETIRE_AFTER_S`` and goes with a later transaction. If it is wanted again meanwhile it
is used again. Elements are retired likewise (``node.nft.elements``). What a whole table overtakes
is the subject of ``node.nft.layout.steps``.

**One writer at a time.**  No other program shall write our table, but one may: a second proxy on
the node by mistake, or for a moment while one replaces the other. Each takes slots in an order of
its own, so changes made for the table of one would lead Services of the other astray, and the
kernel would take many of them. Therefore a full transaction makes an empty chain that has its
writer's name, and every change begins by flushing that chain: nothing, or, in a table that another
program wrote since, a refusal. Then this writer's next transaction is full, as after any other
refusal.

**Size.**  A transaction has no bound but memory: as root, the socket's buffer is raised as needed
(210,300 endpoints in one transaction were measured). In a user namespace, without that right, the
kernel refuses some 20,000 elements ("Message too long").

Owned by one ``node.plane.NodePlane``.  Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.consume.model import ServiceChange, ServiceKey
from sliceplane.kit.ip import Family
from sliceplane.node.nft.build import (
    BalancedChain,
    Chain,
    RuleChain,
    ServiceObjects,
    build_service,
    node_port_addresses,
)
from sliceplane.node.nft.draws import commands_of
from sliceplane.node.nft.elements import RETIRE_AFTER_S, ElementId, Elements, ElementsDraft
from sliceplane.node.nft.layout import static_commands, writer_chain
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import (
    AddChain,
    AddContainer,
    AddElements,
    AddRule,
    AddTable,
    Command,
    DeleteChain,
    DeleteContainer,
    DeleteElements,
    DeleteTable,
    DnatTarget,
    FlushChain,
    FlushContainer,
    Item,
    Memory,
    NftRule,
    RemainingTime,
    TableRef,
    Transaction,
    Wanted,
)
from sliceplane.node.nft.slots import TARGETS_PER_CHAIN_MAX, Slots, map_of, offset_of
from sliceplane.node.nft.statements import Balance, NftFamily
from sliceplane.node.plane import NodePlane, NodePlaneConfig
from sliceplane.node.surroundings import Surroundings, ThisNode

NFT_FAMILIES: Final[dict[Family, NftFamily]] = {"IPv4": "ip", "IPv6": "ip6"}
#: clients that session affinity remembers for one Service port's endpoint; in all sets of a
#: namespace (but see ``clients_max``: a set keeps the size that it was made with); and in a set of
#: a namespace with very many
CLIENTS_OF_SET_MAX: Final = 65_535
CLIENTS_MAX: Final = 2**20
CLIENTS_MIN: Final = 16
#: whose objects the node's own are; no Service has an empty name
_NODE: Final = ServiceKey("", "")


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


class NftRules:
    """See the module.  A ``node.plane.Ruleset``."""

    chain_per_target: Final = False

    def __init__(
        self, table: TableRef, around: Surroundings | None = None, writer: str = "0"
    ) -> None:
        """*writer*: a word that no other writer of this table has."""
        self.table = table
        self._writer = writer_chain(writer)
        self._around = around or Surroundings()
        self._services: dict[ServiceKey, ServiceObjects] = {}
        self._wanted: dict[str, Chain] = {}
        self._elements = Elements()
        self._held: dict[str, HeldTargets | HeldRules] = {}
        self._slots: dict[str, Slots] = {}  # by protocol
        self._retired: dict[str, float] = {}  # chain -> when its retired part may go
        self._rooms: tuple[int, ...] = ()  # those that were made; they stay
        self._marked_chains: set[str] = set()
        self.needs_full = True
        self._memory: Memory = {}
        self._sets: Counter[str] = Counter()  # sets of clients, by namespace
        self._draft: TableDraft | None = None

    def set_surroundings(self, around: Surroundings, node_ports: tuple[str, ...]) -> bool:
        """A change of what the static part depends on means a whole table."""
        changed = self.set_objects(_NODE, node_port_addresses(node_ports))
        if around != self._around:
            self._around = around
            self.needs_full = True
            changed = True
        return changed

    def set_service(self, change: ServiceChange, node: ThisNode) -> bool:
        return self.set_objects(change.service, build_service(change.ports, node))

    def set_objects(self, key: ServiceKey, objects: ServiceObjects | None) -> bool:
        """What *key* wants from now on; whether it is something else.  What did not change is not
        marked.
        """
        old = self._services.get(key) or ServiceObjects()
        new = objects or ServiceObjects()
        if old == new:
            return False
        if objects is None or new == ServiceObjects():
            del self._services[key]
        else:
            self._services[key] = new
        chains = {chain.name: chain for chain in new.chains}
        gained, lost = _accounts(new), _accounts(old)
        if gained != lost:
            self._sets.update(gained)
            self._sets -= Counter(lost)
        for chain in old.chains:
            if chain.name not in chains:
                del self._wanted[chain.name]
                self._marked_chains.add(chain.name)
        for name, chain in chains.items():
            if isinstance(chain, BalancedChain):
                assert len(chain.targets) <= TARGETS_PER_CHAIN_MAX, (
                    f"{name} has {len(chain.targets)} targets"
                )
            if self._wanted.get(name) != chain:
                self._wanted[name] = chain
                self._marked_chains.add(name)
        before = {(container, element): value for container, element, value in old.elements}
        after = {(container, element): value for container, element, value in new.elements}
        for element in before:
            if element not in after:
                self._elements.claim(element, key, None)
        for element, value in after.items():
            if element not in before or before[element] != value:
                self._elements.claim(element, key, (value,))
        return True

    def remember(self, memory: Memory) -> None:
        """What the dynamic sets of the table have; the next transaction, if it is a full one, fills
        them with it.
        """
        self._memory = memory

    def take_transaction(self, now: float) -> Transaction | None:
        """What brings the kernel up to date, with whatever is retired long enough."""
        assert self._draft is None, "a transaction is under way"
        memory = self._memory
        self._memory = {}
        draft = self._full(memory) if self.needs_full else self._changes(now)
        self.needs_full = False  # from here on it says what the next one shall be
        made = () if draft.full else self._rooms
        draft.made_rooms = (*made, *sorted(draft.rooms.difference(made)))
        rooms = [command for room in draft.made_rooms[len(made) :] for command in commands_of(room)]
        deletions = [
            DeleteElements(name, tuple(keys))
            for name, keys in sorted(draft.deletions.items())
            if keys
        ]
        additions = [
            AddElements(name, tuple(new)) for name, new in sorted(draft.additions.items()) if new
        ]
        commands: tuple[Command, ...] = (*deletions, *additions, *draft.rules, *draft.removed)
        if not (draft.made or commands):
            return None
        self._draft = draft
        if draft.full:
            return Transaction(self.table, (*draft.made, *rooms, *commands), full=True)
        ahead = 1 + len(rooms) if rooms else 0
        return Transaction(
            self.table, (FlushChain(self._writer.name), *rooms, *draft.made, *commands), ahead=ahead
        )

    def on_success(self, now: float) -> None:
        draft = self._draft
        assert draft is not None, "no transaction is under way"
        self._draft = None
        if draft.full:
            self._held = {}
            self._retired = {}
        self._rooms = draft.made_rooms
        for name, held in draft.chains.items():
            self._retired.pop(name, None)
            if held is None:
                del self._held[name]
                continue
            self._held[name] = held
            if _has_retired(held):
                self._retired[name] = now + RETIRE_AFTER_S
        self._elements.on_success(draft, now)

    def on_failure(self) -> None:
        assert self._draft is not None, "no transaction is under way"
        self._draft = None
        self.needs_full = True

    def next_deadline(self) -> float | None:
        """When retired objects may go.  (Changes are the caller's to time.)"""
        return min((*self._retired.values(), *self._elements.kept_until.values()), default=None)

    def _full(self, memory: Memory) -> TableDraft:
        draft = TableDraft(full=True)
        self._marked_chains = set()
        self._slots = {}  # no way back: until this succeeds, every transaction is full
        static = static_commands(self.table.family, self._around)
        draft.made.extend((AddTable(), DeleteTable(), AddTable(), self._writer, *static))
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
        self._elements.write_all(draft)
        return draft

    def _changes(self, now: float) -> TableDraft:
        draft = TableDraft()
        for name in sorted(self._marked_chains):
            wanted = self._wanted.get(name)
            held = self._held.get(name)
            if wanted is not None:
                self._place(draft, wanted, held)
            elif held is not None and held.live:
                draft.rules.append(FlushChain(name))
                if isinstance(held, HeldRules):
                    if (
                        held.chain.own_set is not None
                    ):  # who comes back meanwhile has been somewhere else since
                        draft.rules.append(FlushContainer(held.chain.own_set))
                    draft.chains[name] = held._replace(live=False)
                else:
                    draft.chains[name] = held._replace(live=0)
        self._marked_chains = set()
        self._elements.write_changes(draft, now)
        # Last, so that a slot given back here is not handed out again by this very transaction.
        for name in sorted(self._retired):
            if self._retired[name] <= now and name not in draft.chains:
                self._remove_retired(draft, name, self._held[name])
        return draft

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

    def shadow(self) -> Transaction:
        """What the kernel is thought to hold, as what would make it from nothing. O(state); for
        comparisons with the kernel, so not while a transaction runs or the shadow is worth nothing.
        """
        assert self._draft is None, "a transaction is under way"
        assert not self.needs_full, "what the kernel holds is unknown"
        made: list[Command] = [
            AddTable(),
            self._writer,
            *static_commands(self.table.family, self._around),
        ]
        made.extend(command for room in self._rooms for command in commands_of(room))
        items: dict[str, list[Item]] = defaultdict(list)
        rules: list[Command] = []
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
        for name, item in self._elements.items():
            items[name].append(item)
        elements = [AddElements(name, tuple(items[name])) for name in sorted(items)]
        return Transaction(self.table, (*made, *elements, *rules))

    def check(self) -> None:
        """Every invariant; what is not marked is in the kernel as it shall be.  O(state)."""
        chains = {
            chain.name: chain for objects in self._services.values() for chain in objects.chains
        }
        assert chains == self._wanted, f"chains {self._wanted} should be {chains}"
        sets = Counter(
            account for objects in self._services.values() for account in _accounts(objects)
        )
        assert sets == self._sets, f"sets {self._sets} should be {sets}"
        in_kernel = not self.needs_full and self._draft is None
        self._elements.check(self._wishes(), in_kernel=in_kernel)
        if not in_kernel:
            return
        balanced = [held for held in self._held.values() if isinstance(held, HeldTargets)]
        for protocol, slots in self._slots.items():
            slots.check({held.slot for held in balanced if held.protocol == protocol})
        assert {held.protocol for held in balanced} <= set(self._slots), "a chain has no slot"
        for name, held in self._held.items():
            assert _has_retired(held) == (name in self._retired), (
                f"{name}: {held}, retired: {self._retired.get(name)}"
            )
            if name in self._marked_chains:
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

    def _wishes(self) -> Iterator[tuple[ServiceKey, ElementId, Wanted]]:
        for key in sorted(self._services):
            for container, element, value in self._services[key].elements:
                yield key, (container, element), value


NftPlane = NodePlane[NftRules, Transaction]


def nft_plane(
    family: Family, config: NodePlaneConfig, table: str = TABLE, writer: str = "0"
) -> NftPlane:
    """*writer*: a word that no other process has which might write this table."""
    return NftPlane(family, config, NftRules(TableRef(NFT_FAMILIES[family], table), writer=writer))


def wants_memory(plane: NftPlane) -> bool:
    """The next write replaces the table, and there are clients whose endpoints should be remembered
    over it.
    """
    return plane.rules.needs_full and plane.tracker.has_affinity()


def clients_max(sets: int) -> int:
    """How many clients a new set takes if its namespace has *sets* of them."""
    return max(CLIENTS_MIN, min(CLIENTS_OF_SET_MAX, CLIENTS_MAX // sets))


def _accounts(objects: ServiceObjects) -> list[str]:
    """The namespace of each set of clients."""
    return [
        chain.account
        for chain in objects.chains
        if isinstance(chain, RuleChain) and chain.own_set is not None
    ]


def _has_retired(held: HeldTargets | HeldRules) -> bool:
    """Whether something of the chain is out of use, and goes later."""
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
