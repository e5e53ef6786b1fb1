"""Do the rules that one holds cover the rules that one hands out, and if not, what is missing.

The question is upstream's (``Covers`` in k8s.io/component-helpers/auth/rbac/validation): a wanted
rule stands for every combination of one verb, one group, one resource and one name (or one verb and
one URL), and each combination has to be within a single held rule. Upstream makes a list of the
combinations; 24 KB of text have a thousand million. Here they stay multiplied: a rule is a *box*
with a side for each dimension, and of each side only the difference between values that some held
rule tells apart counts.

``_Boxes._covered`` works on a set of boxes and the held rules that are left for them:

1. no held rule is left: not covered; one is left that takes every value on all sides still open:
   covered;
2. else the values of a side fall into *classes*, those that the same held rules take. One side is
   chosen, the one with the fewest classes, and for each class the same is asked of the boxes that
   reach into it, the held rules that take it, and the other sides.

So values that held rules do not name, however many, are one class, and the cost is about that of
reading both lists. In general the question is as hard as finding orthogonal vectors, and a user who
holds rules made for it could have it ask for hours; after ``STEPS_MAX`` steps it is given up
(``TooManySteps``), which a caller takes for "no".
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

#: what one comparison may cost, in values of rules that it looks at: about 50 ms, and some thousand
#: rules
STEPS_MAX = 300_000
#: what a rule, or a question about a part, costs besides its values
_STEPS_EACH = 10
#: verbs of one resource that a message tells at most
_VERBS_TOLD_MAX = 1024

#: of a rule that names no objects: only a held rule that names none covers it
_UNNAMED = None
_Value = str | None
#: what a held rule is looked up by: a value, or in a tuple the beginning that a URL must have
_Key = str | None | tuple[str]

_VERBS, _GROUPS, _RESOURCES, _NAMES = range(4)
_URLS = 1


class TooManySteps(Exception):
    """The two lists of rules are too entangled to be compared."""


def covers(held: Iterable[PolicyRule], wanted: Iterable[PolicyRule]) -> bool:
    """Returns True if *held* grants all that *wanted* does.  Raises ``TooManySteps``."""
    return all(boxes.all_covered() for boxes in _both(held, wanted))


def missing(held: Iterable[PolicyRule], wanted: Iterable[PolicyRule]) -> Iterator[PolicyRule]:
    """Yields what *wanted* grants and *held* does not, as upstream lists it: the verbs of one
    resource (of one name) together, each verb of a URL alone, sorted as shown. Lazy. Raises
    ``TooManySteps``.
    """
    for boxes in _both(held, wanted):
        yield from boxes.missing()


def _both(held: Iterable[PolicyRule], wanted: Iterable[PolicyRule]) -> tuple[_Boxes, _Boxes]:
    owned = tuple(held)
    known = frozenset(owned)
    # Most of what people write they hold word for word, and administrators hold everything.
    asked = tuple(rule for rule in wanted if rule not in known)
    on_resources = (
        ()
        if any(map(_takes_all_resources, owned))
        else tuple(rule for rule in asked if rule.resources)
    )
    on_urls = () if any(map(_takes_all_urls, owned)) else tuple(rule for rule in asked if rule.urls)
    budget = _Budget()
    return _ResourceBoxes(owned, on_resources, budget), _UrlBoxes(owned, on_urls, budget)


def _takes_all_resources(rule: PolicyRule) -> bool:
    return ALL in rule.resources and ALL in rule.groups and ALL in rule.verbs and not rule.names


def _takes_all_urls(rule: PolicyRule) -> bool:
    return ALL in rule.verbs and not rule.names and any(url_prefix(url) == "" for url in rule.urls)


class _Budget:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEPS_MAX

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps


class _Boxes:
    """Wanted and held rules of one kind, by their numbers.  Immutable but for the budget and what
    is remembered.
    """

    def __init__(
        self,
        held: Iterable[tuple[frozenset[_Key] | None, ...]],
        wanted: tuple[PolicyRule, ...],
        budget: _Budget,
    ) -> None:
        """*held* has for each dimension the keys that a held rule takes (``None``: all values)."""
        self._rules = wanted
        self._budget = budget
        #: for each dimension its values in each wanted rule, each once
        self._sides: list[tuple[tuple[_Value, ...], ...]] = []
        for rule in wanted:
            sides = tuple(tuple(dict.fromkeys(side)) for side in self._sides_of(rule))
            budget.spend(_STEPS_EACH + sum(map(len, sides)))
            self._sides.append(sides)
        #: the keys under which a held rule that takes a value is found
        self._keys = [self._keys_of(dimension) for dimension in range(self.dimensions)]
        #: where every value has one key alone
        self._plain = [all(len(keys) == 1 for keys in values.values()) for values in self._keys]
        spoken = [
            frozenset(key for keys in values.values() for key in keys) for values in self._keys
        ]
        self._held: list[tuple[frozenset[_Key] | None, ...]] = []
        for taken in held:
            budget.spend(_STEPS_EACH)
            mine = tuple(
                None if keys is None else keys & spoken[dimension]
                for dimension, keys in enumerate(taken)
            )
            if all(keys is None or keys for keys in mine):
                self._held.append(
                    tuple(self._or_all(dimension, keys) for dimension, keys in enumerate(mine))
                )
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], bool] = {}

    #: how many sides a box has
    dimensions = 0
    #: sides in the order in which a missing rule shows them, verbs last
    shown_order: tuple[int, ...] = ()

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        raise NotImplementedError

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        raise NotImplementedError

    def _told(
        self, place: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        """The missing rules of one *place*: what is wanted there, but for *verbs*."""
        raise NotImplementedError

    def _keys_of(self, dimension: int) -> dict[_Value, tuple[_Key, ...]]:
        values = dict.fromkeys(value for sides in self._sides for value in sides[dimension])
        return {value: self._lookup_keys(dimension, value) for value in values}

    def _or_all(self, dimension: int, keys: frozenset[_Key] | None) -> frozenset[_Key] | None:
        """``None`` if *keys* take every value that is asked for."""
        if keys is None:
            return None
        values = self._keys[dimension]
        if self._plain[dimension]:
            return None if len(keys) == len(values) else keys
        return keys if any(keys.isdisjoint(found) for found in values.values()) else None

    # The question

    def all_covered(self) -> bool:
        return self._covered(*self._everything())

    def _everything(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        real = tuple(number for number, sides in enumerate(self._sides) if all(sides))
        return real, tuple(range(len(self._held))), tuple(range(self.dimensions))

    def _covered(
        self, boxes: tuple[int, ...], held: tuple[int, ...], open_: tuple[int, ...]
    ) -> bool:
        question = boxes, held, open_
        answer = self._known.get(question)
        if answer is None:
            answer = self._known[question] = self._answer(boxes, held, open_)
        return answer

    def _answer(
        self, boxes: tuple[int, ...], held: tuple[int, ...], open_: tuple[int, ...]
    ) -> bool:
        if not boxes:
            return True
        self._budget.spend(_STEPS_EACH + len(held))
        if not held:
            return False
        open_ = tuple(
            each for each in open_ if any(self._held[rule][each] is not None for rule in held)
        )
        if any(all(self._held[rule][dimension] is None for dimension in open_) for rule in held):
            return True
        best: list[tuple[tuple[int, ...], dict[int, None]]] = []
        chosen = -1
        for dimension in open_:
            classes = self._classes(boxes, held, dimension)
            if any(not taking for taking, _ in classes):
                return False
            if chosen < 0 or len(classes) < len(best):
                best = classes
                chosen = dimension
        rest = tuple(dimension for dimension in open_ if dimension != chosen)
        return all(self._covered(tuple(inside), taking, rest) for taking, inside in best)

    def _classes(
        self, boxes: tuple[int, ...], held: tuple[int, ...], dimension: int
    ) -> list[tuple[tuple[int, ...], dict[int, None]]]:
        """Held rules that take the same values, and the boxes that have one of them."""
        number_of, takers = self._taking(boxes, held, dimension)
        inside: list[dict[int, None]] = [{} for _ in takers]
        for box in boxes:
            for value in self._sides[box][dimension]:
                inside[number_of[value]][box] = None
        return list(zip(takers, inside, strict=True))

    def _taking(
        self, boxes: tuple[int, ...], held: tuple[int, ...], dimension: int
    ) -> tuple[dict[_Value, int], list[tuple[int, ...]]]:
        """For each value of *boxes* the number of its class, and for each class the held rules that
        take it.
        """
        found: dict[_Key, list[int]] = {}
        common = []
        for rule in held:
            keys = self._held[rule][dimension]
            if keys is None:
                common.append(rule)
            else:
                self._budget.spend(len(keys))
                for key in keys:
                    found.setdefault(key, []).append(rule)
        number_of: dict[_Value, int] = {}
        numbers: dict[tuple[int, ...], int] = {}
        takers: list[tuple[int, ...]] = []
        for box in boxes:
            side = self._sides[box][dimension]
            self._budget.spend(len(side))
            for value in side:
                if value not in number_of:
                    special = self._special(found, self._keys[dimension][value])
                    number = numbers.get(special)
                    if number is None:
                        self._budget.spend(len(common))
                        number = numbers[special] = len(takers)
                        takers.append(tuple(sorted((*common, *special))))
                    number_of[value] = number
        return number_of, takers

    def _special(self, found: dict[_Key, list[int]], keys: tuple[_Key, ...]) -> tuple[int, ...]:
        rules = [found[key] for key in keys if key in found]
        self._budget.spend(sum(map(len, rules)))
        return (
            tuple(rules[0])
            if len(rules) == 1
            else tuple(sorted({rule for some in rules for rule in some}))
        )

    # What is missing

    def missing(self) -> Iterator[PolicyRule]:
        boxes, held, open_ = self._everything()
        yield from self._missing(boxes, held, open_, ())

    def _missing(
        self,
        boxes: tuple[int, ...],
        held: tuple[int, ...],
        open_: tuple[int, ...],
        place: tuple[_Value, ...],
    ) -> Iterator[PolicyRule]:
        if self._covered(boxes, held, open_):
            return
        dimension = self.shown_order[len(place)]
        if dimension == _VERBS:
            # One that takes all verbs would cover.
            yield from self._told(
                place, boxes, frozenset().union(*(self._held[rule][_VERBS] or () for rule in held))
            )
            return
        number_of, takers = self._taking(boxes, held, dimension)
        self._budget.spend(4 * len(number_of))  # sorting, and a question for each
        having: dict[_Value, list[int]] = {}
        for box in boxes:
            for value in self._sides[box][dimension]:
                having.setdefault(value, []).append(box)
        rest = tuple(each for each in open_ if each != dimension)
        for value in sorted(number_of, key=lambda each: (each is _UNNAMED, quote(each or ""))):
            yield from self._missing(
                tuple(having[value]), takers[number_of[value]], rest, (*place, value)
            )


class _ResourceBoxes(_Boxes):
    dimensions = 4
    shown_order = (_GROUPS, _RESOURCES, _NAMES, _VERBS)

    def __init__(
        self, held: tuple[PolicyRule, ...], wanted: tuple[PolicyRule, ...], budget: _Budget
    ) -> None:
        sides = (
            (
                None if ALL in rule.verbs else frozenset(rule.verbs),
                None if ALL in rule.groups else frozenset(rule.groups),
                None if ALL in rule.resources else frozenset(rule.resources),
                frozenset(rule.names) if rule.names else None,
            )
            for rule in held
            if rule.resources and wanted
        )
        super().__init__(sides, wanted, budget)

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        return rule.verbs, rule.groups, rule.resources, rule.names or (_UNNAMED,)

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        of_all = subresource_of_all(value) if dimension == _RESOURCES and value is not None else ""
        return (value, of_all) if of_all and of_all != value else (value,)

    def _told(
        self, place: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        group, resource, name = place
        assert group is not None
        assert resource is not None

        def wanted() -> Iterator[str]:
            # A value that a rule repeats is a combination more, in upstream's list as well.
            for rule in (self._rules[box] for box in boxes):
                for _ in range(rule.groups.count(group) * rule.resources.count(resource)):
                    for verb in rule.verbs:
                        if verb not in verbs:
                            yield from (verb,) * (1 if name is _UNNAMED else rule.names.count(name))

        names = () if name is _UNNAMED else (name,)
        told = tuple(islice(wanted(), _VERBS_TOLD_MAX))
        yield PolicyRule(verbs=told, groups=(group,), resources=(resource,), names=names)


class _UrlBoxes(_Boxes):
    dimensions = 2
    shown_order = (_URLS, _VERBS)

    def __init__(
        self, held: tuple[PolicyRule, ...], wanted: tuple[PolicyRule, ...], budget: _Budget
    ) -> None:
        mine = tuple(rule for rule in held if rule.urls and not rule.names) if wanted else ()
        prefixes = {
            prefix for rule in mine for prefix in map(url_prefix, rule.urls) if prefix is not None
        }
        self._prefixes = prefixes
        self._lengths = sorted({len(prefix) for prefix in prefixes})
        sides = (
            (None if ALL in rule.verbs else frozenset(rule.verbs), _url_keys(rule)) for rule in mine
        )
        super().__init__(sides, wanted, budget)

    def _sides_of(self, rule: PolicyRule) -> tuple[Sequence[_Value], ...]:
        return rule.verbs, rule.urls

    def _lookup_keys(self, dimension: int, value: _Value) -> tuple[_Key, ...]:
        if dimension != _URLS or value is None:
            return (value,)
        self._budget.spend(len(self._lengths))
        begins = (value[:length] for length in self._lengths if length <= len(value))
        return (value, *((begin,) for begin in begins if begin in self._prefixes))

    def _told(
        self, place: tuple[_Value, ...], boxes: Sequence[int], verbs: frozenset[_Key]
    ) -> Iterator[PolicyRule]:
        (url,) = place
        assert url is not None
        wanted = {verb for box in boxes for verb in self._rules[box].verbs}
        for verb in sorted(wanted, key=quote):
            if verb not in verbs:
                yield PolicyRule(verbs=(verb,), urls=(url,))


def _url_keys(rule: PolicyRule) -> frozenset[_Key]:
    exact: set[_Key] = set(rule.urls)
    return frozenset(
        exact | {(prefix,) for prefix in map(url_prefix, rule.urls) if prefix is not None}
    )
