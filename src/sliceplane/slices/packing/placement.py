"""The slice of each endpoint, for one Service and one address type, kept incrementally.

The state has two inputs, the *desired* endpoints (one for each Pod) and the slices on the *server*.
Everything else follows from the two::

    holders        slices on the server that list an endpoint, by its identity
    home           of a desired endpoint: the holder with its port group that has the least name
    slice.desired  the endpoints whose home the slice is, in their desired versions
    unplaced       desired endpoints without a home, by port group
    touched        slices that may differ from what is desired (all others do not)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from sliceplane.kit.containers import SortedDict
from sliceplane.kit.ip import Family
from sliceplane.slices.content import Content, PortGroup, PortResolver, SliceState, Stored
from sliceplane.slices.facts import pod_of
from sliceplane.slices.shape import ServiceShape
from sliceplane.slices.subsets import subset_of


class Desired(msgspec.Struct, frozen=True, gc=False):
    """A Pod's endpoint. Without ``identity`` the Pod has none here, but its port group still counts
    as desired.

    There is one for each endpoint, and none is part of a cycle, so the garbage collector need not
    track them.
    """

    group: PortGroup
    identity: str
    body: bytes


_Rooms = SortedDict[tuple[int, str], SliceState]


class SlicePlacement:
    """The placement of endpoints. Owned by a ``ServiceState``. Every method except ``check`` costs
    in proportion to its changes.

    *subsets*: the subset label distinguishes slices. Otherwise it is an ordinary label.
    """

    def __init__(self, ports: PortResolver, max_endpoints: int, *, subsets: bool = False) -> None:
        self._ports = ports
        self._max = max_endpoints
        self._subsets = subsets
        self.desired: dict[str, Desired] = {}
        self.slices: dict[str, SliceState] = {}
        self._pods_by_group: dict[PortGroup, int] = {}
        #: number of endpoints of each group
        self._sizes: dict[PortGroup, int] = {}
        self._holders: dict[str, tuple[SliceState, ...]] = {}
        self._unplaced: dict[PortGroup, Content] = {}
        self._touched: dict[str, SliceState] = {}
        #: slices of each group by fill, to find the fullest with enough space
        self._rooms: dict[PortGroup, _Rooms] = {}

    # -- desired endpoints

    def set_desired(self, pod: str, new: Desired | None) -> bool:
        """Sets the desired endpoint of *pod*. Returns False if it is unchanged."""
        old = self.desired.get(pod)
        if old == new:
            return False
        if old is None or new is None or old.identity != new.identity or old.group is not new.group:
            # The new group is counted first: a group that one Pod leaves and enters must not reach
            # zero.
            if new is not None:
                self._count(new, 1)
            if old is not None:
                self._count(old, -1)
                if old.identity:
                    self._unplace(old)
        if new is None:
            del self.desired[pod]
        else:
            self.desired[pod] = new
            if new.identity:
                self._place(new)
        return True

    def _count(self, endpoint: Desired, step: int) -> None:
        """Counts the Pods and endpoints of a group. A group without Pods loses its slices, so its
        first and last Pod touch them.
        """
        group = endpoint.group
        count = self._pods_by_group.get(group, 0) + step
        if count:
            self._pods_by_group[group] = count
        else:
            del self._pods_by_group[group]
        if not count or (step > 0 and count == 1):
            for state in self._rooms.get(group, {}).values():
                self._touch(state)
        if endpoint.identity:
            size = self._sizes.get(group, 0) + step
            if size:
                self._sizes[group] = size
            else:
                del self._sizes[group]

    def _place(self, endpoint: Desired) -> None:
        group = endpoint.group
        identity = endpoint.identity
        body = endpoint.body
        home = self._home(endpoint) if identity in self._holders else None
        if home is not None:
            home.own_desired()[identity] = body
            self._touch(home)
        elif (unplaced := self._unplaced.get(group)) is not None:
            unplaced[identity] = body
        else:
            self._unplaced[group] = {identity: body}

    def _unplace(self, endpoint: Desired) -> None:
        home = self._home(endpoint)
        if home is None:
            self._take_unplaced(endpoint)
        else:
            del home.own_desired()[endpoint.identity]
            self._touch(home)

    def _take_unplaced(self, endpoint: Desired) -> None:
        unplaced = self._unplaced[endpoint.group]
        del unplaced[endpoint.identity]
        if not unplaced:
            del self._unplaced[endpoint.group]

    def _home(self, endpoint: Desired) -> SliceState | None:
        for holder in self._holders.get(endpoint.identity, ()):
            if holder.group is endpoint.group:
                return holder
        return None

    def _touch(self, state: SliceState) -> None:
        self._touched[state.name] = state

    # -- slices on the server

    def attach(self, stored: Stored) -> None:
        """Adds *stored*, a new slice on the server or a new version of one."""
        current = self.slices.get(stored.meta.name)
        subset = subset_of(stored.meta.labels) if self._subsets else ""
        if current is not None:
            same = current.group.ports == stored.ports and current.group.subset == subset
            if same and current.server.keys() == stored.content.keys():
                self._refresh(current, stored)
                return
            self.detach(current.name)
        state = SliceState(stored, self._ports.intern(stored.ports, subset))
        self.slices[state.name] = state
        rooms = self._rooms.setdefault(state.group, SortedDict())
        rooms[len(state.server), state.name] = state
        desired: Content = {}
        for identity in state.server:
            endpoint = self._desired_of(identity)
            if self._retain(identity, state, endpoint) and endpoint is not None:
                desired[identity] = endpoint.body
        state.desired = desired
        self._touch(state)

    def _refresh(self, current: SliceState, stored: Stored) -> None:
        """Stores a new version with the same endpoints: no home changes."""
        if current.desired is not stored.content:
            current.own_desired()  # it may still be the old version's dictionary
        current.stored = stored
        current.server = stored.content
        self._touch(current)

    def _retain(self, identity: str, state: SliceState, endpoint: Desired | None) -> bool:
        """Records that *state* lists *identity*. Returns True if it is now the home of
        *endpoint*.
        """
        holders = self._holders.get(identity)
        if holders is None:
            self._holders[identity] = (state,)
            if endpoint is None or endpoint.group is not state.group:
                return False
            self._take_unplaced(endpoint)
            return True
        home = None if endpoint is None else self._home(endpoint)
        self._holders[identity] = tuple(sorted((*holders, state), key=lambda state: state.name))
        if endpoint is None or self._home(endpoint) is not state:
            return False
        if home is None:
            self._take_unplaced(endpoint)
        else:
            del home.own_desired()[identity]
            self._touch(home)
        return True

    def detach(self, name: str) -> None:
        """Removes the slice *name*, which the server no longer has, or which is terminating."""
        state = self.slices.pop(name)
        rooms = self._rooms[state.group]
        del rooms[len(state.server), name]
        if not rooms:
            del self._rooms[state.group]
        self._touched.pop(name, None)
        for identity in state.server:
            holders = tuple(holder for holder in self._holders[identity] if holder is not state)
            if holders:
                self._holders[identity] = holders
            else:
                del self._holders[identity]
            if identity in state.desired:
                endpoint = self._desired_of(identity)
                assert endpoint is not None, f"{name} held {identity!r}, which is not desired"
                self._place(endpoint)

    def _desired_of(self, identity: str) -> Desired | None:
        endpoint = self.desired.get(pod_of(identity))
        return endpoint if endpoint is not None and endpoint.identity == identity else None

    def desired_content(self, content: Content) -> Content:
        """Returns the desired versions of the endpoints of *content*, without undesired ones."""
        return {
            identity: endpoint.body
            for identity in content
            if (endpoint := self._desired_of(identity)) is not None
        }

    def touch_all(self) -> None:
        """Touches all slices after a change outside their endpoints: labels."""
        self._touched.update(self.slices)

    # -- for hints and metrics

    def stored(self, pod: str) -> bytes:
        """Returns the server's version of the endpoint of *pod* in its home; empty
        without a home.
        """
        endpoint = self.desired.get(pod)
        home = None if endpoint is None else self._home(endpoint)
        return b"" if endpoint is None or home is None else home.server[endpoint.identity]

    def home_name(self, pod: str) -> str:
        """Returns the name of the slice that is the home of the endpoint of *pod*; "" if it has
        none.
        """
        endpoint = self.desired.get(pod)
        home = None if endpoint is None else self._home(endpoint)
        return "" if home is None else home.name

    def changed_slices(self) -> frozenset[str]:
        """Returns the names of slices whose endpoints are to be written in any case."""
        return frozenset(
            name for name, state in self._touched.items() if state.desired != state.server
        )

    @property
    def has_labelled_slices(self) -> bool:
        """True if slices on the server are labelled. Costs O(groups)."""
        return any(group.subset for group in self._rooms)

    @property
    def endpoints(self) -> int:
        return sum(self._sizes.values())

    @property
    def fewest_slices(self) -> int:
        """Number of slices that the endpoints would fill if packed anew."""
        return sum(-(-size // self._max) for size in self._sizes.values())

    # -- invariants

    def check(self) -> None:
        """Asserts that all derived state follows from ``desired`` and ``slices``. Costs
        O(state).
        """
        holders: dict[str, list[SliceState]] = {}
        for name in sorted(self.slices):
            for identity in self.slices[name].server:
                holders.setdefault(identity, []).append(self.slices[name])
        assert {k: list(v) for k, v in self._holders.items()} == holders, (
            "holders are not what slices list"
        )
        desired_by_slice: dict[str, Content] = {name: {} for name in self.slices}
        unplaced: dict[PortGroup, Content] = {}
        pods_by_group: dict[PortGroup, int] = {}
        sizes: dict[PortGroup, int] = {}
        for pod, endpoint in self.desired.items():
            pods_by_group[endpoint.group] = pods_by_group.get(endpoint.group, 0) + 1
            if endpoint.identity:
                sizes[endpoint.group] = sizes.get(endpoint.group, 0) + 1
                assert pod_of(endpoint.identity) == pod, (
                    f"{endpoint.identity!r} filed under {pod!r}"
                )
                home = self._home(endpoint)
                into = (
                    unplaced.setdefault(endpoint.group, {})
                    if home is None
                    else desired_by_slice[home.name]
                )
                into[endpoint.identity] = endpoint.body
        assert self._pods_by_group == pods_by_group, (
            f"groups {self._pods_by_group} are not {pods_by_group}"
        )
        assert self._sizes == sizes, f"sizes {self._sizes} are not {sizes}"
        assert self._unplaced == unplaced, f"unplaced {self._unplaced} is not {unplaced}"
        filed = {(len(state.server), state.name, state.group) for state in self.slices.values()}
        assert {(*k, g) for g, rooms in self._rooms.items() for k in rooms} == filed, (
            "rooms are not the slices"
        )
        for name, state in self.slices.items():
            assert state.desired == desired_by_slice[name], (
                f"{name} has {state.desired}, should {desired_by_slice[name]}"
            )
            clean = state.desired == state.server and state.group in self._pods_by_group
            assert clean or name in self._touched, f"{name} is not as it should be, yet untouched"
        assert all(self.slices.get(n) is s for n, s in self._touched.items()), (
            "a touched slice is not ours"
        )


class ServiceSnapshot(NamedTuple):
    """The state of a Service for a reader that compares and never plans. The mappings are the
    engine's own state: valid until its next event.

    ``desired``: by address type, in the order of the Service, and by name of the Pod; an entry
    without ``identity`` is no endpoint. Empty for a Service without endpoints of ours. ``slices``:
    slices labelled as ours and not terminating, by name, of any address type, owned or not.
    """

    shape: ServiceShape
    desired: Mapping[Family, Mapping[str, Desired]]
    slices: Mapping[str, Stored]
