"""The simulator's server reads what the real one reads."""

from __future__ import annotations

import json

import pytest

from sliceplane.api.requests import SUBRESOURCES, Subresource
from sliceplane.api.scheme import RESOURCES, ServiceAccounts
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.scheduler import Scheduler
from sliceplane.lab.sim.server import Server
from sliceplane.server.registry.decoding import body_of_json
from sliceplane.watch.controller.base import Write


@pytest.mark.parametrize(
    "row", [row for row in SUBRESOURCES.values() if row.body], ids=lambda row: row.name
)
def test_an_object_of_another_kind_at_a_subresource(row: Subresource) -> None:
    """A strict reader of the resource's own kind would complain of every member."""
    assert row.body is not None
    resource = next(resource for resource in RESOURCES if row.name in resource.subresources)
    head = {"apiVersion": row.body.api_version, "kind": row.body.kind}
    body = json.dumps({**head, "spec": {"replicas": 1, "audiences": ["x"]}}).encode()
    decoded = body_of_json(resource, row.name, body)
    assert (decoded.document["kind"], decoded.problems) == (row.body.kind, ())


def test_a_token_is_asked_for_and_not_a_service_account() -> None:
    server = Server(Scheduler(0.0), Rng(1))
    body = json.dumps({"metadata": {"name": "builder"}}).encode()
    server.execute(Write(verb="create", resource=ServiceAccounts, namespace="default", body=body))
    asked = json.dumps(
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    )
    write = Write(
        verb="create",
        resource=ServiceAccounts,
        namespace="default",
        name="builder",
        subresource="token",
        body=asked.encode(),
    )
    token = json.loads(server.execute(write))["status"]["token"]
    user = server.registry.authenticate(token, 1.0)
    assert user is not None
    assert user.name == "system:serviceaccount:default:builder"
    assert server.registry.authenticate("nonsense", 1.0) is None
