"""Sentences of findings agree in number, whatever the number is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import pytest
import tests.diagnose.explain.faults
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.explain.world import NEARLY, PLANTED, Fault

from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import count, nearest, no_such, part, plural, some, verb

assert tests.diagnose.explain.faults, "importing it fills the lists"
NUMBERS = st.integers(min_value=0, max_value=10**7)
#: of one -> of many
NOUNS = {
    "Pod": "Pods",
    "ready endpoint": "ready endpoints",
    "address": "addresses",
    "NetworkPolicy": "NetworkPolicies",
    "batch": "batches",
    "watch": "watches",
    "gateway": "gateways",
    "index": "indexes",
}
VERBS = {
    "is": "are",
    "has": "have",
    "does not": "do not",
    "was": "were",
    "matches": "match",
    "takes": "take",
    "carries": "carry",
    "passes": "pass",
    "tells": "tell",
    "closes": "close",
    "": "",
}


@given(NUMBERS, st.sampled_from(sorted(NOUNS)), st.sampled_from(sorted(VERBS)))
def test_noun_and_verb_are_as_their_number_wants_them(number: int, noun: str, of_one: str) -> None:
    words = {0: f"no {noun} {of_one}", 1: f"1 {noun} {of_one}"}
    assert (
        count(number, noun, of_one)
        == words.get(number, f"{number:,} {NOUNS[noun]} {VERBS[of_one]}").strip()
    )


@given(NUMBERS, NUMBERS, st.sampled_from(sorted(NOUNS)), st.sampled_from(sorted(VERBS)))
def test_the_noun_follows_the_whole_and_the_verb_the_part(
    first: int, other: int, noun: str, of_one: str
) -> None:
    number, total = min(first, other), max(first, other)
    said = f"{number:,} of {total:,} {noun if total == 1 else NOUNS[noun]}"
    assert (
        part(number, total, noun, of_one)
        == f"{said} {of_one if number == 1 else VERBS[of_one]}".strip()
    )


@given(st.lists(st.sampled_from(["node-1", "node-2", "node-3"]), min_size=1, max_size=9))
def test_names_have_the_verb_of_all_of_them_not_of_those_that_are_shown(names: list[str]) -> None:
    said = some(names, verb_of_one="drops")
    assert said.endswith(" drops" if len(names) == 1 else " drop")
    assert (f"and {len(names) - 3} more" in said) == (len(names) > 3)


def test_plurals_and_verbs_that_are_easily_wrong() -> None:
    assert [plural(noun) for noun in NOUNS] == list(NOUNS.values())
    assert [verb(2, of_one) for of_one in VERBS] == list(VERBS.values())
    assert [verb(1, of_one) for of_one in VERBS] == list(VERBS)


#: what agrees with nothing: "1 of 1 Pod are", "1 endpoint get", "2 Pod", "0 of no Pod", "1 Pods"
_MANY = r"(are|have|were|do|get|lead|stay|mirror|match|need|belong|drop|reach|take|lack|serve|declare|list|wait)\b"
_ODD = (
    re.compile(rf"\b1 of [\d,]+ (\w+ )?\w+ {_MANY}"),
    re.compile(rf"(?<!of )\b(1|no) (ready |other |matching )?[A-Za-z]+ (\([^)]*\) )?{_MANY}"),
    re.compile(
        r"(?<![.\d,:/-])\b1 (ready )?(Pods|Nodes|nodes|Services|slices|endpoints|addresses|Leases|hints)\b"
    ),
    re.compile(
        r"\b(0|[2-9]|\d\d+) (Pod|Node|node|Service|slice|endpoint|address|Lease|hint|rule)\b(?!-|\(s\))"
    ),
    re.compile(r"\bof no [A-Z]?[a-z]+\b"),
    re.compile(
        r"(?<!of )(?<!its )\b([2-9]|\d\d+) (Pods|[Nn]odes|slices|endpoints|addresses) (is|has|was|does|gets)\b"
    ),
)


@pytest.mark.parametrize("fault", [*PLANTED, *NEARLY], ids=str)
def test_what_is_said_of_planted_faults_agrees(fault: Fault) -> None:
    for finding in fault.findings():
        for text in _texts(finding):
            for odd in _ODD:
                found = odd.search(text)
                assert found is None, f"{finding.code}: {found[0]!r} in {text!r}"


def _texts(finding: Finding) -> Iterator[str]:
    yield finding.sentence
    yield finding.effect
    yield from (entry.value for entry in finding.evidence)


@pytest.mark.parametrize(
    ("kind", "key", "known", "sentence"),
    [
        (
            "Service",
            "shop/kart",
            ["shop/cart", "shop/web"],
            "there is no Service shop/kart; is shop/cart meant?",
        ),
        (
            "Service",
            "shop/web",
            ["a/web", "b/web", "shop/wep"],
            "there is no Service shop/web; is a/web or b/web meant?",
        ),
        (
            "Service",
            "shop/x",
            ["shop/cart", "a/y"],
            "there is no Service shop/x; there is cart in shop",
        ),
        ("Service", "shop/x", ["a/y"], "there is no Service shop/x; there is none in shop"),
        ("Node", "x", ["node-1", "node-2"], "there is no Node x; there are node-1, node-2"),
        ("Node", "x", [], "there is no Node x; there is none"),
    ],
)
def test_a_name_that_is_not_there_leads_on(
    kind: str, key: str, known: list[str], sentence: str
) -> None:
    assert no_such(kind, key, known) == sentence


@given(st.text("abc-", min_size=1, max_size=8), st.lists(st.text("abc-", max_size=14), max_size=12))
def test_the_nearest_are_those_of_all_pairs(name: str, names: list[str]) -> None:
    ratios = {
        other: difflib.SequenceMatcher(None, name, other).ratio()
        for other in names
        if other != name
    }
    ranked = sorted((-ratio, other) for other, ratio in ratios.items() if ratio >= 0.66)
    assert nearest(name, names) == tuple(other for _, other in ranked)[:3]
