"""The steps of a case as frozen values: the stage executes them and the model reads them.

A *step* is a write, a server fault, or a checkpoint. Writes contain whole objects, so a step means
the same whatever came before, and a shortened history stays legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

Document = Mapping[str, Any]

SERVICE: Final = "web"
#: location of the consumer under test
ZONE: Final = "east"
NODE: Final = "east-1"
NODE_ADDRESS: Final = "192.0.2.1"
#: port of the Service itself, not of its endpoints
SERVICE_PORT: Final = 80

#: what a consumer may honour beyond the ready endpoints: hints for its location, serving
#: terminating endpoints if none is ready (KEP-1669), and ``internalTrafficPolicy: Local``
#: (KEP-2086)
Claim = Literal["hints", "fallback", "local"]
#: abilities that a consumer may lack, so that a case does not apply; "families": selecting one of
#: several address types
Need = Literal["large", "unnamed-port", "families", "silence"]


class Put(msgspec.Struct, frozen=True):
    """Creates or replaces the object."""

    object: Document

    def __str__(self) -> str:
        return f"write {named(self.object)}: {describe(self.object)}"


class Delete(msgspec.Struct, frozen=True):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"delete {self.kind} {self.name}"


class Cut(msgspec.Struct, frozen=True):
    """Cuts every open watch in the middle of its answer."""

    def __str__(self) -> str:
        return "cut the watches"


class Away(msgspec.Struct, frozen=True):
    """Makes the server unreachable until ``Back``."""

    def __str__(self) -> str:
        return "the API server goes away"


class Back(msgspec.Struct, frozen=True):
    def __str__(self) -> str:
        return "the API server is back"


class Expire(msgspec.Struct, frozen=True):
    """Compacts the history and cuts the watches: a client that resumes gets 410 Gone."""

    def __str__(self) -> str:
        return "forget the history: 410 Gone"


class Bookmark(msgspec.Struct, frozen=True):
    """Sends a bookmark to watches that request them, and nothing else."""

    def __str__(self) -> str:
        return "bookmarks alone"


class Silence(msgspec.Struct, frozen=True):
    """Silences open watches while their connections stay open."""

    def __str__(self) -> str:
        return "the watches fall silent"


class Refuse(msgspec.Struct, frozen=True):
    """Answers the next *times* requests for slices, or *watches* of anything, with a Status of
    *code*.
    """

    code: int
    times: int
    watches: bool = False

    def __str__(self) -> str:
        return (
            f"refuse {self.times} {'watches' if self.watches else 'requests for slices'} with "
            f"{self.code}"
        )


class Check(msgspec.Struct, frozen=True):
    """A checkpoint: the consumer must reach the correct belief and keep it."""

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
    """The query to the consumer: the endpoints of the Service *web* for one port and family."""

    port: str = "http"
    family: Literal["IPv4", "IPv6"] = "IPv4"


class Case(msgspec.Struct, frozen=True):
    """One history. *name* is unique and never changes; *cites* are public issues
    (``owner/repo#number``) or documents.
    """

    name: str
    title: str
    cites: tuple[str, ...]
    steps: tuple[Step, ...]
    #: steps before the consumer starts
    setup: tuple[Step, ...] = ()
    query: PortQuery = msgspec.field(default=PortQuery())
    needs: frozenset[Need | Claim] = frozenset()


def named(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def describe(document: Document) -> str:
    """Returns an object in one line, for users who look for the step that fails."""
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
