"""Elements of sets and maps: who wants which, what the kernel holds, and what goes and comes in between.

**Shared elements.**  Two Services may want one element: the same local endpoint, or by mistake the same cluster
IP.  An element stays as long as anyone claims it; if the claims differ, the Service whose key sorts first wins,
on every node.  (Over addresses for clients outside and node ports ``proxy.claims`` has decided before.)

**Ways in.**  A destination leads to a chain (an element of service-ips) or to a target (one of single-endpoints).  To
claims both are one element of service-ips; ``layout.home`` says in which map its value is.  While a destination moves
from one to the other no packet may fall between them: the kernel looks elements up in the newest version of a map, but
evaluates the rules that were there when the packet entered the hook (``nft.table``, "Retirement").  Service-ips is
asked first, single-endpoints next.

* From the chain to the target, who asks service-ips too late finds the target next, which came with the same
  transaction.
* From the target to the chain, the target stays for ``RETIRE_AFTER_S`` (it is *kept*), hidden by the chain's element.
  It is for packets that asked service-ips too early, and for those that asked just after: to them the chain, if it is
  new, has no rules yet, and they jump back.

Owned by one ``table.NftRules``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sliceplane.nft.layout import SINGLE_ENDPOINTS, home
from sliceplane.nft.objects import DnatTarget, Item, Key, NftVerdict, Value
from sliceplane.proxy.model import ServiceKey
from sliceplane.proxy.plane import Shares, with_share

RETIRE_AFTER_S = 1.0

ElementId = tuple[str, Key]  # container, key


@dataclass(slots=True)
class ElementsDraft:
    """What goes and comes in one transaction, by the container that it is in (a changed value is a deletion and an
    addition); and what is held and kept if it succeeds (``None``: gone)."""

    #: the transaction begins with an empty table
    full: bool = False
    deletions: dict[str, list[Key]] = field(default_factory=partial(defaultdict, list))
    additions: dict[str, list[Item]] = field(default_factory=partial(defaultdict, list))
    held: dict[ElementId, tuple[Value] | None] = field(default_factory=dict)
    kept: dict[ElementId, DnatTarget | None] = field(default_factory=dict)


class Elements:
    """See the module.  After ``write_*`` ``on_success`` if the kernel took it; if not, the next is ``write_all``."""

    def __init__(self) -> None:
        self._claims: dict[ElementId, Shares[Value]] = {}
        self._held: dict[ElementId, Value] = {}
        self._kept: dict[ElementId, DnatTarget] = {}
        #: when what is kept may go
        self.kept_until: dict[ElementId, float] = {}
        self._marked: set[ElementId] = set()

    def claim(self, element: ElementId, key: ServiceKey, value: tuple[Value] | None) -> None:
        """*key* wants *element* with the value, or no more."""
        shares = with_share(self._claims.get(element, ()), key, value)
        if shares:
            self._claims[element] = shares
        else:
            del self._claims[element]
        self._marked.add(element)

    def write_all(self, draft: ElementsDraft) -> None:
        """For an empty table."""
        self._marked = set()
        for element in sorted(self._claims):
            container, key = element
            value = self._claims[element][0][1]
            draft.additions[home(container, value)].append((key, value))
            draft.held[element] = (value,)

    def write_changes(self, draft: ElementsDraft, now: float) -> None:
        """What is marked, and what was kept long enough."""
        for element in sorted(self._marked):
            container, key = element
            claims = self._claims.get(element)
            before = (self._held[element],) if element in self._held else None
            after = None if claims is None else (claims[0][1],)
            if before == after:
                continue
            match before, after:
                case ((DnatTarget() as target,), (NftVerdict(),)):
                    draft.kept[element] = target
                case ((value,), _):
                    draft.deletions[home(container, value)].append(key)
            if element in self._kept and (after is None or isinstance(after[0], DnatTarget)):
                self._drop_kept(draft, element)
            if after is not None:
                draft.additions[home(container, after[0])].append((key, after[0]))
            draft.held[element] = after
        self._marked = set()
        if self.kept_until:
            for element in sorted(element for element, at in self.kept_until.items() if at <= now):
                if element not in draft.kept:
                    self._drop_kept(draft, element)

    def on_success(self, draft: ElementsDraft, now: float) -> None:
        if draft.full:
            self._held = {}
            self._kept = {}
            self.kept_until = {}
        for element, value in draft.held.items():
            if value is None:
                del self._held[element]
            else:
                self._held[element] = value[0]
        for element, target in draft.kept.items():
            if target is None:
                del self._kept[element]
                del self.kept_until[element]
            else:
                self._kept[element] = target
                self.kept_until[element] = now + RETIRE_AFTER_S

    def items(self) -> Iterator[tuple[str, Item]]:
        """What the kernel is thought to hold, with the container that it is in."""
        for (container, key), value in self._held.items():
            yield home(container, value), (key, value)
        for (_, key), target in self._kept.items():
            yield SINGLE_ENDPOINTS.name, (key, target)

    def _drop_kept(self, draft: ElementsDraft, element: ElementId) -> None:
        draft.deletions[SINGLE_ENDPOINTS.name].append(element[1])
        draft.kept[element] = None

    def check(self, wanted: Iterator[tuple[ServiceKey, ElementId, Value]], *, in_kernel: bool) -> None:
        """*wanted*: by Service, in their order; *in_kernel*: what is not marked is there.  O(state)."""
        claims: dict[ElementId, list[tuple[ServiceKey, Value]]] = {}
        for key, element, value in wanted:
            claims.setdefault(element, []).append((key, value))
        expected = {element: tuple(shares) for element, shares in claims.items()}
        assert expected == self._claims, f"claims {self._claims} should be {expected}"
        if not in_kernel:
            return
        for element in self._held.keys() | self._claims.keys():
            if element not in self._marked:
                held = self._held[element]
                first = self._claims[element][0][1]
                assert held == first, f"{element}: {held} is not {first}"
        assert self._kept.keys() == self.kept_until.keys(), f"{self._kept} until {self.kept_until}"
        for element, target in self._kept.items():
            leads = self._held.get(element, target)
            assert not isinstance(leads, DnatTarget), f"{element}: {target} is kept beside {leads}"
