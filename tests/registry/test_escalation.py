"""Nobody hands out more than they have: every branch of upstream's check, by every way of writing.

Upstream:
pkg/registry/rbac/{role,clusterrole,rolebinding,clusterrolebinding}/policybased/storage.go,
pkg/registry/rbac/{escalation_check,helpers}.go,
pkg/registry/rbac/validation/{rule,policy_compact}.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.errors import StatusError, quote
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Resource,
    RoleBindings,
    Roles,
)
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.server.registry.authorization import escalation
from sliceplane.server.registry.authorization.index import refusal
from sliceplane.server.registry.types import Attributes, Body, Context, WriteOptions

TABLES = tables(__file__)

EVE = User(name="eve", groups=(AUTHENTICATED,))
TO_VIEW = "rbac.authorization.k8s.io/aggregate-to-view"
NOT_HELD = (
    'user "eve" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not '
    "currently held:\n"
)
MUST_BE_ADMIN = "must have cluster-admin privileges to use the aggregationRule"
SECRETS = Attributes(verb="list", resource="secrets", namespace="default")


def rule(
    *resources: str, verbs: tuple[str, ...] = ("get",), group: str = "", **more: Any
) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **more}


#: what eve always has: all verbs of writing on everything of RBAC, and nothing to give away but
#: that
WRITES = rule(
    "roles", "clusterroles", "rolebindings", "clusterrolebindings", verbs=("*",), group="x"
)
READS = rule("configmaps")
EVERYTHING = [
    {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    {"nonResourceURLs": ["*"], "verbs": ["*"]},
]


class Eve:
    """An account that may write roles and bindings, as far as the verbs go, and holds a little."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.grant("eve", READS)

    def grant(
        self, name: str, *rules: dict[str, Any], user: str = "eve", kind: Resource = ClusterRoles
    ) -> None:
        """By the administrator, in the whole cluster, or in namespace default."""
        bindings = ClusterRoleBindings if kind is ClusterRoles else RoleBindings
        self.api.create(kind, {"metadata": {"name": name}, "rules": list(rules)})
        self.api.create(bindings, binding(name, kind=kind.kind, user=user))

    def write(
        self, verb: str, resource: Resource, document: Any, name: str = "", dry_run: bool = False
    ) -> Any:
        api = self.api
        ctx, options = (
            Context(now=api.now, user=EVE),
            WriteOptions(dry_run=dry_run, field_manager="eve", force=True),
        )
        target = api.target(resource, "" if verb == "create" else name)
        if verb in ("create", "update"):
            outcome = getattr(api.registry, verb)(ctx, target, Body(document=document), options)
        else:
            outcome = api.registry.patch(ctx, target, verb, json.dumps(document).encode(), options)
        api.commit()
        api.registry.check()
        return json.loads(outcome.body)

    def refused(
        self, verb: str, resource: Resource, document: Any, name: str = "", **more: Any
    ) -> str:
        """The message of the 403; nothing was written."""
        before = self.api.store.staged_revision
        with pytest.raises(StatusError) as caught:
            self.write(verb, resource, document, name, **more)
        assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
        assert self.api.store.staged_revision == before
        return caught.value.message


def binding(
    name: str, role: str = "", *, kind: str = "ClusterRole", user: str = "eve"
) -> dict[str, Any]:
    subject = {"kind": "User", "apiGroup": RBAC_GROUP, "name": user}
    reference = {"apiGroup": RBAC_GROUP, "kind": kind, "name": role or name}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}


@pytest.fixture
def eve(api: Api) -> Eve:
    return Eve(api)


LABEL = {"metadata": {"labels": {TO_VIEW: "true"}}}


def test_a_label_on_cluster_admin_does_not_give_everything_to_view(eve: Eve) -> None:
    """Who may patch clusterroles labels cluster-admin; its rules do not change, and every viewer
    would have them.
    """
    eve.api.create(RoleBindings, binding("sees", "view", user="vic"))
    message = eve.refused("merge", ClusterRoles, LABEL, "cluster-admin")
    assert message == (
        f'clusterroles.rbac.authorization.k8s.io "cluster-admin" is forbidden: {NOT_HELD}'
        '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}\n{NonResourceURLs:["*"], Verbs:["*"]}'
    )
    assert not eve.api.registry.decide(User(name="vic"), SECRETS).allowed


