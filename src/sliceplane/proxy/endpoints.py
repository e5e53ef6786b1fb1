"""Endpoints read as the slices that they would be (KEP-0752: with the gate EndpointSliceProxying off, a proxy reads
Endpoints).

One model serves both: an Endpoints object becomes one slice per subset and IP family, in memory only.  Endpoints know
neither hints nor termination, so those are absent; an address that is not ready is neither serving.
"""

from __future__ import annotations

from collections.abc import Iterator

from sliceplane.api.core import EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.discovery import (
    LABEL_SERVICE_NAME,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.proxy.model import canonical_of

_READY = EndpointConditions(ready=True, serving=True, terminating=False)
_NOT_READY = EndpointConditions(ready=False, serving=False, terminating=False)


def slices_of(endpoints: Endpoints | None) -> dict[str, EndpointSlice]:
    """By key; names are of no object that a server could have."""
    made: dict[str, EndpointSlice] = {}
    if endpoints is None:
        return made
    meta = endpoints.metadata
    for number, subset in enumerate(endpoints.subsets or ()):
        ports = tuple(
            EndpointPort(name=port.name, protocol=port.protocol, port=port.port) for port in subset.ports or ()
        )
        for family in FAMILIES:
            endpoints_of_family = tuple(_endpoints(subset, family))
            if not endpoints_of_family:
                continue
            name = f"{meta.name}:{number}:{family}"
            metadata = ObjectMeta(
                name=name,
                namespace=meta.namespace,
                resource_version=meta.resource_version,
                labels={LABEL_SERVICE_NAME: meta.name},
                annotations=meta.annotations,
            )
            each = EndpointSlice(metadata=metadata, address_type=family, endpoints=endpoints_of_family, ports=ports)
            made[metadata.key] = each
    return made


def differences(
    old: Endpoints | None, new: Endpoints | None
) -> Iterator[tuple[EndpointSlice | None, EndpointSlice | None]]:
    """What a change of an Endpoints object is in slices: first those that are there, then those that went."""
    before = slices_of(old)
    after = slices_of(new)
    for key in sorted(after):
        yield before.get(key), after[key]
    for key in sorted(before.keys() - after.keys()):
        yield before[key], None


def _endpoints(subset: EndpointSubset, family: Family) -> Iterator[SliceEndpoint]:
    def one(address: EndpointAddress, conditions: EndpointConditions) -> SliceEndpoint:
        return SliceEndpoint(
            addresses=(address.ip,),
            conditions=conditions,
            hostname=address.hostname or None,
            node_name=address.node_name,
            target_ref=address.target_ref,
        )

    for conditions, addresses in ((_READY, subset.addresses), (_NOT_READY, subset.not_ready_addresses)):
        for address in addresses or ():
            if canonical_of(address.ip, family) is not None:
                yield one(address, conditions)
