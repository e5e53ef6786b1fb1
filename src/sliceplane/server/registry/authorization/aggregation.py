"""ClusterRoles whose rules are those of others (``aggregationRule``), kept up to date in the stored
objects.

Upstream has a controller for it (pkg/controller/clusterroleaggregation); here the rules are staged
right after the role that changed, so that there is no moment at which ``edit`` lacks what
``system:aggregate-to-edit`` grants, and a server without controllers has them too. An aggregated
role may be gathered by another (``view`` by ``edit`` by ``admin``); ``Gatherers`` walks up.

What one role may gather is bounded (``Aggregation.admit``); a write that would go beyond is
refused.

The order of the rules is upstream's: selectors in order, for each the roles by name, each rule
once. Which roles a selector gathers is known by name and changes with labels, so that no write
looks at all roles; a write costs what the roles that gather it hold, as those are written anew.
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
#: what the roles that one role gathers may hold; upstream's storage refuses objects of 1.5 MiB
GATHERED_CHARACTERS_MAX = 1024 * 1024


class Aggregation:
    """The ClusterRoles that each aggregated role gathers.  A ``server.registry.core.Follower``."""

    follows = frozenset((ClusterRoles.storage_key,))

    def __init__(self) -> None:
        #: of every ClusterRole
        self._labels: dict[str, _Labels] = {}
        #: of those that gather: each selector, and the names that it finds, sorted, its own left
        #: out
        self._found: dict[Key, list[tuple[LabelRequirements, list[str]]]] = {}

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._labels.clear()
        self._found.clear()
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        """A new version of a ClusterRole."""
        self._relabel(key, document["metadata"].get("labels", {}))
        selectors = _selectors(document)
        if not selectors:
            self._found.pop(key, None)
        elif selectors != tuple(selector for selector, _ in self._found.get(key, ())):
            self._found[key] = self._find(key.name, selectors)

    def on_removed(self, key: Key) -> None:
        self._relabel(key, None)
        self._found.pop(key, None)

    def _relabel(self, key: Key, labels: _Labels | None) -> None:
        before = self._labels.pop(key.name, None)
        if labels is not None:
            self._labels[key.name] = labels
        if labels == before:
            return
        for gatherer, found in self._found.items():
            for selector, names in found if gatherer != key else ():
                was = before is not None and selector.matches(before)
                now = labels is not None and selector.matches(labels)
                if now and not was:
                    insort(names, key.name)
                elif was and not now:
                    del names[bisect_left(names, key.name)]

    def _find(
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
        """The aggregated roles, other than *changed* itself, that gather a role with one of these
        *labels*.
        """
        return tuple(
            key
            for key, found in sorted(self._found.items(), key=lambda item: item[0].name)
            if key != changed
            and any(selector.matches(each) for selector, _ in found for each in labels)
        )

    def rules_of(self, key: Key, policy: PolicyIndex) -> tuple[PolicyRule, ...]:
        """Returns the rules that the aggregated role *key* gathers."""
        return _rules(self._found[key], policy)

    def admit(self, document: Document, policy: PolicyIndex) -> None:
        """A ClusterRole is about to be stored: what gathers it must stay small enough to be written
        each time.

        Raises the 403 ``StatusError``; never for one that shrinks.
        """
        head = document["metadata"]
        own = Key(ClusterRoles.storage_key, "", head["name"])
        size = size_of(rules_of(document))
        for key in self.gathering(own, head.get("labels", {})):
            names = {name for _, found in self._found[key] for name in found}
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
            _rules(self._find(document["metadata"]["name"], selectors), policy)
            if selectors
            else None
        )

    def __len__(self) -> int:
        return len(self._found)

    def all(self) -> tuple[Key, ...]:
        return tuple(sorted(self._found, key=lambda key: key.name))

    def check(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """The index is what one made from *objects* (all ClusterRoles) would be."""
        fresh = Aggregation()
        for key, document in objects:
            fresh.on_stored(key, document)
        assert self._labels == fresh._labels, (
            f"labels {self._labels}, stored objects say {fresh._labels}"
        )
        assert self._found == fresh._found, (
            f"gathering {self._found}, stored objects say {fresh._found}"
        )


class Gatherers:
    """The aggregated roles to look at because of one change.

    Each is looked at a bounded number of times, so that roles which gather each other end too: by
    then all of them have all rules, and only the order could go on changing.
    """

    def __init__(self, aggregation: Aggregation, first: Iterable[Key]) -> None:
        self._aggregation = aggregation
        self._waiting = list(first)
        self._turns_left = (len(aggregation) + 1) ** 2

    def __iter__(self) -> Iterator[Key]:
        while self._waiting and self._turns_left > 0:
            self._turns_left -= 1
            yield self._waiting.pop(0)

    def changed(self, key: Key, *labels: _Labels) -> None:
        """*key* has other rules now."""
        more = self._aggregation.gathering(key, *labels)
        self._waiting += [each for each in more if each not in self._waiting]


def _rules(
    found: Iterable[tuple[LabelRequirements, list[str]]], policy: PolicyIndex
) -> tuple[PolicyRule, ...]:
    rules: dict[PolicyRule, None] = {}
    for _, names in found:
        for name in names:
            rules.update(dict.fromkeys(policy.role(Key(ClusterRoles.storage_key, "", name)) or ()))
    return tuple(rules)


def _selectors(document: Document) -> tuple[LabelRequirements, ...]:
    given = (document.get("aggregationRule") or {}).get("clusterRoleSelectors", ())
    return tuple(
        from_label_selector(msgspec.convert(selector, LabelSelector)) for selector in given
    )
