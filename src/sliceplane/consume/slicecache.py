"""The EndpointSlices of every Service, for one IP family, flattened into endpoints on demand.

```
_service_of:  "ns/slice" -> ServiceKey            which Service a slice counts for *now*
_slices:      ServiceKey -> "ns/slice" -> CachedSlice    ports and endpoints, as the informer has them
```

An endpoint moves between slices when its port map changes or its slice is repacked; for a moment a
reader may see it in both or in neither. So slices are kept apart and merged when a Service's
endpoints are asked for. Merging is per Service and happens when a data plane is about to be
written, not per event: events are far more frequent than writes.

**An ip:port that appears twice** (``pkg/proxy/endpointslicecache.go``,
kubernetes/kubernetes#135334, sercand/kuberesolver#66). The slices are taken from oldest to newest
by resourceVersion:

- entries of the *same* Pod (equal targetRef.uid): the newest slice knows best, whatever it says;
- entries of *different* Pods: one that is not terminating wins over one that is (a live Pod has
  reused the address of a dying one); among equals the newest slice wins.

Of a Service that has more endpoints times ports than ``bounds.TARGETS_MAX``, the first of the
oldest slices count.

**What is a change.**  Ports or endpoints that differ, also in order. Metadata alone is none, with
one exception that the rule above needs: a slice that becomes the newest of several.

Owned by ``tracker.ServiceTracker``, its one caller.

**Endpoints** are read as the slices that they would be (KEP-0752: with the gate
EndpointSliceProxying off, a proxy reads Endpoints): an object becomes one slice per subset and IP
family, in memory only. Endpoints know neither hints nor termination, so those are absent; an
address that is not ready is neither serving.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from sliceplane.api.core import EndpointAddress, Endpoints, EndpointSubset
from sliceplane.api.discovery import (
    LABEL_SERVICE_NAME,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.service_rules import PROTOCOL_DEFAULT, is_port
from sliceplane.consume.bounds import TARGETS_MAX, share
from sliceplane.consume.model import (
    NodeEndpoint,
    ServiceKey,
    ServicePortName,
    canonical_of,
    ordinary_of,
)
from sliceplane.consume.packed import rows, target_uid
from sliceplane.kit.ip import FAMILIES, Family

_READY = EndpointConditions(ready=True, serving=True, terminating=False)
_NOT_READY = EndpointConditions(ready=False, serving=False, terminating=False)


def slices_of(endpoints: Endpoints | None) -> dict[str, EndpointSlice]:
    """By key; names are of no object that a server could have."""
    slices: dict[str, EndpointSlice] = {}
    if endpoints is None:
        return slices
    meta = endpoints.metadata
    for number, subset in enumerate(endpoints.subsets or ()):
        ports = tuple(
            EndpointPort(name=port.name, protocol=port.protocol, port=port.port)
            for port in subset.ports or ()
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
            each = EndpointSlice(
                metadata=metadata, address_type=family, endpoints=endpoints_of_family, ports=ports
            )
            slices[metadata.key] = each
    return slices


def differences(
    old: Endpoints | None, new: Endpoints | None
) -> Iterator[tuple[EndpointSlice | None, EndpointSlice | None]]:
    """Yields a change of an Endpoints object as changes of slices: first those that are there, then
    the removed ones.
    """
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

    for conditions, addresses in (
        (_READY, subset.addresses),
        (_NOT_READY, subset.not_ready_addresses),
    ):
        for address in addresses or ():
            if canonical_of(address.ip, family) is not None:
                yield one(address, conditions)


class CachedSlice(msgspec.Struct, frozen=True):
    """The part of a slice that is kept: its contents, shared with the informer's cache, and its
    age.
    """

    ports: tuple[EndpointPort, ...]
    endpoints: Sequence[SliceEndpoint]
    age: tuple[int, str]  # (resourceVersion, name): orders the slices of one Service


class EndpointOrigin(NamedTuple):
    """An endpoint and where it comes from: what its slice says of it, and the key
    (``namespace/name``) of the slice.
    """

    endpoint: NodeEndpoint
    source: SliceEndpoint
    slice: str


class SliceCache:
    """See the module.  Every method is O(one slice) or, where it says so, O(one Service)."""

    def __init__(self, family: Family, node_name: str) -> None:
        self._family = family
        self._node_name = node_name
        self._service_of: dict[str, ServiceKey] = {}
        #: endpoints times ports in all slices of a Service, usable or not: what it costs to read
        #: them
        self.sizes: dict[ServiceKey, int] = {}
        self._slices: dict[ServiceKey, dict[str, CachedSlice]] = {}

    def on_slice(self, key: str, new: EndpointSlice | None) -> tuple[ServiceKey, ...]:
        """The slice *key* is now *new* (``None``: gone). The Services whose endpoints may have
        changed: none, one, or two when the slice's service-name label was moved. A slice of another
        family, or without the label, counts as gone.
        """
        before = self._service_of.get(key)
        name = (new.metadata.labels or {}).get(LABEL_SERVICE_NAME) if new is not None else None
        after = None
        if new is not None and name and new.address_type == self._family:
            after = ServiceKey(new.metadata.namespace, name)
        if new is None or after is None:
            if before is None:
                return ()
            self._remove(before, key)
            return (before,)
        cached = CachedSlice(new.ports or (), new.endpoints or (), (new.metadata.revision, key))
        if before is None:
            self._put(after, key, cached)
            return (after,)
        if before != after:
            self._remove(before, key)
            self._put(after, key, cached)
            return (before, after)
        siblings = self._slices[before]
        old = siblings[key]
        changed = old.ports != cached.ports or old.endpoints != cached.endpoints
        if not changed and len(siblings) > 1:
            # Also backwards: a server restored from a backup counts its revisions from an older
            # one.
            low, high = sorted((old.age, cached.age))
            changed = any(low < other.age < high for other in siblings.values())
        siblings[key] = cached
        self.sizes[before] += _size(cached) - _size(old)
        return (before,) if changed else ()

    def services(self) -> tuple[ServiceKey, ...]:
        """Every Service that has a slice, in no particular order.  O(Services)."""
        return tuple(self._slices)

    def endpoints(self, service: ServiceKey) -> dict[ServicePortName, list[NodeEndpoint]]:
        """The endpoints of every port of *service*, sorted by the text ``ip:port``. O(the Service).

        A slice port without a name or a number is left out, and so is an endpoint without a usable
        address; only the first address of an endpoint counts. A service port without endpoints is
        absent.
        """
        merged = self._merged(service, tuple(self._slices.get(service, ())))
        result: dict[ServicePortName, list[NodeEndpoint]] = {}
        for name in sorted(merged):
            origins = merged[name]
            if origins:
                result[name] = [origins[key][0] for key in sorted(origins)]
        return result

    def origins(
        self, service: ServiceKey, slice_key: str = ""
    ) -> dict[ServicePortName, list[EndpointOrigin]]:
        """As ``endpoints``, with where each comes from; of one slice alone, where it is named (then
        also what another slice knows better). O(the Service).
        """
        merged = self._merged(
            service, (slice_key,) if slice_key else tuple(self._slices.get(service, ()))
        )
        return {
            name: [_origin(*merged[name][key]) for key in sorted(merged[name])]
            for name in sorted(merged)
        }

    def slices(self, service: ServiceKey) -> dict[str, CachedSlice]:
        """Returns the slices that count for *service* now, by key, sorted."""
        return dict(sorted(self._slices.get(service, {}).items()))

    def _merged(self, service: ServiceKey, keys: tuple[str, ...]) -> dict[ServicePortName, _Merge]:
        slices = self._slices.get(service, {})
        merged: dict[ServicePortName, _Merge] = {}
        ordered = sorted(map(slices.__getitem__, keys), key=attrgetter("age"))
        # How many endpoints each port may have, so that all of them are within the bound.
        most = TARGETS_MAX
        if sum(len(cached.ports) * len(cached.endpoints) for cached in ordered) > TARGETS_MAX:
            most = share(
                TARGETS_MAX,
                len({(port.name, port.protocol) for cached in ordered for port in cached.ports}),
            )
        for cached in ordered:
            for port in cached.ports:
                number = port.port or 0
                if port.name is not None and is_port(number):
                    name = ServicePortName(service, port.name, port.protocol or PROTOCOL_DEFAULT)
                    origins = merged.setdefault(name, {})
                    self._merge(cached, number, most - len(origins), origins)
        return merged

    def _merge(self, cached: CachedSlice, port: int, room: int, origins: _Merge) -> None:
        """Adds one port of one slice to *origins*, *room* endpoints at most.  A start reads every
        endpoint of the cluster here: mind each line.
        """
        family = self._family
        suffix, prefix = (f":{port}", "") if family == "IPv4" else (f"]:{port}", "[")
        read = islice(rows(cached.endpoints, self._node_name), max(0, room))
        for shape, address, is_local, index in read:
            ip = ordinary_of(address, family)
            if ip is None:
                continue
            key = prefix + ip + suffix
            terminating = shape.terminating
            stored = origins.get(key)
            if (
                stored is not None
                and terminating
                and not stored[0].terminating
                and not _is_same_pod(stored, cached, index)
            ):
                continue
            endpoint = NodeEndpoint(
                ip,
                port,
                shape.ready,
                shape.serving,
                terminating,
                is_local,
                shape.zone_hints,
                shape.node_hints,
            )
            origins[key] = (endpoint, cached, index)

    def _put(self, service: ServiceKey, key: str, cached: CachedSlice) -> None:
        self._service_of[key] = service
        self._slices.setdefault(service, {})[key] = cached
        self.sizes[service] = self.sizes.get(service, 0) + _size(cached)

    def _remove(self, service: ServiceKey, key: str) -> None:
        del self._service_of[key]
        siblings = self._slices[service]
        self.sizes[service] -= _size(siblings.pop(key))
        if not siblings:
            del self._slices[service], self.sizes[service]

    def check(self) -> None:
        """The two maps say the same, and nothing empty is kept."""
        indexed = {key: service for service, slices in self._slices.items() for key in slices}
        assert indexed == self._service_of, f"slices {indexed} are indexed as {self._service_of}"
        for service, slices in self._slices.items():
            assert slices, f"{service} is kept without slices"
        sizes = {
            service: sum(map(_size, slices.values())) for service, slices in self._slices.items()
        }
        assert sizes == self.sizes, f"sizes {self.sizes} should be {sizes}"


#: "ip:port" -> the endpoint that counts so far, its slice, and its index there
_Merged = tuple[NodeEndpoint, CachedSlice, int]
_Merge = dict[str, _Merged]


def _is_same_pod(stored: _Merged, cached: CachedSlice, index: int) -> bool:
    uid = target_uid(cached.endpoints, index)
    return uid != "" and uid == target_uid(stored[1].endpoints, stored[2])


def _origin(endpoint: NodeEndpoint, cached: CachedSlice, index: int) -> EndpointOrigin:
    return EndpointOrigin(endpoint, cached.endpoints[index], cached.age[1])


def _size(cached: CachedSlice) -> int:
    return len(cached.ports) * len(cached.endpoints)
