"""The values of a case, frozen: the stage executes them and the model reads them.

A *step* is a write, a trouble of the server, or a checkpoint. Writes carry whole objects, so that a
step means the same whatever came before, and a shrunk history stays legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Document = Mapping[str, Any]

SERVICE: Final = "web"
#: where the consumer under test believes to be
ZONE: Final = "east"
NODE: Final = "east-1"
NODE_ADDRESS: Final = "192.0.2.1"
#: of the Service itself, before its endpoints' ports
SERVICE_PORT: Final = 80

#: what a consumer may honour beyond the ready endpoints: hints for its place, serving endpoints
#: that terminate where none is ready (KEP-1669), and ``internalTrafficPolicy: Local`` (KEP-2086)
Claim = Literal["hints", "fallback", "local"]
#: what a consumer may be unable to tell, so that a case says nothing of it; "families" is one
#: address type of several
Need = Literal["large", "unnamed-port", "families", "silence"]


class Put(msgspec.Struct, frozen=True):
    """Create the object, or make it this."""

    object: Document

    def __str__(self) -> str:
        return f"write {named(self.object)}: {describe(self.object)}"


class Delete(msgspec.Struct, frozen=True):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"delete {self.kind} {self.name}"


class Cut(msgspec.Struct, frozen=True):
    """Every open watch ends in the middle of its answer."""

    def __str__(self) -> str:
        return "cut the watches"


class Away(msgspec.Struct, frozen=True):
    """The server cannot be reached until ``Back``."""

    def __str__(self) -> str:
        return "the API server goes away"


class Back(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "the API server is back"


class Expire(msgspec.Struct, frozen=True):
    """The history is forgotten and watches are cut: who goes on from what it knows gets 410
    Gone.
    """

    def __str__(self) -> str:
        return "forget the history: 410 Gone"


class Bookmark(msgspec.Struct, frozen=True):
    """Watches that want bookmarks get one, and nothing else."""

    def __str__(self) -> str:
        return "bookmarks alone"


class Silence(msgspec.Struct, frozen=True):
    """Open watches say nothing more, and their connections stay."""

    def __str__(self) -> str:
        return "the watches fall silent"


class Refuse(msgspec.Struct, frozen=True):
    """The next *times* requests for slices, or *watches* of anything, get a Status of *code*."""

    code: int
    times: int
    watches: bool = False

    def __str__(self) -> str:
        return (
            f"refuse {self.times} {'watches' if self.watches else 'requests for slices'} with "
            f"{self.code}"
        )


class Check(msgspec.Struct, frozen=True):
    """The consumer must come to believe what is right, and stay with it."""

    def __str__(self) -> str:
        return "check"


Step = Put | Delete | Cut | Away | Back | Expire | Bookmark | Silence | Refuse | Check
CHECK: Final = Check()
CUT: Final = Cut()
AWAY: Final = Away()
BACK: Final = Back()
EXPIRE: Final = Expire()
BOOKMARK: Final = Bookmark()


class PortQuery(msgspec.Struct, frozen=True):
    """The question to the consumer: the endpoints of the Service *web* at one port and family."""

    port: str = "http"
    family: Literal["IPv4", "IPv6"] = "IPv4"


class Case(msgspec.Struct, frozen=True):
    """One history.  *name* is unique and stays; *cites* are public issues (``owner/repo#number``)
    or documents.
    """

    name: str
    title: str
    cites: tuple[str, ...]
    steps: tuple[Step, ...]
    #: what happens before the consumer starts
    setup: tuple[Step, ...] = ()
    query: PortQuery = msgspec.field(default=PortQuery())
    needs: frozenset[Need | Claim] = frozenset()


def named(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def describe(document: Document) -> str:
    """A slice in a line, for people who look for the step that hurts."""
    if document["kind"] != "EndpointSlice":
        policy = document["spec"].get("internalTrafficPolicy")
        ports = "ports " + ", ".join(
            str(port.get("name")) for port in document["spec"].get("ports", ())
        )
        return f"{ports}, internalTrafficPolicy {policy}" if policy else ports
    endpoints = document["endpoints"]
    texts = [_endpoint(endpoint) for endpoint in endpoints[:4]]
    if len(endpoints) > len(texts):
        texts.append(f"and {len(endpoints) - len(texts)} more")
    parts = [", ".join(texts) or "no endpoints"]
    if document["ports"] != [{"name": "http", "port": 8080, "protocol": "TCP"}]:
        parts.append(
            "at "
            + (
                ", ".join(f"{port['name']} {port['port']}" for port in document["ports"])
                or "no port"
            )
        )
    service = document["metadata"]["labels"].get("kubernetes.io/service-name")
    if service != SERVICE:
        parts.append(f"for {service}" if service else "for no Service")
    return " ".join(parts)


def _endpoint(endpoint: Document) -> str:
    conditions = [
        f"{name}={str(value).lower()}" for name, value in (endpoint.get("conditions") or {}).items()
    ]
    return " ".join([endpoint["addresses"][0], *conditions])


__all__ = [
    "AWAY",
    "BACK",
    "BOOKMARK",
    "CHECK",
    "CUT",
    "EXPIRE",
    "NODE",
    "NODE_ADDRESS",
    "SERVICE",
    "SERVICE_PORT",
    "ZONE",
    "Away",
    "Back",
    "Bookmark",
    "Case",
    "Check",
    "Claim",
    "Cut",
    "Delete",
    "Document",
    "Expire",
    "Need",
    "PortQuery",
    "Put",
    "Refuse",
    "Silence",
    "Step",
    "describe",
    "named",
]
