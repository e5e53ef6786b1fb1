"""Label requirements and their compiled form.

``LabelRequirements`` is a conjunction. Its canonical text lists the requirements by key (in the
order given where keys are equal), so two selectors with one meaning usually have one text; it is
what equality and hashing go by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

import msgspec

from sliceplane.api.errors import bad_request, show, until_error_limit
from sliceplane.api.meta import LabelSelector
from sliceplane.kit.integers import NotAnInteger, parse_int64
from sliceplane.kit.names import check_label_value, check_qualified_name

Labels = Mapping[str, str]
Match = Callable[[Labels | None], bool]

#: no key is good that is longer than a prefix, a slash and a name
_KEY_QUOTED_MAX: Final = 317


class Operator(Enum):
    EXISTS = "exists"
    DOES_NOT_EXIST = "!"
    EQUALS = "="
    DOUBLE_EQUALS = "=="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    GREATER_THAN = ">"
    LESS_THAN = "<"


_EQUALITY = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)
_INEQUALITY = (Operator.NOT_EQUALS, Operator.NOT_IN)
_ORDER = (Operator.GREATER_THAN, Operator.LESS_THAN)
#: fewer requirements are quicker one by one
_MERGED_MIN: Final = 4


class Requirement(msgspec.Struct, frozen=True):
    """One requirement; ``values`` is sorted and free of duplicates."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        joined = ",".join(self.values)
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({joined})"
            case _:
                return f"{self.key}{self.operator.value}{joined}"

    @property
    def pair(self) -> tuple[str, str] | None:
        """The label that every matching object carries, if there is exactly one such."""
        if self.operator in _EQUALITY and len(self.values) == 1:
            return self.key, self.values[0]
        return None


class LabelRequirements:
    """A conjunction of requirements.  Immutable.

    ``matches(labels)`` takes ``None`` for "no labels". ``index_pair`` is one (key, value) that
    every matching object must carry, or ``None`` if no such pair can be named: reverse indexes file
    a selector under it.
    """

    __slots__ = ("_text", "empty", "index_pair", "matches", "requirements")

    requirements: Final[tuple[Requirement, ...]]
    matches: Final[Match]
    empty: Final[bool]
    index_pair: Final[tuple[str, str] | None]

    def __init__(
        self, requirements: Iterable[Requirement], *, match: Match | None = None, text: str = ""
    ) -> None:
        self.requirements = tuple(sorted(requirements, key=lambda requirement: requirement.key))
        self.matches = match or _compile(self.requirements)
        self.empty = not self.requirements and match is None
        self.index_pair = next((pair for pair in (r.pair for r in self.requirements) if pair), None)
        self._text = text or ",".join(map(str, self.requirements))

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"LabelRequirements({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelRequirements) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _compile(requirements: tuple[Requirement, ...]) -> Match:
    """One closure for all of *requirements*; equalities are tested first, together."""
    if not requirements:
        return lambda _: True
    equal: dict[str, str] = {}
    others: list[Requirement] = []
    for requirement in requirements:
        pair = requirement.pair
        if pair is not None and pair[0] not in equal:
            equal[pair[0]] = pair[1]
        else:
            others.append(requirement)
    # Many of one sort cost as much as a label of the object, not as much as there are of them.
    parts = _merged(others) if len(others) > _MERGED_MIN else tuple(map(_compile_one, others))
    if equal:
        parts = (_compile_equal(equal), *parts)
    return parts[0] if len(parts) == 1 else _all_of(parts)


def _merged(requirements: list[Requirement]) -> tuple[Match, ...]:
    """A few closures for many requirements. What they cost is in proportion to the labels that they
    are asked about: keys that must be there are distinct, so that soon one is missing, and others
    are looked up from the labels.
    """
    needed: dict[str, frozenset[str] | None] = {}
    excluded: dict[str, set[str] | None] = {}
    bounds: dict[tuple[str, Operator], Requirement] = {}
    for each in requirements:
        key = each.key
        operator = each.operator
        if operator is Operator.EXISTS:
            needed.setdefault(key, None)
        elif operator in _EQUALITY:
            before = needed.get(key)
            values = frozenset(each.values)
            needed[key] = values if before is None else before & values
        elif operator is Operator.DOES_NOT_EXIST:
            excluded[key] = None
        elif operator in _INEQUALITY:
            some = excluded.setdefault(key, set())
            if some is not None:
                some.update(each.values)
        else:
            bounds[key, operator] = _tighter(each, bounds.get((key, operator)))
    parts: list[Match] = []
    if needed:
        parts.append(_compile_needed(needed))
    parts.extend(map(_compile_one, bounds.values()))
    if excluded:
        parts.append(_compile_excluded(excluded))
    return tuple(parts)


def _tighter(one: Requirement, other: Requirement | None) -> Requirement:
    if other is None:
        return one
    pick = max if one.operator is Operator.GREATER_THAN else min
    return pick(one, other, key=lambda each: int(each.values[0]))


def _compile_needed(needed: dict[str, frozenset[str] | None]) -> Match:
    def match(labels: Labels | None) -> bool:
        if labels is None or len(labels) < len(needed):
            return False
        for key, values in needed.items():
            if key not in labels or (values is not None and labels[key] not in values):
                return False
        return True

    return match


