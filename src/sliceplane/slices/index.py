"""What touches what: services by a pod's labels, pods by a service's selector, pods by node.

No look-up here scans a namespace.  A selector is filed under one of its label pairs, that with the fewest
services so far, so that ``part-of=shop`` on five thousand services does no harm beside ``app=cart``; and there under
the keys that it has, so that all services with ``track=blue`` and some ``app`` are one look-up.  Pods are indexed by
just the label keys under which selectors are filed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from sliceplane.api.selectors import from_map
from sliceplane.slices.facts import PodFacts

S = TypeVar("S")

Pair = tuple[str, str]


#: keys of selectors -> their values -> services by name
_Bucket = dict[tuple[str, ...], dict[tuple[str, ...], dict[str, S]]]


class SelectorIndex(Generic[S]):
    """Services by the labels that they select.  Owned by ``PodRoutes``."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, str], _Bucket[S]] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._filed: dict[tuple[str, str], tuple[Pair, dict[str, str]]] = {}

    def add(self, namespace: str, name: str, selector: dict[str, str], service: S) -> Pair:
        """File a selector, which must not be empty.  Gives the pair under which it is filed."""
        assert selector, f"{namespace}/{name} has no selector"
        self.remove(namespace, name)
        pair = min(selector.items(), key=lambda pair: (self._sizes.get((namespace, *pair), 0), pair))
        where = (namespace, *pair)
        keys = tuple(sorted(selector))
        by_values = self._buckets.setdefault(where, {}).setdefault(keys, {})
        by_values.setdefault(tuple(selector[key] for key in keys), {})[name] = service
        self._sizes[where] = self._sizes.get(where, 0) + 1
        self._filed[namespace, name] = pair, selector
        return pair

    def remove(self, namespace: str, name: str) -> None:
        pair, selector = self._filed.pop((namespace, name), (None, {}))
        if pair is None:
            return
        where = (namespace, *pair)
        keys = tuple(sorted(selector))
        values = tuple(selector[key] for key in keys)
        bucket = self._buckets[where]
        services = bucket[keys][values]
        del services[name]
        if not services:
            del bucket[keys][values]
        if not bucket[keys]:
            del bucket[keys]
        self._sizes[where] -= 1
        if not bucket:
            del self._buckets[where], self._sizes[where]

    def matching(self, namespace: str, labels: dict[str, str]) -> dict[str, S]:
        """Services whose selector matches, by name.  Costs O(labels + sets of keys filed under them + matches)."""
        services_by_name: dict[str, S] = {}
        for key, value in labels.items():
            bucket = self._buckets.get((namespace, key, value))
            if bucket is not None:
                for keys, by_values in bucket.items():
                    services = by_values.get(tuple([labels.get(key, "\0") for key in keys]))
                    if services is not None:
                        services_by_name.update(services)
        return services_by_name

    def probes(self, namespace: str, labels: dict[str, str]) -> int:
        """How many look-ups ``matching`` makes beside one for each label; for tests of its cost."""
        return sum(len(self._buckets.get((namespace, *pair), ())) for pair in labels.items())

    def check(self) -> None:
        """Every selector is filed once, under a pair of its own."""
        filed = {
            (where[0], name): (where[1:], dict(zip(keys, values, strict=True)))
            for where, bucket in self._buckets.items()
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
    """Every pod, by name, by node and by the label keys that selectors are filed under.  Owned by ``PodRoutes``."""

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
        if len(selector) == 1:
            return iter(by_value.get(value, {}).values())  # that pair is all of it
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
                filed = {name: facts for named in by_value.values() for name, facts in named.items()}
                named = {n: f for n, f in self._pods.get(namespace, {}).items() if key in f.labels}
                assert filed == named, f"pods of {namespace} by label {key}"


def _leave_value(by_value: dict[str, dict[str, PodFacts]], old: PodFacts, key: str) -> None:
    value = old.labels.get(key)
    named = None if value is None else by_value.get(value)
    if named is not None and value is not None:
        named.pop(old.name, None)
        if not named:
            del by_value[value]
