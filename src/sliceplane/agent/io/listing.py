"""The agents of a cluster, read from their Leases and slices."""

from __future__ import annotations

from typing import Any, NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease, Service
from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Leases, Services
from sliceplane.consume.agents.grants import agent_of_lease
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    ANNOTATION_STATE,
    LABEL_AGENT,
    MANAGED_BY,
    why_unreached,
)
from sliceplane.kit.times import format_duration, parse_time
from sliceplane.watch.io.base import Client

_REASON_BY_STATE = {
    "unknown": "no check has said anything yet",
    "failing": "its checks fail",
    "draining": "it is being drained",
    "lost": "its agent fell silent",
}


class ListedAgent(NamedTuple):
    """``renewed_s``: age of the last renewal by the agent's clock; ``None``: its Lease is missing
    or has no readable time.
    """

    agent: str
    service: str
    address: str
    state: str
    renewed_s: float | None
    why: str

    def cells(self) -> tuple[str, ...]:
        """Returns all cells except the reason, which is too long for a table."""
        age = (
            "-"
            if self.renewed_s is None
            else f"{format_duration(round(max(0.0, self.renewed_s)))} ago"
        )
        return (self.agent, self.service, self.address, self.state, age)

    @property
    def reason(self) -> str:
        """A sentence below the table; "" for a healthy endpoint."""
        where = (
            f"{self.agent}, {self.service} {self.address}" if self.service != "-" else self.agent
        )
        return f"{where}: {self.why}" if self.why else ""

    def as_document(self) -> dict[str, Any]:
        age = None if self.renewed_s is None else round(self.renewed_s, 1)
        return {**self._asdict(), "renewed_s": age}


async def list_agents(client: Client, namespace: str, now: float) -> tuple[ListedAgent, ...]:
    """Lists the agents of *namespace*; "" means all. Raises ``StatusError``, ``Unreachable``."""
    leases = {}
    for body in (await client.list(Selection(Leases, namespace, LABEL_AGENT))).items:
        lease = decode(body, Lease)
        agent = agent_of_lease(lease.metadata.name)
        if agent:
            leases[lease.metadata.namespace, agent] = lease
    selection = Selection(EndpointSlices, namespace, f"{LABEL_MANAGED_BY}={MANAGED_BY}")
    bodies = (await client.list(selection)).items
    services = {}
    for body in (await client.list(Selection(Services, namespace))).items if bodies else ():
        service = decode(body, Service)
        services[service.metadata.key] = service
    rows = []
    for body in bodies:
        stored = decode(body, EndpointSlice)
        key = f"{stored.metadata.namespace}/{(stored.metadata.labels or {}).get(LABEL_SERVICE_NAME, '')}"
        names = (port.name or "" for port in stored.ports or ())
        rows += _rows(stored, leases, now, why_unreached(key, names, services.get(key)))
    listed = {row.agent for row in rows}
    for (space, name), lease in leases.items():
        agent = f"{space}/{name}"
        if agent not in listed:
            rows.append(
                ListedAgent(agent, "-", "-", "empty", _age(lease, now), "it has no endpoint")
            )
    return tuple(sorted(rows, key=lambda row: row[:3]))


def _rows(
    stored: EndpointSlice, leases: dict[tuple[str, str], Lease], now: float, unreached: str
) -> list[ListedAgent]:
    meta = stored.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    name = labels.get(LABEL_AGENT, "")
    lease = leases.get((meta.namespace, name))
    refused = annotations.get(ANNOTATION_REFUSED, "")
    state = "refused" if refused else annotations.get(ANNOTATION_STATE, "")
    why = refused or (
        "its Lease is gone" if lease is None else _REASON_BY_STATE.get(state, unreached)
    )
    ports = ",".join(str(port.port) for port in stored.ports or ())
    addresses = [address for endpoint in stored.endpoints or () for address in endpoint.addresses]
    targets = [
        f"[{address}]:{ports}" if ":" in address else f"{address}:{ports}" for address in addresses
    ]
    return [
        ListedAgent(
            f"{meta.namespace}/{name}",
            labels.get(LABEL_SERVICE_NAME, ""),
            target,
            state,
            None if lease is None else _age(lease, now),
            why,
        )
        for target in targets or ["-"]  # an emptied slice has a row with the reason
    ]


def _age(lease: Lease, now: float) -> float | None:
    try:
        return now - parse_time(lease.spec.renew_time or "")
    except ValueError:
        return None
