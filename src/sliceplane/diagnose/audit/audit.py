"""A whole cluster, or the part of it that is looked at: objects in, in any order; findings and
writers out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from sliceplane.api.findings.finding import Finding, rank
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
from sliceplane.diagnose.audit.wire import WireEndpoints, WireService, WireSlice

_services = msgspec.json.Decoder(WireService)
_endpoints = msgspec.json.Decoder(WireEndpoints)
_slices = msgspec.json.Decoder(WireSlice)


@dataclass(slots=True)
class WriterRow:
    """What a field manager wrote: numbers of objects.  ``last``: its last write, RFC 3339 ("": not
    told).
    """

    manager: str
    selecting: int = 0
    others: int = 0
    locks: int = 0
    slices: int = 0
    last: str = ""

    def saw(self, writer: FieldWriter) -> None:
        self.last = max(self.last, writer.time)


@dataclass(slots=True)
class Auditor:
    """Owned by one look at a cluster.  Bodies are JSON as a server lists them, with or without
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

    def on_service(self, body: bytes) -> None:
        try:
            service = _services.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._unreadable("services")
        self._services[service.metadata.key] = service_facts(service)
        return None

    def on_endpoints(self, body: bytes) -> None:
        try:
            endpoints = _endpoints.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._unreadable("endpoints")
        self._endpoints[endpoints.metadata.key] = endpoints_facts(endpoints)
        return None

    def on_slice(self, body: bytes) -> None:
        try:
            endpoint_slice = _slices.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self._unreadable("endpointslices")
        key, facts = slice_facts(endpoint_slice)
        if key.endswith("/"):
            self.nameless_slices += 1
        else:
            self._slices.setdefault(key, []).append(facts)
        return None

    def _unreadable(self, plural: str) -> None:
        self.unreadable[plural] = self.unreadable.get(plural, 0) + 1

    def forget(self, plural: str) -> None:
        """A list of this resource begins anew."""
        self.unreadable.pop(plural, None)
        match plural:
            case "services":
                self._services.clear()
            case "endpoints":
                self._endpoints.clear()
            case "endpointslices":
                self._slices.clear()
                self.nameless_slices = 0
            case _:
                raise AssertionError(f"{plural} are not audited")

    # -- what is known

    @property
    def counts(self) -> dict[str, int]:
        return {
            "services": len(self._services),
            "endpoints": len(self._endpoints),
            "endpointslices": sum(map(len, self._slices.values())) + self.nameless_slices,
        }

    def findings(self) -> tuple[Finding, ...]:
        """The worst first, then by code and key."""
        findings: list[Finding] = []
        for key in self._endpoints.keys() | self._slices.keys():
            slices = tuple(self._slices.get(key, ()))
            findings.extend(judge(key, self._services.get(key), self._endpoints.get(key), slices))
        return tuple(sorted(findings, key=rank))

    def writers(self) -> tuple[WriterRow, ...]:
        """Who writes addresses into Endpoints, and who into EndpointSlices; by name."""
        rows: dict[str, WriterRow] = {}
        for key, endpoints in self._endpoints.items():
            service = self._services.get(key)
            for writer in _latest(endpoints.writers):
                row = rows.setdefault(writer.manager, WriterRow(writer.manager))
                row.saw(writer)
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
                    row.saw(writer)
                    row.slices += 1
        return tuple(rows[name] for name in sorted(rows))

    def is_lock(self, key: str) -> bool:
        endpoints = self._endpoints.get(key)
        return endpoints is not None and endpoints.lock is not None

    def namespaces_in_need(self) -> frozenset[str]:
        """Where a Service with a selector has no Endpoints, or those of the Endpoints controller: a
        reader of them all depends on that controller. Those that the reverse mirror keeps need it
        no more.
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
    """One for each manager that writes addresses: by an update and by an apply it has two
    entries.
    """
    latest: dict[str, FieldWriter] = {}
    for writer in writers:
        if writer.addresses and (
            writer.manager not in latest or latest[writer.manager].time < writer.time
        ):
            latest[writer.manager] = writer
    return latest.values()


def confirmed(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Of *first* all that cannot be a change on its way, and of the others those that *second* has
    too, as it has them.
    """
    again = {(finding.code, key_of(finding)): finding for finding in second}
    kept = (
        again.get((finding.code, key_of(finding))) if finding.code in FLEETING else finding
        for finding in first
    )
    return tuple(finding for finding in kept if finding is not None)
