"""Aggregated ClusterRoles (``aggregationRule``): their rules are those of other roles, and are
updated in the stored objects.

Upstream has a controller for it (pkg/controller/clusterroleaggregation). Here the rules are staged
right after the changed role. So ``edit`` always has what ``system:aggregate-to-edit`` grants, and a
server without controllers updates them, too. An aggregated role may be gathered by another
(``view`` by ``edit`` by ``admin``); ``Gatherers`` walks up.

The rules that one role may gather are bounded (``Aggregation.admit``); a write beyond the limit is
refused.

The order of the rules is upstream's: selectors in order, for each the roles by name, each rule
once. The index has the gathered names of each selector and updates them when labels change, so no
write reads all roles. A write costs the size of the roles that gather it, which are rewritten.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sliceplane.api.errors import forbidden, quote
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.scheme import ClusterRoles
from sliceplane.api.selectors import LabelRequirements, from_label_selector
from sliceplane.server.registry.authorization.index import PolicyIndex
from sliceplane.server.registry.authorization.rules import PolicyRule, rules_of, size_of
from sliceplane.server.store.types import Key

_Labels = Mapping[str, str]
#: limit of the rules that one role gathers; upstream's storage refuses objects of 1.5 MiB
GATHERED_CHARACTERS_MAX = 1024 * 1024


class Aggregation:
    """The ClusterRoles that each aggregated role gathers.  A ``server.registry.core.Follower``."""

    follows = frozenset((ClusterRoles.storage_key,))

    def __init__(self) -> None:
        #: labels of every ClusterRole
        self._labels: dict[str, _Labels] = {}
        #: each selector of an aggregated role, with the sorted names that it matches, except its
        #: own
        self._selections: dict[Key, list[tuple[LabelRequirements, list[str]]]] = {}

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._labels.clear()
        self._selections.clear()
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        """Handles a new version of a ClusterRole."""
        self._relabel(key, document["metadata"].get("labels", {}))
        selectors = _selectors(document)
        if not selectors:
            self._selections.pop(key, None)
        elif selectors != tuple(selector for selector, _ in self._selections.get(key, ())):
            self._selections[key] = self._select(key.name, selectors)

    def on_removed(self, key: Key) -> None:
        self._relabel(key, None)
        self._selections.pop(key, None)

    def _relabel(self, key: Key, labels: _Labels | None) -> None:
        before = self._labels.pop(key.name, None)
        if labels is not None:
            self._labels[key.name] = labels
        if labels == before:
            return
        for gatherer, selections in self._selections.items():
            for selector, names in selections if gatherer != key else ():
                was = before is not None and selector.matches(before)
                now = labels is not None and selector.matches(labels)
                if now and not was:
                    insort(names, key.name)
                elif was and not now:
                    del names[bisect_left(names, key.name)]

    def _select(
        self, own: str, selectors: Iterable[LabelRequirements]
    ) -> list[tuple[LabelRequirements, list[str]]]:
        return [
            (
                selector,
                sorted(
                    name
                    for name, labels in self._labels.items()
                    if name != own and selector.matches(labels)
                ),
            )
            for selector in selectors
        ]

    def gathering(self, changed: Key, *labels: _Labels) -> tuple[Key, ...]:
        """Returns the aggregated roles, except *changed*, that gather a role with one of these
        *labels*.
        """
        return tuple(
            key
            for key, selections in sorted(self._selections.items(), key=lambda item: item[0].name)
            if key != changed
            and any(selector.matches(each) for selector, _ in selections for each in labels)
        )

    def rules_of(self, key: Key, policy: PolicyIndex) -> tuple[PolicyRule, ...]:
        """Returns the rules that the aggregated role *key* gathers."""
        return _rules(self._selections[key], policy)

    def admit(self, document: Document, policy: PolicyIndex) -> None:
        """Checks a ClusterRole before it is stored: the roles that gather it must stay small enough
        to be rewritten each time.

        Raises the 403 ``StatusError``; never for a role that shrinks.
        """
        head = document["metadata"]
        own = Key(ClusterRoles.storage_key, "", head["name"])
        size = size_of(rules_of(document))
        for key in self.gathering(own, head.get("labels", {})):
            names = {name for _, selected in self._selections[key] for name in selected}
            if own.name in names and size <= size_of(policy.role(own) or ()):
                continue
            others = (
                policy.role(Key(ClusterRoles.storage_key, "", name)) for name in names - {own.name}
            )
            if size + sum(size_of(rules) for rules in others if rules) > GATHERED_CHARACTERS_MAX:
                most = f"more than {GATHERED_CHARACTERS_MAX} characters of rules"
                why = f"ClusterRole {quote(key.name)} would gather {most}"
                raise forbidden(ClusterRoles.plural, ClusterRoles.group, own.name, why)

    def rules_for(self, document: Document, policy: PolicyIndex) -> tuple[PolicyRule, ...] | None:
        """Returns the rules that a role gathers, before it is stored; ``None`` if it does not
        gather.
        """
        selectors = _selectors(document)
        return (
            _rules(self._select(document["metadata"]["name"], selectors), policy)
            if selectors
            else None
        )

    def __len__(self) -> int:
        return len(self._selections)

    def all(self) -> tuple[Key, ...]:
        return tuple(sorted(self._selections, key=lambda key: key.name))

    def check(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """Asserts that the index equals one built from *objects* (all ClusterRoles)."""
        fresh = Aggregation()
        for key, document in objects:
            fresh.on_stored(key, document)
        assert self._labels == fresh._labels, (
            f"labels {self._labels}, stored objects say {fresh._labels}"
        )
        assert self._selections == fresh._selections, (
            f"gathering {self._selections}, stored objects say {fresh._selections}"
        )


class Gatherers:
    """The aggregated roles to update because of one change.

    The number of visits is bounded, so that the loop also ends if roles gather each other. By then
    all of them have all rules, and only their order might still change.
    """

    def __init__(self, aggregation: Aggregation, first: Iterable[Key]) -> None:
        self._aggregation = aggregation
        self._waiting = list(first)
        self._visits_remaining = (len(aggregation) + 1) ** 2

    def __iter__(self) -> Iterator[Key]:
        while self._waiting and self._visits_remaining > 0:
            self._visits_remaining -= 1
            yield self._waiting.pop(0)

    def changed(self, key: Key, *labels: _Labels) -> None:
        """Adds the roles that gather *key*, whose rules changed."""
        more = self._aggregation.gathering(key, *labels)
        self._waiting += [each for each in more if each not in self._waiting]


def _rules(
    selections: Iterable[tuple[LabelRequirements, list[str]]], policy: PolicyIndex
) -> tuple[PolicyRule, ...]:
    rules: dict[PolicyRule, None] = {}
    for _, names in selections:
        for name in names:
            rules.update(dict.fromkeys(policy.role(Key(ClusterRoles.storage_key, "", name)) or ()))
    return tuple(rules)


def _selectors(document: Document) -> tuple[LabelRequirements, ...]:
    selectors = (document.get("aggregationRule") or {}).get("clusterRoleSelectors", ())
    return tuple(
        from_label_selector(msgspec.convert(selector, LabelSelector)) for selector in selectors
    )
