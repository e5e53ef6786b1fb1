"""The way from a Pod's change to the Services that select it, and only to them.

What ``slices.engine`` and ``endpoints.engine`` have in common: both keep a state per Service, and want each change of a
Pod told to the members of just the Services whose selector matches its labels, now or before the change.

Cost of a Pod's change: its labels, plus one endpoint for each Service that selects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from sliceplane.api.core import Pod
from sliceplane.slices.facts import PodFacts
from sliceplane.slices.index import PodIndex, SelectorIndex
from sliceplane.slices.members import Effect


class Touched(NamedTuple):
    """Services with something to write: ``urgent`` where traffic goes to an endpoint that it must leave."""

    later: tuple[str, ...] = ()
    urgent: tuple[str, ...] = ()


UNTOUCHED: Final = Touched()


class TellsOfPods(Protocol):
    """Members of a Service: what its Pods are to it."""

    def set(self, facts: PodFacts) -> Effect:
        """A Pod that the selector matches is there, or changed."""

    def drop(self, name: str) -> Effect:
        """A Pod is gone, or does not match any more."""


class Selecting(Protocol):
    """A Service's state; it has members as long as it is filed here."""

    @property
    def key(self) -> str: ...
    @property
    def members(self) -> TellsOfPods | None: ...


S = TypeVar("S", bound=Selecting)


class PodRoutes(Generic[S]):
    """Owns the indexes of Pods and selectors.  Owned by one engine, which alone calls it."""

    def __init__(self) -> None:
        self._selectors: SelectorIndex[S] = SelectorIndex()
        #: how many Services with a selector each namespace has
        self._selecting: dict[str, int] = {}
        self._pods = PodIndex()

    def on_pod(self, old: Pod | None, new: Pod | None) -> Touched:
        if new is None:
            assert old is not None, "a change has an old or a new object"
            return self._drop_pod(old.metadata.namespace, old.metadata.name)
        meta = new.metadata
        if old is not None and old.metadata.resource_version == meta.resource_version:
            return UNTOUCHED
        known = self._pods.get(meta.namespace, meta.name)
        facts = PodFacts(new, known)
        self._pods.put(facts)
        states = self._selectors.matching(facts.namespace, facts.labels)
        effects = {state.key: _members(state).set(facts) for state in states.values()}
        if known is not None and known.labels != facts.labels:
            earlier = self._selectors.matching(facts.namespace, known.labels)
            left = [state for name, state in earlier.items() if name not in states]
            effects.update((state.key, _members(state).drop(facts.name)) for state in left)
        return touched(effects)

    def _drop_pod(self, namespace: str, name: str) -> Touched:
        known = self._pods.get(namespace, name)
        if known is None:
            return UNTOUCHED
        self._pods.remove(namespace, name)
        states = self._selectors.matching(namespace, known.labels)
        return touched({state.key: _members(state).drop(name) for state in states.values()})

    def on_node(self, node: str) -> Iterator[tuple[PodFacts, S]]:
        """The Pods of a node, each with every state that selects it."""
        for facts in self._pods.on_node(node):
            for state in self._selectors.matching(facts.namespace, facts.labels).values():
                yield facts, state

    def select(self, namespace: str, name: str, selector: dict[str, str], state: S) -> Iterator[PodFacts]:
        """File *state*, which is not filed, under a *selector* that is not empty.  Gives the Pods that it selects."""
        pair = self._selectors.add(namespace, name, selector, state)
        self._selecting[namespace] = self._selecting.get(namespace, 0) + 1
        return self._pods.selected(namespace, pair, selector)

    def unselect(self, namespace: str, name: str) -> None:
        """The state is not filed any more."""
        self._selectors.remove(namespace, name)
        self._selecting[namespace] -= 1
        if not self._selecting[namespace]:
            del self._selecting[namespace]
            self._pods.drop_labels(namespace)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """As last seen."""
        facts = self._pods.get(namespace, name)
        return None if facts is None else facts.pod

    def matching(self, namespace: str, labels: dict[str, str]) -> dict[str, S]:
        """The states that select a Pod with these *labels*, by the name of their Service."""
        return self._selectors.matching(namespace, labels)

    def probes(self, namespace: str, labels: dict[str, str]) -> int:
        """What ``matching`` costs, for tests (``SelectorIndex.probes``)."""
        return self._selectors.probes(namespace, labels)

    def check(self) -> None:
        self._pods.check()
        self._selectors.check()
        assert all(count > 0 for count in self._selecting.values()), f"counts of nothing: {self._selecting}"


def _members(state: Selecting) -> TellsOfPods:
    members = state.members
    assert members is not None, f"{state.key} is filed under a selector and has no members"
    return members


def touched(effects: dict[str, Effect]) -> Touched:
    """*effects* by the keys of Services; the order is kept."""
    later: list[str] = []
    urgent: list[str] = []
    for key, effect in effects.items():
        if effect is not Effect.NONE:
            (urgent if effect is Effect.REMOVAL else later).append(key)
    return Touched(tuple(later), tuple(urgent)) if later or urgent else UNTOUCHED
