"""Requests made at random from a small corpus, the schemas and a generator: what most resembles a
good request does the most harm, so most have one thing wrong, and some have none.
"""

# tables of hostile values, one thing beside the other
from __future__ import annotations

import base64
import json
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import yaml
from tests.fuzz import values
from tests.fuzz.application import Ask

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource, by_kind
from sliceplane.kit.protobuf import varint
from sliceplane.server.documents import protobuf, schema

CORPUS = Path(__file__).parent / "corpus"
OBJECTS: list[dict[str, Any]] = [
    json.loads(line) for line in (CORPUS / "objects.jsonl").read_text().splitlines()
]
BODIES = [
    line.replace("\\n", "\n").replace("\\t", "\t").encode()
    for line in (CORPUS / "bodies.txt").read_text().splitlines()
]
QUERIES = (CORPUS / "queries.txt").read_text().splitlines()
ALL = (*SERVED, *OPTIONAL_RESOURCES)

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
_ACCEPTS = (
    "",
    JSON,
    JSON,
    YAML,
    PROTOBUF,
    "*/*",
    f"{JSON};as=Table;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=Table;v=v1;g=meta.k8s.io",
    f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    f"{PROTOBUF};as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
    f"{PROTOBUF};stream=watch",
    f"{JSON};stream=watch",
    f"{JSON};pretty=1",
    f"{JSON};q=nan",
    f"{JSON};q=0,{PROTOBUF};q=inf",
    "text/html",
    ";;;",
    ",,,",
    "application/json;as=;v=;g=",
    f"{JSON};as=Table;v=v1beta1;g=meta.k8s.io",
    "é",
    f"{YAML};as=Table;v=v1;g=meta.k8s.io",
)
_HEADERS = (
    ("user-agent", "kubectl/v1"),
    ("user-agent", "\x7f\xff/1"),
    ("user-agent", "curl/8"),
    ("accept-encoding", "gzip"),
    ("audit-id", "x" * 65),
    ("audit-id", "\xff"),
    ("content-length", "٣"),
    ("content-length", "99999999999999999999"),
    ("authorization", "Bearer nope"),
    ("authorization", "Bearer "),
    ("impersonate-user", "root"),
    ("impersonate-extra-x", ""),
    ("if-none-match", '"x"'),
    ("accept-encoding", "gzip;q=0"),
    ("content-encoding", "gzip"),
    ("x-forwarded-for", "1"),
)
_OTHER_PATHS = (
    "/",
    "//",
    "/api",
    "/api/",
    "/api/v1",
    "/api/v2",
    "/apis",
    "/apis/",
    "/apis/apps",
    "/apis/apps/v1",
    "/apis/x/v1/y",
    "/openapi/v2",
    "/openapi/v3",
    "/openapi/v3/api/v1",
    "/openapi/v3/apis/apps/v1",
    "/openapi/v3/../v2",
    "/version",
    "/version/",
    "/healthz",
    "/livez/ping",
    "/readyz/etcd",
    "/livez/x",
    "/metrics",
    "/api/v1/watch",
    "/api/v1/watch/pods",
    "/logs",
    "/%00",
    "/api/%2e%2e",
    "/api/v1/namespaces/default/pods/x/log",
    "/api/v1/namespaces/default/pods/x/exec",
    "/api/v1/namespaces/default/watch/pods",
    "/" + "a/" * 3000,
    "/api/v1/componentstatuses",
    "/api/v1/namespaces/default/services/x/proxy/y",
    "/apis/apps/v1/watch/namespaces/default/deployments/web",
    "/api/v1/watch/namespaces",
    "/api/v1/watch/namespaces/default",
    "/apis/discovery.k8s.io/v1/watch/endpointslices",
)
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def resource_of(document: dict[str, Any]) -> Resource:
    """Of a corpus object; subresource bodies go to the resource that has the subresource."""
    found = by_kind(document["apiVersion"], document["kind"])
    if found is None:
        plurals = {"Binding": "pods", "Scale": "deployments", "DeleteOptions": "configmaps"}
        found = next(
            resource for resource in SERVED if resource.plural == plurals[document["kind"]]
        )
    return found


