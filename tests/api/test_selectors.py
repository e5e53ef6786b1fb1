"""Selectors against what upstream's parser answers, and matchers against a naive evaluator."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tables import tables

from sliceplane.api import scheme
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import LabelSelector, LabelSelectorRequirement
from sliceplane.api.scheme import Resource
from sliceplane.api.selectors import (
    EVERYTHING,
    NOTHING,
    LabelRequirements,
    Operator,
    Requirement,
    from_label_selector,
    from_map,
    parse_fields,
    parse_labels,
)

TABLES = tables(__file__)

#: input, and upstream's canonical text or error (k8s.io/apimachinery 0.36.2)
GOLDEN: dict[str, list[dict[str, str]]] = json.loads(
    (Path(__file__).parent / "data" / "selectors.json").read_text()
)


@pytest.mark.parametrize("case", GOLDEN["labels"], ids=lambda case: repr(case["in"]))
def test_label_grammar_is_upstreams(case: dict[str, str]) -> None:
    if "error" in case:
        with pytest.raises(StatusError) as caught:
            parse_labels(case["in"])
        assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
        assert caught.value.message == case["error"]
    else:
        parsed = parse_labels(case["in"])
        assert str(parsed) == case["out"]
        assert parsed == parse_labels(case["out"])


@pytest.mark.parametrize("case", GOLDEN["fields"], ids=lambda case: repr(case["in"]))
def test_field_grammar_is_upstreams(case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sliceplane.api.selectors.fields._indexed_field", lambda field, resource: field
    )
    if "error" in case:
        with pytest.raises(StatusError) as caught:
            parse_fields(case["in"], scheme.Pods)
        assert (caught.value.code, caught.value.message) == (400, case["error"])
    else:
        assert str(parse_fields(case["in"], scheme.Pods)) == case["out"]


@pytest.mark.parametrize(
    ("resource", "text", "message"), TABLES["unknown_fields_are_refused_in_the_words_of_the_kind"]
)
def test_unknown_fields_are_refused_in_the_words_of_the_kind(
    resource: Resource, text: str, message: str
) -> None:
    with pytest.raises(StatusError) as caught:
        parse_fields(text, resource)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_field_matching() -> None:
    pods = parse_fields("spec.nodeName=n1,metadata.name!=b,metadata.namespace=ns", scheme.Pods)
    assert pods.exact_namespace == "ns"
    assert pods.exact_name is None
    assert pods.matches("a", "ns", {"spec.nodeName": "n1"})
    assert not pods.matches("b", "ns", {"spec.nodeName": "n1"})
    assert not pods.matches("a", "other", {"spec.nodeName": "n1"})
    assert not pods.matches("a", "ns", {})
    assert parse_fields("metadata.name==x", scheme.Leases).exact_name == "x"
    assert not parse_fields("metadata.name=x,metadata.name=y", scheme.Leases).matches("x", "", {})
    assert parse_fields("", scheme.Pods).empty


def test_missing_fields_select_as_empty_or_false() -> None:
    assert parse_fields("spec.clusterIP!=None", scheme.Services).matches("a", "b", {})
    assert parse_fields("spec.nodeName=", scheme.Pods).matches("a", "b", {})
    assert parse_fields("spec.unschedulable=false", scheme.Nodes).matches("a", "", {})
    assert not parse_fields("spec.unschedulable=", scheme.Nodes).matches("a", "", {})
    assert parse_fields("spec.hostNetwork=true", scheme.Pods).matches(
        "a", "b", {"spec.hostNetwork": "true"}
    )
    assert not parse_fields("status.podIPs=10.0.0.1", scheme.Pods).matches(
        "a", "b", {"status.podIP": "10.0.0.1"}
    )


def test_two_names_of_one_field_are_one() -> None:
    assert parse_fields("spec.host=n1", scheme.Pods) == parse_fields(
        "spec.nodeName=n1", scheme.Pods
    )


LABELS = st.dictionaries(
    st.sampled_from("abc"), st.sampled_from(["", "x", "y", "1", "7", "10"]), max_size=3
)


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    operator = draw(st.sampled_from(Operator))
    values = st.sampled_from(["", "x", "y"])
    match operator:
        case Operator.EXISTS | Operator.DOES_NOT_EXIST:
            chosen: list[str] = []
        case Operator.IN | Operator.NOT_IN:
            chosen = draw(st.lists(values, min_size=1, max_size=3))
        case Operator.GREATER_THAN | Operator.LESS_THAN:
            chosen = [draw(st.sampled_from(["1", "7", "9", "10"]))]
        case _:
            chosen = [draw(values)]
    return Requirement(draw(st.sampled_from("abc")), operator, tuple(sorted(set(chosen))))


def naive(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
        case Operator.NOT_EQUALS | Operator.NOT_IN:
            return value is None or value not in requirement.values
        case Operator.GREATER_THAN:
            return value is not None and value.isdigit() and int(value) > int(requirement.values[0])
        case Operator.LESS_THAN:
            return value is not None and value.isdigit() and int(value) < int(requirement.values[0])
        case _:
            return value is not None and value in requirement.values


@given(st.lists(requirements(), max_size=4), LABELS)
def test_compiled_matchers_equal_the_naive_evaluator(
    wanted: list[Requirement], labels: dict[str, str]
) -> None:
    compiled = LabelRequirements(wanted)
    expected = all(naive(requirement, labels) for requirement in wanted)
    assert compiled.matches(labels) is expected
    if not labels:
        assert compiled.matches(None) is expected
    if compiled.index_pair is not None and expected:
        key, value = compiled.index_pair
        assert labels[key] == value
    assert compiled.empty is (not wanted)
    assert parse_labels(str(compiled)) == compiled
    assert parse_labels(str(compiled)).matches(labels) is expected


@given(st.text(alphabet="ab!=<>(), inot./-_1\\", max_size=30))
def test_any_text_parses_or_is_refused_with_400(text: str) -> None:
    for parse in (parse_labels, lambda value: parse_fields(value, scheme.Pods)):
        with contextlib.suppress(StatusError):  # and nothing else
            parse(text)


def test_label_selector_objects() -> None:
    assert from_label_selector(None) is NOTHING
    assert not NOTHING.matches({})
    assert not NOTHING.empty
    assert NOTHING != EVERYTHING
    assert from_label_selector(LabelSelector()) is EVERYTHING
    selector = LabelSelector(
        match_labels={"b": "2", "a": "1"},
        match_expressions=(
            LabelSelectorRequirement(key="c", operator="NotIn", values=("z", "y")),
            LabelSelectorRequirement(key="d", operator="DoesNotExist"),
            LabelSelectorRequirement(key="e", operator="Exists"),
        ),
    )
    assert str(from_label_selector(selector)) == "a=1,b=2,c notin (y,z),!d,e"
    assert from_label_selector(selector).index_pair == ("a", "1")


@pytest.mark.parametrize(("expression", "message"), TABLES["label_selector_objects_are_checked"])
def test_label_selector_objects_are_checked(expression: dict[str, Any], message: str) -> None:
    with pytest.raises(StatusError) as caught:
        from_label_selector(
            LabelSelector(match_expressions=(LabelSelectorRequirement(**expression),))
        )
    assert caught.value.code == 400
    assert message in caught.value.message


def test_maps_match_as_equalities() -> None:
    assert from_map({}) is from_map(None) is EVERYTHING
    both = from_map({"b": "2", "a": "1"})
    assert str(both) == "a=1,b=2"
    assert both.index_pair == ("a", "1")
    assert both.matches({"a": "1", "b": "2", "c": "3"})
    assert not both.matches({"a": "1"})
    assert not both.matches(None)
    assert hash(both) == hash(parse_labels("b=2,a=1"))


_TERMS = st.sampled_from(
    (
        "a",
        "!a",
        "b",
        "!b",
        "a=1",
        "a=2",
        "a!=1",
        "b!=2",
        "a in (1,2)",
        "a in (2,3)",
        "b notin (1)",
        "a>1",
        "a<3",
        "b>0",
        "!c",
    )
)


@given(
    st.lists(_TERMS, min_size=5, max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("0123x")),
)
def test_many_terms_together_mean_what_each_means(terms: list[str], labels: dict[str, str]) -> None:
    assert parse_labels(",".join(terms)).matches(labels) == all(
        parse_labels(term).matches(labels) for term in terms
    )
    assert parse_labels(",".join(terms)).matches(None) == all(
        parse_labels(term).matches(None) for term in terms
    )


@given(
    st.lists(
        st.sampled_from(("a", "!a", "b=1", "b==1", "c!=2", "d=", "in", "notin=x")),
        min_size=101,
        max_size=110,
    )
)
def test_a_long_plain_selector_means_what_its_terms_mean(terms: list[str]) -> None:
    together, alone = parse_labels(",".join(terms)), [parse_labels(term) for term in terms]
    for labels in (
        {},
        {"a": "1"},
        {"b": "1"},
        {"a": "", "b": "1", "d": "", "in": "", "notin": "x"},
        {"b": "1", "d": ""},
    ):
        assert together.matches(labels) == all(each.matches(labels) for each in alone)


@pytest.mark.parametrize("term", ["!k%d", "a!=%d", "a notin (%d)", "k%d!=x"])
def test_ten_thousand_terms_cost_as_much_as_the_labels_they_are_asked_about(term: str) -> None:
    """Counted in look-ups, not in time."""
    asked = 0

    class Counting(dict[str, str]):
        def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
            nonlocal asked
            asked += 1
            return super().get(key, default)

        def __contains__(self, key: object) -> bool:
            nonlocal asked
            asked += 1
            return super().__contains__(key)

    selector = parse_labels(",".join(term % number for number in range(3_000)))
    assert selector.matches(Counting(app="web", tier="front"))
    assert asked < 20
