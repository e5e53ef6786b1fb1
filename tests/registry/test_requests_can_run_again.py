"""A request may run several times, as another server may have been first: running leaves it as it
was.
"""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from hypothesis import given
from tests.effort import effort
from tests.registry.test_registry_machine import steps

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps, Pods, Services
from sliceplane.server.registry.types import Body, Target, WriteOptions


@effort(60)
@given(step=steps())
def test_a_body_is_not_changed(make_api: Any, step: Any) -> None:
    verb, resource, document, _, dry = step
    if verb not in ("create", "update"):
        verb = "create"
    api = make_api()
    before = copy.deepcopy(document)
    target = Target(
        resource=resource,
        namespace="default",
        name=document["metadata"]["name"] * (verb == "update"),
    )
    for _ in range(2):
        with contextlib.suppress(StatusError):
            getattr(api.registry, verb)(
                api.ctx, target, Body(document=document), WriteOptions(dry_run=dry)
            )
        assert document == before


def test_a_body_with_owners_of_fields_and_a_read_object_written_back(make_api: Any) -> None:
    api = make_api()
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}}
    created = json.loads(api.create(Services, {"metadata": {"name": "s"}, "spec": spec}).body)
    created["spec"]["selector"] = {"a": "c"}
    before = copy.deepcopy(created)
    target = Target(resource=Services, namespace="default", name="s")
    api.registry.update(api.ctx, target, Body(document=created), WriteOptions(field_manager="m"))
    assert created == before
    api.store.abort_staged()
    api.registry.on_aborted()
    again = api.registry.update(
        api.ctx, target, Body(document=created), WriteOptions(field_manager="m")
    )
    assert created == before
    assert json.loads(again.body)["spec"]["selector"] == {"a": "c"}


def test_a_binding_and_a_name_to_be_made(make_api: Any) -> None:
    api = make_api()
    api.create(
        Pods, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    )
    binding = {
        "kind": "Binding",
        "apiVersion": "v1",
        "metadata": {"name": "p"},
        "target": {"name": "n"},
    }
    generated = {"metadata": {"generateName": "g-"}, "data": {}}
    before = copy.deepcopy((binding, generated))
    target = Target(resource=Pods, namespace="default", name="p", subresource="binding")
    api.registry.create(api.ctx, target, Body(document=binding), WriteOptions())
    api.registry.create(
        api.ctx,
        Target(resource=ConfigMaps, namespace="default"),
        Body(document=generated),
        WriteOptions(),
    )
    assert (binding, generated) == before
