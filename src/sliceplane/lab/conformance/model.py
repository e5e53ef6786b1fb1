"""The correct belief of a consumer after each step, derived from the objects alone, as simply as
possible.

KEP-0752, "EndpointSlice consumers": the endpoints of a Service are the union of all slices with its
name, each address once. It shares no code with our own consumers, because it judges them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from sliceplane.lab.conformance.steps import (
    NODE,
    SERVICE,
    ZONE,
    Claim,
    Delete,
    Document,
    PortQuery,
    Put,
    Step,
)

#: ``address:port`` of each endpoint that receives requests
Belief = frozenset[str]


class State(msgspec.Struct, frozen=True):
    """The slices of the API server by name, and the Service's ``internalTrafficPolicy``."""

    slices: Mapping[str, Document] = msgspec.field(default_factory=dict)
    policy: str = "Cluster"

    def after(self, step: Step) -> State:
        if isinstance(step, Put) and step.object["kind"] == "EndpointSlice":
            return replace(
                self, slices={**self.slices, step.object["metadata"]["name"]: step.object}
            )
        if isinstance(step, Put) and step.object["metadata"]["name"] == SERVICE:
            return replace(self, policy=step.object["spec"].get("internalTrafficPolicy", "Cluster"))
        if isinstance(step, Delete) and step.kind == "EndpointSlice":
            return replace(
                self,
                slices={
                    name: document for name, document in self.slices.items() if name != step.name
                },
            )
        return self

    def believed(self, query: PortQuery, claims: frozenset[Claim]) -> Belief:
        """Returns the belief that a consumer with these *claims* must reach."""
        local = self.policy == "Local" and "local" in claims
        candidates = [
            pair for pair in self._endpoints(query) if not local or pair[0].get("nodeName") == NODE
        ]
        ready = [
            (endpoint, target)
            for endpoint, target in candidates
            if _condition(endpoint, "ready", True)
        ]
        if ready:
            return frozenset(
                target
                for _, target in (_closest(ready) if "hints" in claims and not local else ready)
            )
        if "fallback" in claims:
            return frozenset(
                target for endpoint, target in candidates if _serves_to_the_end(endpoint)
            )
        return frozenset()

    def _endpoints(self, query: PortQuery) -> Iterator[tuple[Document, str]]:
        for name in sorted(self.slices):
            document = self.slices[name]
            labels = document["metadata"]["labels"]
            if (
                labels.get("kubernetes.io/service-name") != SERVICE
                or document["addressType"] != query.family
            ):
                continue
            for port in document["ports"]:
                if (port.get("name") or "") != query.port or port.get("protocol", "TCP") != "TCP":
                    continue
                for endpoint in document["endpoints"]:
                    yield endpoint, authority(endpoint["addresses"][0], port["port"])


def authority(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _condition(endpoint: Document, name: str, absent: bool) -> bool:
    value = (endpoint.get("conditions") or {}).get(name)
    return absent if value is None else bool(value)


def _serves_to_the_end(endpoint: Document) -> bool:
    return _condition(endpoint, "serving", True) and _condition(endpoint, "terminating", False)


def _closest(ready: list[tuple[Document, str]]) -> list[tuple[Document, str]]:
    """Applies hints all or nothing: they count only if every ready endpoint has one and one of them
    is for our location; hints for nodes take precedence over hints for zones (KEP-2433, KEP-3015).
    """
    for kind, location in (("forNodes", NODE), ("forZones", ZONE)):
        hinted = [
            [hint["name"] for hint in (endpoint.get("hints") or {}).get(kind, ())]
            for endpoint, _ in ready
        ]
        ours = [pair for pair, names in zip(ready, hinted, strict=True) if location in names]
        if all(hinted) and ours:
            return ours
    return ready
