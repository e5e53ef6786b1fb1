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

``Chains`` and ``Elements`` keep the two parts of the table. A full transaction loses the clients
that packets put into dynamic sets, so the caller may return them to it (``remember``;
``wants_memory`` tells if it matters).

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

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from sliceplane.consume.model import ServiceChange, ServiceKey
from sliceplane.kit.ip import Family
from sliceplane.node.nft.build import (
    ServiceObjects,
    build_service,
    node_port_addresses,
)
from sliceplane.node.nft.chains import Chains, TableDraft
from sliceplane.node.nft.draws import commands_of
from sliceplane.node.nft.elements import ElementId, Elements
from sliceplane.node.nft.layout import static_commands, writer_chain
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import (
    AddElements,
    AddTable,
    Command,
    DeleteElements,
    DeleteTable,
    FlushChain,
    Item,
    Memory,
    TableRef,
    Transaction,
    Wanted,
)
from sliceplane.node.nft.statements import NftFamily
from sliceplane.node.plane import NodePlane, NodePlaneConfig
from sliceplane.node.surroundings import Surroundings, ThisNode

NFT_FAMILIES: Final[dict[Family, NftFamily]] = {"IPv4": "ip", "IPv6": "ip6"}
#: whose objects the node's own are; no Service has an empty name
_NODE: Final = ServiceKey("", "")


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
        self._chains = Chains()
        self._elements = Elements()
        self._rooms: tuple[int, ...] = ()  # those that were made; they stay
        self.needs_full = True
        self._memory: Memory = {}
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
        """Sets the desired objects of *key*; returns True if they changed.  Unchanged objects are
        not marked.
        """
        old = self._services.get(key) or ServiceObjects()
        new = objects or ServiceObjects()
        if old == new:
            return False
        if objects is None or new == ServiceObjects():
            del self._services[key]
        else:
            self._services[key] = new
        self._chains.set(old.chains, new.chains)
        before = {(container, element): value for container, element, value in old.elements}
        after = {(container, element): value for container, element, value in new.elements}
        for element in before:
            if element not in after:
                self._elements.claims.set(element, key, None)
        for element, value in after.items():
            if element not in before or before[element] != value:
                self._elements.claims.set(element, key, (value,))
        return True

    def remember(self, memory: Memory) -> None:
        """Sets the contents of the dynamic sets; the next transaction restores them if it is a full
        one.
        """
        self._memory = memory

    def take_transaction(self, now: float) -> Transaction | None:
        """Returns the transaction that brings the kernel up to date and deletes objects that were
        retired long enough.
        """
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
        self._rooms = draft.made_rooms
        self._chains.on_success(draft, now)
        self._elements.on_success(draft, now)

    def on_failure(self) -> None:
        assert self._draft is not None, "no transaction is under way"
        self._draft = None
        self.needs_full = True

    def next_deadline(self) -> float | None:
        """When retired objects may go.  (Changes are the caller's to time.)"""
        return min(
            (*self._chains.retired.values(), *self._elements.kept_until.values()), default=None
        )

    def _full(self, memory: Memory) -> TableDraft:
        draft = TableDraft(full=True)
        static = static_commands(self.table.family, self._around)
        draft.made.extend((AddTable(), DeleteTable(), AddTable(), self._writer, *static))
        self._chains.write_all(draft, memory)
        self._elements.write_all(draft)
        return draft

    def _changes(self, now: float) -> TableDraft:
        draft = TableDraft()
        self._chains.write_changes(draft)
        self._elements.write_changes(draft, now)
        self._chains.remove_retired(draft, now)
        return draft

    def shadow(self) -> Transaction:
        """Returns the expected state of the kernel, as a transaction that creates it.  O(state).

        It is for comparisons with the kernel: not while a transaction runs, or the shadow is
        invalid.
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
        self._chains.shadow(made, items, rules)
        for name, item in self._elements.items():
            items[name].append(item)
        elements = [AddElements(name, tuple(items[name])) for name in sorted(items)]
        return Transaction(self.table, (*made, *elements, *rules))

    def check(self) -> None:
        """Every invariant; what is not marked is in the kernel as it shall be.  O(state)."""
        in_kernel = not self.needs_full and self._draft is None
        self._chains.check(
            (chain for objects in self._services.values() for chain in objects.chains),
            in_kernel=in_kernel,
        )
        self._elements.check(self._wishes(), in_kernel=in_kernel)

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