def applied(document: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", **document}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("verb", ["merge", "strategic", "json", "apply", "update"])
def test_no_way_of_writing_labels_a_role_beyond_ones_own(
    eve: Eve, verb: str, dry_run: bool
) -> None:
    stored = eve.api.get(ClusterRoles, "cluster-admin")
    labels = {**stored["metadata"]["labels"], TO_VIEW: "true"}
    document: Any = LABEL
    if verb == "json":
        document = [
            {
                "op": "add",
                "path": "/metadata/labels/rbac.authorization.k8s.io~1aggregate-to-view",
                "value": "true",
            }
        ]
    elif verb == "apply":
        document = applied({"metadata": {"name": "cluster-admin", **LABEL["metadata"]}})
    elif verb == "update":
        document = {**stored, "metadata": {**stored["metadata"], "labels": labels}}
    assert NOT_HELD in eve.refused(verb, ClusterRoles, document, "cluster-admin", dry_run=dry_run)
    assert TO_VIEW not in eve.api.get(ClusterRoles, "cluster-admin")["metadata"]["labels"]


def test_what_one_holds_one_may_label_and_hand_to_all_viewers(eve: Eve) -> None:
    eve.write("merge", ClusterRoles, LABEL, "eve")
    assert READS in [{**READS, **each} for each in eve.api.get(ClusterRoles, "view")["rules"]]


def test_delete_and_create_anew_is_no_way_around(eve: Eve) -> None:
    stored = eve.api.get(ClusterRoles, "cluster-admin")
    eve.api.delete(ClusterRoles, "cluster-admin", namespace="")
    anew = {"metadata": {"name": "cluster-admin", **LABEL["metadata"]}, "rules": stored["rules"]}
    for verb, name in (("create", ""), ("apply", "cluster-admin")):
        eve.grant(f"creates-{verb}", rule("clusterroles", verbs=("create",), group=RBAC_GROUP))
        document = applied(anew) if verb == "apply" else anew
        assert NOT_HELD in eve.refused(verb, ClusterRoles, document, name)


def test_a_generated_name_is_not_told_before_there_is_one(eve: Eve) -> None:
    document = {"metadata": {"generateName": "x-"}, "rules": [rule("secrets")]}
    message = eve.refused("create", Roles, document)
    assert message == (
        f"roles.rbac.authorization.k8s.io is forbidden: {NOT_HELD}"
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    )


# Roles and ClusterRoles


@pytest.mark.parametrize("kind", [Roles, ClusterRoles])
def test_system_masters_may_write_any_role(api: Api, kind: Resource) -> None:
    api.create(kind, {"metadata": {"name": "all"}, "rules": EVERYTHING[:1]})
    assert api.get(kind, "all")["rules"] == EVERYTHING[:1]


@pytest.mark.parametrize("kind", [Roles, ClusterRoles])
def test_rules_that_are_held_may_be_written_and_others_not(eve: Eve, kind: Resource) -> None:
    eve.write("create", kind, {"metadata": {"name": "r"}, "rules": [READS]})
    more = {"rules": [READS, rule("configmaps", "secrets", verbs=("get", "list"))]}
    message = eve.refused("merge", kind, more, "r")
    assert message == (
        f'{kind.plural}.rbac.authorization.k8s.io "r" is forbidden: {NOT_HELD}'
        '{APIGroups:[""], Resources:["configmaps"], Verbs:["list"]}\n'
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}'
    )
    eve.write("merge", kind, {"rules": []}, "r")


