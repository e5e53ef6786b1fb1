"""The rules of one family: the desired state, the applied one (the shadow), and the text from one to
the other.

```
set_service()  ->  desired chains, claims on places in shared chains  --diff of marked ones-->  Transaction
                                                                            |
                   shadow  <----------------- on_success ------------------ '      on_failure -> full write
```

The design is that of ``node.nft.table``, within the limits of iptables.

**A change** replaces the chains of the changed Services, and adds and deletes single rules of shared
chains; it does not query the kernel. All text is for ``iptables-restore --noflush``: naming a chain
empties it, so a chain is always written whole. The cost is higher than that of the text: the legacy
flavour copies whole tables in and out of the kernel.

**A full write** names and fills each of our chains. ``ListedRules`` complete it: it adds missing
jumps and removes obsolete chains of any earlier program.

**Order.**  Each table is replaced atomically, but ``filter`` and ``nat`` one after the other. A rule
that refuses a destination without endpoints sees only untranslated packets. So refusals are added
before translations are removed, and removed after translations are added. A change is ``filter``
(additions), ``nat``, ``filter`` (removals). At every moment, each destination that it changes is
either served or refused. A full write is ``filter``, then ``nat``: between them a changed destination
may be neither.

**Shared rules.**  Two Services may claim one cluster IP by mistake (``node.plane.KernelClaims``).
``consume.claims`` has already decided who owns external addresses and node ports.

Owned by one ``node.plane.NodePlane``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from sliceplane.consume.model import ServiceChange, ServiceKey
from sliceplane.kit.ip import Family
from sliceplane.node.context import LocalNode, NodeContext
from sliceplane.node.iptables.build import ServiceRules, SharedRuleId, build_service
from sliceplane.node.iptables.layout import TABLES, Chain, Table, static_chains
from sliceplane.node.iptables.saved import NO_RULES, ListedRules
from sliceplane.node.plane import KernelClaims, NodePlane, NodePlaneConfig

_EMPTY = ServiceRules()


class Section(NamedTuple):
    """Changes of one table, which the kernel applies atomically: create or empty ``named`` chains,
    execute ``commands``, delete ``removed`` chains.
    """

    table: Table
    named: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def render(self) -> str:
        lines = [
            f"*{self.table}",
            *(f":{name} - [0:0]" for name in self.named),
            *self.commands,
            *(f"-X {name}" for name in self.removed),
            "COMMIT",
        ]
        return "".join(f"{line}\n" for line in lines)


class IptablesTransaction(msgspec.Struct, frozen=True):
    """Text for ``iptables-restore --noflush``. A ``full`` one replaces all our rules, and must be
    completed with the listed ones of the kernel.
    """

    sections: tuple[Section, ...]
    full: bool = False

    @property
    def size(self) -> int:
        return sum(
            len(section.named) + len(section.commands) + len(section.removed)
            for section in self.sections
        )

    def render(self, listed: ListedRules = NO_RULES) -> str:
        sections = (
            (self._completed(section, listed) for section in self.sections)
            if self.full
            else self.sections
        )
        return "".join(section.render() for section in sections)

    @staticmethod
    def _completed(section: Section, listed: ListedRules) -> Section:
        stale = listed.stale(section.table, frozenset(section.named))
        commands = (*section.commands, *listed.missing_jumps(section.table))
        return Section(section.table, (*section.named, *stale), commands, stale)


@dataclass(slots=True)
class _RestoreDraft:
    """The shadow after the transaction succeeds (``None``: removed)."""

    full: bool = False
    chains: dict[Chain, tuple[str, ...] | None] = field(default_factory=dict)
    shared: dict[SharedRuleId, str | None] = field(default_factory=dict)


class IptablesRules:
    """See the module.  A ``node.plane.Ruleset``."""

    chain_per_target: Final = True

    def __init__(self, family: Family) -> None:
        self._family: Family = family
        self._context = NodeContext()
        self._node_ports: tuple[str, ...] = ()
        self._services: dict[ServiceKey, ServiceRules] = {}
        self._desired: dict[Chain, tuple[str, ...]] = {}
        self._claims: KernelClaims[SharedRuleId, str] = KernelClaims()
        self._applied: dict[Chain, tuple[str, ...]] = {}
        self._applied_shared: dict[SharedRuleId, str] = {}
        self._marked_chains: set[Chain] = set()
        self.needs_full = True
        self._draft: _RestoreDraft | None = None

    def set_context(self, context: NodeContext, node_ports: tuple[str, ...]) -> bool:
        """Sets the node context; a change of it requires a full write."""
        if (context, node_ports) == (self._context, self._node_ports):
            return False
        self._context = context
        self._node_ports = node_ports
        self.needs_full = True
        return True

    def set_service(self, change: ServiceChange, node: LocalNode) -> bool:
        key = change.service
        old = self._services.get(key, _EMPTY)
        new = build_service(change.ports, node, masquerade_all=self._context.masquerade_all)
        if old == new:
            return False
        if new == _EMPTY:
            del self._services[key]
        else:
            self._services[key] = new
        before = dict(old.chains)
        after = dict(new.chains)
        for chain in before.keys() - after.keys():
            del self._desired[chain]
            self._marked_chains.add(chain)
        for chain, rules in after.items():
            if self._desired.get(chain) != rules:
                self._desired[chain] = rules
                self._marked_chains.add(chain)
        had = dict(old.shared)
        has = dict(new.shared)
        for rule_id in had.keys() | has.keys():
            if had.get(rule_id) != has.get(rule_id):
                line = has.get(rule_id)
                self._claims.set(rule_id, key, None if line is None else (line,))
        return True

    def take_transaction(self, now: float) -> IptablesTransaction | None:
        assert self._draft is None, "a transaction is under way"
        sections, draft = self._full() if self.needs_full else self._changes()
        self.needs_full = False  # from here on, it is about the next one
        self._marked_chains = set()
        self._claims.marked = set()
        if not sections:
            return None
        self._draft = draft
        return IptablesTransaction(sections, draft.full)

    def on_success(self, now: float) -> None:
        draft = self._draft
        assert draft is not None, "no transaction is under way"
        self._draft = None
        if draft.full:
            self._applied = {}
            self._applied_shared = {}
        for chain, rules in draft.chains.items():
            if rules is None:
                del self._applied[chain]
            else:
                self._applied[chain] = rules
        for rule_id, line in draft.shared.items():
            if line is None:
                del self._applied_shared[rule_id]
            else:
                self._applied_shared[rule_id] = line

    def on_failure(self) -> None:
        assert self._draft is not None, "no transaction is under way"
        self._draft = None
        self.needs_full = True

    def next_deadline(self) -> float | None:
        """Returns ``None``: no rules are retired."""
        return None

    def _full(self) -> tuple[tuple[Section, ...], _RestoreDraft]:
        shared = {
            rule_id: line for rule_id in self._claims for line in self._claims.winner(rule_id) or ()
        }
        draft = _RestoreDraft(full=True, chains=dict(self._desired), shared=dict(shared))
        return self._sections(self._desired, shared), draft

    def shadow(self) -> IptablesTransaction:
        """Returns the expected state of the kernel, as a full write."""
        return IptablesTransaction(self._sections(self._applied, self._applied_shared), full=True)

    def _sections(
        self, chains: Mapping[Chain, tuple[str, ...]], lines: Mapping[SharedRuleId, str]
    ) -> tuple[Section, ...]:
        shared: dict[Chain, list[str]] = {}
        for rule_id in sorted(lines):
            shared.setdefault(rule_id[0], []).append(lines[rule_id])
        fixed = static_chains(self._family, self._context, self._node_ports)
        sections = []
        for table in TABLES:
            contents = {
                **{
                    chain[1]: (*shared.get(chain, ()), *tail)
                    for chain, tail in fixed.items()
                    if chain[0] == table
                },
                **{name: chains[of, name] for of, name in sorted(chains) if of == table},
            }
            commands = [f"-A {name} {line}" for name, lines in contents.items() for line in lines]
            sections.append(Section(table, tuple(contents), tuple(commands)))
        return tuple(sections)

    def _changes(self) -> tuple[tuple[Section, ...], _RestoreDraft]:
        draft = _RestoreDraft()
        named: dict[Table, list[str]] = {table: [] for table in TABLES}
        additions: dict[Table, list[str]] = {table: [] for table in TABLES}
        deletions: dict[Table, list[str]] = {table: [] for table in TABLES}
        removed: dict[Table, list[str]] = {table: [] for table in TABLES}
        for chain in sorted(self._marked_chains):
            table, name = chain
            desired = self._desired.get(chain)
            applied = self._applied.get(chain)
            if desired == applied:
                continue
            draft.chains[chain] = desired
            if desired is None:
                removed[table].append(name)
            else:
                named[table].append(name)
                additions[table] += [f"-A {name} {line}" for line in desired]
        for rule_id in sorted(self._claims.marked):
            (table, name), _ = rule_id
            before = self._applied_shared.get(rule_id)
            (after,) = self._claims.winner(rule_id) or (None,)
            if before == after:
                continue
            draft.shared[rule_id] = after
            if after is not None:
                additions[table].append(f"-I {name} {after}")
            if before is not None:
                (deletions if after is None else additions)[table].append(f"-D {name} {before}")
        first = Section("filter", tuple(named["filter"]), tuple(additions["filter"]))
        last = Section(
            "filter", tuple(removed["filter"]), tuple(deletions["filter"]), tuple(removed["filter"])
        )
        translations = Section(
            "nat",
            (*named["nat"], *removed["nat"]),
            (*additions["nat"], *deletions["nat"]),
            tuple(removed["nat"]),
        )
        if not any(translations[1:]):  # no translation that the order matters for
            first = Section("filter", *(a + b for a, b in zip(first[1:], last[1:], strict=True)))
            last = Section("filter")
        return tuple(section for section in (first, translations, last) if any(section[1:])), draft

    def check(self) -> None:
        """Asserts that the desired rules match the Services, and that the kernel is expected to
        have all unmarked ones.
        """
        chains: dict[Chain, tuple[str, ...]] = {}
        for key in sorted(self._services):
            chains.update(self._services[key].chains)
        assert chains == self._desired, f"chains {self._desired} should be {chains}"
        self._claims.check(
            (key, rule_id, line)
            for key in sorted(self._services)
            for rule_id, line in self._services[key].shared
        )
        if self.needs_full or self._draft is not None:
            return
        for chain in (self._desired.keys() | self._applied.keys()) - self._marked_chains:
            listed = self._applied.get(chain)
            desired = self._desired.get(chain)
            assert listed == desired, f"{chain}: {listed} is not {desired}"
        for rule_id in {*self._applied_shared, *self._claims} - self._claims.marked:
            there = self._applied_shared.get(rule_id)
            (first,) = self._claims.winner(rule_id) or (None,)
            assert there == first, f"{rule_id}: {there} is not {first}"


IptablesPlane = NodePlane[IptablesRules, IptablesTransaction]


def iptables_plane(family: Family, config: NodePlaneConfig) -> IptablesPlane:
    return IptablesPlane(family, config, IptablesRules(family))
