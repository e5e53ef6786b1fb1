"""Roles and bindings as objects, nobody grants more than they have, and the policy that is there
from the start.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Leases,
    Namespaces,
    Resource,
    RoleBindings,
    Roles,
    SelfSubjectAccessReviews,
    SelfSubjectRulesReviews,
)
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.server.registry.authorization.policy import AGGREGATED, ROLES, gathered_rules
from sliceplane.server.registry.authorization.rules import rules_of
from sliceplane.server.registry.types import Attributes, Body, Context, Target, WriteOptions

TABLES = tables(__file__)

BOB = User(name="bob", groups=(AUTHENTICATED,))
MASTER = User(name="root", groups=("system:masters",))
PODS_READER = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}


class Access:
    """The API as a user of choice."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def do(
        self,
        verb: str,
        user: User,
        resource: Resource,
        document: Any,
        *,
        name: str = "",
        namespace: str = "default",
    ) -> Any:
        ctx = Context(now=self.api.now, user=user)
        target = self.api.target(resource, name, namespace)
        registry = self.api.registry
        if verb == "patch":
            raw = json.dumps(document).encode()
            outcome = registry.patch(ctx, target, "merge", raw, WriteOptions())
        else:
            outcome = getattr(registry, verb)(ctx, target, Body(document=document), WriteOptions())
        self.api.commit()
        registry.check()
        return json.loads(outcome.body)

    def create(
        self, user: User, resource: Resource, document: Any, namespace: str = "default"
    ) -> Any:
        return self.do("create", user, resource, document, namespace=namespace)

    def grant(self, name: str, *rules: dict[str, Any], user: str = "bob") -> None:
        """A Role in namespace default, bound to a user."""
        self.create(MASTER, Roles, {"metadata": {"name": name}, "rules": list(rules)})
        self.create(MASTER, RoleBindings, binding(name, {"kind": "User", "name": user}, role=name))


def binding(name: str, *subjects: dict[str, str], role: str, kind: str = "Role") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "roleRef": {"kind": kind, "name": role},
        "subjects": list(subjects),
    }


@pytest.fixture
def access(api: Api) -> Access:
    return Access(api)


def refused(access: Access, user: User, resource: Resource, document: Any) -> StatusError:
    before = access.api.store.staged_revision
    with pytest.raises(StatusError) as caught:
        access.create(user, resource, document)
    assert access.api.store.staged_revision == before
    return caught.value


def test_a_cluster_begins_with_its_policy(api: Api) -> None:
    assert set(api.names(ClusterRoles)) == set(ROLES)
    for name, rules in ROLES.items():
        found = rules_of(api.get(ClusterRoles, name))
        assert set(found) == set(gathered_rules(name) if name in AGGREGATED else rules)
    decide = api.registry.decide
    assert decide(BOB, Attributes(verb="get", path="/apis/apps/v1")).reason == (
        'RBAC: allowed by ClusterRoleBinding "system:discovery" of ClusterRole "system:discovery" '
        'to Group "system:authenticated"'
    )
    slices = Attributes(verb="watch", group="discovery.k8s.io", resource="endpointslices")
    assert decide(User(name="system:kube-proxy"), slices).allowed
    assert not decide(BOB, slices).allowed
    create = Attributes(
        verb="create", group="discovery.k8s.io", resource="endpointslices", namespace="n"
    )
    controller = "system:serviceaccount:kube-system:endpointslice-controller"
    assert decide(User(name=controller), create).allowed
    assert not decide(User(name="system:kube-proxy"), create).allowed


@pytest.mark.parametrize(
    ("verb", "namespace", "allowed"),
    TABLES["a_node_proxy_may_write_its_lease_and_nothing_else_of_leases"],
)
def test_a_node_proxy_may_write_its_lease_and_nothing_else_of_leases(
    api: Api, verb: str, namespace: str, allowed: bool
) -> None:
    lease = Attributes(
        verb=verb,
        group="coordination.k8s.io",
        resource="leases",
        namespace=namespace,
        name="sliceplane-proxy-n",
    )
    assert api.registry.decide(User(name="system:kube-proxy"), lease).allowed is allowed


def test_a_start_while_the_namespace_of_leases_is_going_is_a_start(api: Api) -> None:
    finalizers = {"metadata": {"finalizers": ["example.com/hold"]}}
    api.patch(Namespaces, "kube-node-lease", finalizers, namespace="")
    for kind in (RoleBindings, Roles):
        api.delete(kind, "sliceplane:node-proxier", namespace="kube-node-lease")
    api.delete(Namespaces, "kube-node-lease", namespace="")
    api.registry.bootstrap(api.now)
    api.commit()
    assert api.names(Roles, namespace="kube-node-lease") == []


