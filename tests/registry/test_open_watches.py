"""Open watches whose account, token, role or binding goes: ended, and no others."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.registry.test_service_account_tokens import Plane

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Pods,
    Resource,
    RoleBindings,
    Roles,
    Secrets,
    ServiceAccounts,
)
from sliceplane.api.users import AUTHENTICATED, MASTERS, User
from sliceplane.server.registry.authentication.bearer import LEEWAY_S
from sliceplane.server.registry.authentication.impersonation import Impersonation
from sliceplane.server.registry.authorization.dependencies import Dependencies
from sliceplane.server.registry.authorization.open_watches import Claim
from sliceplane.server.registry.core import key_of
from sliceplane.server.registry.types import Attributes
from sliceplane.server.store.types import restamp

ANN = User(name="ann", groups=("devs", AUTHENTICATED))
WATCH = Attributes(verb="watch", resource="pods", namespace="default")
ROBOT = "system:serviceaccount:default:robot"


def rules(*resources: str, verbs: tuple[str, ...] = ("watch",)) -> list[dict[str, Any]]:
    return [{"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}]


def bound(name: str, role: str, *subjects: tuple[str, str], kind: str = "Role") -> dict[str, Any]:
    each = [
        {"kind": of, "name": who, "namespace": "default"}
        if of == "ServiceAccount"
        else {"kind": of, "apiGroup": RBAC_GROUP, "name": who}
        for of, who in subjects
    ]
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC_GROUP, "kind": kind, "name": role},
        "subjects": each,
    }


class Watched(Plane):
    """Watches are begun, things happen, and ``ended`` says which had to end, and with what."""

    def __init__(self) -> None:
        super().__init__()
        self.create(Roles, {"metadata": {"name": "reader"}, "rules": rules("pods")})
        self.create(RoleBindings, bound("ann", "reader", ("User", "ann")))
        self.create(RoleBindings, bound("robot", "reader", ("ServiceAccount", "robot")))

    def begin(self, user: User = ANN, token: str = "", acting: Impersonation | None = None) -> int:
        if token:
            found = self.registry.authenticate(token, self.now)
            assert found is not None
            user = found
        return self.registry.open_watches.begin(
            Claim(user=user, token=token, acting=acting, attributes=WATCH), self.now
        )

    def signed(self, **spec: Any) -> str:
        return str(self.token(spec or None)["status"]["token"])

    def ended(self) -> dict[int, int]:
        """Number to code."""
        found: dict[int, int] = {}
        for _ in range(100):
            some = self.registry.open_watches.review(self.now, 3)
            found |= {number: error.code for number, error in some}
            if not self.registry.open_watches.stale:
                break
        self.registry.check()
        return found


@pytest.fixture
def plane() -> Watched:
    return Watched()


def test_nothing_happens_to_whom_nothing_concerns(plane: Watched) -> None:
    plane.begin()
    plane.create(Roles, {"metadata": {"name": "other"}, "rules": rules("secrets")})
    plane.create(RoleBindings, bound("other", "other", ("User", "ann")))
    plane.delete(RoleBindings, "robot")
    # The role has grown.
    plane.patch(Roles, "reader", {"rules": [*rules("pods"), *rules("services")]})
    assert plane.registry.open_watches.stale == 0, "not even in doubt"
    # One way is gone, another is left.
    plane.delete(RoleBindings, "other")
    assert plane.registry.open_watches.stale == 1
    assert plane.ended() == {}


CHANGES = [
    lambda plane: plane.delete(RoleBindings, "ann"),
    lambda plane: plane.delete(Roles, "reader"),
    lambda plane: plane.patch(Roles, "reader", {"rules": rules("pods", verbs=("get", "list"))}),
    lambda plane: plane.patch(Roles, "reader", {"rules": None}),
    lambda plane: plane.update(
        RoleBindings, "ann", bound("ann", "reader", ("User", "bob"), ("Group", "ops"))
    ),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_right_that_goes_ends_the_watch(plane: Watched, change: Any) -> None:
    number = plane.begin()
    change(plane)
    assert plane.ended() == {number: 403}
    assert len(plane.registry.open_watches) == 0


def test_the_reason_is_that_of_a_new_request(plane: Watched) -> None:
    plane.begin()
    plane.delete(RoleBindings, "ann")
    ((_, error),) = plane.registry.open_watches.review(plane.now, 10)
    assert error.message == (
        'pods is forbidden: User "ann" cannot watch resource "pods" in API group "" in the '
        'namespace "default"'
    )
    with pytest.raises(StatusError):
        plane.begin()


def test_a_right_by_group_goes_for_all_in_it(plane: Watched) -> None:
    plane.delete(RoleBindings, "ann")
    plane.create(ClusterRoles, {"metadata": {"name": "c"}, "rules": rules("pods")})
    plane.create(ClusterRoleBindings, bound("c", "c", ("Group", "devs"), kind="ClusterRole"))
    numbers = [plane.begin(User(name=name, groups=("devs",))) for name in ("a", "b", "c", "d")]
    own = plane.begin(User(name="root", groups=(MASTERS,)))
    assert own == 0, "nothing can end it"
    plane.delete(ClusterRoleBindings, "c", namespace="")
    assert plane.ended() == dict.fromkeys(numbers, 403)


def test_an_aggregated_role_that_loses_a_source_ends_watches(plane: Watched) -> None:
    label = {"labels": {"x": "y"}}
    plane.create(ClusterRoles, {"metadata": {"name": "source", **label}, "rules": rules("pods")})
    selector = {"clusterRoleSelectors": [{"matchLabels": {"x": "y"}}]}
    plane.create(ClusterRoles, {"metadata": {"name": "sum"}, "aggregationRule": selector})
    plane.create(RoleBindings, bound("sum", "sum", ("User", "zoe"), kind="ClusterRole"))
    number = plane.begin(User(name="zoe"))
    plane.patch(ClusterRoles, "source", {"metadata": {"labels": None}}, namespace="")
    assert plane.ended() == {number: 403}


def test_an_account_that_is_deleted_ends_its_watches_even_if_it_is_made_anew(
    plane: Watched,
) -> None:
    number = plane.begin(token=plane.signed())
    plane.patch(ServiceAccounts, "robot", {"metadata": {"labels": {"a": "b"}}})
    assert plane.ended() == {}
    plane.delete(ServiceAccounts, "robot")
    plane.create(ServiceAccounts, {"metadata": {"name": "robot"}})
    assert plane.ended() == {number: 401}


def test_an_account_that_something_holds_back_has_the_time_that_its_tokens_have(
    plane: Watched,
) -> None:
    plane.patch(ServiceAccounts, "robot", {"metadata": {"finalizers": ["a.b/c"]}})
    number = plane.begin(token=plane.signed())
    plane.delete(ServiceAccounts, "robot")
    assert plane.ended() == {}
    plane.now += LEEWAY_S + 1.5
    assert plane.ended() == {number: 401}


def test_a_token_that_ends_ends_its_watches(plane: Watched) -> None:
    number, longer = (
        plane.begin(token=plane.signed(expirationSeconds=seconds)) for seconds in (600, 1200)
    )
    plane.now += 600 + LEEWAY_S
    assert plane.ended() == {}
    plane.now += 1
    assert plane.ended() == {number: 401}
    plane.now += 600
    assert plane.ended() == {longer: 401}


@pytest.mark.parametrize("kind", [Pods, Secrets])
def test_a_token_ends_with_what_it_is_bound_to(plane: Watched, kind: Resource) -> None:
    document: dict[str, Any] = {"metadata": {"name": "b"}}
    if kind is Pods:
        document["spec"] = {
            "serviceAccountName": "robot",
            "containers": [{"name": "c", "image": "i"}],
        }
    plane.create(kind, document)
    reference = {"apiVersion": "v1", "kind": kind.kind, "name": "b"}
    number = plane.begin(token=plane.signed(boundObjectRef=reference))
    other = plane.begin(token=plane.signed())
    plane.delete(kind, "b", **({"grace_period_s": 0} if kind is Pods else {}))
    assert plane.ended() == {number: 401}
    assert plane.registry.open_watches.review(plane.now, 10) == ()
    plane.registry.open_watches.end(other)


def test_who_acts_as_another_needs_both_rights_all_the_time(plane: Watched) -> None:
    may = [
        {
            "apiGroups": [""],
            "resources": ["users"],
            "resourceNames": ["ann"],
            "verbs": ["impersonate"],
        }
    ]
    plane.create(ClusterRoles, {"metadata": {"name": "acts"}, "rules": may})
    first = bound("acts", "acts", ("User", "bob"), kind="ClusterRole")
    plane.create(ClusterRoleBindings, first)
    bob = User(name="bob", groups=(AUTHENTICATED,))
    number = plane.begin(bob, acting=Impersonation(user="ann"))
    plane.delete(ClusterRoleBindings, "acts", namespace="")
    assert plane.ended() == {number: 403}
    plane.create(ClusterRoleBindings, first)
    number = plane.begin(bob, acting=Impersonation(user="ann"))
    plane.delete(RoleBindings, "ann")
    assert plane.ended() == {number: 403}
    # Whoever may act as an account still needs the rights that the account has now.
    root = User(name="root", groups=(MASTERS,))
    number = plane.begin(root, acting=Impersonation(user=ROBOT))
    plane.delete(Roles, "reader")
    assert plane.ended() == {number: 403}


def test_after_a_write_that_was_forgotten_and_after_one_of_another_server(plane: Watched) -> None:
    number = plane.begin()
    plane.commits = False
    plane.delete(Roles, "reader")
    plane.store.abort_staged()
    plane.registry.on_aborted()
    plane.commits = True
    assert plane.ended() == {}, "the role is there again"
    record = plane.store.latest(key_of(plane.target(Roles, "reader")))
    assert record is not None
    plane.store.stage_delete(record.key, lambda revision: restamp(record, revision))
    plane.registry.on_changed((record.key,))
    assert plane.ended() == {number: 403}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("role"),
            st.sampled_from(["r1", "r2"]),
            st.sampled_from([(), ("pods",), ("secrets", "pods"), ("x",)]),
        ),
        st.tuples(st.just("drop role"), st.sampled_from(["r1", "r2"])),
        st.tuples(
            st.just("bind"),
            st.sampled_from(["b1", "b2", "b3"]),
            st.sampled_from(["r1", "r2"]),
            st.lists(
                st.sampled_from(
                    [
                        ("User", "ann"),
                        ("Group", "devs"),
                        ("User", "bob"),
                        ("ServiceAccount", "robot"),
                    ]
                ),
                max_size=3,
                unique=True,
            ),
        ),
        st.tuples(st.just("unbind"), st.sampled_from(["b1", "b2", "b3"])),
        st.tuples(st.just("account"), st.booleans()),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 61.0, 700.0])),
        st.tuples(st.just("watch"), st.sampled_from(["ann", "bob", "token"])),
    ),
    max_size=25,
)


@effort(80)
@given(actions=ACTIONS)
def test_those_end_that_a_new_request_would_not_let_in_and_no_others(
    actions: list[tuple[Any, ...]],
) -> None:
    plane = Watched()
    plane.delete(RoleBindings, "robot")
    plane.delete(RoleBindings, "ann")
    claims: dict[int, Claim] = {}
    for action in actions:
        act(plane, action, claims)
        ended = plane.ended()
        for number, claim in list(claims.items()):
            code = code_of_a_new_request(plane, claim)
            assert ended.get(number) == code, f"{claim} after {action}"
            if code is not None:
                del claims[number]


def code_of_a_new_request(plane: Watched, claim: Claim) -> int | None:
    """``None``: it is let in."""
    try:
        plane.registry.open_watches.end(plane.registry.open_watches.begin(claim, plane.now))
    except StatusError as error:
        return error.code
    return None


def act(plane: Watched, action: tuple[Any, ...], claims: dict[int, Claim]) -> None:
    """Requests that are refused (a role that is not there, an account that is) are part of the
    history.
    """
    with contextlib.suppress(StatusError):
        match action:
            case ("role", name, resources):
                document = {
                    "metadata": {"name": name},
                    "rules": rules(*resources) if resources else [],
                }
                plane.update(Roles, name, document)
            case ("drop role", name):
                plane.delete(Roles, name)
            case ("bind", name, role, subjects):
                plane.update(RoleBindings, name, bound(name, role, *subjects))
            case ("unbind", name):
                plane.delete(RoleBindings, name)
            case ("account", True):
                plane.create(ServiceAccounts, {"metadata": {"name": "robot"}})
            case ("account", False):
                plane.delete(ServiceAccounts, "robot")
            case ("wait", seconds):
                plane.now += seconds
            case ("watch", who):
                token = plane.signed(expirationSeconds=600) if who == "token" else ""
                user = {"ann": ANN, "bob": User(name="bob")}.get(who) or User(name="")
                claim = Claim(user=user, token=token, attributes=WATCH)
                claims[plane.registry.open_watches.begin(claim, plane.now)] = claim


def test_what_a_change_costs_is_what_it_touches() -> None:
    dependencies = Dependencies()
    for number in range(10_000):
        dependencies.admit(number, (f"u:{number}", "g:nodes"), None)
    dependencies.invalidate(("u:17", "u:nobody"))
    assert dependencies.take_stale(0.0, 100) == (17,)
    dependencies.invalidate(("g:nodes",))
    assert len(dependencies.take_stale(0.0, 100)) == 100
    assert dependencies.stale == 9_900
    for number in range(10_000):
        dependencies.discard(number)
    dependencies.check()
    assert (len(dependencies), dependencies.stale) == (0, 0)


def test_ends_that_were_put_off_again_and_again_do_not_pile_up() -> None:
    dependencies = Dependencies()
    for turn in range(10_000):
        dependencies.admit(1, ("u:a",), 1000.0 + turn)
    assert len(dependencies._ends) < 200
    assert dependencies.take_stale(5000.0, 9) == ()
    assert dependencies.take_stale(20_000.0, 9) == (1,)
