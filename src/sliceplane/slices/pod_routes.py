"""The way from a Pod's change to the Services that select it, and only to them.

``slices.engine`` and ``slices.endpoints.engine`` share it: both keep a state for each Service, and
pass a Pod's change only to the members of Services whose selector matches its labels, now or before
the change.

No look-up scans a namespace. A selector is filed under one of its label pairs, the one with the
fewest Services so far, so ``part-of=shop`` on five thousand Services does not slow down
``app=cart``. Under a pair, selectors are grouped by their keys, so all Services with ``track=blue``
and some ``app`` are one look-up. Pods are indexed only by the label keys under which selectors are
filed.

A Pod's change costs O(its labels), plus one endpoint for each Service that selects the Pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from sliceplane.api.core import Pod
from sliceplane.api.selectors import from_map
from sliceplane.slices.facts import PodFacts


class Effect(IntEnum):
    """The effect of a change on the endpoints of a Service. ``NONE`` is false."""

    NONE = 0
    CHANGE = 1
    #: an endpoint must stop receiving traffic
    REMOVAL = 2


class Touched(NamedTuple):
    """Keys of Services with something to write. ``urgent``: an endpoint must stop receiving
    traffic.
    """

    later: tuple[str, ...] = ()
    urgent: tuple[str, ...] = ()


UNTOUCHED: Final = Touched()


class PodMembers(Protocol):
    """The members of a Service, as Pods change."""

    def set(self, facts: PodFacts) -> Effect:
        """Handles a Pod that the selector matches and that is new or changed."""

    def drop(self, name: str) -> Effect:
        """Handles a Pod that is gone or no longer matches."""


class RoutedService(Protocol):
    """The state of a Service. It has members while it is filed here."""

    @property
    def key(self) -> str: ...
    @property
    def members(self) -> PodMembers | None: ...


S = TypeVar("S", bound=RoutedService)


class PodRoutes(Generic[S]):
    """The indexes of Pods and selectors. Owned by one engine, its only caller."""

    def __init__(self) -> None:
        self._selectors: SelectorIndex[S] = SelectorIndex()
        #: number of Services with a selector, by namespace
        self._selecting: dict[str, int] = {}
        self._pods = PodIndex()

    def on_pod(self, old: Pod | None, new: Pod | None) -> Touched:
        if new is None:
            assert old is not None, "a change has an old or a new object"
            return self._drop_pod(old.metadata.namespace, old.metadata.name)
        meta = new.metadata
        if old is not None and old.metadata.resource_version == meta.resource_version:
            return UNTOUCHED
        cached = self._pods.get(meta.namespace, meta.name)
        facts = PodFacts(new, cached)
        self._pods.put(facts, cached)
        states = self._selectors.matching(facts.namespace, facts.labels)
        effects = {state.key: _members(state).set(facts) for state in states.values()}
        if cached is not None and cached.labels != facts.labels:
            earlier = self._selectors.matching(facts.namespace, cached.labels)
            unselected = [state for name, state in earlier.items() if name not in states]
            effects.update((state.key, _members(state).drop(facts.name)) for state in unselected)
        return touched(effects)

    def _drop_pod(self, namespace: str, name: str) -> Touched:
        cached = self._pods.get(namespace, name)
        if cached is None:
            return UNTOUCHED
        self._pods.remove(namespace, name)
        states = self._selectors.matching(namespace, cached.labels)
        return touched({state.key: _members(state).drop(name) for state in states.values()})

    def on_node(self, node: str) -> Iterator[tuple[PodFacts, S]]:
        """Yields the Pods of a Node, each with every state that selects it."""
        for facts in self._pods.on_node(node):
            for state in self._selectors.matching(facts.namespace, facts.labels).values():
                yield facts, state

    def select(
        self, namespace: str, name: str, selector: dict[str, str], state: S
    ) -> Iterator[PodFacts]:
        """Files *state* under a *selector* that is not empty. Returns the Pods that it selects."""
        pair = self._selectors.add(namespace, name, selector, state)
        self._selecting[namespace] = self._selecting.get(namespace, 0) + 1
        return self._pods.selected(namespace, pair, selector)

    def unselect(self, namespace: str, name: str) -> None:
        """Removes the state of a Service."""
        self._selectors.remove(namespace, name)
        self._selecting[namespace] -= 1
        if not self._selecting[namespace]:
            del self._selecting[namespace]
            self._pods.drop_labels(namespace)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Returns the newest observed version of a Pod."""
        facts = self._pods.get(namespace, name)
        return None if facts is None else facts.pod

    def matching(self, namespace: str, labels: dict[str, str]) -> dict[str, S]:
        """Returns the states that select a Pod with these *labels*, by the name of
        their Service.
        """
        return self._selectors.matching(namespace, labels)

    def probes(self, namespace: str, labels: dict[str, str]) -> int:
        """Returns the cost of ``matching``, for tests (``SelectorIndex.probes``)."""
        return self._selectors.probes(namespace, labels)

    def check(self) -> None:
        self._pods.check()
        self._selectors.check()
        assert all(count > 0 for count in self._selecting.values()), (
            f"counts of nothing: {self._selecting}"
        )