def test_a_start_repairs_the_policy_and_leaves_additions_and_decisions_alone(api: Api) -> None:
    before = api.store.revision
    api.registry.bootstrap(api.now)
    assert api.store.staged_revision == before, "nothing to repair, nothing written"
    api.patch(ClusterRoles, "system:basic-user", {"rules": [PODS_READER]}, namespace="")
    api.patch(ClusterRoleBindings, "system:discovery", {"subjects": []}, namespace="")
    off = {
        "metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}},
        "rules": [],
    }
    api.patch(ClusterRoles, "system:aggregate-to-view", off, namespace="")
    api.delete(ClusterRoles, "edit", namespace="")
    api.registry.bootstrap(api.now)
    api.commit()
    api.registry.check()
    repaired = rules_of(api.get(ClusterRoles, "system:basic-user"))
    assert repaired[0] == rules_of({"rules": [PODS_READER]})[0]
    assert len(repaired) > 1
    assert api.get(ClusterRoleBindings, "system:discovery")["subjects"][0]["name"] == AUTHENTICATED
    for name in ("system:aggregate-to-view", "view"):
        assert "rules" not in api.get(ClusterRoles, name)
    assert rules_of(api.get(ClusterRoles, "edit")) == ROLES["system:aggregate-to-edit"]


def test_bindings_get_their_defaults(access: Access) -> None:
    made = access.create(
        MASTER,
        RoleBindings,
        binding(
            "b", {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}, role="r"
        ),
    )
    assert (
        made["roleRef"] == {"apiGroup": RBAC_GROUP, "kind": "Role", "name": "r"} | made["roleRef"]
    )
    assert [subject.get("apiGroup") for subject in made["subjects"]] == [RBAC_GROUP, None]


def rule(**members: Any) -> dict[str, Any]:
    return {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], **members}]}


VALIDATION: list[tuple[Resource, dict[str, Any], str]] = TABLES["VALIDATION"]


@pytest.mark.parametrize(("resource", "document", "message"), VALIDATION)
def test_validation(
    access: Access, resource: Resource, document: dict[str, Any], message: str
) -> None:
    error = refused(access, MASTER, resource, {"metadata": {"name": "x"}, **document})
    assert (error.code, error.reason) == (422, "Invalid")
    assert f'{resource.kind}.{RBAC_GROUP} "x" is invalid: {message}' in error.message


def test_names_are_path_segments_and_the_role_of_a_binding_stays(access: Access) -> None:
    access.create(MASTER, ClusterRoles, {"metadata": {"name": "Any:Name_at.all"}})
    assert (
        "may not contain '%'"
        in refused(access, MASTER, ClusterRoles, {"metadata": {"name": "50%"}}).message
    )
    access.create(MASTER, RoleBindings, binding("b", role="r"))
    with pytest.raises(StatusError, match=r"roleRef: Invalid value: .*: cannot change roleRef"):
        access.do("patch", MASTER, RoleBindings, {"roleRef": {"name": "other"}}, name="b")
    access.do("update", MASTER, Roles, {"metadata": {"name": "put"}}, name="put")
    assert access.api.get(Roles, "put")["metadata"]["name"] == "put"


def test_nobody_writes_a_role_beyond_their_own(access: Access) -> None:
    error = refused(access, BOB, Roles, {"metadata": {"name": "esc"}, "rules": [PODS_READER]})
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == (
        'roles.rbac.authorization.k8s.io "esc" is forbidden: user "bob" '
        '(groups=["system:authenticated"]) is '
        "attempting to grant RBAC permissions not currently held:\n"
        '{APIGroups:[""], Resources:["pods"], Verbs:["get"]}'
    )
    access.grant("reader", PODS_READER)
    access.create(BOB, Roles, {"metadata": {"name": "esc"}, "rules": [PODS_READER]})
    more = {"rules": [{**PODS_READER, "verbs": ["get", "delete"]}]}
    with pytest.raises(StatusError, match=r'Verbs:\["delete"\]'):
        access.do("patch", BOB, Roles, more, name="esc")
    # Cluster-wide is more than in one namespace.
    assert (
        refused(
            access, BOB, ClusterRoles, {"metadata": {"name": "esc"}, "rules": [PODS_READER]}
        ).code
        == 403
    )
    access.grant(
        "lifted", {"apiGroups": [RBAC_GROUP], "resources": ["roles"], "verbs": ["escalate"]}
    )
    access.do("patch", BOB, Roles, more, name="esc")


