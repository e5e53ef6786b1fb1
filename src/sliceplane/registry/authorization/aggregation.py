"""ClusterRoles whose rules are those of others (``aggregationRule``), kept up to date in the stored objects.

Upstream has a controller for it; here the rules are staged right after the role that changed, so that there is no
moment at which ``edit`` lacks what ``system:aggregate-to-edit`` grants, and a server without controllers has them too.
An aggregated role may be gathered by another (``view`` by ``edit`` by ``admin``); ``Followers`` walks up.

The order of the rules is upstream's: selectors in order, for each the roles by name, each rule once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.scheme import ClusterRoles
from sliceplane.api.selectors import LabelRequirements, from_label_selector
from sliceplane.registry.documents import document_of
from sliceplane.store.mvcc import Store
from sliceplane.store.types import Key


class Aggregation:
    """Which roles gather others.  Owned by ``registry.core.Core``, which tells it of every write."""

    def __init__(self) -> None:
        self._selectors: dict[Key, tuple[LabelRequirements, ...]] = {}

    def reset(self) -> None:
        self._selectors.clear()

    def on_stored(self, key: Key, document: Document) -> None:
        """A new version of a ClusterRole."""
        selectors = _selectors(document)
        if selectors:
            self._selectors[key] = selectors
        else:
            self._selectors.pop(key, None)

    def on_removed(self, key: Key) -> None:
        self._selectors.pop(key, None)

    def gathering(self, changed: Key, *labels: Mapping[str, str]) -> tuple[Key, ...]:
        """The aggregated roles, other than *changed* itself, that gather a role with one of these *labels*."""
        return tuple(
            key
            for key, selectors in sorted(self._selectors.items(), key=lambda item: item[0].name)
            if key != changed and any(selector.matches(each) for selector in selectors for each in labels)
        )

    def __len__(self) -> int:
        return len(self._selectors)

    def all(self) -> tuple[Key, ...]:
        return tuple(sorted(self._selectors, key=lambda key: key.name))

    def check(self, documents: Iterable[tuple[Key, Document]]) -> None:
        """The index is what one made from *documents* (all ClusterRoles) would be."""
        expected = {key: _selectors(document) for key, document in documents if _selectors(document)}
        assert self._selectors == expected, f"gathering {self._selectors}, stored objects say {expected}"


class Followers:
    """The aggregated roles to look at because of one change.

    Each is looked at a bounded number of times, so that roles which gather each other end too: by then all of them
    have all rules, and only the order could go on changing.
    """

    def __init__(self, aggregation: Aggregation, first: Iterable[Key]) -> None:
        self._aggregation = aggregation
        self._waiting = list(first)
        self._turns_left = (len(aggregation) + 1) ** 2

    def __iter__(self) -> Iterator[Key]:
        while self._waiting and self._turns_left > 0:
            self._turns_left -= 1
            yield self._waiting.pop(0)

    def changed(self, key: Key, *labels: Mapping[str, str]) -> None:
        """*key* has other rules now."""
        more = self._aggregation.gathering(key, *labels)
        self._waiting += [each for each in more if each not in self._waiting]


def fill(store: Store, document: Document) -> None:
    """Give an aggregated ClusterRole the rules that it gathers, whatever it came with; others are left alone.

    Raises the 400 StatusError for a selector that cannot be.
    """
    selectors = _selectors(document)
    if not selectors:
        return
    roles = sorted(store.iter_latest(ClusterRoles.storage_key), key=lambda record: record.key.name)
    rules: list[Document] = []
    for selector in selectors:
        for record in roles:
            if record.key.name == document["metadata"].get("name") or not selector.matches(record.labels):
                continue
            rules += [rule for rule in document_of(record).get("rules", ()) if rule not in rules]
    if rules:
        document["rules"] = rules
    else:
        document.pop("rules", None)


def _selectors(document: Document) -> tuple[LabelRequirements, ...]:
    given = (document.get("aggregationRule") or {}).get("clusterRoleSelectors", ())
    return tuple(from_label_selector(msgspec.convert(selector, LabelSelector)) for selector in given)
