"""Whether rules cover rules: the same answers as upstream's list of all combinations, without
making the list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.effort import effort

from sliceplane.server.registry.authorization import coverage
from sliceplane.server.registry.authorization.coverage import StepsExceeded, covers, missing
from sliceplane.server.registry.authorization.rules import PolicyRule

EVERYTHING = (
    PolicyRule(verbs=("*",), groups=("*",), resources=("*",)),
    PolicyRule(verbs=("*",), urls=("*",)),
)


def atoms(rule: PolicyRule) -> Iterator[PolicyRule]:
    """Upstream's BreakdownRule, in words: one verb on one resource (of one name), or on one URL."""
    for group in rule.groups:
        for resource in rule.resources:
            for verb in rule.verbs:
                for names in [(name,) for name in rule.names] or [()]:
                    yield PolicyRule(
                        verbs=(verb,), groups=(group,), resources=(resource,), names=names
                    )
    for url in rule.urls:
        for verb in rule.verbs:
            yield PolicyRule(verbs=(verb,), urls=(url,))


def takes(mine: PolicyRule, atom: PolicyRule) -> bool:
    if "*" not in mine.verbs and atom.verbs[0] not in mine.verbs:
        return False
    if mine.names and (not atom.names or atom.names[0] not in mine.names):
        return False
    if atom.urls:
        url = atom.urls[0]
        return any(
            own == url or (own.endswith("*") and url.startswith(own.rstrip("*")))
            for own in mine.urls
        )
    resource = atom.resources[0]
    below = {f"*/{resource.split('/', 1)[1]}"} if "/" in resource else set()
    return bool(
        ("*" in mine.groups or atom.groups[0] in mine.groups)
        and {"*", resource, *below}.intersection(mine.resources)
    )


def told_by_upstream(held: Sequence[PolicyRule], wanted: Sequence[PolicyRule]) -> list[str]:
    """Covers, then CompactRules, then a sorted set of lines."""
    compact: dict[PolicyRule, list[str]] = {}
    lines = set()
    for atom in (atom for rule in wanted for atom in atoms(rule)):
        if any(takes(mine, atom) for mine in held):
            continue
        if atom.urls:
            lines.add(str(atom))
        else:
            compact.setdefault(replace(atom, verbs=()), []).append(atom.verbs[0])
    lines |= {str(replace(atom, verbs=tuple(verbs))) for atom, verbs in compact.items()}
    return sorted(lines)


def subset(*items: str, most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(items), min_size=1, max_size=most).map(tuple)


RESOURCES = subset(
    "pods",
    "pods/scale",
    "pods/a/b",
    "*/scale",
    "*/a/b",
    "deployments/scale",
    "*",
    "a\x00b",
    "pods ",
    "x",
)
NAMED = st.one_of(st.just(()), subset("a", "b", "*", ""))
RESOURCE_RULES = st.builds(
    PolicyRule,
    verbs=subset("get", "list", "create", "*"),
    groups=subset("", "apps", "*", '"'),
    resources=RESOURCES,
    names=NAMED,
)
URL_RULES = st.builds(
    PolicyRule,
    verbs=subset("get", "post", "*"),
    urls=subset("/a", "/a/*", "/a/b", "/a/**", "/a*", "*", "**", "/b", ""),
)
RULES = st.lists(st.one_of(RESOURCE_RULES, RESOURCE_RULES, URL_RULES), max_size=5)


@effort(600)
@given(held=RULES, wanted=RULES)
def test_the_answers_are_those_of_all_combinations(
    held: list[PolicyRule], wanted: list[PolicyRule]
) -> None:
    lines = told_by_upstream(held, wanted)
    assert [str(rule) for rule in missing(held, wanted)] == lines
    assert covers(held, wanted) is (not lines)


@effort(200)
@given(data=st.data())
def test_the_answers_are_those_of_all_combinations_where_many_rules_are_held_in_pieces(
    data: st.DataObject,
) -> None:
    """What is held is what is wanted, cut up, with some of the pieces taken away."""
    values = [str(number) for number in range(4)]
    sides = [data.draw(st.permutations(values)) for _ in range(3)]
    pieces = [
        PolicyRule(verbs=tuple(verbs), groups=tuple(groups), resources=(resource,))
        for verbs in (sides[0][:2], sides[0][2:])
        for groups in (sides[1][:1], sides[1][1:3], sides[1][3:])
        for resource in sides[2]
    ]
    held = data.draw(
        st.lists(
            st.sampled_from(pieces), min_size=len(pieces) - 4, max_size=len(pieces), unique=True
        )
    )
    wanted = [PolicyRule(verbs=tuple(values), groups=tuple(values), resources=tuple(values))]
    assert [str(rule) for rule in missing(held, wanted)] == told_by_upstream(held, wanted)