def test_nobody_binds_a_role_beyond_their_own(access: Access) -> None:
    access.create(MASTER, Roles, {"metadata": {"name": "strong"}, "rules": [PODS_READER]})
    mine = binding("b", {"kind": "User", "name": "bob"}, role="strong")
    error = refused(access, BOB, RoleBindings, mine)
    assert error.message.startswith(
        'rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "bob"'
    )
    missing = refused(access, BOB, RoleBindings, binding("b", role="nope"))
    assert (missing.code, missing.message) == (
        404,
        'roles.rbac.authorization.k8s.io "nope" not found',
    )
    with pytest.raises(StatusError, match="cannot create resource"):
        access.do("update", BOB, RoleBindings, mine, name="b")
    allow = {
        "apiGroups": [RBAC_GROUP],
        "resources": ["roles"],
        "resourceNames": ["strong"],
        "verbs": ["bind"],
    }
    access.grant("binder", allow)
    access.create(BOB, RoleBindings, mine)
    assert access.api.registry.decide(
        BOB, Attributes(verb="get", resource="pods", namespace="default")
    ).allowed
    access.api.delete(RoleBindings, "b")
    assert not access.api.registry.decide(
        BOB, Attributes(verb="get", resource="pods", namespace="default")
    ).allowed


def test_a_put_that_creates_takes_the_right_to_create(access: Access) -> None:
    lease = {"metadata": {"name": "l"}}
    with pytest.raises(StatusError) as caught:
        access.do("update", BOB, Leases, lease, name="l")
    assert caught.value.message == (
        'leases.coordination.k8s.io "l" is forbidden: User "bob" cannot create resource "leases" '
        "in API group "
        '"coordination.k8s.io" in the namespace "default"'
    )
    access.grant(
        "maker",
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    )
    access.do("update", BOB, Leases, lease, name="l")


def test_a_role_in_a_namespace_counts_there_alone(access: Access) -> None:
    access.create(MASTER, Namespaces, {"metadata": {"name": "other"}})
    access.grant("reader", PODS_READER)
    decide = access.api.registry.decide
    assert decide(BOB, Attributes(verb="get", resource="pods", namespace="default")).allowed
    assert not decide(BOB, Attributes(verb="get", resource="pods", namespace="other")).allowed
    assert not decide(BOB, Attributes(verb="get", resource="pods")).allowed


def test_a_policy_survives_a_restart_and_an_abort(access: Access) -> None:
    access.grant("reader", PODS_READER)
    api = access.api
    api.commits = False
    api.delete(Roles, "reader")
    wanted = Attributes(verb="get", resource="pods", namespace="default")
    assert not api.registry.decide(BOB, wanted).allowed
    api.store.abort_staged()
    api.registry.on_aborted()
    api.registry.check()
    assert api.registry.decide(BOB, wanted).allowed


def test_access_reviews(access: Access) -> None:
    access.grant("reader", PODS_READER)

    def may(user: User, spec: dict[str, Any]) -> Any:
        return access.create(user, SelfSubjectAccessReviews, {"spec": spec}, "")

    question = {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}}
    assert may(BOB, question) == {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": question,
        "status": {
            "allowed": True,
            "reason": 'RBAC: allowed by RoleBinding "reader/default" of Role "reader" to User "bob"',
        },
    }
    nodes = {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}
    assert may(BOB, nodes)["status"] == {"allowed": False}
    assert may(MASTER, nodes)["status"] == {"allowed": True}
    assert may(BOB, {"nonResourceAttributes": {"verb": "get", "path": "/apis"}})["status"][
        "allowed"
    ]
    with pytest.raises(StatusError) as caught:
        may(BOB, {})
    assert caught.value.message.endswith(
        "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or "
        "resourceAttributes must be specified"
    )
    with pytest.raises(
        StatusError, match="cannot be specified in combination with resourceAttributes"
    ):
        may(BOB, {**question, "nonResourceAttributes": {}})


def test_rules_reviews(access: Access) -> None:
    access.grant("reader", PODS_READER)
    review = access.create(BOB, SelfSubjectRulesReviews, {"spec": {"namespace": "default"}}, "")
    status = review["status"]
    assert (review["spec"], status["incomplete"]) == ({}, False)
    assert {**PODS_READER} in status["resourceRules"]
    assert status["nonResourceRules"][0]["verbs"] == ["get"]
    access.create(
        MASTER, RoleBindings, binding("lost", {"kind": "User", "name": "bob"}, role="gone")
    )
    review = access.create(BOB, SelfSubjectRulesReviews, {"spec": {"namespace": "default"}}, "")
    assert review["status"]["evaluationError"] == 'role.rbac.authorization.k8s.io "gone" not found'
    with pytest.raises(StatusError, match="no namespace on request"):
        access.create(BOB, SelfSubjectRulesReviews, {"spec": {}}, "")


def test_reviews_leave_no_trace(access: Access) -> None:
    before = access.api.store.staged_revision
    ctx, target = Context(now=1.0, user=BOB), Target(resource=SelfSubjectRulesReviews)
    body = Body(document={"spec": {"namespace": "x"}})
    assert access.api.registry.create(ctx, target, body, WriteOptions()).revision == 0
    assert access.api.store.staged_revision == before
