"""Cases for everything that a client can see: one line of the reference each, as data.

A row of a table ``CASES`` is ``[line, method, path, code, message, {body, sent, headers}]``, of
which the last two may be absent. A text may begin with one of the names below: ``$SLICES/x``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.server.serving import Reply, Server
from tests.tables import tables

NAMESPACES = "/api/v1/namespaces"
CONFIG_MAPS = f"{NAMESPACES}/default/configmaps"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EVENTS = f"{NAMESPACES}/default/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
YAML = "application/yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@dataclass(frozen=True)
class Case:
    """A request and what comes back.  ``told``: the message of a Status, or a part of any other
    body.
    """

    line: str
    method: str
    path: str
    code: int
    told: str = ""
    body: Any = None
    sent: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str | None] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.line} {self.method} {self.path}"[:80]


def cases(test_file: str) -> list[Case]:
    """The cases of a file of tests."""
    return [
        Case(line, method, path, code, *rest[:1], **dict(*rest[1:]))
        for line, method, path, code, *rest in map(_spelled, tables(test_file)["CASES"])
    ]


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _spelled(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        return re.sub(r"\$(\w+)", lambda name: globals()[name[1]], value, count=1)
    return value


def check(server: Server, case: Case) -> Reply:
    """Sends the request of *case*; the reply, if it is as it should be."""
    reply = server.request(case.method, case.path, case.body, **case.sent)
    assert reply.code == case.code, f"{case}: {reply.code} {reply.body[:300]!r}"
    if case.told:
        if reply.body.startswith(b'{"kind":"Status"') and reply.json["status"] == "Failure":
            assert reply.json["message"] == case.told
        else:
            assert case.told in reply.body.decode(), reply.body[:300]
    for name, value in case.headers.items():
        assert reply.headers.get(name) == value, f"{name}: {reply.headers.get(name)}"
    return reply


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"a": "b"}}


def make(server: Server, *names: str, **metadata: Any) -> dict[str, Any]:
    """ConfigMaps in the namespace ``default``; the last one as it was created."""
    reply = None
    for name in names:
        reply = server.request("POST", CONFIG_MAPS, config_map(name, **metadata))
        assert reply.code == 201, reply.body
    assert reply is not None, "make() needs a name"
    made: dict[str, Any] = reply.json
    return made
