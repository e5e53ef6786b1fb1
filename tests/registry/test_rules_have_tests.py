"""The rules that ``tests.registry.rules`` finds, and where it sees them broken."""

from __future__ import annotations

from tests.registry import rules
from tests.registry.rules import Rule, rules_in

from sliceplane.api.scheme import Leases
from sliceplane.registry.kinds import kind_of

SOURCE = """
def check(path, value) -> list[FieldError]:
    if value < 0:
        return [invalid_value(path, value, "must not be negative")]
    return []

def validate(document) -> list[FieldError]:
    errors = check("a", document["a"])
    errors += check("b", document["b"])
    return errors + other(document)

def other(document) -> list[FieldError]:
    return [required("c")] if "c" not in document else []
"""


def test_a_rule_is_where_a_complaint_is_made_or_where_one_of_several_asks_for_it() -> None:
    found = rules_in({"a.py": SOURCE})
    assert found == {Rule("a.py", line) for line in (4, 8, 9, 13)}


def test_there_are_hundreds_of_rules() -> None:
    found = rules.rules()
    assert len(found) > 400
    assert {rule.file.partition("/")[0] for rule in found} == {"admission", "kinds", "metadata.py", "validation"}


def test_a_rule_that_is_broken_is_noted() -> None:
    leases = {rule for rule in rules.rules() if rule.file.endswith("lease.py")}
    rules.broken -= leases
    document = {"metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": 0, "leaseTransitions": 0}}
    assert len(kind_of(Leases).validate(document)) == 1
    (seen,) = rules.broken & leases
    assert "leaseDurationSeconds" in str(seen)