@pytest.mark.parametrize("kind", [Roles, ClusterRoles])
def test_who_lost_a_right_cannot_touch_a_role_that_has_it(eve: Eve, kind: Resource) -> None:
    eve.api.create(kind, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    assert NOT_HELD in eve.refused("merge", kind, {"metadata": {"annotations": {"a": "b"}}}, "r")


@pytest.mark.parametrize("kind", [Roles, ClusterRoles, RoleBindings, ClusterRoleBindings])
def test_garbage_collection_needs_none_of_the_rights(eve: Eve, kind: Resource) -> None:
    """Owners and finalizers hand nothing out; a write that changes nothing does not either."""
    if kind in (Roles, ClusterRoles):
        eve.api.create(kind, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    else:
        eve.api.create(kind, binding("r", "cluster-admin", user="root"))
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}
    for head in ({"finalizers": ["a.b/c"]}, {"ownerReferences": [owner]}, {}, {"finalizers": None}):
        eve.write("merge", kind, {"metadata": head}, "r")
    mixed = {"metadata": {"finalizers": ["a.b/c"], "labels": {"a": "b"}}}
    assert NOT_HELD in eve.refused("merge", kind, mixed, "r")


@pytest.mark.parametrize("kind", [Roles, ClusterRoles])
def test_escalate_lifts_the_check_on_the_roles_that_it_names(eve: Eve, kind: Resource) -> None:
    eve.grant(
        "lifts",
        rule(kind.plural, verbs=("escalate",), group=RBAC_GROUP, resourceNames=["mine"]),
        kind=kind,
    )
    eve.api.create(kind, {"metadata": {"name": "mine"}})
    strong = {"rules": [rule("secrets")]}
    eve.write("merge", kind, strong, "mine")
    eve.api.create(kind, {"metadata": {"name": "other"}})
    assert NOT_HELD in eve.refused("merge", kind, strong, "other")
    # A POST names nothing in its path.
    eve.api.delete(kind, "mine", **({} if kind is Roles else {"namespace": ""}))
    assert NOT_HELD in eve.refused("create", kind, {"metadata": {"name": "mine"}, **strong})


def test_escalate_in_one_namespace_or_on_roles_is_nothing_elsewhere(eve: Eve) -> None:
    eve.grant("lifts", rule("roles", verbs=("escalate",), group=RBAC_GROUP), kind=Roles)
    eve.write("create", Roles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    assert NOT_HELD in eve.refused(
        "create", ClusterRoles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]}
    )


def test_rights_in_one_namespace_do_not_make_a_cluster_role(eve: Eve) -> None:
    eve.grant("local", rule("secrets"), kind=Roles)
    eve.write("create", Roles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    assert NOT_HELD in eve.refused(
        "create", ClusterRoles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]}
    )


# Aggregation


def gatherer(*selectors: dict[str, Any], name: str = "g", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "aggregationRule": {"clusterRoleSelectors": list(selectors)},
        **more,
    }


ALL_ROLES: list[dict[str, Any]] = [
    {},
    {"matchLabels": {}},
    {"matchExpressions": [{"key": "nobody.has/this", "operator": "DoesNotExist"}]},
    {"matchExpressions": [{"key": "kubernetes.io/bootstrapping", "operator": "Exists"}]},
]


@pytest.mark.parametrize("selector", ALL_ROLES)
@pytest.mark.parametrize("verb", ["create", "apply", "update"])
def test_a_role_that_gathers_everything_takes_everything(
    eve: Eve, verb: str, selector: dict[str, Any]
) -> None:
    eve.grant("creates", rule("clusterroles", verbs=("create",), group=RBAC_GROUP))
    document = applied(gatherer(selector)) if verb == "apply" else gatherer(selector)
    message = eve.refused(verb, ClusterRoles, document, "g")
    assert message == f'clusterroles.rbac.authorization.k8s.io "g" is forbidden: {MUST_BE_ADMIN}'


def test_no_role_begins_or_stops_gathering_in_other_hands_than_an_administrators(eve: Eve) -> None:
    begins = {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}
    assert eve.refused("merge", ClusterRoles, begins, "eve").endswith(MUST_BE_ADMIN)
    eve.api.create(ClusterRoles, gatherer({"matchLabels": {"a": "b"}}))
    for change in ({"aggregationRule": None}, {"metadata": {"labels": {"a": "c"}}}):
        assert eve.refused("merge", ClusterRoles, change, "g").endswith(MUST_BE_ADMIN)
    # With rules that are not held, those are told first, as they came.
    assert NOT_HELD in eve.refused("merge", ClusterRoles, {"rules": [rule("secrets")]}, "g")


@pytest.mark.parametrize("held", TABLES["half_of_everything_is_not_everything"])
def test_half_of_everything_is_not_everything(eve: Eve, held: list[dict[str, Any]]) -> None:
    eve.grant("half", *held)
    assert eve.refused("create", ClusterRoles, gatherer({"matchLabels": {"a": "b"}})).endswith(
        MUST_BE_ADMIN
    )


def test_who_holds_everything_or_escalates_makes_a_role_gather(eve: Eve) -> None:
    eve.grant("lifts", rule("clusterroles", verbs=("escalate",), group=RBAC_GROUP))
    eve.write("create", ClusterRoles, gatherer({}))
    eve.api.delete(ClusterRoleBindings, "lifts", namespace="")
    eve.grant("all", *EVERYTHING)
    eve.write("create", ClusterRoles, gatherer({}, name="h"))