def make(rng: Random, names: list[str]) -> Ask:
    """*names*: of objects that were made already, to be met again."""
    choice = rng.random()
    if choice < 0.05:
        return _other(rng)
    document = rng.choice(OBJECTS)
    resource = resource_of(document)
    name = document.get("metadata", {}).get("name", "web")
    if names and rng.random() < 0.15:
        name = rng.choice(names)
    if rng.random() < 0.06:
        name = values.text(rng)
    if choice < 0.25:
        return _read(rng, resource, name)
    if choice < 0.33:
        return _delete(rng, resource, name)
    if choice < 0.55:
        return _patch(rng, resource, document, name)
    return _write(rng, resource, document, name)


def _path(rng: Random, resource: Resource, name: str = "", subresource: str = "") -> str:
    namespace = rng.choices(
        ("default", "team", "kube-system", "", values.text(rng)), (80, 8, 4, 4, 4)
    )[0]
    quoted = quote(name, safe="" if rng.random() < 0.8 else "/%", errors="replace")
    path = resource.path(quote(namespace, safe="", errors="replace"), quoted, subresource)
    if rng.random() < 0.01:
        path = path.replace("/", rng.choice(("//", "/./", "/%2F", "/../", "/%00/")), 2)
    return path


def _query(rng: Random, often: float = 0.3) -> bytes:
    if rng.random() > often:
        return b""
    parts = [rng.choice(QUERIES) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.15:
        token = {
            "v": "meta.k8s.io/v1",
            "rv": rng.choice((-1, 0, 1, 2, 5, 30, 2**63, -5, True, 1.0)),
            "start": rng.choice(("/", "")) + values.text(rng),
        }
        raw = json.dumps(token).encode()
        parts.append("limit=1&continue=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode())
    if rng.random() < 0.2:
        name, _, _ = rng.choice(QUERIES).partition("=")
        parts.append(f"{name}={quote(values.text(rng), errors='replace')}")
    raw = "&".join(parts).encode()
    return _mangle(rng, raw) if rng.random() < 0.05 else raw


def _headers(rng: Random, content_type: str = "") -> tuple[tuple[bytes, bytes], ...]:
    accept = rng.choice(_ACCEPTS) if rng.random() < 0.5 else JSON
    found = [("accept", accept)] if accept else []
    if content_type:
        found.append(("content-type", content_type))
    if rng.random() < 0.05:
        found.append(rng.choice(_HEADERS))
    return tuple((name.encode(), value.encode("latin-1", "replace")) for name, value in found)


def _other(rng: Random) -> Ask:
    path = rng.choice(_OTHER_PATHS)
    method = rng.choice(
        (*_METHODS, "GET", "GET", "GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "get")
    )
    return Ask(method, path, _query(rng), _headers(rng), b"")


def _read(rng: Random, resource: Resource, name: str) -> Ask:
    if rng.random() < 0.5:
        name = ""
    subresource = (
        rng.choice((*resource.subresources, "", "status", "log"))
        if name and rng.random() < 0.2
        else ""
    )
    path = _path(rng, resource, name, subresource)
    if rng.random() < 0.03:
        path = path.replace(resource.path_prefix, f"{resource.path_prefix}/watch", 1)
    query = _query(rng, 0.8)
    if rng.random() < 0.2:
        query += b"&watch=1"
    return Ask("GET", path, query, _headers(rng))


def _delete(rng: Random, resource: Resource, name: str) -> Ask:
    if rng.random() < 0.05:
        name = ""
    body, content_type = b"", ""
    if rng.random() < 0.6:
        options = next(document for document in OBJECTS if document["kind"] == "DeleteOptions")
        if rng.random() < 0.5:
            options = {"propagationPolicy": rng.choice(("Foreground", "Background", "Orphan"))}
        body, content_type = _body(rng, options, None, "v1", "DeleteOptions")
    return Ask(
        "DELETE", _path(rng, resource, name), _query(rng, 0.2), _headers(rng, content_type), body
    )


def _write(rng: Random, resource: Resource, document: dict[str, Any], name: str) -> Ask:
    subresource, method = "", rng.choice(("POST", "POST", "PUT"))
    if document["kind"] == "Binding":
        subresource, method = "binding", "POST"
    elif document["kind"] == "Scale":
        subresource, method = "scale", "PUT"
    elif method == "PUT" and resource.subresources and rng.random() < 0.3:
        subresource = rng.choice(resource.subresources)
    known = schema.lookup_kind(document["apiVersion"], document["kind"])
    sent = document
    if isinstance(document.get("metadata"), dict) and rng.random() < 0.7:
        sent = {**document, "metadata": {**document["metadata"], "name": name}}
    body, content_type = _body(rng, sent, known, resource.api_version, resource.kind)
    at = name if method == "PUT" or subresource else ""
    return Ask(
        method,
        _path(rng, resource, at, subresource),
        _query(rng, 0.2),
        _headers(rng, content_type),
        body,
    )


def _patch(rng: Random, resource: Resource, document: dict[str, Any], name: str) -> Ask:
    content_type = rng.choice(PATCHES)
    subresource = (
        rng.choice(resource.subresources) if resource.subresources and rng.random() < 0.2 else ""
    )
    known = schema.lookup_kind(document["apiVersion"], document["kind"])
    choice = rng.random()
    if choice < 0.3:
        body = rng.choice(BODIES)
    elif content_type == PATCHES[0]:
        body = _json(rng, [_operation(rng, document) for _ in range(rng.choice((1, 1, 2, 5)))])
    else:
        bent = values.bend(rng, document, known)
        body = _json(rng, _slimmed(rng, bent))
    if rng.random() < 0.08:
        body = _mangle(rng, body)
    query = _query(rng, 0.2)
    if content_type == PATCHES[3]:
        query += (
            b"&fieldManager=" + rng.choice((b"one", b"two")) + rng.choice((b"", b"&force=true"))
        )
    return Ask(
        "PATCH", _path(rng, resource, name, subresource), query, _headers(rng, content_type), body
    )


def _slimmed(rng: Random, document: Any) -> Any:
    """Half of a patch's members, as patches are."""
    if not isinstance(document, dict):
        return document
    return {
        key: _slimmed(rng, value)
        for key, value in document.items()
        if rng.random() < 0.7 or key[:1] == "$"
    }


def _operation(rng: Random, document: dict[str, Any]) -> dict[str, Any]:
    def pointer() -> str:
        found, value = "", document
        while isinstance(value, dict | list) and value and rng.random() < 0.8:
            step = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            found += "/" + str(step).replace("~", "~0").replace("/", "~1")
            value = value[step]
        return found + rng.choice(
            ("", "", "", "/", "/-", "/~", "/~2", "/0", "/00", "/-1", "/٣", "/x", "/" + "9" * 30)
        )

    operation: dict[str, Any] = {
        "op": rng.choice(("add", "remove", "replace", "move", "copy", "test")),
        "path": pointer(),
    }
    if operation["op"] in ("move", "copy"):
        operation["from"] = pointer()
    elif rng.random() < 0.95:
        operation["value"] = values.anything(rng)
    if rng.random() < 0.05:
        operation[rng.choice(("op", "path", "value", "from", "x"))] = values.anything(rng)
    return operation


# Bodies


def _body(
    rng: Random, document: dict[str, Any], known: Any, api_version: str, kind: str
) -> tuple[bytes, str]:
    """The bytes and the content type."""
    choice = rng.random()
    if choice < 0.04:
        return rng.choice(BODIES), rng.choice((JSON, YAML, ""))
    bent = document if choice < 0.2 else values.bend(rng, document, known)
    form = rng.random()
    if form < 0.25:
        return _protobuf(rng, document, bent, api_version, kind), PROTOBUF
    if form < 0.4:
        return _yaml(rng, bent), YAML
    raw = _json(rng, bent)
    content_type = rng.choice(
        (JSON, JSON, JSON, JSON, "", f"{JSON}; charset=utf-8", YAML, "text/plain", PROTOBUF)
    )
    return (_mangle(rng, raw) if rng.random() < 0.08 else raw), content_type


def _json(rng: Random, value: Any) -> bytes:
    return json.dumps(
        value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1))
    ).encode("utf-8", "surrogatepass")


def _yaml(rng: Random, value: Any) -> bytes:
    if rng.random() < 0.15:
        return rng.choice(BODIES)
    try:
        raw = yaml.safe_dump(
            value, allow_unicode=True, default_flow_style=rng.choice((None, True, False))
        ).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, RecursionError):
        raw = _json(rng, value)
    return _mangle(rng, raw) if rng.random() < 0.15 else raw


