"""What writes a part of a Pod: ``ephemeralcontainers``, ``resize``, and the two ways to bind one to
a node.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Bindings, LimitRanges, Pods, ResourceQuotas
from sliceplane.server.registry.types import Body, WriteOptions

TABLES = tables(__file__)

Api = Any
DEBUGGER = {"name": "debugger", "image": "busybox", "targetContainerName": "c"}
SMALL = {"requests": {"cpu": "100m", "memory": "64Mi"}}
LARGE = {"requests": {"cpu": "200m", "memory": "64Mi"}}


@pytest.fixture
def api(make_api: Any) -> Api:
    api = make_api()
    api.create(
        Pods,
        {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [container()]}},
        field_manager="author",
    )
    return api


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", "resources": SMALL, **more}


def patch(api: Api, part: str, spec: Any, kind: str = "strategic", **options: Any) -> Any:
    outcome = api.patch(Pods, "p", {"spec": spec}, kind, subresource=part, **options)
    return json.loads(outcome.body)


def complaint(api: Api, part: str, spec: Any) -> str:
    error = api.fails("patch", Pods, "p", {"spec": spec}, "strategic", subresource=part)
    assert (error.code, error.reason) == (422, "Invalid")
    return str(error.message.removeprefix('Pod "p" is invalid: '))


# Ephemeral containers


def test_a_debugger_is_added_as_kubectl_does_it_and_nothing_else_changes(api: Api) -> None:
    before = api.get(Pods, "p", subresource="ephemeralcontainers")
    spec = {
        "ephemeralContainers": [DEBUGGER],
        "nodeName": "elsewhere",
        "containers": [{"name": "c", "image": "x"}],
    }
    after = patch(api, "ephemeralcontainers", spec, field_manager="kubectl-debug")
    (made,) = after["spec"].pop("ephemeralContainers")
    assert (
        made.items()
        >= {**DEBUGGER, "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}.items()
    )
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    (entry,) = (
        one for one in after["metadata"]["managedFields"] if one["manager"] == "kubectl-debug"
    )
    assert entry["subresource"] == "ephemeralcontainers"
    assert list(entry["fieldsV1"]["f:spec"]) == ["f:ephemeralContainers"]
    patch(api, "ephemeralcontainers", {"ephemeralContainers": [{**DEBUGGER, "name": "second"}]})
    names = [one["name"] for one in api.get(Pods, "p")["spec"]["ephemeralContainers"]]
    assert sorted(names) == ["debugger", "second"]


def test_it_is_replaced_with_a_put_and_applied(api: Api) -> None:
    pod = api.get(Pods, "p")
    pod["spec"]["ephemeralContainers"] = [DEBUGGER]
    pod["metadata"]["labels"] = {"not": "here"}
    put = json.loads(api.update(Pods, "p", pod, subresource="ephemeralcontainers").body)
    assert [one["name"] for one in put["spec"]["ephemeralContainers"]] == ["debugger"]
    assert put["metadata"]["labels"] == {"a": "b"}
    assert api.fails("update", Pods, "p", pod, subresource="ephemeralcontainers").code == 409
    config = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"mine": "too"}},
        "spec": {"ephemeralContainers": [{**DEBUGGER, "name": "applied"}], "nodeName": "n"},
    }
    outcome = api.patch(
        Pods, "p", config, "apply", subresource="ephemeralcontainers", field_manager="me"
    )
    applied = json.loads(outcome.body)
    assert [one["name"] for one in applied["spec"]["ephemeralContainers"]] == [
        "debugger",
        "applied",
    ]
    assert "nodeName" not in applied["spec"]
    (entry,) = (one for one in applied["metadata"]["managedFields"] if one["manager"] == "me")
    assert list(entry["fieldsV1"]) == ["f:spec"]


def test_what_is_there_stays_as_it_is(api: Api) -> None:
    patch(api, "ephemeralcontainers", {"ephemeralContainers": [DEBUGGER]})
    changed = complaint(
        api,
        "ephemeralcontainers",
        {"ephemeralContainers": [{"name": "debugger", "image": "other"}]},
    )
    assert changed.startswith(
        'spec.ephemeralContainers: Forbidden: existing ephemeral containers "debugger" may not be'
    )
    pod = api.get(Pods, "p")
    del pod["spec"]["ephemeralContainers"]
    error = api.fails("update", Pods, "p", pod, subresource="ephemeralcontainers")
    assert "may not be removed" in error.message
    # Through the Pod itself neither: that is the rule for all of its spec.
    assert api.fails("update", Pods, "p", pod).code == 422


@pytest.mark.parametrize(("wanted", "why"), TABLES["what_a_debugger_cannot_be"])
def test_what_a_debugger_cannot_be(api: Api, wanted: Any, why: str) -> None:
    assert complaint(api, "ephemeralcontainers", {"ephemeralContainers": [wanted]}) == why


def test_a_new_pod_has_none(api: Api) -> None:
    spec = {"containers": [container()], "ephemeralContainers": [DEBUGGER]}
    error = api.fails("create", Pods, {"metadata": {"name": "q"}, "spec": spec})
    assert (
        error.message
        == 'Pod "q" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create'
    )


@pytest.mark.parametrize("part", ["ephemeralcontainers", "resize"])
def test_a_pod_of_a_file_of_the_kubelet_is_left_alone(api: Api, part: str) -> None:
    api.delete(Pods, "p")
    head = {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}}
    api.create(Pods, {"metadata": head, "spec": {"nodeName": "n", "containers": [container()]}})
    spec = {"ephemeralContainers": [DEBUGGER], "containers": [container(resources=LARGE)]}
    assert "static pods" in complaint(api, part, spec)


# Resize


def test_requests_are_changed_and_nothing_else(api: Api) -> None:
    before = api.get(Pods, "p", subresource="resize")
    after = patch(
        api, "resize", {"containers": [{"name": "c", "image": "other", "resources": LARGE}]}
    )
    assert after["spec"]["containers"][0]["resources"] == LARGE
    assert after["spec"]["containers"][0]["image"] == "i"
    assert after["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert after["status"] == before["status"]
    # Not through the Pod itself.
    pod = {**after, "spec": {**after["spec"], "containers": before["spec"]["containers"]}}
    assert api.fails("update", Pods, "p", pod).code == 422


@pytest.mark.parametrize(("containers", "why"), TABLES["what_a_resize_cannot_do"])
def test_what_a_resize_cannot_do(api: Api, containers: Any, why: str) -> None:
    assert complaint(api, "resize", {"containers": containers}) == why


def test_quotas_and_bounds_hold_for_a_resize(api: Api) -> None:
    limits = {"type": "Container", "min": {"cpu": "50m"}}
    api.create(LimitRanges, {"metadata": {"name": "bounds"}, "spec": {"limits": [limits]}})
    api.create(
        ResourceQuotas, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "250m"}}}
    )
    told = {"hard": {"requests.cpu": "250m"}, "used": {"requests.cpu": "100m"}}
    api.patch(ResourceQuotas, "q", {"status": told}, subresource="status")
    patch(api, "resize", {"containers": [{"name": "c", "resources": LARGE}]})
    assert api.get(ResourceQuotas, "q")["status"]["used"] == {"requests.cpu": "200m"}
    for cpu, why in (
        ("260m", "exceeded quota: q"),
        ("20m", "minimum cpu usage per Container is 50m"),
    ):
        wanted = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}
        error = api.fails("patch", Pods, "p", {"spec": wanted}, "strategic", subresource="resize")
        assert (error.code, why in error.message) == (403, True), error.message


# Bindings


def bind(api: Api, document: Any) -> Any:
    target = api.target(Bindings)
    outcome = api.registry.create(api.ctx, target, Body(document=document), WriteOptions())
    api.commit()
    return json.loads(outcome.body)


def test_a_binding_names_its_pod(api: Api) -> None:
    document = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    assert bind(api, document)["status"] == "Success"
    pod = api.get(Pods, "p")
    assert pod["spec"]["nodeName"] == "n"
    assert [one["type"] for one in pod["status"]["conditions"]] == ["PodScheduled"]
    for name, code in (("p", 409), ("q", 404), (None, 404)):
        with pytest.raises(StatusError) as caught:
            bind(api, {**document, "metadata": {"name": name}})
        assert caught.value.code == code


def test_a_binding_changes_what_upstreams_does(api: Api) -> None:
    """BindingREST: annotations are copied, the generation stays, a gated Pod is refused."""
    before = api.get(Pods, "p")["metadata"]["generation"]
    head = {"name": "p", "annotations": {"example.com/why": "fits"}}
    bind(api, {"metadata": head, "target": {"kind": "Node", "name": "n"}})
    metadata = api.get(Pods, "p")["metadata"]
    assert (metadata["generation"], metadata["annotations"]["example.com/why"]) == (before, "fits")
    containers = [{"name": "c", "image": "i"}]
    api.create(
        Pods,
        {
            "metadata": {"name": "gated"},
            "spec": {"containers": containers, "schedulingGates": [{"name": "g"}]},
        },
    )
    with pytest.raises(StatusError, match="pod gated has non-empty") as caught:
        bind(api, {"metadata": {"name": "gated"}, "target": {"name": "n"}})
    assert caught.value.code == 409
