"""What a controller of this process encoded is decoded once and not looked through: the outcome
must be the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.codec import OwnJson, encode
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.decoding import body_of_json
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Context, Target, WriteOptions
from sliceplane.server.store.mvcc import Store

CONTEXT = Context(
    now=1_800_000_000.0,
    user=User(name="system:kube-controller-manager", groups=("system:masters",)),
)
OPTIONS = WriteOptions(field_manager="kube-controller-manager", field_validation="Strict")


def slice_of(count: int, **metadata: Any) -> dict[str, Any]:
    endpoints = [
        {
            "addresses": [f"10.0.0.{number}"],
            "conditions": {"ready": True},
            "nodeName": "n",
            "zone": "a",
        }
        for number in range(1, count + 1)
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "default", **metadata},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}] if count else [],
    }


def endpoints_of(count: int) -> dict[str, Any]:
    addresses = [{"ip": f"10.0.{number // 250}.{number % 250}"} for number in range(1, count + 1)]
    subsets = [{"addresses": addresses, "ports": [{"port": 80}]}] if count else []
    head = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "web-1", "namespace": "default"},
    }
    return {**head, "subsets": subsets} if count else head


def stored(resource: Resource, documents: list[dict[str, Any]], kind: type[bytes]) -> list[bytes]:
    """The bodies after a create and updates, all of them sent as *kind*."""
    store = Store(revision=1, compacted=1)
    registry = Registry(store, rng=Rng(7), config=RegistryConfig())
    registry.bootstrap(CONTEXT.now)
    bodies = []
    for number, document in enumerate(documents):
        body = body_of_json(resource, "", kind(encode(document)))
        if not number:
            outcome = registry.create(
                CONTEXT, Target(resource=resource, namespace="default"), body, OPTIONS
            )
        else:
            target = Target(resource=resource, namespace="default", name="web-1")
            outcome = registry.update(CONTEXT, target, body, OPTIONS)
        bodies.append(outcome.body)
    return bodies


@pytest.mark.parametrize(
    ("resource", "documents"),
    [
        (EndpointSlices, [slice_of(3), slice_of(4), slice_of(0)]),
        (
            EndpointSlices,
            [
                slice_of(2, labels={"a": "b"}),
                slice_of(2, labels={}),
                slice_of(2, labels={}, finalizers=[]),
            ],
        ),
        (EndpointsObjects, [endpoints_of(3), endpoints_of(900), endpoints_of(0)]),
    ],
    ids=["slices", "what Go would leave out", "endpoints"],
)
def test_own_bytes_are_stored_as_those_of_a_client(
    resource: Resource, documents: list[dict[str, Any]]
) -> None:
    assert stored(resource, documents, OwnJson) == stored(resource, documents, bytes)


def test_what_an_attempt_decodes_is_its_own() -> None:
    """A write over etcd may run again: the body must be as it was."""
    store = Store(revision=1, compacted=1)
    registry = Registry(store, rng=Rng(7), config=RegistryConfig())
    registry.bootstrap(CONTEXT.now)
    body = body_of_json(EndpointSlices, "", OwnJson(encode(slice_of(2))))
    target = Target(resource=EndpointSlices, namespace="default")
    first = registry.create(CONTEXT, target, body, WriteOptions(dry_run=True, field_manager="m"))
    assert (
        registry.create(CONTEXT, target, body, WriteOptions(dry_run=True, field_manager="m")).code
        == first.code
        == 201
    )
    assert body.document == {}
