"""Elements of sets and maps: the claims of Services, the applied elements, and the changes between
them.

**Shared elements.**  Two Services may claim one element (``node.plane.KernelClaims``): the same
local endpoint, or by mistake the same cluster IP. An element stays as long as any Service claims
it. ``consume.claims`` has already decided who owns external addresses and node ports.

**Lookups.**  A destination leads to a chain (an element of service-ips), to a target (one of
single-endpoints), or to several (elements of the set and map of its buckets, ``node.nft.buckets``).
For claims all three are one element of service-ips; ``_kernel_items`` returns the elements that it
has in the kernel. While a destination moves from one form to another, no packet may miss both. The
kernel looks elements up in the newest version of a map, but evaluates the rules of the moment at
which the packet entered the hook (``node.nft.table``, "Retirement"). The rules look a destination up
in service-ips first, then, twice, in the others.

* Between targets: a packet that was looked up too early in one map matches in the other, or in the
  second round.
* From the chain to targets: a packet that was looked up too late in service-ips matches the targets,
  which were added in the same transaction.
* From targets to the chain: the targets are *retained* for ``RETIRE_AFTER_S``, hidden by the chain's
  element. They serve packets that were looked up in service-ips too early, and those just after:
  for them a new chain has no rules yet, and they return from the jump.

Owned by one ``table.NftRules``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sliceplane.consume.model import ServiceKey
from sliceplane.node.nft.buckets import Buckets, bucket_map, bucket_set, fill_buckets
from sliceplane.node.nft.layout import SERVICE_IPS, SINGLE_ENDPOINTS
from sliceplane.node.nft.objects import (
    BalancedTargets,
    DesiredValue,
    DnatTarget,
    Item,
    Key,
    NftVerdict,
    Value,
)
from sliceplane.node.plane import KernelClaims

RETIRE_AFTER_S = 1.0

ElementId = tuple[str, Key]  # container, key
Applied = Value | Buckets


def _kernel_items(element: ElementId, applied: Applied) -> Iterator[tuple[str, list[Item]]]:
    """Yields the elements that the kernel has for *applied*, by container."""
    container, key = element
    if isinstance(applied, Buckets):
        yield bucket_set(applied.size).name, [(key, None)]
        yield bucket_map(applied.size).name, applied.items(key)
    elif isinstance(applied, DnatTarget) and container == SERVICE_IPS.name:
        yield SINGLE_ENDPOINTS.name, [(key, applied)]
    else:
        yield container, [(key, applied)]


def _initial(desired: DesiredValue) -> Applied:
    return fill_buckets(desired.targets) if isinstance(desired, BalancedTargets) else desired


@dataclass(slots=True)
class ElementsDraft:
    """The deleted and added elements of one transaction, by container (a changed value is a
    deletion and an addition); and the applied and retained elements if it succeeds (``None``:
    removed).
    """

    #: the transaction begins with an empty table
    full: bool = False
    deletions: dict[str, list[Key]] = field(default_factory=partial(defaultdict, list))
    additions: dict[str, list[Item]] = field(default_factory=partial(defaultdict, list))
    applied: dict[ElementId, tuple[Applied] | None] = field(default_factory=dict)
    retained: dict[ElementId, DnatTarget | Buckets | None] = field(default_factory=dict)
    #: counts of buckets that the transaction uses
    bucket_counts: set[int] = field(default_factory=set)

    def add(self, element: ElementId, applied: Applied) -> None:
        if isinstance(applied, Buckets):
            self.bucket_counts.add(applied.size)
        for container, items in _kernel_items(element, applied):
            self.additions[container].extend(items)

    def remove(self, element: ElementId, applied: Applied) -> None:
        for container, items in _kernel_items(element, applied):
            self.deletions[container].extend(key for key, _ in items)


class Elements:
    """See the module.  Call ``on_success`` if the kernel applied the draft of a ``write_*``;
    otherwise the next call is ``write_all``.
    """

    def __init__(self) -> None:
        self.claims: KernelClaims[ElementId, DesiredValue] = KernelClaims()
        self._applied: dict[ElementId, Applied] = {}
        self._retained: dict[ElementId, DnatTarget | Buckets] = {}
        #: times at which retained targets may be removed
        self.retained_until: dict[ElementId, float] = {}

    def write_all(self, draft: ElementsDraft) -> None:
        """Writes all elements into an empty table."""
        self.claims.marked = set()
        for element in sorted(self.claims):
            for desired in self.claims.winner(element) or ():
                applied = _initial(desired)
                draft.add(element, applied)
                draft.applied[element] = (applied,)

    def write_changes(self, draft: ElementsDraft, now: float) -> None:
        """Writes marked elements, and deletes those that were retained long enough."""
        for element in sorted(self.claims.marked):
            before = (self._applied[element],) if element in self._applied else None
            after = self.claims.winner(element)
            if before is None or after is None or not _is_current(before[0], after[0]):
                self._change(draft, element, before, after)
        self.claims.marked = set()
        if self.retained_until:
            for element in sorted(
                element for element, at in self.retained_until.items() if at <= now
            ):
                if element not in draft.retained:
                    self._drop_retained(draft, element)

    def _change(
        self,
        draft: ElementsDraft,
        element: ElementId,
        before: tuple[Applied] | None,
        after: tuple[DesiredValue] | None,
    ) -> None:
        replacement = None if after is None else (_initial(after[0]),)
        match before, after:
            case (Buckets() as old,), (BalancedTargets(targets),):
                new = fill_buckets(targets, old)
                replacement = (new,)
                if new.size == old.size:
                    _rearrange(draft, element, old, new)
                    return
                draft.remove(element, old)
            case (DnatTarget() | Buckets() as targets,), (NftVerdict(),):
                draft.retained[element] = targets
            case (value,), _:
                draft.remove(element, value)
            case None, None:
                return
        if element in self._retained and (after is None or not isinstance(after[0], NftVerdict)):
            self._drop_retained(draft, element)
        if replacement is not None:
            draft.add(element, replacement[0])
        draft.applied[element] = replacement

    def on_success(self, draft: ElementsDraft, now: float) -> None:
        if draft.full:
            self._applied = {}
            self._retained = {}
            self.retained_until = {}
        for element, value in draft.applied.items():
            if value is None:
                del self._applied[element]
            else:
                self._applied[element] = value[0]
        for element, targets in draft.retained.items():
            if targets is None:
                del self._retained[element]
                del self.retained_until[element]
            else:
                self._retained[element] = targets
                self.retained_until[element] = now + RETIRE_AFTER_S

    def items(self) -> Iterator[tuple[str, Item]]:
        """Yields the elements that the kernel is expected to have, each with its container."""
        for element, applied in (*self._applied.items(), *self._retained.items()):
            for container, items in _kernel_items(element, applied):
                for item in items:
                    yield container, item

    def _drop_retained(self, draft: ElementsDraft, element: ElementId) -> None:
        draft.remove(element, self._retained[element])
        draft.retained[element] = None

    def check(
        self, desired: Iterator[tuple[ServiceKey, ElementId, DesiredValue]], *, in_kernel: bool
    ) -> None:
        """Asserts every invariant.  *desired*: sorted by Service; *in_kernel*: unmarked elements are
        applied.  O(state).
        """
        self.claims.check(desired)
        if not in_kernel:
            return
        for element in {*self._applied, *self.claims} - self.claims.marked:
            applied = self._applied[element]
            winner = self.claims.winner(element)
            assert winner is not None, f"{element}: no Service claims {applied}"
            assert _is_current(applied, winner[0]), f"{element}: {applied} is not {winner[0]}"
        assert self._retained.keys() == self.retained_until.keys(), (
            f"{self._retained} until {self.retained_until}"
        )
        for element, targets in self._retained.items():
            leads = self._applied.get(element, targets)
            assert isinstance(leads, NftVerdict), f"{element}: {targets} are retained with {leads}"


def _is_current(applied: Applied, desired: DesiredValue) -> bool:
    """Returns True if *applied* is in accord with *desired*."""
    if isinstance(applied, Buckets):
        return isinstance(desired, BalancedTargets) and applied.has_only(desired.targets)
    return applied == desired


def _rearrange(draft: ElementsDraft, element: ElementId, before: Buckets, after: Buckets) -> None:
    """Changes targets without a change of the number of buckets."""
    old, new = dict(before.items(element[1])), dict(after.items(element[1]))
    name = bucket_map(after.size).name
    draft.deletions[name].extend(key for key, target in old.items() if new.get(key) != target)
    draft.additions[name].extend(
        (key, target) for key, target in new.items() if old.get(key) != target
    )
    draft.applied[element] = (after,)
