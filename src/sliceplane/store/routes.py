"""Which watchers an event can concern: the index of the hub.

    resource -> (namespace, name) -> group key -> Group(members)

"" stands for "any".  An event of ``ns/a`` looks at four places at most, so watches of other namespaces and of other
single objects cost it nothing, however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from sliceplane.store.types import Key
from sliceplane.store.watcher import Interest, Watcher

_Groups = dict[Hashable, "Group"]


class Group:
    """Watchers that see the same stream: one scope, one selector, one representation."""

    __slots__ = ("interest", "key", "members", "since")

    def __init__(self, interest: Interest, key: Hashable, since: int) -> None:
        self.interest = interest
        self.key = key
        #: events up to this revision are not theirs (a watch may start from the future)
        self.since = since
        #: by number, oldest first
        self.members: dict[int, Watcher] = {}


class Routes:
    """Owned by one ``Hub``, which alone calls it."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[str, dict[tuple[str, str], _Groups]] = {}

    def join(self, watcher: Watcher, revision: int) -> Group:
        """File *watcher*; *revision* is the newest published one."""
        interest = watcher.interest
        groups = self._places.setdefault(interest.resource, {}).setdefault((interest.namespace, interest.name), {})
        # A watch from the future must not hold back the others, so it is in a group of its kind.
        since = watcher.since if watcher.since > revision else 0
        key = (interest.group_key(), since)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(interest, key, since)
        group.members[watcher.number] = watcher
        return group

    def leave(self, group: Group, watcher: Watcher) -> None:
        """Remove *watcher*; empty groups and places go with it."""
        del group.members[watcher.number]
        if group.members:
            return
        interest = group.interest
        places = self._places[interest.resource]
        groups = places[interest.namespace, interest.name]
        del groups[group.key]
        if not groups:
            del places[interest.namespace, interest.name]
            if not places:
                del self._places[interest.resource]

    def concerned(self, key: Key) -> Iterator[Group]:
        """The groups whose scope covers *key*, in a fixed order."""
        places = self._places.get(key.resource)
        if not places:
            return
        scopes = [("", ""), ("", key.name)]
        if key.namespace:
            scopes += [(key.namespace, ""), (key.namespace, key.name)]
        for scope in scopes:
            groups = places.get(scope)
            if groups:
                yield from groups.values()

    def check(self, members: dict[int, Watcher]) -> None:
        """Assert that exactly *members* are filed, each where its interest says, and no empty place is left."""
        filed: dict[int, Watcher] = {}
        for resource, places in self._places.items():
            assert places, f"{resource}: empty"
            for scope, groups in places.items():
                assert groups, f"{resource} {scope}: empty"
                for key, group in groups.items():
                    assert group.members, f"{resource} {scope}: empty group"
                    for number, watcher in group.members.items():
                        interest = watcher.interest
                        assert (interest.resource, (interest.namespace, interest.name)) == (resource, scope), interest
                        assert (interest.group_key(), group.since) == key, f"{interest} in group {key}"
                        filed[number] = watcher
        assert filed == members, f"filed {sorted(filed)}, open {sorted(members)}"