def _compile_excluded(excluded: dict[str, set[str] | None]) -> Match:
    """``None``: the key must not be there at all."""

    def match(labels: Labels | None) -> bool:
        for key, value in (labels or {}).items():
            if key in excluded:
                values = excluded[key]
                if values is None or value in values:
                    return False
        return True

    return match


def _all_of(parts: tuple[Match, ...]) -> Match:
    def match(labels: Labels | None) -> bool:
        for part in parts:  # noqa: SIM110 - a loop takes half the time of all() over a generator
            if not part(labels):
                return False
        return True

    return match


def _compile_equal(equal: dict[str, str]) -> Match:
    if len(equal) == 1:
        ((key, value),) = equal.items()
        return lambda labels: labels is not None and labels.get(key) == value
    pairs = tuple(equal.items())

    def match(labels: Labels | None) -> bool:
        if labels is None:
            return False
        for key, value in pairs:  # noqa: SIM110 - likewise
            if labels.get(key) != value:
                return False
        return True

    return match


def _compile_one(requirement: Requirement) -> Match:
    key = requirement.key
    values = frozenset(requirement.values)
    operator = requirement.operator
    if operator is Operator.EXISTS:
        return lambda labels: labels is not None and key in labels
    if operator is Operator.DOES_NOT_EXIST:
        return lambda labels: labels is None or key not in labels
    if operator in _EQUALITY:
        return lambda labels: labels is not None and labels.get(key) in values
    if operator in _INEQUALITY:
        return lambda labels: labels is None or labels.get(key) not in values
    (text,) = requirement.values
    bound = _integer(text)
    assert bound is not None, f"{requirement} was not checked"
    greater = operator is Operator.GREATER_THAN

    def match(labels: Labels | None) -> bool:
        actual = None if labels is None else labels.get(key)
        number = None if actual is None else _integer(actual)
        if number is None:
            return False
        return number > bound if greater else number < bound

    return match


def _integer(text: str) -> int | None:
    try:
        return parse_int64(text)
    except NotAnInteger:
        return None


def key_problem(key: str, path: str) -> str:
    """The complaint about a label key, "" if it is good."""
    # a key with two slashes is called a label key here and a qualified name everywhere else
    problems = "; ".join(check_qualified_name(key)).replace(
        "a qualified name must", "a valid label key must"
    )
    return f"{path}: Invalid value: {show(key)}: {problems}" if problems else ""


def requirement_problems(requirement: Requirement) -> list[str]:
    """Complaints about a requirement's key and values, in the order in which they are reported."""
    problems = [key_problem(requirement.key, "key")]
    if len(requirement.key) > _KEY_QUOTED_MAX:
        # Each complaint about a value shows the key.
        return problems
    operator = requirement.operator
    values = requirement.values
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        problems.append(
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
        )
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST) and values:
        problems.append(
            f"values: Invalid value: {show(list(values))}: values set must be empty for exists "
            "and does not exist"
        )
    if operator in _ORDER:
        complaint = "for 'Gt', 'Lt' operators, the value must be an integer"
        problems.extend(
            f"values[{index}]: Invalid value: {show(value)}: {complaint}"
            for index, value in enumerate(values)
            if _integer(value) is None
        )
    for index, value in until_error_limit(problems, enumerate(values)):
        wrong = "; ".join(check_label_value(value))
        if wrong:
            problems.append(
                f"values[{index}][{requirement.key}]: Invalid value: {show(value)}: {wrong}"
            )
    return [problem for problem in dict.fromkeys(problems) if problem]


def make_requirement(key: str, operator: Operator, values: Iterable[str]) -> Requirement:
    """A checked requirement.  Raises StatusError 400 without the parser's prefix."""
    requirement = Requirement(key, operator, tuple(sorted(set(values))))
    problems = requirement_problems(requirement)
    if problems:
        raise bad_request(problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]")
    return requirement


EVERYTHING: Final = LabelRequirements(())
NOTHING: Final = LabelRequirements((), match=lambda _: False, text="<nothing>")

_SELECTOR_OPERATORS = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


def from_label_selector(selector: LabelSelector | None) -> LabelRequirements:
    """``metav1.LabelSelector``: none selects nothing, an empty one everything.

    Raises StatusError 400 for an operator, key or value that cannot be.
    """
    if selector is None:
        return NOTHING
    requirements = [
        make_requirement(key, Operator.EQUALS, (value,))
        for key, value in sorted((selector.match_labels or {}).items())
    ]
    for expression in selector.match_expressions or ():
        operator = _SELECTOR_OPERATORS.get(expression.operator)
        if operator is None:
            raise bad_request(f"{show(expression.operator)} is not a valid label selector operator")
        requirements.append(make_requirement(expression.key, operator, expression.values or ()))
    return LabelRequirements(requirements) if requirements else EVERYTHING


def from_map(labels: Mapping[str, str] | None) -> LabelRequirements:
    """Equality with every pair, unchecked; an empty map selects everything.

    What an empty ``Service.spec.selector`` means (no endpoints from pods) is the caller's business.
    """
    if not labels:
        return EVERYTHING
    return LabelRequirements(
        Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items()
    )
