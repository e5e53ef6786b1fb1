"""The audit of a cluster, or of a namespace: objects in, in any order; findings and writers out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sliceplane.api.core import Service
from sliceplane.api.findings.finding import Finding, rank
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.diagnose.audit.facts import (
    EndpointsFacts,
    FieldWriter,
    ServiceFacts,
    SliceFacts,
    endpoints_facts,
    service_facts,
    slice_facts,
)
from sliceplane.diagnose.audit.judge import FLEETING, judge, key_of
from sliceplane.diagnose.explain.objects import FullEndpoints, FullSlice

#: Services are listed last, so that objects of a new Service do not look like orphans
AUDITED: Final = (EndpointsObjects, EndpointSlices, Services)
_decoders: Final[dict[str, msgspec.json.Decoder[Object]]] = {
    "services": msgspec.json.Decoder(Service),
    "endpoints": msgspec.json.Decoder(FullEndpoints),
    "endpointslices": msgspec.json.Decoder(FullSlice),
}


@dataclass(slots=True)
class WriterRow:
    """The numbers of objects that a field manager wrote. ``last``: its last write, RFC 3339 ("":
    unknown).
    """

    manager: str
    selecting: int = 0
    others: int = 0
    locks: int = 0
    slices: int = 0
    last: str = ""

    def on_write(self, writer: FieldWriter) -> None:
        self.last = max(self.last, writer.time)


@dataclass(slots=True)
class Auditor:
    """Collects the objects of one audit. Bodies are JSON as a server lists them, with or without
    their kind.
    """

    _services: dict[str, ServiceFacts] = field(default_factory=dict)
    _endpoints: dict[str, EndpointsFacts] = field(default_factory=dict)
    _slices: dict[str, list[SliceFacts]] = field(default_factory=dict)
    #: slices whose label names no Service
    nameless_slices: int = 0
    #: by plural
    unreadable: dict[str, int] = field(default_factory=dict)

    # -- objects in

    def on_object(self, plural: str, body: bytes) -> None:
        """Takes an object of the resource *plural*, one of ``AUDITED``."""
        try:
            decoded = _decoders[plural].decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unreadable[plural] = self.unreadable.get(plural, 0) + 1
            return
        match decoded:
            case Service():
                self._services[decoded.metadata.key] = service_facts(decoded)
            case FullEndpoints():
                self._endpoints[decoded.metadata.key] = endpoints_facts(decoded)
            case FullSlice() if decoded.service:
                key = f"{decoded.metadata.namespace}/{decoded.service}"
                self._slices.setdefault(key, []).append(slice_facts(decoded))
            case _:
                self.nameless_slices += 1

    def forget(self, plural: str) -> None:
        """Drops the objects of this resource, because its list is restarted."""
        self.unreadable.pop(plural, None)
        facts: dict[str, dict[str, Any]] = {
            "services": self._services,
            "endpoints": self._endpoints,
            "endpointslices": self._slices,
        }
        facts[plural].clear()
        if plural == "endpointslices":
            self.nameless_slices = 0

    # -- results

    @property
    def counts(self) -> dict[str, int]:
        return {
            "services": len(self._services),
            "endpoints": len(self._endpoints),
            "endpointslices": sum(map(len, self._slices.values())) + self.nameless_slices,
        }

    def findings(self) -> tuple[Finding, ...]:
        """Returns the findings, the worst first, then by code and key."""
        findings: list[Finding] = []
        for key in self._endpoints.keys() | self._slices.keys():
            slices = tuple(self._slices.get(key, ()))
            findings.extend(judge(key, self._services.get(key), self._endpoints.get(key), slices))
        return tuple(sorted(findings, key=rank))

    def writers(self) -> tuple[WriterRow, ...]:
        """Returns the writers of addresses into Endpoints and EndpointSlices, by name."""
        rows: dict[str, WriterRow] = {}
        for key, endpoints in self._endpoints.items():
            service = self._services.get(key)
            for writer in _latest(endpoints.writers):
                row = rows.setdefault(writer.manager, WriterRow(writer.manager))
                row.on_write(writer)
                if endpoints.lock is not None:
                    row.locks += 1
                elif service is not None and service.role == "selecting":
                    row.selecting += 1
                else:
                    row.others += 1
        for slices in self._slices.values():
            for endpoint_slice in slices:
                for writer in _latest(endpoint_slice.writers):
                    row = rows.setdefault(writer.manager, WriterRow(writer.manager))
                    row.on_write(writer)
                    row.slices += 1
        return tuple(rows[name] for name in sorted(rows))

    def is_lock(self, key: str) -> bool:
        endpoints = self._endpoints.get(key)
        return endpoints is not None and endpoints.lock is not None

    def namespaces_in_need(self) -> frozenset[str]:
        """Returns the namespaces with a Service with a selector that has no Endpoints, or those of
        the Endpoints controller: a reader of all Endpoints there depends on that controller.
        Endpoints of the reverse mirror do not need it.
        """
        return frozenset(
            key.partition("/")[0] for key in self._services if self.needs_controller(key)
        )

    def needs_controller(self, key: str) -> bool:
        service = self._services.get(key)
        endpoints = self._endpoints.get(key)
        if service is None or service.role != "selecting":
            return False
        return endpoints is None or not endpoints.reverse


def _latest(writers: tuple[FieldWriter, ...]) -> Iterable[FieldWriter]:
    """Returns one entry for each manager that writes addresses: a manager that updates and applies
    has two.
    """
    latest: dict[str, FieldWriter] = {}
    for writer in writers:
        if writer.addresses and (
            writer.manager not in latest or latest[writer.manager].time < writer.time
        ):
            latest[writer.manager] = writer
    return latest.values()


def confirmed(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Keeps the findings of *first* that cannot be a change under way, and the others if *second*
    has them too, in the form of *second*.
    """
    by_cause = {(finding.code, key_of(finding)): finding for finding in second}
    confirmed_findings = (
        by_cause.get((finding.code, key_of(finding))) if finding.code in FLEETING else finding
        for finding in first
    )
    return tuple(finding for finding in confirmed_findings if finding is not None)
