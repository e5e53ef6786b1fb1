"""The scale subresource of Deployments and ReplicaSets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.scheme import Deployments, ReplicaSets

TABLES = tables(__file__)

TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


@pytest.fixture(params=[Deployments, ReplicaSets], ids=lambda resource: resource.plural)
def scaled(request: Any, api: Any) -> Any:
    resource = request.param
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
    api.create(resource, {"metadata": {"name": "w"}, "spec": spec})
    return api, resource


def test_get(scaled: Any) -> None:
    api, resource = scaled
    whole, scale = api.get(resource, "w"), api.get(resource, "w", subresource="scale")
    assert scale == {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            member: whole["metadata"][member]
            for member in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        },
        "spec": {"replicas": 2},
        "status": {"replicas": 0, "selector": "a=b"},
    }


def test_put_and_patch(scaled: Any) -> None:
    api, resource = scaled
    scale = api.get(resource, "w", subresource="scale")
    scale["spec"]["replicas"] = 5
    answer = json.loads(api.update(resource, "w", scale, subresource="scale").body)
    assert (answer["kind"], answer["spec"]) == ("Scale", {"replicas": 5})
    assert api.get(resource, "w")["spec"]["replicas"] == 5
    assert api.get(resource, "w")["metadata"]["generation"] == 2
    assert api.fails("update", resource, "w", scale, subresource="scale").code == 409
    answer = json.loads(
        api.patch(resource, "w", {"spec": {"replicas": 0}}, subresource="scale").body
    )
    assert answer["spec"] == {}
    assert api.get(resource, "w")["spec"]["replicas"] == 0
    operations = [{"op": "add", "path": "/spec/replicas", "value": 3}]
    assert api.patch(resource, "w", operations, "json", subresource="scale").code == 200
    assert (
        api.patch(
            resource, "w", {"spec": {"replicas": 3}}, "strategic", subresource="scale"
        ).revision
        == 0
    )


@pytest.mark.parametrize(("patch", "code", "message"), TABLES["refused"])
def test_refused(scaled: Any, patch: Any, code: int, message: str | None) -> None:
    api, resource = scaled
    error = api.fails("patch", resource, "w", patch, subresource="scale")
    assert error.code == code
    if message:
        assert error.message == message


def test_missing(api: Any) -> None:
    assert api.fails("get", Deployments, "w", subresource="scale").code == 404
    assert api.fails("update", Deployments, "w", {}, subresource="scale").code == 404
