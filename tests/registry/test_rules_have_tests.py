"""The rules that ``tests.registry.rules`` finds, and where it sees them broken."""

from __future__ import annotations

from tests.registry import rules
from tests.registry.rules import Rule, rules_in

from sliceplane.api.scheme import PriorityClasses
from sliceplane.server.registry.kinds import kind_of

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
    assert {rule.file.partition("/")[0] for rule in found} == {
        "admission",
        "kinds",
        "metadata.py",
        "validation",
    }


def test_a_rule_that_is_broken_is_noted() -> None:
    classes = {rule for rule in rules.rules() if rule.file.endswith("priority_class.py")}
    rules.broken -= classes
    document = {"metadata": {"name": "a"}, "value": 1, "preemptionPolicy": "PreemptLowerPriority"}
    assert kind_of(PriorityClasses).validate(document) == []
    assert not rules.broken & classes
    assert (
        len(kind_of(PriorityClasses).validate({**document, "preemptionPolicy": "Sometimes"})) == 1
    )
    (seen,) = rules.broken & classes
    assert "priority_class.py" in str(seen)
