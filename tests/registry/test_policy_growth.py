"""What many roles and bindings cost a decision, a review and a write: what concerns them, and no
more.

Counted in questions and decoded objects, not in time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.registry.conftest import Api

from sliceplane.api import codec
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, RoleBindings, Roles
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.server.registry.authorization.aggregation import GATHERED_CHARACTERS_MAX
from sliceplane.server.registry.authorization.index import PolicyIndex, _Subject
from sliceplane.server.registry.authorization.rules import (
    PolicyRule,
    RoleRules,
    decode_binding,
    decode_role,
)
from sliceplane.server.registry.types import Attributes
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

ANYBODY = User(name="anybody", groups=(AUTHENTICATED,))
TO_VIEW = "rbac.authorization.k8s.io/aggregate-to-view"


def counting(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], int]:
    """How often this thread called a function since the last question: a server that other tests
    of this process share runs in a thread of its own.
    """
    count = 0
    inner = getattr(owner, name)
    thread = threading.get_ident()

    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += threading.get_ident() == thread
        return inner(*arguments, **keywords)

    monkeypatch.setattr(owner, name, counted)

    def asked() -> int:
        nonlocal count
        found, count = count, 0
        return found

    return asked


def role(*resources: str) -> dict[str, Any]:
    return {
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [each]} for each in resources]
    }


def bind(index: PolicyIndex, name: str, to: str, *groups: str) -> None:
    subjects = [
        {"kind": "Group", "apiGroup": RBAC_GROUP, "name": group}
        for group in groups or (AUTHENTICATED,)
    ]
    reference = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": to}
    index.on_stored(
        Key(RoleBindings.storage_key, "n", name), {"roleRef": reference, "subjects": subjects}
    )


def test_ten_thousand_bindings_to_one_large_role_are_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who administers a namespace binds everybody to one role, again and again; every request there
    pays for it.
    """
    index = PolicyIndex()
    index.on_stored(
        Key(Roles.storage_key, "n", "r"), role(*(f"r{number}" for number in range(1000)))
    )
    for number in range(10_000):
        bind(index, f"b{number}", "r")
    roles, rules = (
        counting(monkeypatch, RoleRules, "allow"),
        counting(monkeypatch, PolicyRule, "allows_on_resource"),
    )
    wanted = Attributes(verb="get", resource="other", namespace="n")
    assert not index.decide(ANYBODY, wanted).allowed
    assert (roles(), rules()) == (0, 0), "no rule speaks of it"
    wanted = Attributes(verb="get", resource="r17", namespace="n")
    assert index.decide(ANYBODY, wanted).reason == (
        'RBAC: allowed by RoleBinding "b0/n" of Role "r" to Group "system:authenticated"'
    )
    assert (roles(), rules()) == (1, 1)
    assert len(index.rules_for(ANYBODY, "n")) == 1000


def test_a_decision_looks_at_the_rules_that_speak_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    index = PolicyIndex()
    for number in range(2_000):
        index.on_stored(Key(Roles.storage_key, "n", f"r{number}"), role(f"r{number}", "*/scale"))
        bind(index, f"b{number}", f"r{number}")
    rules = counting(monkeypatch, PolicyRule, "allows_on_resource")
    assert index.decide(ANYBODY, Attributes(verb="get", resource="r1999", namespace="n")).allowed
    assert rules() == 1
    assert not index.decide(
        ANYBODY, Attributes(verb="put", resource="x", subresource="scale", namespace="n")
    ).allowed
    assert rules() == 2_000