def cube(side: int, **more: tuple[str, ...]) -> PolicyRule:
    def values(letter: str) -> tuple[str, ...]:
        return tuple(f"{letter}{number}" for number in range(side))

    return PolicyRule(
        **{"verbs": values("v"), "groups": values("g"), "resources": values("r")} | more
    )  # type: ignore[arg-type]


def holder(side: int) -> list[PolicyRule]:
    """Reads everything, has one rule for each group, and writes what is in a few lists."""
    return [
        PolicyRule(verbs=("get", "list"), groups=("*",), resources=("*",)),
        *(
            PolicyRule(verbs=("*",), groups=(f"g{number}",), resources=("*/scale", "r0"))
            for number in range(side)
        ),
        cube(side // 4),
    ]


class Counted:
    """Counts what a comparison spends, as upper bound of its time on any machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent = 0
        spend = coverage._Budget.spend

        def count(budget: coverage._Budget, steps: int) -> None:
            self.spent += steps
            spend(budget, steps)

        monkeypatch.setattr(coverage._Budget, "spend", count)

    def of(self, held: list[PolicyRule], wanted: list[PolicyRule]) -> int:
        self.spent = 0
        next(iter(missing(held, wanted)), None)
        return self.spent


def test_a_thousand_groups_by_resources_by_verbs_cost_what_their_text_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = Counted(monkeypatch)
    for held in ([], [PolicyRule(verbs=("get",), groups=("*",), resources=("*",))]):
        few, many = count.of(held, [cube(250)]), count.of(held, [cube(1000)])
        assert many <= 5 * few, f"{few} steps for 250, {many} for 1000"
        assert many < 20_000
    assert count.of(holder(100), [cube(1000)]) <= 5 * count.of(holder(100), [cube(250)])
    # The list of combinations takes an hour.
    assert not covers(holder(100), [cube(1000)])
    assert covers([cube(1000), *holder(10)], [replace(cube(1000), verbs=cube(500).verbs)])


def test_many_small_rules_cost_what_their_text_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counted(monkeypatch)

    def tiny(side: int) -> list[PolicyRule]:
        places = ((v, g, r) for v in range(side) for g in range(side) for r in range(side))
        return [
            PolicyRule(verbs=(f"v{v}", "x"), groups=(f"g{g}",), resources=(f"r{r}",))
            for v, g, r in places
        ]

    def again(rules: list[PolicyRule]) -> list[PolicyRule]:
        return [replace(rule, verbs=rule.verbs[:1]) for rule in rules]

    few, many = (count.of(tiny(side), again(tiny(side))) for side in (10, 16))
    assert many <= 1.3 * 4.1 * few
    assert covers(tiny(16), again(tiny(16)))


def test_many_urls_cost_what_their_text_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    count = Counted(monkeypatch)

    def urls(number: int) -> list[PolicyRule]:
        return [
            PolicyRule(verbs=("get", "put"), urls=tuple(f"/{each}/*" for each in range(number)))
        ]

    held = [PolicyRule(verbs=("get",), urls=(f"/{number}*",)) for number in range(100)]
    assert count.of(held, urls(4000)) <= 5 * count.of(held, urls(1000))


def test_what_is_made_to_be_hard_is_given_up_in_time() -> None:
    """Of three values together each leaves out few of the held rules, never all: only trying all of
    them tells.
    """
    codes = [sum(1 << bit for bit in bits) for bits in itertools.combinations(range(16), 5)][:1000]

    def without(letter: str, bit: int) -> tuple[str, ...]:
        return tuple(
            f"{letter}{number}" for number, code in enumerate(codes) if not code >> bit & 1
        )

    held = [
        PolicyRule(verbs=without("v", bit), groups=without("g", bit), resources=without("r", bit))
        for bit in range(16)
    ]
    with pytest.raises(StepsExceeded):
        covers(held, [cube(1000)])
    few = PolicyRule(verbs=cube(12).verbs, groups=cube(12).groups, resources=cube(12).resources)
    assert covers(held, [few])


def test_everything_covers_everything() -> None:
    assert covers(EVERYTHING, [*EVERYTHING, cube(1000), PolicyRule(verbs=("get",), urls=("/a",))])
    assert not covers([cube(3)], EVERYTHING)
    assert covers([], [])
    assert covers([], [PolicyRule(verbs=("get",))]), "a rule about nothing grants nothing"
