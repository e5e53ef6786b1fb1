"""POST pods/NAME/eviction: what a PodDisruptionBudget lets through, and what it says otherwise
(kubernetes.io, API-initiated Eviction).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import PodDisruptionBudgets, Pods
from sliceplane.server.registry.types import Body, Outcome, WriteOptions

Api = Any
LABELS = {"app": "web"}
SPEC = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.fixture
def api(make_api: Any) -> Api:
    api = make_api()
    for name in ("a", "b"):
        api.create(Pods, {"metadata": {"name": name, "labels": LABELS}, "spec": SPEC})
        api.patch(Pods, name, {"status": READY}, subresource="status")
    return api


def budget(api: Api, name: str = "few", policy: str = "", **status: Any) -> None:
    spec = {
        "minAvailable": 1,
        "selector": {"matchLabels": LABELS},
        "unhealthyPodEvictionPolicy": policy or None,
    }
    api.create(PodDisruptionBudgets, {"metadata": {"name": name}, "spec": spec})
    told = {
        "observedGeneration": 1,
        "desiredHealthy": 1,
        "currentHealthy": 2,
        "expectedPods": 2,
        **status,
    }
    api.patch(PodDisruptionBudgets, name, {"status": told}, subresource="status")


def evict(
    api: Api, name: str, *, version: str = "policy/v1", dry_run: bool = False, **members: Any
) -> Outcome:
    document = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}, **members}
    target = api.target(Pods, name, subresource="eviction")
    outcome: Outcome = api.registry.create(
        api.ctx, target, Body(document=document), WriteOptions(dry_run=dry_run)
    )
    api.commit()
    return outcome


def refused(api: Api, name: str, **members: Any) -> StatusError:
    before = api.store.staged_revision
    with pytest.raises(StatusError) as caught:
        evict(api, name, **members)
    assert api.store.staged_revision == before, "what was refused has changed something"
    return caught.value


def is_going(api: Api, name: str) -> bool:
    return "deletionTimestamp" in api.get(Pods, name)["metadata"]


@pytest.mark.parametrize("version", ["policy/v1", "policy/v1beta1"])
def test_without_a_budget_the_pod_goes_with_its_grace_and_is_told_why(
    api: Api, version: str
) -> None:
    outcome = evict(api, "a", version=version)
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": 201,
    }
    assert (outcome.code, json.loads(outcome.body)) == (201, status)
    pod = api.get(Pods, "a")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    (condition,) = (one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
    assert condition["message"] == "Eviction API: evicting"
    assert not is_going(api, "b")


def test_a_budget_is_charged_in_the_same_step_and_then_lets_no_more_through(api: Api) -> None:
    budget(api, disruptionsAllowed=1)
    evict(api, "a")
    status = api.get(PodDisruptionBudgets, "few")["status"]
    assert status["disruptionsAllowed"] == 0
    assert list(status["disruptedPods"]) == ["a"]
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "DisruptionAllowed",
        "False",
        "InsufficientPods",
    )
    error = refused(api, "b")
    assert (error.code, error.reason, error.message) == (429, "TooManyRequests", VIOLATES)
    why = "The disruption budget few needs 1 healthy pods and has 2 currently"
    assert error.details == {"causes": [{"reason": "DisruptionBudget", "message": why}]}
    # Who is going may be asked to go again.
    assert evict(api, "a").code == 201


def test_a_budget_that_nobody_has_looked_at_since_its_change_says_so(api: Api) -> None:
    budget(api, disruptionsAllowed=1, observedGeneration=0)
    error = refused(api, "a")
    why = "The disruption budget few is still being processed by the server."
    assert error.details == {
        "causes": [{"reason": "DisruptionBudget", "message": why}],
        "retryAfterSeconds": 10,
    }
    assert (error.code, error.message, error.retry_after_s) == (429, VIOLATES, 10)


def test_a_budget_that_could_not_be_worked_out_says_why(api: Api) -> None:
    failed = {
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "SyncFailed",
        "message": "no owner",
    }
    budget(
        api,
        disruptionsAllowed=0,
        conditions=[{**failed, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    )
    (cause,) = refused(api, "a").details["causes"]
    why = (
        "The disruption budget few does not allow evicting pods currently because it failed sync: "
        "no owner"
    )
    assert cause["message"] == why


def test_too_many_that_were_evicted_and_are_still_there(api: Api) -> None:
    names = {f"p{number}": "2026-01-01T00:00:00Z" for number in range(2001)}
    budget(api, disruptionsAllowed=1, disruptedPods=names)
    error = refused(api, "a")
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == (
        'poddisruptionbudget.policy "few" is forbidden: DisruptedPods map too big - '
        "too many evictions not confirmed by PDB controller"
    )


def test_two_budgets_of_one_pod_are_one_too_many(api: Api) -> None:
    budget(api, disruptionsAllowed=1)
    budget(api, "more", disruptionsAllowed=1)
    error = refused(api, "a")
    assert (error.code, error.reason) == (500, "")
    assert error.message == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not "
        "support."
    )


@pytest.mark.parametrize(
    ("policy", "healthy", "goes"),
    [
        ("AlwaysAllow", 0, True),
        ("IfHealthyBudget", 1, True),
        ("", 1, True),
        ("IfHealthyBudget", 0, False),
        ("", 0, False),
    ],
)
def test_a_pod_that_is_not_ready(api: Api, policy: str, healthy: int, goes: bool) -> None:
    api.patch(
        Pods,
        "a",
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        subresource="status",
    )
    budget(api, policy=policy, disruptionsAllowed=0, currentHealthy=healthy)
    before = api.get(PodDisruptionBudgets, "few")
    if goes:
        evict(api, "a")
        assert is_going(api, "a")
    else:
        assert refused(api, "a").code == 429
    assert api.get(PodDisruptionBudgets, "few") == before, (
        "an unready Pod is nothing to be charged for"
    )


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_a_pod_that_serves_nobody_needs_no_budget(api: Api, phase: str) -> None:
    api.patch(Pods, "a", {"status": {"phase": phase}}, subresource="status")
    budget(api, disruptionsAllowed=0)
    assert evict(api, "a").code == 201


def test_a_dry_run_is_refused_like_the_deed_and_does_nothing(api: Api) -> None:
    budget(api, disruptionsAllowed=1)
    before = api.store.staged_revision
    assert evict(api, "a", dry_run=True).code == 201
    assert evict(api, "a", deleteOptions={"dryRun": ["All"]}).code == 201
    assert api.store.staged_revision == before
    api.patch(
        PodDisruptionBudgets, "few", {"status": {"disruptionsAllowed": 0}}, subresource="status"
    )
    assert refused(api, "a", dry_run=True).code == 429


def test_preconditions_and_grace_are_those_of_a_deletion(api: Api) -> None:
    budget(api, disruptionsAllowed=1)
    meta = api.get(Pods, "a")["metadata"]
    assert refused(api, "a", deleteOptions={"preconditions": {"uid": "another"}}).code == 409
    assert refused(api, "a", deleteOptions={"preconditions": {"resourceVersion": "1"}}).code == 409
    fine = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    evict(api, "a", deleteOptions={"gracePeriodSeconds": 7, "preconditions": fine})
    assert api.get(Pods, "a")["metadata"]["deletionGracePeriodSeconds"] == 7


@pytest.mark.parametrize(
    ("members", "code", "message"),
    [
        ({"metadata": {"name": "b"}}, 400, "name in URL does not match name in Eviction object"),
        ({"kind": "Pod"}, 400, "expected input object type to be Eviction, but Pod"),
        (
            {"apiVersion": "v1"},
            400,
            "the API version in the data (v1) does not match the expected API version (policy/v1)",
        ),
        ({"deleteOptions": {"propagationPolicy": "Soon"}}, 422, None),
    ],
)
def test_what_is_no_eviction_of_this_pod(
    api: Api, members: dict[str, Any], code: int, message: str | None
) -> None:
    document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, **members}
    with pytest.raises(StatusError) as caught:
        api.registry.create(
            api.ctx,
            api.target(Pods, "a", subresource="eviction"),
            Body(document=document),
            WriteOptions(),
        )
    assert caught.value.code == code
    assert message in (None, caught.value.message)


def test_a_pod_that_does_not_exist(api: Api) -> None:
    assert refused(api, "c").code == 404


@pytest.mark.parametrize(
    ("selector", "held"), [(None, False), ({}, True), ({"matchLabels": {"app": "x"}}, False)]
)
def test_no_selector_selects_nothing_and_an_empty_one_everything(
    api: Api, selector: Any, held: bool
) -> None:
    budget(api, disruptionsAllowed=0)
    api.patch(PodDisruptionBudgets, "few", [{"op": "remove", "path": "/spec/selector"}], "json")
    if selector is not None:
        api.patch(
            PodDisruptionBudgets,
            "few",
            [{"op": "add", "path": "/spec/selector", "value": selector}],
            "json",
        )
    if held:
        assert refused(api, "a").code == 429
    else:
        assert evict(api, "a").code == 201
