"""Who is touched by what: services by a pod's labels, pods by a service's selector, pods by node.

No look-up here scans a namespace.  A selector is filed under one of its label pairs, that with the fewest
services so far, so that ``part-of=shop`` on five thousand services does no harm beside ``app=cart``.  Pods are
indexed by just the label keys under which selectors are filed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sliceplane.api.selectors import LabelRequirements, from_map
from sliceplane.slices.facts import PodFacts

S = TypeVar("S")

Pair = tuple[str, str]


class SelectorIndex(Generic[S]):
    """Services by the labels that they select.  Owned by ``SliceEngine``."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, str], dict[str, tuple[LabelRequirements, S]]] = {}
        self._filed: dict[tuple[str, str], Pair] = {}

    def add(self, namespace: str, name: str, selector: dict[str, str], service: S) -> Pair:
        """File a selector, which must not be empty.  Gives the pair under which it is filed."""
        assert selector, f"{namespace}/{name} has no selector"
        self.remove(namespace, name)
        pair = min(selector.items(), key=lambda each: (len(self._buckets.get((namespace, *each), ())), each))
        self._buckets.setdefault((namespace, *pair), {})[name] = (from_map(selector), service)
        self._filed[namespace, name] = pair
        return pair

    def remove(self, namespace: str, name: str) -> None:
        pair = self._filed.pop((namespace, name), None)
        if pair is None:
            return
        bucket = self._buckets[(namespace, *pair)]
        del bucket[name]
        if not bucket:
            del self._buckets[(namespace, *pair)]

    def matching(self, namespace: str, labels: dict[str, str]) -> dict[str, S]:
        """Services whose selector matches, by name.  Costs O(labels + services filed under them)."""
        found: dict[str, S] = {}
        for key, value in labels.items():
            bucket = self._buckets.get((namespace, key, value))
            if bucket is not None:
                for name, (selector, service) in bucket.items():
                    if selector.matches(labels):
                        found[name] = service
        return found


class PodIndex:
    """Every pod, by name, by node and by the label keys that selectors are filed under.  Owned by ``SliceEngine``."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, PodFacts]] = {}
        self._on_node: dict[str, dict[Pair, PodFacts]] = {}
        self._labelled: dict[str, dict[str, dict[str, dict[str, PodFacts]]]] = {}

    def get(self, namespace: str, name: str) -> PodFacts | None:
        return self._pods.get(namespace, {}).get(name)

    def put(self, new: PodFacts) -> None:
        old = self.get(new.namespace, new.name)
        self._pods.setdefault(new.namespace, {})[new.name] = new
        if old is not None and old.node_name != new.node_name:
            self._leave_node(old)
        if new.node_name:
            self._on_node.setdefault(new.node_name, {})[new.namespace, new.name] = new
        for key, by_value in self._labelled.get(new.namespace, {}).items():
            if old is not None and old.labels.get(key) != new.labels.get(key):
                _leave_value(by_value, old, key)
            if key in new.labels:
                by_value.setdefault(new.labels[key], {})[new.name] = new

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
        return tuple(self._on_node.get(node, {}).values())

    def selected(self, namespace: str, pair: Pair, selector: dict[str, str]) -> Iterator[PodFacts]:
        """Pods that match *selector*, of which *pair* is a part."""
        key, value = pair
        keys = self._labelled.setdefault(namespace, {})
        by_value = keys.get(key)
        if by_value is None:
            by_value = keys[key] = {}
            for facts in self._pods.get(namespace, {}).values():
                if key in facts.labels:
                    by_value.setdefault(facts.labels[key], {})[facts.name] = facts
        matches = from_map(selector).matches
        return (facts for facts in by_value.get(value, {}).values() if matches(facts.labels))

    def drop_labels(self, namespace: str) -> None:
        """No service of *namespace* is left: stop indexing its pods by label."""
        self._labelled.pop(namespace, None)

    def _leave_node(self, old: PodFacts) -> None:
        on_node = self._on_node.get(old.node_name)
        if on_node is not None:
            on_node.pop((old.namespace, old.name), None)
            if not on_node:
                del self._on_node[old.node_name]

    def check(self) -> None:
        pods = {(namespace, name): facts for namespace, named in self._pods.items() for name, facts in named.items()}
        placed = {key: facts for key, facts in pods.items() if facts.node_name}
        assert {k: v for on_node in self._on_node.values() for k, v in on_node.items()} == placed, "pods by node"
        for namespace, keys in self._labelled.items():
            for key, by_value in keys.items():
                found = {name: facts for named in by_value.values() for name, facts in named.items()}
                named = {n: f for n, f in self._pods.get(namespace, {}).items() if key in f.labels}
                assert found == named, f"pods of {namespace} by label {key}"


def _leave_value(by_value: dict[str, dict[str, PodFacts]], old: PodFacts, key: str) -> None:
    value = old.labels.get(key)
    named = None if value is None else by_value.get(value)
    if named is not None and value is not None:
        named.pop(old.name, None)
        if not named:
            del by_value[value]
