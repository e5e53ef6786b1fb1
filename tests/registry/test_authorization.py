"""Rules, and the index of roles and bindings, against oracles that go through everything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, RoleBindings, Roles
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authorization.coverage import missing
from sliceplane.server.registry.authorization.index import PolicyIndex
from sliceplane.server.registry.authorization.rules import PolicyRule, document_of_rule, rules_of
from sliceplane.server.registry.types import Attributes
from sliceplane.server.store.types import Key

READER = PolicyRule(verbs=("get", "list"), groups=("",), resources=("pods", "pods/status"))


@pytest.mark.parametrize(
    ("rule", "wanted", "allowed"),
    [
        (READER, Attributes(verb="get", resource="pods", name="a"), True),
        (READER, Attributes(verb="get", resource="pods", subresource="status"), True),
        (READER, Attributes(verb="watch", resource="pods"), False),
        (READER, Attributes(verb="get", resource="pods", group="apps"), False),
        (READER, Attributes(verb="get", resource="pods", subresource="log"), False),
        (READER, Attributes(verb="get", path="/pods"), False),
        (
            PolicyRule(verbs=("*",), groups=("*",), resources=("*",)),
            Attributes(verb="x", resource="y", group="z"),
            True,
        ),
        (
            PolicyRule(verbs=("*",), groups=("*",), resources=("*",)),
            Attributes(verb="get", path="/metrics"),
            False,
        ),
        (
            PolicyRule(verbs=("get",), groups=("*",), resources=("*/status",)),
            Attributes(verb="get", resource="pods", subresource="status"),
            True,
        ),
        (
            PolicyRule(verbs=("get",), groups=("*",), resources=("*/status",)),
            Attributes(verb="get", resource="pods"),
            False,
        ),
        (
            PolicyRule(verbs=("*",), groups=("",), resources=("pods",), names=("a",)),
            Attributes(verb="delete", resource="pods", name="a"),
            True,
        ),
        (
            PolicyRule(verbs=("*",), groups=("",), resources=("pods",), names=("a",)),
            Attributes(verb="create", resource="pods"),
            False,
        ),
        (
            PolicyRule(verbs=("get",), urls=("/healthz/*",)),
            Attributes(verb="get", path="/healthz/a/b"),
            True,
        ),
        (
            PolicyRule(verbs=("get",), urls=("/healthz/*",)),
            Attributes(verb="get", path="/healthz"),
            False,
        ),
        (
            PolicyRule(verbs=("get",), urls=("/healthz",)),
            Attributes(verb="get", path="/healthz"),
            True,
        ),
        (PolicyRule(verbs=("get",), urls=("*",)), Attributes(verb="post", path="/healthz"), False),
    ],
)
def test_rules(rule: PolicyRule, wanted: Attributes, allowed: bool) -> None:
    assert rule.allows(wanted) is allowed


def test_what_is_not_covered_is_told_verb_by_verb_and_resource_by_resource() -> None:
    wanted = PolicyRule(
        verbs=("get", "list", "watch"), groups=("",), resources=("pods", "services")
    )
    held = (READER, PolicyRule(verbs=("*",), groups=("",), resources=("services",), names=("one",)))
    assert [str(rule) for rule in missing(held, [wanted])] == [
        '{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}',
        '{APIGroups:[""], Resources:["services"], Verbs:["get" "list" "watch"]}',
    ]
    named = PolicyRule(verbs=("get",), groups=("",), resources=("services",), names=("one", "two"))
    assert [str(rule) for rule in missing(held, [named])] == [
        '{APIGroups:[""], Resources:["services"], ResourceNames:["two"], Verbs:["get"]}'
    ]
    assert [
        str(rule) for rule in missing(held, [PolicyRule(verbs=("get",), urls=("/a", "/b"))])
    ] == [
        '{NonResourceURLs:["/a"], Verbs:["get"]}',
        '{NonResourceURLs:["/b"], Verbs:["get"]}',
    ]


def subset(*items: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(items), min_size=1, max_size=2, unique=True).map(tuple)


RESOURCE_RULES = st.builds(
    PolicyRule,
    verbs=subset("get", "list", "create", "*"),
    groups=subset("", "apps", "*"),
    resources=subset("pods", "pods/status", "*/status", "*"),
    names=st.one_of(st.just(()), subset("a", "b")),
)
URL_RULES = st.builds(
    PolicyRule, verbs=subset("get", "post", "*"), urls=subset("/a", "/a/*", "/b", "*")
)
RULES = st.one_of(RESOURCE_RULES, URL_RULES)
REQUESTS = st.one_of(
    st.builds(
        Attributes,
        verb=st.sampled_from(["get", "list", "create", "x"]),
        group=st.sampled_from(["", "apps", "y"]),
        resource=st.sampled_from(["pods", "z"]),
        subresource=st.sampled_from(["", "status", "log"]),
        namespace=st.sampled_from(["", "n1", "n2"]),
        name=st.sampled_from(["", "a", "b", "c"]),
    ),
    st.builds(
        Attributes,
        verb=st.sampled_from(["get", "post"]),
        path=st.sampled_from(["/a", "/a/", "/a/x", "/b"]),
    ),
)


@effort(200)
@given(
    st.lists(RULES, max_size=3),
    st.lists(RULES, max_size=3),
    st.lists(REQUESTS, min_size=1, max_size=8),
)
def test_who_holds_what_covers_may_do_all_that_is_covered(
    held: list[PolicyRule], wanted: list[PolicyRule], requests: list[Attributes]
) -> None:
    lacking = tuple(missing(held, wanted))
    assert not tuple(missing([*held, *lacking], wanted)), "what was missing is all that was missing"
    for request in requests:
        if any(rule.allows(request) for rule in wanted):
            assert any(rule.allows(request) for rule in [*held, *lacking])


@given(st.lists(RULES, max_size=3))
def test_rules_round_trip_through_their_objects(rules: list[PolicyRule]) -> None:
    assert rules_of({"rules": [document_of_rule(rule) for rule in rules]}) == tuple(rules)


ROLE_KEYS = [Key(Roles.key, "n1", "r"), Key(Roles.key, "n2", "r"), Key(ClusterRoles.key, "", "r")]
BINDING_KEYS = [
    Key(RoleBindings.key, "n1", "a"),
    Key(RoleBindings.key, "n1", "b"),
    Key(RoleBindings.key, "n2", "a"),
    Key(ClusterRoleBindings.key, "", "a"),
    Key(ClusterRoleBindings.key, "", "b"),
]
SUBJECTS = [
    {"kind": "User", "apiGroup": RBAC_GROUP, "name": "ann"},
    {"kind": "Group", "apiGroup": RBAC_GROUP, "name": "ann"},
    {"kind": "Group", "apiGroup": RBAC_GROUP, "name": "devs"},
    {"kind": "ServiceAccount", "name": "sa"},
    {"kind": "ServiceAccount", "name": "sa", "namespace": "n2"},
]
USERS = [
    User(name="ann", groups=("devs",)),
    User(name="bob", groups=("ann",)),
    User(name="system:serviceaccount:n2:sa"),
]


def role_of(rules: list[PolicyRule]) -> dict[str, Any]:
    return {"rules": [document_of_rule(rule) for rule in rules]}


def binding_of(kind: str, subjects: list[dict[str, str]]) -> dict[str, Any]:
    return {"roleRef": {"apiGroup": RBAC_GROUP, "kind": kind, "name": "r"}, "subjects": subjects}


STEPS = st.one_of(
    st.tuples(
        st.sampled_from(ROLE_KEYS), st.one_of(st.none(), st.lists(RULES, max_size=2).map(role_of))
    ),
    st.tuples(
        st.sampled_from(BINDING_KEYS),
        st.one_of(
            st.none(),
            st.builds(
                binding_of,
                st.sampled_from(["Role", "ClusterRole"]),
                st.lists(st.sampled_from(SUBJECTS), max_size=3),
            ),
        ),
    ),
)


def oracle(stored: dict[Key, dict[str, Any]], user: User, wanted: Attributes) -> bool:
    """Every binding, every subject, every rule."""
    for key, binding in stored.items():
        if key not in BINDING_KEYS or (
            key.namespace and (not wanted.resource or key.namespace != wanted.namespace)
        ):
            continue
        kind = binding["roleRef"]["kind"]
        role = stored.get(
            Key(Roles.key, key.namespace, "r")
            if kind == "Role"
            else Key(ClusterRoles.key, "", "r"),
            {},
        )
        for subject in binding["subjects"]:
            mine = {
                "User": subject["name"] == user.name,
                "Group": subject["name"] in user.groups,
                "ServiceAccount": user.name
                == f"system:serviceaccount:{subject.get('namespace', key.namespace)}:{subject['name']}",
            }[subject["kind"]]
            if mine and any(rule.allows(wanted) for rule in rules_of(role)):
                return True
    return False


@effort(150)
@given(st.lists(STEPS, max_size=20), st.lists(REQUESTS, min_size=1, max_size=10))
def test_the_index_decides_as_a_walk_through_everything(
    steps: list[tuple[Key, dict[str, Any] | None]], requests: list[Attributes]
) -> None:
    index, stored = PolicyIndex(), dict[Key, dict[str, Any]]()
    for key, document in steps:
        if document is None:
            stored.pop(key, None)
            index.on_removed(key)
        else:
            stored[key] = document
            index.on_stored(key, document)
    index.check(stored.items())
    for user in USERS:
        for wanted in requests:
            decision = index.decide(user, wanted)
            assert decision.allowed == oracle(stored, user, wanted)
            assert decision.reason.startswith("RBAC: allowed by") == decision.allowed
            assert index.decide(User(name="x", groups=(MASTERS,)), wanted).allowed
            if decision.allowed:
                rules = index.rules_for(user, wanted.namespace if wanted.resource else "")
                assert any(rule.allows(wanted) for rule in rules)


def test_reasons_name_binding_role_and_subject() -> None:
    index = PolicyIndex()
    index.on_stored(Key(Roles.key, "a1", "ro"), role_of([READER]))
    wanted = Attributes(verb="get", resource="pods", namespace="a1")
    for subject, user, shown in (
        (SUBJECTS[0], User(name="ann"), 'User "ann"'),
        (SUBJECTS[2], User(name="x", groups=("devs",)), 'Group "devs"'),
        (SUBJECTS[3], User(name="system:serviceaccount:a1:sa"), 'ServiceAccount "sa/a1"'),
    ):
        binding = {"roleRef": {"kind": "Role", "name": "ro"}, "subjects": [subject]}
        index.on_stored(Key(RoleBindings.key, "a1", "ro"), binding)
        expected = f'RBAC: allowed by RoleBinding "ro/a1" of Role "ro" to {shown}'
        assert index.decide(user, wanted).reason == expected
    with pytest.raises(AssertionError):
        index.check([])
