"""ClusterRoles that gather the rules of others: against a plain computation, and in the cases that
matter.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ClusterRoles
from sliceplane.api.users import User
from sliceplane.server.registry.types import Body, Context, Target, WriteOptions

LABEL = "rbac.authorization.k8s.io/aggregate-to-"
MUST = "must have cluster-admin privileges to use the aggregationRule"


def rule(resource: str) -> dict[str, Any]:
    return {"verbs": ["get"], "apiGroups": ["x"], "resources": [resource]}


def role(name: str, *resources: str, to: str = "", **members: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "labels": {"to": to}} if to else {"name": name}
    return {"metadata": head, "rules": [rule(resource) for resource in resources], **members}


def gatherer(name: str, label: str, to: str = "") -> dict[str, Any]:
    return role(
        name, to=to, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"to": label}}]}
    )


def resources_of(api: Api, name: str) -> list[str]:
    return [rule["resources"][0] for rule in api.get(ClusterRoles, name).get("rules", ())]


def test_a_role_of_a_user_reaches_edit_and_admin_at_once(api: Api) -> None:
    given_role = role("mine", "crons")
    given_role["metadata"]["labels"] = {f"{LABEL}edit": "true"}
    api.create(ClusterRoles, given_role)
    assert "crons" in resources_of(api, "edit")
    assert "crons" in resources_of(api, "admin")
    assert "crons" not in resources_of(api, "view")
    api.delete(ClusterRoles, "mine", namespace="")
    assert "crons" not in resources_of(api, "edit")
    assert "crons" not in resources_of(api, "admin")
    api.registry.check()


def test_what_is_written_into_a_gathering_role_does_not_stay(api: Api) -> None:
    api.create(ClusterRoles, role("a", "one", to="g"))
    api.create(ClusterRoles, gatherer("g", "g"))
    assert resources_of(api, "g") == ["one"]
    before = api.store.revision
    api.patch(ClusterRoles, "g", {"rules": [rule("two")]}, namespace="")
    assert resources_of(api, "g") == ["one"]
    assert api.store.revision == before, "nothing changed, nothing written"
    api.patch(ClusterRoles, "g", {"aggregationRule": None, "rules": [rule("two")]}, namespace="")
    assert resources_of(api, "g") == ["two"]


def test_roles_that_gather_each_other_settle(api: Api) -> None:
    api.create(ClusterRoles, gatherer("g1", "x", to="x"))
    api.create(ClusterRoles, gatherer("g2", "x", to="x"))
    api.create(ClusterRoles, gatherer("g3", "x", to="x"))
    api.create(ClusterRoles, role("m", "one", "two", to="x"))
    for name in ("g1", "g2", "g3"):
        assert sorted(resources_of(api, name)) == ["one", "two"]
    api.registry.check()


def test_only_who_may_everything_makes_a_role_gather(api: Api) -> None:
    api.create(
        ClusterRoles,
        {
            "metadata": {"name": "r"},
            "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        },
    )
    ctx = Context(now=api.now, user=User(name="bob"))
    from sliceplane.api.scheme import ClusterRoleBindings

    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "User", "name": "bob"}],
    }
    api.create(ClusterRoleBindings, binding)
    api.patch(
        ClusterRoles,
        "r",
        {"rules": [{"verbs": ["create", "get"], "apiGroups": ["*"], "resources": ["*"]}]},
        namespace="",
    )
    with pytest.raises(StatusError) as caught:
        api.registry.create(
            ctx, Target(resource=ClusterRoles), Body(document=gatherer("g", "none")), WriteOptions()
        )
    assert (
        caught.value.message == f'clusterroles.rbac.authorization.k8s.io "g" is forbidden: {MUST}'
    )


def test_roles_of_the_time_before_aggregation_keep_what_was_added(api: Api) -> None:
    added = rule("crons")
    for name in ("system:aggregate-to-edit", "edit"):
        api.delete(ClusterRoles, name, namespace="")
    old = {
        "metadata": {
            "name": "edit",
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        }
    }
    api.create(ClusterRoles, {**old, "rules": [added]})
    api.registry.bootstrap(api.now)
    api.commit()
    assert "aggregationRule" in api.get(ClusterRoles, "edit")
    assert "crons" in resources_of(api, "edit")
    assert "crons" in resources_of(api, "admin")
    assert "secrets" in resources_of(api, "edit")
    before = api.store.revision
    api.registry.bootstrap(api.now)
    assert api.store.staged_revision == before


NAMES = st.sampled_from(("a", "b", "c", "d"))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "delete")),
        NAMES,
        st.lists(st.sampled_from(("one", "two", "three")), unique=True, max_size=3),
        st.sampled_from(("", "low", "high")),
    ),
    max_size=12,
)


@given(steps=STEPS)
def test_any_history_gathers_what_a_plain_walk_would(
    steps: list[tuple[str, str, list[str], str]],
) -> None:
    api = Api()
    api.create(ClusterRoles, gatherer("low", "low", to="high"))
    api.create(ClusterRoles, gatherer("high", "high"))
    held: dict[str, tuple[list[str], str]] = {}
    for verb, name, resources, to in steps:
        if verb == "put":
            api.update(ClusterRoles, name, role(name, *resources, to=to), namespace="")
            held[name] = (resources, to)
        elif name in held:
            api.delete(ClusterRoles, name, namespace="")
            del held[name]

    def of(label: str, more: dict[str, list[str]]) -> list[str]:
        sources = {
            **{name: resources for name, (resources, to) in held.items() if to == label},
            **more,
        }
        found = (resource for name in sorted(sources) for resource in sources[name])
        return list(dict.fromkeys(found))

    low = of("low", {})
    assert resources_of(api, "low") == low
    assert resources_of(api, "high") == of("high", {"low": low})
    api.registry.check()
