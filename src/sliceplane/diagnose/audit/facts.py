"""The facts that are kept of an object: its lock, its writers, its addresses, and little else."""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern
from typing import Final, Literal

import msgspec

from sliceplane.api.core import Service
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_OVER_CAPACITY,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_MIRRORING,
    MANAGED_BY_REVERSE_MIRROR,
)
from sliceplane.api.meta import Projection
from sliceplane.api.selectors.adoption import selector_of
from sliceplane.diagnose.audit.addresses import READY, TERMINATING, WAITING, Packed, pack, packed
from sliceplane.diagnose.explain.objects import FullEndpoints, FullSlice, WrittenMeta
from sliceplane.kit.ip import family, parse_lenient

ServiceRole = Literal["selecting", "without selector", "external name"]
_ADDRESS_BYTES: Final = {"IPv4": 4, "IPv6": 16}


class LockRecord(Projection, frozen=True, kw_only=True):
    """The record that client-go's leader election writes into an annotation."""

    holder_identity: str = ""
    renew_time: str | None = None


_records: Final = msgspec.json.Decoder(LockRecord)


class Fact(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Base of the kept facts: without cycles, so that the garbage collector skips them."""


class FieldWriter(Fact, frozen=True, gc=False, kw_only=True):
    """A field manager and its last write, as RFC 3339 text ("": unknown)."""

    manager: str
    time: str
    addresses: bool


class ServiceFacts(Fact, frozen=True, gc=False, kw_only=True):
    """``address_bytes``: the length of addresses of the primary family; 0: unknown.
    ``named_ports``: target ports that Pods must have by name.
    """

    role: ServiceRole
    address_bytes: int
    named_ports: tuple[str, ...] = ()


class EndpointsFacts(Fact, frozen=True, gc=False, kw_only=True):
    """``count``: addresses as the limit of 1,000 counts them, once in every subset. ``lock``: a
    phrase about the holder, if it is the lock of a leader election. ``capacity``: the value of the
    over-capacity annotation.
    """

    addresses: bytes
    count: int
    skip_mirror: bool
    reverse: bool
    lock: str | None
    capacity: str
    writers: tuple[FieldWriter, ...]


class SliceFacts(Fact, frozen=True, gc=False, kw_only=True):
    """``portless``: the slice, and so each of its addresses, has no port."""

    name: str
    manager: str
    addresses: bytes
    writers: tuple[FieldWriter, ...]
    portless: bool = False

    @property
    def mirrored(self) -> bool:
        return self.manager == MANAGED_BY_MIRRORING


def service_facts(service: Service) -> ServiceFacts:
    spec = service.spec
    if spec.type == "ExternalName":
        role: ServiceRole = "external name"
    else:
        role = "selecting" if selector_of(service) else "without selector"
    targets = {port.target_port for port in spec.ports or () if isinstance(port.target_port, str)}
    named = tuple(intern(name) for name in sorted(targets))
    families = spec.ip_families or ()
    if families:
        return ServiceFacts(
            role=role, address_bytes=_ADDRESS_BYTES.get(families[0], 0), named_ports=named
        )
    address = parse_lenient(spec.cluster_ip)
    length = 0 if address is None else _ADDRESS_BYTES[family(address)]
    return ServiceFacts(role=role, address_bytes=length, named_ports=named)


def endpoints_facts(endpoints: FullEndpoints) -> EndpointsFacts:
    labels = endpoints.metadata.labels or {}
    annotations = endpoints.metadata.annotations or {}
    return EndpointsFacts(
        addresses=pack(_endpoints_entries(endpoints)),
        count=endpoints.count,
        skip_mirror=labels.get(LABEL_SKIP_MIRROR) == "true",
        reverse=labels.get(LABEL_ENDPOINTS_MANAGED_BY) == MANAGED_BY_REVERSE_MIRROR,
        lock=_lock(annotations.get(ANNOTATION_LEADER)),
        capacity=annotations.get(ANNOTATION_OVER_CAPACITY, ""),
        writers=_writers(endpoints.metadata),
    )


def _lock(annotation: str | None) -> str | None:
    if annotation is None:
        return None
    try:
        record = _records.decode(annotation)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return "its leader-election record cannot be read"
    return (
        f"held by {record.holder_identity or 'nobody'}, last renewed {record.renew_time or 'never'}"
    )


def _endpoints_entries(endpoints: FullEndpoints) -> Iterator[tuple[Packed, int]]:
    for subset in endpoints.subsets or ():
        for listed, state in ((subset.addresses, READY), (subset.not_ready_addresses, WAITING)):
            for entry in listed or ():
                address = packed(entry.ip)
                if address is not None:
                    yield address, state


def slice_facts(endpoint_slice: FullSlice) -> SliceFacts:
    return SliceFacts(
        name=endpoint_slice.metadata.name,
        manager=intern(endpoint_slice.manager),
        addresses=b""
        if endpoint_slice.address_type == "FQDN"
        else pack(_slice_entries(endpoint_slice)),
        writers=_writers(endpoint_slice.metadata),
        portless=not endpoint_slice.ports,
    )


def _slice_entries(endpoint_slice: FullSlice) -> Iterator[tuple[Packed, int]]:
    """Yields the first address of each endpoint, the only one that consumers use."""
    for endpoint in endpoint_slice.endpoints or ():
        address = packed(endpoint.addresses[0]) if endpoint.addresses else None
        if address is None:
            continue
        conditions = endpoint.conditions
        if conditions.ready is None or conditions.ready:
            yield address, READY
        else:
            yield address, TERMINATING if conditions.terminating else WAITING


def _writers(metadata: WrittenMeta) -> tuple[FieldWriter, ...]:
    entries = metadata.managed_fields or ()
    return tuple(
        FieldWriter(
            manager=intern(entry.manager), time=entry.time or "", addresses=entry.writes_addresses
        )
        for entry in entries
    )
