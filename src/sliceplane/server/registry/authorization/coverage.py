"""Judges if the rules that a user owns cover the rules that they grant, and the missing rules.

The check is upstream's (``Covers`` in k8s.io/component-helpers/auth/rbac/validation). A granted
rule stands for every combination of one verb, one group, one resource and one name (or one verb and
one URL). A single owned rule has to cover each combination. Upstream lists the combinations: 24 KB
of text have a thousand million. Here they are not expanded: a rule is a *box* with a side for each
dimension, and values of a side are distinguished only if some owned rule distinguishes them.

``_Boxes._covered`` works on a set of boxes and the owned rules that remain for them:

1. no owned rule remains: not covered; one remains that covers every value on all open sides:
   covered;
2. else the values of a side form *classes*: those that the same owned rules cover. The side with
   the fewest classes is chosen. For each class the function recurs with the boxes that have one of
   its values, the owned rules that cover it, and the other sides.

So all values that no owned rule names are one class, and the cost is about that of reading both
lists. In general the problem is as hard as finding orthogonal vectors, and a user with adversarial
rules could make it run for hours. After ``STEPS_MAX`` steps it stops with ``StepsExceeded``, which
a caller treats as "not covered".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sliceplane.api.errors import quote
from sliceplane.server.registry.authorization.rules import (
    ALL,
    PolicyRule,
    subresource_of_all,
    url_prefix,
)

#: maximum cost of one comparison, in inspected values of rules: about 50 ms, and some thousand
#: rules
STEPS_MAX = 300_000
#: cost of a rule, or of a recursive call, besides its values
_STEPS_EACH = 10
#: maximum of verbs of one resource in a message
_VERBS_LISTED_MAX = 1024

#: the name in a rule without resource names: only an owned rule without names covers it
_UNNAMED = None
_Value = str | None
#: lookup key of an owned rule: a value, or in a tuple a prefix of URLs
_Key = str | None | tuple[str]

_VERBS, _GROUPS, _RESOURCES, _NAMES = range(4)
_URLS = 1


class StepsExceeded(Exception):
    """The comparison of two lists of rules takes too many steps."""


def covers(owned: Iterable[PolicyRule], granted: Iterable[PolicyRule]) -> bool:
    """Returns True if *owned* covers *granted*.  Raises ``StepsExceeded``."""
    return all(boxes.all_covered() for boxes in _both(owned, granted))


def missing(owned: Iterable[PolicyRule], granted: Iterable[PolicyRule]) -> Iterator[PolicyRule]:
    """Yields the rules of *granted* that *owned* does not cover, in upstream's form and order: the
    verbs of one resource (of one name) together, each verb of a URL alone. Lazy. Raises
    ``StepsExceeded``.
    """
    for boxes in _both(owned, granted):
        yield from boxes.missing()


def _both(owned: Iterable[PolicyRule], granted: Iterable[PolicyRule]) -> tuple[_Boxes, _Boxes]:
    owned_rules = tuple(owned)
    equal = frozenset(owned_rules)
    # Users mostly own exactly the rules that they grant, and administrators own everything.
    others = tuple(rule for rule in granted if rule not in equal)
    on_resources = (
        ()
        if any(map(_covers_all_resources, owned_rules))
        else tuple(rule for rule in others if rule.resources)
    )
    on_urls = (
        ()
        if any(map(_covers_all_urls, owned_rules))
        else tuple(rule for rule in others if rule.urls)
    )
    budget = _Budget()
    return (
        _ResourceBoxes(owned_rules, on_resources, budget),
        _UrlBoxes(owned_rules, on_urls, budget),
    )


def _covers_all_resources(rule: PolicyRule) -> bool:
    return ALL in rule.resources and ALL in rule.groups and ALL in rule.verbs and not rule.names


def _covers_all_urls(rule: PolicyRule) -> bool:
    return ALL in rule.verbs and not rule.names and any(url_prefix(url) == "" for url in rule.urls)


class _Budget:
    __slots__ = ("_remaining",)

    def __init__(self) -> None:
        self._remaining = STEPS_MAX

    def spend(self, steps: int) -> None:
        self._remaining -= steps
        if self._remaining < 0:
            raise StepsExceeded


class _Boxes:
    """Granted and owned rules of one kind, by their numbers.  Immutable except for the budget and
    the cached results.
    """

    def __init__(
        self,
        owned: Iterable[tuple[frozenset[_Key] | None, ...]],
        granted: tuple[PolicyRule, ...],
        budget: _Budget,
    ) -> None:
        """*owned* has for each rule and dimension the covered keys (``None``: all values)."""
        self._rules = granted
        self._budget = budget
        #: for each granted rule the distinct values of each dimension
        self._sides: list[tuple[tuple[_Value, ...], ...]] = []
        for rule in granted:
            sides = tuple(tuple(dict.fromkeys(side)) for side in self._sides_of(rule))
            budget.spend(_STEPS_EACH + sum(map(len, sides)))
            self._sides.append(sides)
        #: for each dimension the lookup keys of each value
        self._keys = [self._keys_of(dimension) for dimension in range(self.dimensions)]
        #: for each dimension: every value has exactly one key
        self._plain = [all(len(keys) == 1 for keys in values.values()) for values in self._keys]
        relevant = [
            frozenset(key for keys in values.values() for key in keys) for values in self._keys
        ]
        self._owned: list[tuple[frozenset[_Key] | None, ...]] = []
        for taken in owned:
            budget.spend(_STEPS_EACH)
            mine = tuple(
                None if keys is None else keys & relevant[dimension]
                for dimension, keys in enumerate(taken)
            )
            if all(keys is None or keys for keys in mine):
                self._owned.append(
                    tuple(self._or_all(dimension, keys) for dimension, keys in enumerate(mine))
                )
        self._results: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bool] = {}

    #: number of sides of a box
    dimensions = 0
    #: sides in the order in which missing rules are listed, verbs last
    listing_order: tuple[int, ...] = ()

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        raise NotImplementedError

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        raise NotImplementedError

    def _list_rules(
        self, coordinates: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        """Yields the missing rules at *coordinates* (values in ``listing_order``): those granted
        there, except for *verbs*.
        """
        raise NotImplementedError

    def _keys_of(self, dimension: int) -> dict[_Value, tuple[_Key, ...]]:
        values = dict.fromkeys(value for sides in self._sides for value in sides[dimension])
        return {value: self._lookup_keys(dimension, value) for value in values}

    def _or_all(self, dimension: int, keys: frozenset[_Key] | None) -> frozenset[_Key] | None:
        """Returns *keys*, or ``None`` if they cover every granted value."""
        if keys is None:
            return None
        values = self._keys[dimension]
        if self._plain[dimension]:
            return None if len(keys) == len(values) else keys
        return keys if any(keys.isdisjoint(lookup) for lookup in values.values()) else None

    # Coverage

    def all_covered(self) -> bool:
        return self._covered(*self._initial())

    def _initial(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        real = tuple(number for number, sides in enumerate(self._sides) if all(sides))
        return real, tuple(range(len(self._owned))), tuple(range(self.dimensions))

    def _covered(
        self, boxes: tuple[int, ...], owned: tuple[int, ...], open_: tuple[int, ...]
    ) -> bool:
        arguments = boxes, owned, open_
        result = self._results.get(arguments)
        if result is None:
            result = self._results[arguments] = self._compute(boxes, owned, open_)
        return result

    def _compute(
        self, boxes: tuple[int, ...], owned: tuple[int, ...], open_: tuple[int, ...]
    ) -> bool:
        if not boxes:
            return True
        self._budget.spend(_STEPS_EACH + len(owned))
        if not owned:
            return False
        open_ = tuple(
            each for each in open_ if any(self._owned[rule][each] is not None for rule in owned)
        )
        if any(all(self._owned[rule][dimension] is None for dimension in open_) for rule in owned):
            return True
        best: list[tuple[tuple[int, ...], dict[int, None]]] = []
        chosen = -1
        for dimension in open_:
            classes = self._classes(boxes, owned, dimension)
            if any(not taking for taking, _ in classes):
                return False
            if chosen < 0 or len(classes) < len(best):
                best = classes
                chosen = dimension
        rest = tuple(dimension for dimension in open_ if dimension != chosen)
        return all(self._covered(tuple(inside), taking, rest) for taking, inside in best)

    def _classes(
        self, boxes: tuple[int, ...], owned: tuple[int, ...], dimension: int
    ) -> list[tuple[tuple[int, ...], dict[int, None]]]:
        """Returns for each class the owned rules that cover it, and the boxes that reach into
        it.
        """
        number_of, takers = self._taking(boxes, owned, dimension)
        inside: list[dict[int, None]] = [{} for _ in takers]
        for box in boxes:
            for value in self._sides[box][dimension]:
                inside[number_of[value]][box] = None
        return list(zip(takers, inside, strict=True))

    def _taking(
        self, boxes: tuple[int, ...], owned: tuple[int, ...], dimension: int
    ) -> tuple[dict[_Value, int], list[tuple[int, ...]]]:
        """Returns for each value of *boxes* the number of its class, and for each class the owned
        rules that cover it.
        """
        rules_by_key: dict[_Key, list[int]] = {}
        common = []
        for rule in owned:
            keys = self._owned[rule][dimension]
            if keys is None:
                common.append(rule)
            else:
                self._budget.spend(len(keys))
                for key in keys:
                    rules_by_key.setdefault(key, []).append(rule)
        number_of: dict[_Value, int] = {}
        numbers: dict[tuple[int, ...], int] = {}
        takers: list[tuple[int, ...]] = []
        for box in boxes:
            side = self._sides[box][dimension]
            self._budget.spend(len(side))
            for value in side:
                if value not in number_of:
                    special = self._special(rules_by_key, self._keys[dimension][value])
                    number = numbers.get(special)
                    if number is None:
                        self._budget.spend(len(common))
                        number = numbers[special] = len(takers)
                        takers.append(tuple(sorted((*common, *special))))
                    number_of[value] = number
        return number_of, takers

    def _special(
        self, rules_by_key: dict[_Key, list[int]], keys: tuple[_Key, ...]
    ) -> tuple[int, ...]:
        rules = [rules_by_key[key] for key in keys if key in rules_by_key]
        self._budget.spend(sum(map(len, rules)))
        return (
            tuple(rules[0])
            if len(rules) == 1
            else tuple(sorted({rule for some in rules for rule in some}))
        )

    # Missing rules

    def missing(self) -> Iterator[PolicyRule]:
        boxes, owned, open_ = self._initial()
        yield from self._missing(boxes, owned, open_, ())

    def _missing(
        self,
        boxes: tuple[int, ...],
        owned: tuple[int, ...],
        open_: tuple[int, ...],
        coordinates: tuple[_Value, ...],
    ) -> Iterator[PolicyRule]:
        if self._covered(boxes, owned, open_):
            return
        dimension = self.listing_order[len(coordinates)]
        if dimension == _VERBS:
            # An owned rule with all verbs would cover.
            yield from self._list_rules(
                coordinates,
                boxes,
                frozenset().union(*(self._owned[rule][_VERBS] or () for rule in owned)),
            )
            return
        number_of, takers = self._taking(boxes, owned, dimension)
        self._budget.spend(4 * len(number_of))  # sorting, and a recursive call for each
        having: dict[_Value, list[int]] = {}
        for box in boxes:
            for value in self._sides[box][dimension]:
                having.setdefault(value, []).append(box)
        rest = tuple(each for each in open_ if each != dimension)
        for value in sorted(number_of, key=lambda each: (each is _UNNAMED, quote(each or ""))):
            yield from self._missing(
                tuple(having[value]), takers[number_of[value]], rest, (*coordinates, value)
            )


class _ResourceBoxes(_Boxes):
    dimensions = 4
    listing_order = (_GROUPS, _RESOURCES, _NAMES, _VERBS)

    def __init__(
        self, owned: tuple[PolicyRule, ...], granted: tuple[PolicyRule, ...], budget: _Budget
    ) -> None:
        sides = (
            (
                None if ALL in rule.verbs else frozenset(rule.verbs),
                None if ALL in rule.groups else frozenset(rule.groups),
                None if ALL in rule.resources else frozenset(rule.resources),
                frozenset(rule.names) if rule.names else None,
            )
            for rule in owned
            if rule.resources and granted
        )
        super().__init__(sides, granted, budget)

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        return rule.verbs, rule.groups, rule.resources, rule.names or (_UNNAMED,)

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        of_all = subresource_of_all(value) if dimension == _RESOURCES and value is not None else ""
        return (value, of_all) if of_all and of_all != value else (value,)

    def _list_rules(
        self, coordinates: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        group, resource, name = coordinates
        assert group is not None
        assert resource is not None

        def missing_verbs() -> Iterator[str]:
            # A value that a rule repeats is a further combination, as in upstream's list.
            for rule in (self._rules[box] for box in boxes):
                for _ in range(rule.groups.count(group) * rule.resources.count(resource)):
                    for verb in rule.verbs:
                        if verb not in verbs:
                            yield from (verb,) * (1 if name is _UNNAMED else rule.names.count(name))

        names = () if name is _UNNAMED else (name,)
        listed = tuple(islice(missing_verbs(), _VERBS_LISTED_MAX))
        yield PolicyRule(verbs=listed, groups=(group,), resources=(resource,), names=names)


class _UrlBoxes(_Boxes):
    dimensions = 2
    listing_order = (_URLS, _VERBS)

    def __init__(
        self, owned: tuple[PolicyRule, ...], granted: tuple[PolicyRule, ...], budget: _Budget
    ) -> None:
        mine = tuple(rule for rule in owned if rule.urls and not rule.names) if granted else ()
        prefixes = {
            prefix for rule in mine for prefix in map(url_prefix, rule.urls) if prefix is not None
        }
        self._prefixes = prefixes
        self._lengths = sorted({len(prefix) for prefix in prefixes})
        sides = (
            (None if ALL in rule.verbs else frozenset(rule.verbs), _url_keys(rule)) for rule in mine
        )
        super().__init__(sides, granted, budget)

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        return rule.verbs, rule.urls

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        if dimension != _URLS or value is None:
            return (value,)
        self._budget.spend(len(self._lengths))
        begins = (value[:length] for length in self._lengths if length <= len(value))
        return (value, *((begin,) for begin in begins if begin in self._prefixes))

    def _list_rules(
        self, coordinates: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        (url,) = coordinates
        assert url is not None
        granted = {verb for box in boxes for verb in self._rules[box].verbs}
        for verb in sorted(granted, key=quote):
            if verb not in verbs:
                yield PolicyRule(verbs=(verb,), urls=(url,))


def _url_keys(rule: PolicyRule) -> frozenset[_Key]:
    exact: set[_Key] = set(rule.urls)
    return frozenset(
        exact | {(prefix,) for prefix in map(url_prefix, rule.urls) if prefix is not None}
    )