SELECTORS: list[tuple[dict[str, Any], str]] = TABLES["SELECTORS"]


@pytest.mark.parametrize(("expression", "problem"), SELECTORS)
def test_selectors_that_cannot_be(api: Api, expression: dict[str, Any], problem: str) -> None:
    error = api.fails("create", ClusterRoles, gatherer({"matchExpressions": [expression]}))
    assert error.code == 422
    assert f"aggregationRule.clusterRoleSelectors[0].matchExpressions[0].{problem}" in error.message


# Bindings


@pytest.mark.parametrize("kind", [RoleBindings, ClusterRoleBindings])
def test_a_binding_takes_the_rules_of_its_role(eve: Eve, kind: Resource) -> None:
    eve.write("create", kind, binding("ok", "eve", user="mallory"))
    message = eve.refused("create", kind, binding("b", "cluster-admin"))
    assert message.startswith(
        f'{kind.plural}.rbac.authorization.k8s.io "b" is forbidden: {NOT_HELD}'
    )
    # New subjects of a binding that is there are the same thing.
    eve.api.create(kind, binding("b", "cluster-admin", user="root"))
    subjects = binding("b", "cluster-admin")["subjects"]
    assert NOT_HELD in eve.refused("merge", kind, {"subjects": subjects}, "b")
    assert NOT_HELD in eve.refused("merge", kind, {"metadata": {"labels": {"a": "b"}}}, "b")


@pytest.mark.parametrize(
    ("kind", "of"),
    [(RoleBindings, Roles), (RoleBindings, ClusterRoles), (ClusterRoleBindings, ClusterRoles)],
)
def test_bind_lifts_the_check_for_the_roles_that_it_names(
    eve: Eve, kind: Resource, of: Resource
) -> None:
    for name in ("mine", "other"):
        eve.api.create(of, {"metadata": {"name": name}, "rules": [rule("secrets")]})
    binds = rule(of.plural, verbs=("bind",), group=RBAC_GROUP, resourceNames=["mine", "absent"])
    eve.grant("binds", binds, kind=Roles if kind is RoleBindings else ClusterRoles)
    eve.write("create", kind, binding("b", "mine", kind=of.kind, user="mallory"))
    assert NOT_HELD in eve.refused("create", kind, binding("c", "other", kind=of.kind))
    # To a role that comes later, one may bind what one was allowed to by name.
    eve.write("create", kind, binding("later", "absent", kind=of.kind))


def test_bind_in_one_namespace_is_nothing_in_the_cluster(eve: Eve) -> None:
    eve.grant("binds", rule("clusterroles", verbs=("bind",), group=RBAC_GROUP), kind=Roles)
    eve.write("create", RoleBindings, binding("b", "cluster-admin"))
    # Who holds everything in one namespace holds nothing outside of it.
    message = eve.refused("create", ClusterRoleBindings, binding("b", "cluster-admin"))
    assert NOT_HELD in message


@pytest.mark.parametrize("kind", [RoleBindings, ClusterRoleBindings])
def test_a_binding_to_a_role_that_is_not_there_yet(eve: Eve, kind: Resource) -> None:
    """Else one would bind a name, and wait for somebody to make a strong role of it."""
    with pytest.raises(StatusError) as caught:
        eve.write("create", kind, binding("b", "soon"))
    assert (caught.value.code, caught.value.message) == (
        404,
        'clusterroles.rbac.authorization.k8s.io "soon" not found',
    )


@pytest.mark.parametrize("kind", [RoleBindings, ClusterRoleBindings])
def test_the_role_of_a_binding_stays(eve: Eve, kind: Resource) -> None:
    """Were it not so, a binding to a weak role would become one to a strong role, subjects
    and all.
    """
    eve.write("create", kind, binding("b", "eve", user="mallory"))
    eve.grant("lifts", rule("clusterroles", verbs=("bind",), group=RBAC_GROUP))
    for verb, document in (
        ("merge", {"roleRef": {"name": "cluster-admin"}}),
        ("json", [{"op": "replace", "path": "/roleRef/name", "value": "cluster-admin"}]),
        ("update", binding("b", "cluster-admin", user="mallory")),
    ):
        with pytest.raises(StatusError, match="cannot change roleRef"):
            eve.write(verb, kind, document, "b")