def test_a_binding_costs_its_own_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the ten thousand other bindings with the same subject, whatever their names."""
    index = PolicyIndex()
    index.on_stored(Key(Roles.storage_key, "n", "r"), role("a"))
    for number in range(2_000):
        bind(index, f"b{number:05}", "r", "g1", "g2")
    roles_of_group = index._roles_by_subject["n", "g:g1"]
    assert len(roles_of_group.roles) == 1
    for name in ("b00000", "b01999", "b00500"):
        index.on_removed(Key(RoleBindings.storage_key, "n", name))
    assert roles_of_group.roles == [("b00001", Key(Roles.storage_key, "n", "r"))]
    wanted = Attributes(verb="get", resource="a", namespace="n")
    reason = index.decide(User(name="x", groups=("g2",)), wanted).reason
    assert reason == 'RBAC: allowed by RoleBinding "b00001/n" of Role "r" to Group "g2"'


def test_a_refusal_names_few_of_many_roles_that_are_not_there() -> None:
    index = PolicyIndex()
    for number in range(1_000):
        bind(index, f"b{number:04}", f"gone{number:04}")
    decision = index.decide(ANYBODY, Attributes(verb="get", resource="a", namespace="n"))
    assert decision.reason.startswith(
        'RBAC: [role.rbac.authorization.k8s.io "gone0000" not found, '
    )
    assert decision.reason.count("not found") == 8


def gathered(number: int) -> dict[str, Any]:
    head = {"name": f"c{number:04}", "labels": {TO_VIEW: "true"}}
    return {"metadata": head, **role(f"r{number}")}


def test_a_role_among_thousands_is_gathered_without_reading_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api()
    for number in range(100):
        api.create(ClusterRoles, gathered(number))
    walked = counting(monkeypatch, Store, "iter_latest")
    decoded = counting(monkeypatch, codec, "decode_document")
    api.create(ClusterRoles, gathered(100))
    # view, edit and admin are written anew; what they gather is not read.
    first = decoded()
    assert walked() == 0
    for number in range(101, 120):
        api.create(ClusterRoles, gathered(number))
    decoded()
    api.create(ClusterRoles, gathered(120))
    assert (decoded(), walked()) == (first, 0)
    assert first < 20
    before = api.store.staged_revision
    api.update(ClusterRoles, "c0007", gathered(7), namespace="")
    assert api.store.staged_revision == before
    unlabelled = {"metadata": {"name": "alone"}, **role("x")}
    api.create(ClusterRoles, unlabelled)
    assert api.store.staged_revision == before + 1, "nobody gathers it"
    assert walked() == 0
    view = api.get(ClusterRoles, "view")["rules"]
    assert [rule["resources"][0] for rule in view if rule["resources"][0].startswith("r1")][
        -1
    ] == "r120"
    api.registry.check()


def written(api: Api, document: dict[str, Any]) -> bool:
    try:
        api.create(ClusterRoles, document)
    except StatusError:
        return False
    return True


def test_what_view_gathers_is_bounded_and_refused_where_it_is_written() -> None:
    """Each write of one would write view, edit and admin anew, with all of it."""
    api = Api()

    def large(number: int) -> dict[str, Any]:
        names = [f"{number}-{each:06}" for each in range(20_000)]
        rule = {
            "verbs": ["get"],
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": names,
        }
        return {"metadata": {"name": f"c{number}", "labels": {TO_VIEW: "true"}}, "rules": [rule]}

    made = next(number for number in range(8) if not written(api, large(number)))
    error = api.fails("create", ClusterRoles, large(made))
    assert error.code == 403
    assert error.message == (
        f'clusterroles.rbac.authorization.k8s.io "c{made}" is forbidden: ClusterRole "view" would '
        "gather more "
        f"than {GATHERED_CHARACTERS_MAX} characters of rules"
    )
    assert made > 2
    unlabelled = {**large(made), "metadata": {"name": "alone"}}
    api.create(ClusterRoles, unlabelled)
    label = {"metadata": {"labels": {TO_VIEW: "true"}}}
    assert api.fails("patch", ClusterRoles, "alone", label, namespace="").code == 403
    api.delete(ClusterRoles, "c0", namespace="")
    api.patch(ClusterRoles, "alone", label, namespace="")
    api.registry.check()


def test_a_label_of_a_large_role_or_binding_is_no_reason_to_read_its_rules_and_subjects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a role of 3 MB each new version was decoded and compared in one step: 60 ms."""
    index = PolicyIndex()
    large = role(*(f"r{number}" for number in range(5_000)))
    subjects = [{"kind": "User", "name": f"u{number}"} for number in range(5_000)]
    reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": "large"}

    def store(label: str) -> None:
        meta = {"metadata": {"name": "large", "labels": {"a": label}}}
        body = codec.encode({**meta, "roleRef": reference, "subjects": subjects})
        index.on_stored(
            Key(ClusterRoles.storage_key, "", "large"), decode_role(codec.encode({**meta, **large}))
        )
        index.on_stored(Key(ClusterRoleBindings.storage_key, "", "large"), decode_binding(body))

    store("first")
    read = counting(monkeypatch, RoleRules, "_index"), counting(monkeypatch, _Subject, "identity")
    store("second")
    assert [asked() for asked in read] == [0, 0]
    wanted = Attributes(verb="get", resource="r4999")
    assert index.decide(User(name="u4999", groups=()), wanted).allowed
    assert not index.decide(User(name="u5000", groups=()), wanted).allowed
    assert read[0]() == 1, "the first decision reads the rules"
