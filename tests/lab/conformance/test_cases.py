"""The cases themselves: legal, cited, and each of them catches a wrong consumer."""

from __future__ import annotations

import re

import pytest
from tests.lab.conformance.mutants import MUTANTS, Mutant, catches

from sliceplane.lab.conformance.cases import BY_NAME, CASES
from sliceplane.lab.conformance.steps import Away, Back, Case, Check, Expire

CITED = re.compile(r"[\w.-]+/[\w.-]+#\d+|KEP-\d{4}(, .+)?|discovery\.k8s\.io/v1 \w+")
#: what they show is seen only between two checkpoints: an endpoint that is missing for a while
ONLY_MEANWHILE = {"nothing-changed-in-a-gap"}


def test_there_are_at_least_sixty_with_names_of_their_own() -> None:
    assert len(CASES) >= 60
    assert len(BY_NAME) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_cited_and_can_be_judged(case: Case) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case.name)
    assert case.cites
    assert all(CITED.fullmatch(cited) for cited in case.cites), case.cites
    assert isinstance(case.steps[-1], Check), "what comes after the last checkpoint is never judged"
    away = False
    for step in case.steps:
        assert not (away and isinstance(step, Check)), (
            "nobody can know what is right while the server is away"
        )
        away = isinstance(step, Away) or (away and not isinstance(step, Back))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_catches_a_wrong_consumer_and_no_right_one(case: Case) -> None:
    assert not catches(case, Mutant)
    if case.name not in ONLY_MEANWHILE:
        assert any(catches(case, mutant) for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught(mutant: type[Mutant]) -> None:
    assert any(catches(case, mutant) for case in CASES)


def test_a_history_that_is_forgotten_was_watched() -> None:
    """410 Gone before anything was watched would be no trouble at all."""
    for case in CASES:
        if Expire() in case.steps:
            assert Check() in case.steps[: case.steps.index(Expire())], case.name
