"""What an answer says besides the cause: who wrote the field, what could not be seen, how it is printed."""

from __future__ import annotations

from tests.explain.world import healthy

from sliceplane.explain.question import ExplainQuestion
from sliceplane.explain.text import as_list, as_text


def test_evidence_names_the_manager_that_wrote_the_field_last() -> None:
    evidence = healthy().explain(port="8080").findings[0].evidence[0]
    assert (evidence.field, evidence.value, evidence.writer) == ("spec.ports", "80/TCP (http)", "helm")


def test_what_may_not_be_read_is_never_taken_for_missing() -> None:
    world = healthy()
    world.refuse.add("services")
    answer = world.explain()
    assert (answer.findings, answer.is_blind, answer.missing_rights) == ((), True, ("list services",))
    assert as_text(answer).startswith("unknown  service shop/cart: too little could be read to tell")


def test_an_answer_fits_a_terminal_but_for_what_is_pasted() -> None:
    lines = as_text(healthy().explain(port="80", protocol="UDP"), 80).splitlines()
    assert lines[0] == "cause    S3 certain: cart has 80 for TCP, not for UDP"
    assert [line for line in lines if len(line) > 80 and not line.startswith("remedy")] == []


def test_lint_counts_what_it_looked_at() -> None:
    answer = healthy().ask(ExplainQuestion("everything"))
    assert as_list(answer, 80).splitlines()[-1] == "no error, no warning, no note in 1 Service"