def _members(state: RoutedService) -> PodMembers:
    members = state.members
    assert members is not None, f"{state.key} is filed under a selector and has no members"
    return members


def touched(effects: dict[str, Effect]) -> Touched:
    """Sorts *effects*, by the keys of Services, into later and urgent ones; the order is kept."""
    later: list[str] = []
    urgent: list[str] = []
    for key, effect in effects.items():
        if effect is not Effect.NONE:
            (urgent if effect is Effect.REMOVAL else later).append(key)
    return Touched(tuple(later), tuple(urgent)) if later or urgent else UNTOUCHED


V = TypeVar("V")

Pair = tuple[str, str]


#: Services by name, by the values of a selector, by its keys
_Bucket = dict[tuple[str, ...], dict[tuple[str, ...], dict[str, V]]]


class SelectorIndex(Generic[V]):
    """Services by the labels that they select. Owned by ``PodRoutes``."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, str], _Bucket[V]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._filed: dict[tuple[str, str], tuple[Pair, dict[str, str]]] = {}

    def add(self, namespace: str, name: str, selector: dict[str, str], service: V) -> Pair:
        """Files a selector, which must not be empty. Returns the label pair under which it is
        filed.
        """
        assert selector, f"{namespace}/{name} has no selector"
        self.remove(namespace, name)
        pair = min(
            selector.items(), key=lambda pair: (self._sizes.get((namespace, *pair), 0), pair)
        )
        bucket_key = (namespace, *pair)
        keys = tuple(sorted(selector))
        by_values = self._buckets.setdefault(bucket_key, {}).setdefault(keys, {})
        by_values.setdefault(tuple(selector[key] for key in keys), {})[name] = service
        self._sizes[bucket_key] = self._sizes.get(bucket_key, 0) + 1
        self._filed[namespace, name] = pair, selector
        return pair

    def remove(self, namespace: str, name: str) -> None:
        pair, selector = self._filed.pop((namespace, name), (None, {}))
        if pair is None:
            return
        bucket_key = (namespace, *pair)
        keys = tuple(sorted(selector))
        values = tuple(selector[key] for key in keys)
        bucket = self._buckets[bucket_key]
        services = bucket[keys][values]
        del services[name]
        if not services:
            del bucket[keys][values]
        if not bucket[keys]:
            del bucket[keys]
        self._sizes[bucket_key] -= 1
        if not bucket:
            del self._buckets[bucket_key], self._sizes[bucket_key]

    def matching(self, namespace: str, labels: dict[str, str]) -> dict[str, V]:
        """Returns the Services whose selector matches, by name. Costs O(labels + sets of keys filed
        under them + matches).
        """
        services_by_name: dict[str, V] = {}
        for key, value in labels.items():
            bucket = self._buckets.get((namespace, key, value))
            if bucket is not None:
                for keys, by_values in bucket.items():
                    services = by_values.get(tuple([labels.get(key, "\0") for key in keys]))
                    if services is not None:
                        services_by_name.update(services)
        return services_by_name

    def probes(self, namespace: str, labels: dict[str, str]) -> int:
        """Returns the number of look-ups of ``matching`` beyond one for each label; for tests of
        its cost.
        """
        return sum(len(self._buckets.get((namespace, *pair), ())) for pair in labels.items())

    def check(self) -> None:
        """Asserts that every selector is filed once, under one of its own pairs."""
        filed = {
            (bucket_key[0], name): (bucket_key[1:], dict(zip(keys, values, strict=True)))
            for bucket_key, bucket in self._buckets.items()
            for keys, by_values in bucket.items()
            for values, services in by_values.items()
            for name in services
        }
        assert filed == self._filed, f"{filed} should be {self._filed}"
        assert all(pair in selector.items() for pair, selector in filed.values()), (
            f"{filed} is filed under others' pairs"
        )
        assert sum(self._sizes.values()) == len(filed), f"counted {self._sizes}"


class PodIndex:
    """Every Pod, by name, by Node and by the label keys that selectors are filed under. Owned by
    ``PodRoutes``.

    The last two indexes contain names, so a change that keeps a Pod's Node and labels costs one
    entry.
    """

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, PodFacts]] = {}
        #: sets in the order of insertion
        self._on_node: dict[str, dict[Pair, None]] = {}
        self._labelled: dict[str, dict[str, dict[str, dict[str, None]]]] = {}

    def get(self, namespace: str, name: str) -> PodFacts | None:
        return self._pods.get(namespace, {}).get(name)

    def put(self, new: PodFacts, old: PodFacts | None) -> None:
        """Stores a Pod. *old* is the result of ``get``."""
        self._pods.setdefault(new.namespace, {})[new.name] = new
        if old is None or old.node_name != new.node_name:
            if old is not None:
                self._leave_node(old)
            if new.node_name:
                self._on_node.setdefault(new.node_name, {})[new.namespace, new.name] = None
        if old is not None and old.labels == new.labels:
            return
        for key, by_value in self._labelled.get(new.namespace, {}).items():
            if old is not None and old.labels.get(key) != new.labels.get(key):
                _leave_value(by_value, old, key)
            if key in new.labels:
                by_value.setdefault(new.labels[key], {})[new.name] = None

    def remove(self, namespace: str, name: str) -> None:
        pods = self._pods.get(namespace, {})
        old = pods.pop(name, None)
        if old is None:
            return
        if not pods:
            del self._pods[namespace]
        self._leave_node(old)
        for key, by_value in self._labelled.get(namespace, {}).items():
            _leave_value(by_value, old, key)

    def on_node(self, node: str) -> tuple[PodFacts, ...]:
        return tuple(self._pods[namespace][name] for namespace, name in self._on_node.get(node, ()))

    def selected(self, namespace: str, pair: Pair, selector: dict[str, str]) -> Iterator[PodFacts]:
        """Returns the Pods that match *selector*, of which *pair* is a part."""
        key, value = pair
        keys = self._labelled.setdefault(namespace, {})
        by_value = keys.get(key)
        if by_value is None:
            by_value = keys[key] = {}
            for facts in self._pods.get(namespace, {}).values():
                if key in facts.labels:
                    by_value.setdefault(facts.labels[key], {})[facts.name] = None
        pods = self._pods.get(namespace, {})
        labelled = map(pods.__getitem__, by_value.get(value, ()))
        if len(selector) == 1:
            return labelled  # the selector is that pair alone
        matches = from_map(selector).matches
        return (facts for facts in labelled if matches(facts.labels))

    def drop_labels(self, namespace: str) -> None:
        """Stops indexing the Pods of *namespace* by label, since no Service there has a
        selector.
        """
        self._labelled.pop(namespace, None)

    def _leave_node(self, old: PodFacts) -> None:
        on_node = self._on_node.get(old.node_name)
        if on_node is not None:
            on_node.pop((old.namespace, old.name), None)
            if not on_node:
                del self._on_node[old.node_name]

    def check(self) -> None:
        pods = {
            (namespace, name): facts
            for namespace, named in self._pods.items()
            for name, facts in named.items()
        }
        placed = {key: facts.node_name for key, facts in pods.items() if facts.node_name}
        assert {
            key: node for node, on_node in self._on_node.items() for key in on_node
        } == placed, "pods by node"
        for namespace, keys in self._labelled.items():
            for key, by_value in keys.items():
                filed = {name: value for value, named in by_value.items() for name in named}
                labelled = {
                    n: f.labels[key]
                    for n, f in self._pods.get(namespace, {}).items()
                    if key in f.labels
                }
                assert filed == labelled, f"pods of {namespace} by label {key}"


def _leave_value(by_value: dict[str, dict[str, None]], old: PodFacts, key: str) -> None:
    value = old.labels.get(key)
    named = None if value is None else by_value.get(value)
    if named is not None and value is not None:
        named.pop(old.name, None)
        if not named:
            del by_value[value]
