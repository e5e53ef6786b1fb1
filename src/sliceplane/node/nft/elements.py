"""Elements of sets and maps: who wants which, what the kernel holds, and what goes and comes in
between.

**Shared elements.**  Two Services may claim one element (``node.plane.PlaceClaims``): the same
local endpoint, or by mistake the same cluster IP. An element stays as long as any Service claims
it. Over addresses for clients outside and node ports ``consume.claims`` has decided before.

**Ways in.**  A destination leads to a chain (an element of service-ips), to a target (one of
single-endpoints), or to several (elements of a room's set and map, ``node.nft.draws``). To claims
all are one element of service-ips; what the kernel holds for it, and where, is told by ``_stored``.
While a destination moves from one to the other no packet may fall between them: the kernel looks
elements up in the newest version of a map, but evaluates the rules that were there when the packet
entered the hook (``node.nft.table``, "Retirement"). Service-ips is asked first, then, twice, the
others.

* Between targets, who asked one place too early finds the other when asked again.
* From the chain to targets, who asks service-ips too late finds the targets, which came with the
  same transaction.
* From targets to the chain, the targets stay for ``RETIRE_AFTER_S`` (they are *kept*), hidden by
  the chain's element. They are for packets that asked service-ips too early, and for those that
  asked just after: to them the chain, if it is new, has no rules yet, and they jump back.

Owned by one ``table.NftRules``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from sliceplane.consume.model import ServiceKey
from sliceplane.node.nft.draws import RoomPlaces, endpoints_of, members_of, placed
from sliceplane.node.nft.layout import SERVICE_IPS, SINGLE_ENDPOINTS
from sliceplane.node.nft.objects import DnatTarget, Item, Key, NftVerdict, Several, Value, Wanted
from sliceplane.node.plane import PlaceClaims

RETIRE_AFTER_S = 1.0

ElementId = tuple[str, Key]  # container, key
Held = Value | RoomPlaces


def _stored(element: ElementId, held: Held) -> Iterator[tuple[str, list[Item]]]:
    """The elements that *held* consists of in the kernel, by the containers that they are in."""
    container, key = element
    if isinstance(held, RoomPlaces):
        yield members_of(held.room).name, [(key, None)]
        yield endpoints_of(held.room).name, held.items(key)
    elif isinstance(held, DnatTarget) and container == SERVICE_IPS.name:
        yield SINGLE_ENDPOINTS.name, [(key, held)]
    else:
        yield container, [(key, held)]


def _made(wanted: Wanted) -> Held:
    return placed(wanted.targets) if isinstance(wanted, Several) else wanted


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
    held: dict[ElementId, tuple[Held] | None] = field(default_factory=dict)
    kept: dict[ElementId, DnatTarget | RoomPlaces | None] = field(default_factory=dict)
    #: those that are used
    rooms: set[int] = field(default_factory=set)

    def add(self, element: ElementId, held: Held) -> None:
        if isinstance(held, RoomPlaces):
            self.rooms.add(held.room)
        for container, items in _stored(element, held):
            self.additions[container].extend(items)

    def remove(self, element: ElementId, held: Held) -> None:
        for container, items in _stored(element, held):
            self.deletions[container].extend(key for key, _ in items)


class Elements:
    """See the module.  After ``write_*`` ``on_success`` if the kernel took it; if not, the next is
    ``write_all``.
    """

    def __init__(self) -> None:
        self.claims: PlaceClaims[ElementId, Wanted] = PlaceClaims()
        self._held: dict[ElementId, Held] = {}
        self._kept: dict[ElementId, DnatTarget | RoomPlaces] = {}
        #: when what is kept may go
        self.kept_until: dict[ElementId, float] = {}

    def write_all(self, draft: ElementsDraft) -> None:
        """For an empty table."""
        self.claims.marked = set()
        for element in sorted(self.claims):
            for wanted in self.claims.winner(element) or ():
                held = _made(wanted)
                draft.add(element, held)
                draft.held[element] = (held,)

    def write_changes(self, draft: ElementsDraft, now: float) -> None:
        """Writes marked elements, and deletes those that were retained long enough."""
        for element in sorted(self.claims.marked):
            before = (self._held[element],) if element in self._held else None
            after = self.claims.winner(element)
            if before is None or after is None or not _is_as(before[0], after[0]):
                self._change(draft, element, before, after)
        self.claims.marked = set()
        if self.kept_until:
            for element in sorted(element for element, at in self.kept_until.items() if at <= now):
                if element not in draft.kept:
                    self._drop_kept(draft, element)

    def _change(
        self,
        draft: ElementsDraft,
        element: ElementId,
        before: tuple[Held] | None,
        after: tuple[Wanted] | None,
    ) -> None:
        made = None if after is None else (_made(after[0]),)
        match before, after:
            case (RoomPlaces() as old,), (Several(targets),):
                new = placed(targets, old)
                made = (new,)
                if new.room == old.room:
                    _rearrange(draft, element, old, new)
                    return
                draft.remove(element, old)
            case (DnatTarget() | RoomPlaces() as targets,), (NftVerdict(),):
                draft.kept[element] = targets
            case (value,), _:
                draft.remove(element, value)
            case None, None:
                return
        if element in self._kept and (after is None or not isinstance(after[0], NftVerdict)):
            self._drop_kept(draft, element)
        if made is not None:
            draft.add(element, made[0])
        draft.held[element] = made

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
        for element, targets in draft.kept.items():
            if targets is None:
                del self._kept[element]
                del self.kept_until[element]
            else:
                self._kept[element] = targets
                self.kept_until[element] = now + RETIRE_AFTER_S

    def items(self) -> Iterator[tuple[str, Item]]:
        """Yields the elements that the kernel is expected to have, each with its container."""
        for element, held in (*self._held.items(), *self._kept.items()):
            for container, items in _stored(element, held):
                for item in items:
                    yield container, item

    def _drop_kept(self, draft: ElementsDraft, element: ElementId) -> None:
        draft.remove(element, self._kept[element])
        draft.kept[element] = None

    def check(
        self, wanted: Iterator[tuple[ServiceKey, ElementId, Wanted]], *, in_kernel: bool
    ) -> None:
        """*wanted*: by Service, in their order; *in_kernel*: what is not marked is there.
        O(state).
        """
        self.claims.check(wanted)
        if not in_kernel:
            return
        for element in {*self._held, *self.claims} - self.claims.marked:
            held = self._held[element]
            winner = self.claims.winner(element)
            assert winner is not None, f"{element}: no Service claims {held}"
            assert _is_as(held, winner[0]), f"{element}: {held} is not {winner[0]}"
        assert self._kept.keys() == self.kept_until.keys(), f"{self._kept} until {self.kept_until}"
        for element, targets in self._kept.items():
            leads = self._held.get(element, targets)
            assert isinstance(leads, NftVerdict), f"{element}: {targets} are kept beside {leads}"


def _is_as(held: Held, wanted: Wanted) -> bool:
    """Returns True if nothing has to change."""
    if isinstance(held, RoomPlaces):
        return isinstance(wanted, Several) and held.holds(wanted.targets)
    return held == wanted


def _rearrange(
    draft: ElementsDraft, element: ElementId, before: RoomPlaces, after: RoomPlaces
) -> None:
    """Within their room."""
    old, new = dict(before.items(element[1])), dict(after.items(element[1]))
    name = endpoints_of(after.room).name
    draft.deletions[name].extend(key for key, target in old.items() if new.get(key) != target)
    draft.additions[name].extend(
        (key, target) for key, target in new.items() if old.get(key) != target
    )
    draft.held[element] = (after,)
