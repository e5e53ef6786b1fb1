"""Impersonation: what its headers ask for, what right it takes, and which user results."""

from __future__ import annotations

import pytest
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ClusterRoleBindings, ClusterRoles
from sliceplane.api.users import User
from sliceplane.server.registry.authentication.impersonation import Impersonation, parse_headers

BOB = User(name="bob", groups=("system:authenticated",))
RULES = [
    {
        "verbs": ["impersonate"],
        "apiGroups": [""],
        "resources": ["users"],
        "resourceNames": ["jane", "system:anonymous"],
    },
    {
        "verbs": ["impersonate"],
        "apiGroups": [""],
        "resources": ["groups"],
        "resourceNames": ["devs"],
    },
    {
        "verbs": ["impersonate"],
        "apiGroups": [""],
        "resources": ["serviceaccounts"],
        "resourceNames": ["robot"],
    },
    {
        "verbs": ["impersonate"],
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["userextras/scopes"],
        "resourceNames": ["view"],
    },
    {
        "verbs": ["impersonate"],
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["uids"],
        "resourceNames": ["7"],
    },
]
CANNOT = 'is forbidden: User "bob" cannot impersonate resource'


@pytest.fixture
def granted(api: Api) -> Api:
    api.create(ClusterRoles, {"metadata": {"name": "as-others"}, "rules": RULES})
    binding = {
        "metadata": {"name": "as-others"},
        "roleRef": {"kind": "ClusterRole", "name": "as-others"},
        "subjects": [{"kind": "User", "name": "bob"}],
    }
    api.create(ClusterRoleBindings, binding)
    return api


def test_headers() -> None:
    assert parse_headers([("accept", "*/*")]) is None
    assert parse_headers([("impersonate-user", ""), ("impersonate-uid", "")]) is None
    headers = [
        ("impersonate-group", "b"),
        ("impersonate-user", "jane"),
        ("impersonate-group", "a, b"),
        ("impersonate-extra-acme.com%2fproject", "x"),
        ("impersonate-extra-acme.com%2fproject", "y"),
        ("impersonate-uid", "7"),
    ]
    extra = (("acme.com/project", ("x", "y")),)
    for name in ("a%2", "a%zz"):
        found = parse_headers([("impersonate-user", "jane"), (f"impersonate-extra-{name}", "x")])
        assert found == Impersonation("jane", extra=((name, ("x",)),)), "as Go leaves it"
    assert parse_headers(headers) == Impersonation("jane", "7", ("b", "a, b"), extra)


def test_nobody_in_particular() -> None:
    with pytest.raises(StatusError) as caught:
        parse_headers([("impersonate-group", "g")])
    assert (caught.value.code, caught.value.message) == (
        400,
        "requested [{Group  g    }] without impersonating a user",
    )
    for name in ("impersonate-uid", "impersonate-extra-a"):
        with pytest.raises(StatusError):
            parse_headers([(name, "x")])


AUTHENTICATED = "system:authenticated"
RESULTS = [
    (Impersonation("jane"), (AUTHENTICATED,)),
    (Impersonation("jane", groups=("devs",)), ("devs", AUTHENTICATED)),
    (Impersonation("system:anonymous"), ("system:unauthenticated",)),
    (
        Impersonation("system:serviceaccount:default:robot"),
        ("system:serviceaccounts", "system:serviceaccounts:default", AUTHENTICATED),
    ),
    (
        Impersonation("system:serviceaccount:default:robot", groups=("devs",)),
        ("devs", AUTHENTICATED),
    ),
]


@pytest.mark.parametrize(("asked", "groups"), RESULTS)
def test_who_results(granted: Api, asked: Impersonation, groups: tuple[str, ...]) -> None:
    assert granted.registry.impersonate(BOB, asked) == User(name=asked.user, groups=groups)


def test_uid_and_extra(granted: Api) -> None:
    extra = (("scopes", ("view",)),)
    user = granted.registry.impersonate(BOB, Impersonation("jane", "7", extra=extra))
    assert user == User(name="jane", uid="7", groups=(AUTHENTICATED,), extra=extra)


REFUSALS = [
    # No account can be called so: it is a name of a user.
    (
        Impersonation("system:serviceaccount:DEFAULT:robot"),
        (
            f'users "system:serviceaccount:DEFAULT:robot" {CANNOT} "users" in API group "" at the '
            "cluster scope"
        ),
    ),
    (
        Impersonation("system:serviceaccount:default:robot:x"),
        (
            f'users "system:serviceaccount:default:robot:x" {CANNOT} "users" in API group "" at '
            "the "
            "cluster scope"
        ),
    ),
    (
        Impersonation("j\u0430ne"),
        f'users "j\u0430ne" {CANNOT} "users" in API group "" at the cluster scope',
    ),
    (Impersonation("root"), f'users "root" {CANNOT} "users" in API group "" at the cluster scope'),
    (
        Impersonation("jane", groups=("devs", "system:masters")),
        f'groups "system:masters" {CANNOT} "groups" in API group "" at the cluster scope',
    ),
    (
        Impersonation("system:serviceaccount:kube-system:root"),
        (
            f'serviceaccounts "root" {CANNOT} "serviceaccounts" in API group "" in the namespace '
            '"kube-system"'
        ),
    ),
    (
        Impersonation("jane", extra=(("scopes", ("view", "edit")),)),
        (
            f'userextras.authentication.k8s.io "edit" {CANNOT} "userextras/scopes" in API group '
            '"authentication.k8s.io" at the cluster scope'
        ),
    ),
    (
        Impersonation("jane", "8"),
        (
            f'uids.authentication.k8s.io "8" {CANNOT} "uids" in API group "authentication.k8s.io" '
            "at the cluster scope"
        ),
    ),
]


@pytest.mark.parametrize(("asked", "message"), REFUSALS)
def test_refusals(granted: Api, asked: Impersonation, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        granted.registry.impersonate(BOB, asked)
    assert (caught.value.code, caught.value.message) == (403, message)
    master = User(name="root", groups=("system:masters",))
    assert granted.registry.impersonate(master, asked).name == asked.user