BAD_REFERENCES: list[Callable[[], dict[str, Any]]] = [
    lambda: {
        **binding("b"),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Robot", "name": "cluster-admin"},
    },
    lambda: {
        **binding("b"),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": ""},
    },
    lambda: {"metadata": {"name": "b"}},
    lambda: {
        **binding("b"),
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": "clusterrole", "name": "cluster-admin"},
    },
]


@pytest.mark.parametrize("make", BAD_REFERENCES)
@pytest.mark.parametrize("kind", [RoleBindings, ClusterRoleBindings])
def test_a_reference_that_means_nothing_is_not_stored(eve: Eve, kind: Resource, make: Any) -> None:
    with pytest.raises(StatusError) as caught:
        eve.write("create", kind, make())
    assert caught.value.code == 422


# What the refusal says


def test_the_refusal_comes_before_validation_as_upstream_has_it(eve: Eve) -> None:
    document = {"metadata": {"name": "x"}, "rules": [rule("secrets"), {"verbs": []}]}
    assert NOT_HELD in eve.refused("create", Roles, document)


def test_the_refusal_tells_of_bindings_to_roles_that_do_not_exist(eve: Eve) -> None:
    eve.api.create(ClusterRoleBindings, binding("lost", "gone"))
    message = eve.refused("create", Roles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    assert message.endswith(
        '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}; '
        'resolution errors: [clusterroles.rbac.authorization.k8s.io "gone" not found]'
    )
    decision = eve.api.registry.decide(EVE, SECRETS)
    assert decision.reason == 'RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found'
    eve.api.create(RoleBindings, binding("lost", "lost", kind="Role"))
    message = eve.refused("create", Roles, {"metadata": {"name": "r"}, "rules": [rule("secrets")]})
    assert message.endswith(
        'resolution errors: [[clusterroles.rbac.authorization.k8s.io "gone" not found, '
        'roles.rbac.authorization.k8s.io "lost" not found]]'
    )


def test_names_in_a_refusal_show_what_cannot_be_seen(eve: Eve) -> None:
    """A zero-width space, a bell, a quote and a Cyrillic letter that looks like a Latin one."""
    strange = {"metadata": {"name": "r"}, "rules": [rule("p\u200bods\x07", 'a"b', "s\u0435crets")]}
    message = eve.refused("create", Roles, strange)
    assert 'Resources:["p\\u200bods\\a"]' in message
    assert 'Resources:["a\\"b"]' in message
    assert 'Resources:["s\u0435crets"]' in message


def test_a_refusal_of_a_request_holds_no_markup_and_nothing_that_cannot_be_seen() -> None:
    user = User(name='<b>\u200b"')
    message = refusal(user, Attributes(verb="get", path="/a&b<c>")).message
    assert message == 'forbidden: User "&lt;b&gt;\\u200b\\"" cannot get path "/a&amp;b&lt;c&gt;"'
    spelled = "".join(map(chr, (7, 8, 9, 10, 11, 12, 13, 0, 0x7F, 0xA0, 0x1F600, 0xE0001)))
    assert quote(spelled) == '"\\a\\b\\t\\n\\v\\f\\r\\x00\\x7f\\u00a0\U0001f600\\U000e0001"'


def test_a_refusal_is_bounded_and_says_so(eve: Eve) -> None:
    wide = rule(
        *(f"r{number}" for number in range(1000)),
        verbs=tuple(f"v{number}" for number in range(1000)),
    )
    wide["apiGroups"] = [f"g{number}" for number in range(1000)]
    assert len(json.dumps(wide)) < 30_000
    message = eve.refused("create", Roles, {"metadata": {"name": "r"}, "rules": [wide]})
    assert len(message) < escalation.LISTED_CHARACTERS_MAX + 500
    assert message.endswith("]}\n... and more")
    one = {**wide, "verbs": ["v" * 20_000]}
    assert eve.refused("create", Roles, {"metadata": {"name": "r"}, "rules": [one]}).endswith(
        "vvv...\n... and more"
    )
    many = {**wide, "verbs": ["get", "put"]}
    lines = eve.refused("create", Roles, {"metadata": {"name": "r"}, "rules": [many]}).splitlines()
    assert lines[1] == '{APIGroups:["g0"], Resources:["r0"], Verbs:["get" "put"]}'
    assert lines[-1] == "... and more"
    assert (
        escalation.LISTED_CHARACTERS_MAX - 100
        < sum(map(len, lines[1:-1]))
        <= escalation.LISTED_CHARACTERS_MAX
    )