def _protobuf(
    rng: Random, document: dict[str, Any], bent: Any, api_version: str, kind: str
) -> bytes:
    try:
        sent = {"apiVersion": api_version, "kind": kind, **(bent if isinstance(bent, dict) else {})}
        raw = protobuf.encode(sent)
    except (
        StatusError,
        UnicodeError,
        RecursionError,
    ):  # a bent document need not have a protobuf form
        sent = {**document, "apiVersion": api_version, "kind": kind}
        raw = protobuf.encode(sent) if protobuf.supports(api_version, kind) else protobuf.MAGIC
    choice = rng.random()
    if choice < 0.35:
        return raw
    if choice < 0.45:
        return raw[:4] + _message(rng)
    if choice < 0.6:
        at = rng.randrange(4, len(raw) + 1)
        return raw[:at] + _message(rng) + raw[at:]
    return _mangle(rng, raw)


def _message(rng: Random, depth: int = 0) -> bytes:
    """Fields of any wire type, some of which cannot be."""
    out = b""
    for _ in range(rng.choice((1, 2, 4))):
        number, wire = rng.choice((1, 2, 3, 4, 5, 15, 16, 2**28, 2**29 - 1, 0)), rng.randrange(8)
        out += varint(number << 3 | wire)
        if wire == 0:
            out += rng.choice(
                (
                    b"\x00",
                    b"\x80\x00",
                    b"\xff" * 9 + b"\x01",
                    b"\xff" * 10,
                    b"\xff" * 9 + b"\x7f",
                    b"\x80",
                )
            )
        elif wire == 2:
            inner = (
                _message(rng, depth + 1)
                if depth < 4 and rng.random() < 0.5
                else values.text(rng).encode("utf-8", "surrogatepass")
            )
            out += (
                rng.choice(
                    (varint(len(inner)), varint(len(inner)), varint(2**63), varint(2**31), b"\xff")
                )
                + inner
            )
        elif wire in (1, 5):
            out += bytes(rng.randrange(256) for _ in range(rng.choice((8, 4, 3))))
        elif wire == 3:
            out += varint(number << 3 | 3) * rng.choice((0, 1, 5000)) + varint(number << 3 | 4)
    return out


def _mangle(rng: Random, raw: bytes) -> bytes:
    """A few bytes changed, cut, repeated or moved."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 1, 2, 4, 16))
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = bytes(rng.randrange(256) for _ in range(size))
            case 3:
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 100))
            case 4:
                data[at:at] = rng.choice(
                    (
                        b"\xff",
                        b"\xc0\x80",
                        b"\xed\xa0\x80",
                        b"\x00",
                        b"\xef\xbb\xbf",
                        b"\xe2\x80\xa8",
                        b"\x85",
                        b"[" * 300,
                        b'{"a":' * 300,
                    )
                )
            case 5:
                del data[at:]
    return bytes(data)
