"""One table: its desired state, the applied one (the shadow), and the transaction from one to the
other.

```
set_service()  ->  desired chains, claims on elements  --diff of marked ones-->     Transaction
                                                            |
                   shadow  <------- on_success ------------ '      on_failure -> full transaction
```

The shadow changes only when the kernel has applied the transaction; the kernel is never queried. If
the kernel refuses one (for example because an administrator deleted our table), the shadow is
invalid and the next transaction is *full*. A full transaction deletes the table and builds it again
**atomically**, so traffic never meets an empty table. The first one is full too, and replaces the
table of an earlier process.

``Chains`` and ``Elements`` own the two parts of the table. A full transaction loses the clients that
packets added to dynamic sets, so the caller may restore them (``restore_sets``;
``needs_set_contents`` returns True if that matters).

**Order of commands.**

0. Check the table's writer, and create missing counts of buckets. They are a step of their own
   (``node.nft.layout.steps``), since a packet that looks its destination up must have met their
   rules.
1. Create missing maps and chains.
2. Delete elements.
3. Add elements, whose verdicts need the chains (a changed value is a deletion and an addition).
4. Flush and add rules. They need the maps, and the kernel checks them against the present elements.
5. Delete chains and maps.

**Retirement.**  The kernel evaluates a packet against the rules of the moment at which the packet
entered the hook, but looks elements up in the newest version of a map. Kernels before 6.2 refuse to
delete a chain in the transaction that removes the last reference to it. Therefore objects that a
transaction takes out of use (targets beyond a rule's new count, unreferenced chains) are *retired*:
they stay for ``RETIRE_AFTER_S``, and a later transaction deletes them. A retired object that is
needed again is used again. Elements are retired likewise (``node.nft.elements``).
``node.nft.layout.steps`` describes packets that a full transaction overtakes.

**One writer at a time.**  No other program should write our table, but one may: a second proxy on
the node by mistake, or for a moment while one replaces the other. Each assigns slots in its own
order. Changes computed for the table of one would misroute Services in the table of the other, and
the kernel would accept many of them. Therefore a full transaction creates an empty chain with its
writer's name, and every change first flushes that chain. In a table that another program has written
since, the flush is refused. Then this writer's next transaction is full, as after any other refusal.

**Size.**  Only memory bounds a transaction: as root, the socket's buffer is raised as needed
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
from sliceplane.node.context import LocalNode, NodeContext
from sliceplane.node.nft.buckets import bucket_commands
from sliceplane.node.nft.build import (
    ServiceObjects,
    build_service,
    node_port_addresses,
)
from sliceplane.node.nft.chains import Chains, TableDraft
from sliceplane.node.nft.elements import ElementId, Elements
from sliceplane.node.nft.layout import static_commands, writer_chain
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.objects import (
    AddElements,
    AddTable,
    Command,
    DeleteElements,
    DeleteTable,
    DesiredValue,
    DynamicSetContents,
    FlushChain,
    Item,
    TableRef,
    Transaction,
)
from sliceplane.node.nft.statements import NftFamily
from sliceplane.node.plane import NodePlane, NodePlaneConfig

NFT_FAMILIES: Final[dict[Family, NftFamily]] = {"IPv4": "ip", "IPv6": "ip6"}
#: the key of the node's own objects; no Service has an empty name
_NODE: Final = ServiceKey("", "")


class NftRules:
    """See the module.  A ``node.plane.Ruleset``."""

    chain_per_target: Final = False

    def __init__(
        self, table: TableRef, context: NodeContext | None = None, writer: str = "0"
    ) -> None:
        """*writer*: a unique name of this writer of the table."""
        self.table = table
        self._writer = writer_chain(writer)
        self._context = context or NodeContext()
        self._services: dict[ServiceKey, ServiceObjects] = {}
        self._chains = Chains()
        self._elements = Elements()
        self._bucket_counts: tuple[int, ...] = ()  # created ones are never deleted
        self.needs_full = True
        self._set_contents: DynamicSetContents = {}
        self._draft: TableDraft | None = None

    def set_context(self, context: NodeContext, node_ports: tuple[str, ...]) -> bool:
        """Sets the node context; a change of it requires a full transaction."""
        changed = self.set_objects(_NODE, node_port_addresses(node_ports))
        if context != self._context:
            self._context = context
            self.needs_full = True
            changed = True
        return changed

    def set_service(self, change: ServiceChange, node: LocalNode) -> bool:
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

    def restore_sets(self, contents: DynamicSetContents) -> None:
        """Sets the contents of the dynamic sets; the next transaction restores them if it is a full
        one.
        """
        self._set_contents = contents

    def take_transaction(self, now: float) -> Transaction | None:
        """Returns the transaction that brings the kernel up to date and deletes objects that were
        retired long enough.
        """
        assert self._draft is None, "a transaction is under way"
        contents = self._set_contents
        self._set_contents = {}
        draft = self._full(contents) if self.needs_full else self._changes(now)
        self.needs_full = False  # from here on, it is about the next one
        created = () if draft.full else self._bucket_counts
        draft.created_counts = (*created, *sorted(draft.bucket_counts.difference(created)))
        new_buckets = [
            command
            for count in draft.created_counts[len(created) :]
            for command in bucket_commands(count)
        ]
        deletions = [
            DeleteElements(name, tuple(keys))
            for name, keys in sorted(draft.deletions.items())
            if keys
        ]
        additions = [
            AddElements(name, tuple(new)) for name, new in sorted(draft.additions.items()) if new
        ]
        commands: tuple[Command, ...] = (*deletions, *additions, *draft.rules, *draft.removed)
        if not (draft.created or commands):
            return None
        self._draft = draft
        if draft.full:
            return Transaction(self.table, (*draft.created, *new_buckets, *commands), full=True)
        ahead = 1 + len(new_buckets) if new_buckets else 0
        return Transaction(
            self.table,
            (FlushChain(self._writer.name), *new_buckets, *draft.created, *commands),
            ahead=ahead,
        )

    def on_success(self, now: float) -> None:
        draft = self._draft
        assert draft is not None, "no transaction is under way"
        self._draft = None
        self._bucket_counts = draft.created_counts
        self._chains.on_success(draft, now)
        self._elements.on_success(draft, now)

    def on_failure(self) -> None:
        assert self._draft is not None, "no transaction is under way"
        self._draft = None
        self.needs_full = True

    def next_deadline(self) -> float | None:
        """Returns when retired objects may be deleted.  (The caller schedules changes.)"""
        return min(
            (*self._chains.retired.values(), *self._elements.retained_until.values()), default=None
        )

    def _full(self, contents: DynamicSetContents) -> TableDraft:
        draft = TableDraft(full=True)
        static = static_commands(self.table.family, self._context)
        draft.created.extend((AddTable(), DeleteTable(), AddTable(), self._writer, *static))
        self._chains.write_all(draft, contents)
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
        assert not self.needs_full, "the state of the kernel is unknown"
        created: list[Command] = [
            AddTable(),
            self._writer,
            *static_commands(self.table.family, self._context),
        ]
        created.extend(
            command for count in self._bucket_counts for command in bucket_commands(count)
        )
        items: dict[str, list[Item]] = defaultdict(list)
        rules: list[Command] = []
        self._chains.shadow(created, items, rules)
        for name, item in self._elements.items():
            items[name].append(item)
        elements = [AddElements(name, tuple(items[name])) for name in sorted(items)]
        return Transaction(self.table, (*created, *elements, *rules))

    def check(self) -> None:
        """Asserts every invariant; unmarked objects are applied as desired.  O(state)."""
        in_kernel = not self.needs_full and self._draft is None
        self._chains.check(
            (chain for objects in self._services.values() for chain in objects.chains),
            in_kernel=in_kernel,
        )
        self._elements.check(self._desired_elements(), in_kernel=in_kernel)

    def _desired_elements(self) -> Iterator[tuple[ServiceKey, ElementId, DesiredValue]]:
        for key in sorted(self._services):
            for container, element, value in self._services[key].elements:
                yield key, (container, element), value


NftPlane = NodePlane[NftRules, Transaction]


def nft_plane(
    family: Family, config: NodePlaneConfig, table: str = TABLE, writer: str = "0"
) -> NftPlane:
    """Creates the data plane of one family.  *writer*: a unique name of this process."""
    return NftPlane(family, config, NftRules(TableRef(NFT_FAMILIES[family], table), writer=writer))


def needs_set_contents(plane: NftPlane) -> bool:
    """Returns True if the next write replaces the table and a Service has session affinity, so that
    clients have to be restored.
    """
    return plane.rules.needs_full and plane.tracker.has_affinity()
