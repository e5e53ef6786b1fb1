"""Bodies of up to 3 MiB, each made to take long: of tiny values, deep, wide, in every encoding and
by every verb.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.fuzz.application import Ask
from tests.fuzz.requests import JSON, PROTOBUF, YAML

from sliceplane.server.documents import protobuf
from sliceplane.server.io.requests.request import BODY_BYTES_MAX

DEFAULT = "/api/v1/namespaces/default"
CONFIG_MAPS, ENDPOINTS, PODS = f"{DEFAULT}/configmaps", f"{DEFAULT}/endpoints", f"{DEFAULT}/pods"
SERVICES = f"{DEFAULT}/services"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
STRATEGIC, JSON_PATCH = "application/strategic-merge-patch+json", "application/json-patch+json"
_ROOM = BODY_BYTES_MAX - 4096


def asked(
    method: str, path: str, body: bytes, media: str = JSON, query: bytes = b"", accept: str = JSON
) -> Ask:
    assert len(body) <= BODY_BYTES_MAX, f"{len(body)} bytes would be refused unread"
    headers = ((b"content-type", media.encode()), (b"accept", accept.encode()))
    return Ask(method, path, query, headers, body)


def _object(kind: str, **members: Any) -> bytes:
    return json.dumps(
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "big"}, **members}
    ).encode()


def _unknown(element: bytes) -> bytes:
    head = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"big"},"x":['
    return head + b",".join([element] * (_ROOM // (len(element) + 1))) + b"]}"


def _addresses(count: int) -> list[dict[str, Any]]:
    addresses = [{"ip": f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"} for n in range(count)]
    return [{"addresses": addresses, "ports": [{"port": 1, "name": "a"}]}]


def _names(count: int) -> dict[str, str]:
    return {f"k{number}": "" for number in range(count)}


def _protobuf(document: dict[str, Any]) -> bytes:
    return protobuf.encode({"apiVersion": "v1", "metadata": {"name": "big"}, **document})


def _managed(count: int) -> list[dict[str, Any]]:
    return [
        {
            "manager": f"m{number}",
            "operation": "Update",
            "apiVersion": "v1",
            "time": "2020-01-01T00:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, f"f:k{number}": {}}},
        }
        for number in range(count)
    ]


def _with_metadata(**members: Any) -> bytes:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big", **members}}
    ).encode()


def _yaml(rest: bytes) -> bytes:
    return b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: big}\n" + rest


#: by name: made when it is their turn, since together they are large
BODIES: dict[str, Callable[[], Ask]] = {
    "a million empty lists": lambda: asked("POST", CONFIG_MAPS, _unknown(b"[]")),
    "a million empty objects": lambda: asked("POST", CONFIG_MAPS, _unknown(b"{}")),
    "a million numbers": lambda: asked("POST", CONFIG_MAPS, _unknown(b"0")),
    "a million nulls": lambda: asked("POST", CONFIG_MAPS, _unknown(b"null")),
    "unknown members": lambda: asked("POST", CONFIG_MAPS, _object("ConfigMap", **_names(200_000))),
    "nesting": lambda: asked("POST", CONFIG_MAPS, _unknown(b"[" * 900 + b"]" * 900)),
    "a repeated member": lambda: asked(
        "POST", CONFIG_MAPS, b'{"data":{' + b'"a":"b",' * 390_000 + b'"a":"b"}}'
    ),
    "an error at the end": lambda: asked("POST", CONFIG_MAPS, b'{"x":[' + b"0," * 1_500_000),
    "one long string": lambda: asked(
        "POST", CONFIG_MAPS, _object("ConfigMap", data={"a": "x" * 3_000_000})
    ),
    "escapes": lambda: asked(
        "POST", CONFIG_MAPS, b'{"data":{"a":"' + b"\\u00e9" * 500_000 + b'"}}'
    ),
    "many keys": lambda: asked("POST", CONFIG_MAPS, _object("ConfigMap", data=_names(200_000))),
    "labels": lambda: asked("POST", CONFIG_MAPS, _with_metadata(labels=_names(200_000))),
    "annotations": lambda: asked("POST", CONFIG_MAPS, _with_metadata(annotations=_names(200_000))),
    "finalizers": lambda: asked(
        "POST", CONFIG_MAPS, _with_metadata(finalizers=[f"a/{n}" for n in range(200_000)])
    ),
    "managed fields": lambda: asked(
        "POST", CONFIG_MAPS, _with_metadata(managedFields=_managed(17_000))
    ),
    "containers": lambda: asked(
        "POST", PODS, _object("Pod", spec={"containers": [{"name": "a", "image": "b"}] * 90_000})
    ),
    "environment": lambda: asked(
        "POST",
        PODS,
        _object(
            "Pod",
            spec={
                "containers": [
                    {"name": "a", "image": "b", "env": [{"name": f"e{n}"} for n in range(120_000)]}
                ]
            },
        ),
    ),
    "addresses": lambda: asked(
        "POST", ENDPOINTS, _object("Endpoints", subsets=_addresses(100_000))
    ),
    "service ports": lambda: asked(
        "POST",
        SERVICES,
        _object(
            "Service",
            spec={"ports": [{"port": n % 65_535 + 1, "name": f"p{n}"} for n in range(80_000)]},
        ),
    ),
    "yaml of words": lambda: asked(
        "POST", CONFIG_MAPS, _yaml(b"x: [" + b"a," * 1_500_000 + b"a]\n"), YAML
    ),
    "yaml of aliases": lambda: asked(
        "POST", CONFIG_MAPS, _yaml(b"x:\n- &a b\n" + b"- *a\n" * 600_000), YAML
    ),
    "yaml of anchors": lambda: asked(
        "POST", CONFIG_MAPS, _yaml(b"x:\n" + b"- &a b\n" * 400_000), YAML
    ),
    "yaml of merges": lambda: asked(
        "POST",
        CONFIG_MAPS,
        _yaml(
            b"d: &d {"
            + b",".join(b"k%d: v" % n for n in range(80_000))
            + b"}\nx:\n"
            + b"- {<<: *d}\n" * 100_000
        ),
        YAML,
    ),
    "protobuf of addresses": lambda: asked(
        "POST",
        ENDPOINTS,
        _protobuf({"kind": "Endpoints", "subsets": _addresses(140_000)}),
        PROTOBUF,
    ),
    "protobuf of keys": lambda: asked(
        "POST", CONFIG_MAPS, _protobuf({"kind": "ConfigMap", "data": _names(200_000)}), PROTOBUF
    ),
    "protobuf of labels": lambda: asked(
        "POST",
        CONFIG_MAPS,
        _protobuf({"kind": "ConfigMap", "metadata": {"labels": _names(200_000)}}),
        PROTOBUF,
    ),
    "protobuf of nothing": lambda: asked(
        "POST", CONFIG_MAPS, b"k8s\x00" + b"\x0a\x00" * 1_500_000, PROTOBUF
    ),
    "a json patch": lambda: asked(
        "PATCH",
        f"{CONFIG_MAPS}/small",
        json.dumps(
            [{"op": "add", "path": f"/data/a{n}", "value": ""} for n in range(50_000)]
        ).encode(),
        JSON_PATCH,
    ),
    "a merge patch": lambda: asked(
        "PATCH", f"{CONFIG_MAPS}/small", json.dumps({"data": _names(200_000)}).encode(), MERGE
    ),
    "a strategic patch": lambda: asked(
        "PATCH",
        f"{ENDPOINTS}/small",
        json.dumps({"metadata": {"labels": _names(200_000)}}).encode(),
        STRATEGIC,
    ),
    "an apply of yaml": lambda: asked(
        "PATCH",
        f"{CONFIG_MAPS}/applied",
        b"kind: ConfigMap\napiVersion: v1\nmetadata: {name: applied}\ndata:\n"
        + b"".join(b"  k%d: v\n" % n for n in range(200_000)),
        APPLY,
        b"fieldManager=x",
    ),
    "an apply of json": lambda: asked(
        "PATCH",
        f"{ENDPOINTS}/applied",
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": {"name": "applied"},
                "subsets": _addresses(90_000),
            }
        ).encode(),
        APPLY,
        b"fieldManager=x",
    ),
    "options of a delete": lambda: asked("DELETE", f"{CONFIG_MAPS}/small", _unknown(b"[]")),
    "a question": lambda: asked(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        json.dumps(
            {
                "spec": {
                    "user": "a",
                    "groups": ["b"] * 500_000,
                    "nonResourceAttributes": {"path": "/"},
                }
            }
        ).encode(),
    ),
}
