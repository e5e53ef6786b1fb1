"""Progress of all clients, for the server's page ``/xds/clients`` and for ``sliceplane xds
status``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sliceplane.api.findings.wording import count
from sliceplane.kit.columns import table
from sliceplane.xds import names
from sliceplane.xds.streams.actions import ChannelStatus

_SHORT: Final = {
    names.LISTENER: "LDS",
    names.ROUTES: "RDS",
    names.CLUSTER: "CDS",
    names.ASSIGNMENT: "EDS",
    names.ENDPOINT: "LEDS",
}
_HEADS: Final = ("CLIENT", "KIND", "NODE", "ZONE", "TYPE", "HELD", "SENT", "ACKED", "STATE")
#: characters of a client's error message in the output
_TEXT_MAX: Final = 160


def short(type_url: str) -> str:
    """Returns the abbreviation of a type, like ``EDS``."""
    return _SHORT.get(type_url, "other")


class TypeReport(msgspec.Struct, frozen=True, rename="camel"):
    """Progress of a client with one type: the last revision that it was sent, and the last that it
    accepted.
    """

    type: str
    resources: int
    sent_revision: int
    acked_revision: int
    #: seconds since the unanswered response was sent; 0.0: all are answered
    waiting_seconds: float = 0.0
    #: names that the next response must consider
    owed: int = 0
    refused: str = ""
    refusal: str = ""
    #: reasons by requested name that resolves to nothing
    absent: dict[str, str] = {}

    @classmethod
    def of(cls, status: ChannelStatus, now: float, name: str) -> TypeReport:
        waiting_s = round(now - status.waiting_since, 3) if status.waiting_since else 0.0
        refused, refusal = status.refused
        return cls(
            name,
            status.resources,
            status.sent_revision,
            status.acked_revision,
            waiting_s,
            status.owed,
            refused,
            refusal,
            dict(status.absent),
        )


class ClientReport(msgspec.Struct, frozen=True, rename="camel"):
    """One stream.  ``kind`` is "" until the client is admitted."""

    id: str
    kind: str
    agent: str
    user: str
    peer: str
    node: str
    zone: str
    namespace: str
    leds: bool
    listeners: str
    connected_seconds: float
    behind: bool
    types: tuple[TypeReport, ...]


class ClientsPage(msgspec.Struct, frozen=True, rename="camel"):
    """The page ``/xds/clients``.  ``unserved_ports``: ports of Services that xDS cannot serve."""

    revision: int
    clients: tuple[ClientReport, ...]
    unserved_ports: int = 0


pages: Final = msgspec.json.Decoder(ClientsPage)


def clients_page(revision: int, clients: Sequence[ClientReport], unserved_ports: int) -> bytes:
    return msgspec.json.encode(ClientsPage(revision, tuple(clients), unserved_ports)) + b"\n"


def is_bad(report: ClientReport) -> bool:
    """Returns True if the client has not answered for over a second, refuses a resource, or
    requests a name that resolves to nothing.
    """
    return any(item.refused or item.absent or item.waiting_seconds > 1.0 for item in report.types)


def render_clients(page: ClientsPage, width: int | None) -> list[str]:
    """Returns a line for each client and type, each refusal, and each name that resolves to
    nothing.
    """
    rows: list[tuple[str, ...]] = []
    problems = []
    for client in page.clients:
        columns = (
            client.id or client.peer,
            client.kind or "-",
            client.node or "-",
            client.zone or "-",
        )
        if not client.types:
            rows.append((*columns, "-", "0", "0", "0", "waits to be admitted"))
        for item in client.types:
            figures = (str(item.resources), str(item.sent_revision), str(item.acked_revision))
            rows.append((*columns, item.type, *figures, _state(item)))
            if item.refused:
                text = " ".join(item.refusal.split())
                problems.append(f"{columns[0]} refuses {item.refused}: {text[:_TEXT_MAX]}")
            for name, why in item.absent.items():
                problems.append(f"{columns[0]} requests {name[:_TEXT_MAX]} ({item.type}): {why}")
    lines = list(table(_HEADS, rows, width=width))
    ports = count(page.unserved_ports, "port")
    unserved = [f"not served: {ports} (UDP, SCTP, ExternalName)"] if page.unserved_ports else []
    return [
        *lines,
        *(["", *problems] if problems else []),
        "",
        f"revision {page.revision}, {count(len(page.clients), 'client')}",
        *unserved,
    ]


def _state(item: TypeReport) -> str:
    if item.waiting_seconds:
        return f"behind for {item.waiting_seconds:.1f} s"
    if item.refused:
        return "refused"
    return f"{count(len(item.absent), 'name')} absent" if item.absent else "current"
