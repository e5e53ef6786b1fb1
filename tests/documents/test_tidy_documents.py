"""The quick yes of ``server.registry.decoding`` against the walks that it stands for: documents
made from the schema at random, most of them with something in them that does not stay.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import msgspec
import pytest

from sliceplane.api import codec
from sliceplane.api.schema import Type, lookup, struct
from sliceplane.api.scheme import Resource, by_key
from sliceplane.server.documents import schema
from sliceplane.server.documents.protobuf.nothings import drop_nothings
from sliceplane.server.registry.decoding import is_tidy
from sliceplane.server.registry.documents import normalised

DOCUMENTS = 400
DEPTH_MAX = 6
KINDS = (
    "configmaps",
    "deployments.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "endpointslices.v1beta1.discovery.k8s.io",
    "events",
    "leases.coordination.k8s.io",
    "namespaces",
    "nodes",
    "pods",
    "resourcequotas",
    "secrets",
    "servicecidrs.networking.k8s.io",
    "services",
)
GOOD: dict[str, tuple[Any, ...]] = {
    "any": ("x", 1, {"a": [1]}, {"b": {"c": True}}),
    "bool": (True,),
    "bytes": ("YQ==",),
    "int32": (1, 80),
    "int64": (1, 1 << 40),
    "intOrString": (80, "http"),
    "microTime": ("2026-11-21T10:00:00.000000Z",),
    "quantity": ("1", "100m"),
    "string": ("a", "b c"),
    "time": ("2026-11-21T10:00:00Z",),
}
#: nothings, strangers and what is merely unusual
ODD: dict[str, tuple[Any, ...]] = {
    "any": (None, [], {}, {"a": None}, {"a": {"b": []}}, [None]),
    "bool": (False, None, 0),
    "bytes": ("", None),
    "int32": (0, -1, None, True),
    "int64": (0, -1, None, "1"),
    "intOrString": (0, "", None),
    "microTime": (None, "2026-11-21T10:00:00Z"),
    "quantity": (1, None, ""),
    "string": ("", None, 1),
    "time": (None, ""),
}


def made(rng: random.Random, kind: Type, odds: float, depth: int) -> Any:
    if rng.random() < odds:
        return rng.choice(ODD.get(kind.kind, (None, [], {}, [None], {"a": ""}, {"": 1})))
    match kind.kind:
        case "struct":
            members = {}
            for field in struct(kind.name).fields.values():
                if depth < DEPTH_MAX and rng.random() < 2.5 / len(struct(kind.name).fields):
                    members[field.name] = made(rng, field.type, odds, depth + 1)
            return members
        case "list":
            return [made(rng, kind.element, odds, depth + 1) for _ in range(rng.randint(1, 2))]
        case "map":
            return {
                name: made(rng, kind.element, odds, depth + 1)
                for name in rng.sample("abc", rng.randint(1, 2))
            }
        case scalar:
            return rng.choice(GOOD[scalar])


def stays(resource: Resource, document: Any) -> bool:
    """Do the walks leave *document* as it is?"""
    if not schema.accepts(resource.schema_key, document):
        return False
    bare = {
        **document,
        "metadata": {n: v for n, v in document.get("metadata", {}).items() if n != "managedFields"},
    }
    try:
        walked = normalised(copy.deepcopy(bare))
    except ValueError:
        return False
    drop_nothings(resource.api_version, resource.kind, walked)
    try:
        msgspec.convert(walked, resource.projection)
    except msgspec.ValidationError:
        return False
    return codec.encode(walked) == codec.encode(bare)


@pytest.mark.parametrize("key", KINDS)
def test_a_tidy_document_is_one_that_no_walk_changes(key: str) -> None:
    resource = by_key(key)
    assert resource is not None
    rng = random.Random(key)
    tidy = untidy = 0
    for number in range(DOCUMENTS):
        document = made(rng, Type("struct", name=lookup(key).name), rng.choice((0.0, 0.02, 0.1)), 0)
        if not isinstance(document, dict) or not isinstance(document.get("metadata", {}), dict):
            continue
        if is_tidy(key, document):
            tidy += 1
            assert stays(resource, document), f"document {number}: {document}"
        else:
            untidy += 1
    # It says yes where that is what it is for, and does not say it always.
    assert tidy > DOCUMENTS // 4, tidy
    assert untidy > DOCUMENTS // 20, untidy


POD = {
    "metadata": {"name": "a", "labels": {"a": ""}, "managedFields": []},
    "spec": {
        "containers": [
            {"name": "m", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}]}
        ]
    },
}


def test_labels_may_be_empty_and_what_is_tracked_is_not_looked_at() -> None:
    assert is_tidy("pods", POD)


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": False},
        {"priority": None},
        {"containers": []},
        {"nodeName": ""},
        {"nodeSelector": {}},
        {"x": 1},
    ],
)
def test_what_go_leaves_out_is_untidy(spec: dict[str, Any]) -> None:
    assert not is_tidy("pods", {**POD, "spec": spec})
