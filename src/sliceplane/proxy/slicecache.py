"""The EndpointSlices of every Service, for one IP family, flattened into endpoints on demand (reference A3).

```
_service_of:  "ns/slice" -> ServiceKey            which Service a slice counts for *now*
_slices:      ServiceKey -> "ns/slice" -> Held    ports and endpoints, shared with the informer's objects
```

An endpoint moves between slices when its port map changes or its slice is repacked; for a moment a reader
may see it in both or in neither.  So slices are kept apart and merged when a Service's endpoints are asked
for.  Merging is per Service and happens when a data plane is about to be written, not per event: events are far more
frequent than writes.

**An ip:port that appears twice** (reference A3, k/k#135334, kuberesolver#66).  The slices are taken from oldest
to newest by resourceVersion:

- entries of the *same* Pod (equal targetRef.uid): the newest slice knows best, whatever it says;
- entries of *different* Pods: one that is not terminating wins over one that is (a live Pod has reused the
  address of a dying one); among equals the newest slice wins.

**What is a change.**  Ports or endpoints that differ, also in order.  Metadata alone is none, with one
exception that the rule above needs: a slice that becomes the newest of several.

Owned by ``tracker.ServiceTracker``; nobody else calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointPort, EndpointSlice
from sliceplane.api.discovery import Endpoint as SliceEndpoint
from sliceplane.kit.ip import Family
from sliceplane.proxy.addresses import canonical_of
from sliceplane.proxy.model import PORT_MAX, Endpoint, ServiceKey, ServicePortName


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept of a slice: its contents, which the informer's cache shares, and how new it is."""

    ports: tuple[EndpointPort, ...]
    endpoints: tuple[SliceEndpoint, ...]
    age: tuple[int, str]  # (resourceVersion, name): orders the slices of one Service


class SliceCache:
    """See the module.  Every method is O(one slice) or, where it says so, O(one Service)."""

    def __init__(self, family: Family, node_name: str) -> None:
        self._family = family
        self._node_name = node_name
        self._service_of: dict[str, ServiceKey] = {}
        self._slices: dict[ServiceKey, dict[str, Held]] = {}

    def on_slice(self, key: str, new: EndpointSlice | None) -> tuple[ServiceKey, ...]:
        """The slice *key* is now *new* (``None``: gone).  The Services whose endpoints may have changed: none,
        one, or two when the slice's service-name label was moved.  A slice of another family, or without the
        label, counts as gone.
        """
        before = self._service_of.get(key)
        after = self._service_for(new)
        if new is None or after is None:
            if before is None:
                return ()
            self._remove(before, key)
            return (before,)
        held = Held(new.ports or (), new.endpoints or (), (revision_of(new), key))
        if before is None:
            self._put(after, key, held)
            return (after,)
        if before != after:
            self._remove(before, key)
            self._put(after, key, held)
            return (before, after)
        siblings = self._slices[before]
        old = siblings[key]
        changed = old.ports != held.ports or old.endpoints != held.endpoints
        if not changed and len(siblings) > 1:
            # Also backwards: a server restored from a backup counts its revisions from an older one.
            low, high = sorted((old.age, held.age))
            changed = any(low < other.age < high for other in siblings.values())
        siblings[key] = held
        return (before,) if changed else ()

    def services(self) -> tuple[ServiceKey, ...]:
        """Every Service that has a slice, in no particular order.  O(Services)."""
        return tuple(self._slices)

    def endpoints(self, service: ServiceKey) -> dict[ServicePortName, list[Endpoint]]:
        """The endpoints of every port of *service*, sorted by the text ``ip:port``.  O(the Service).

        A slice port without a name or a number is left out, and so is an endpoint without a usable address;
        only the first address of an endpoint counts.  A service port without endpoints is absent.
        """
        slices = self._slices.get(service)
        if slices is None:
            return {}
        merged: dict[ServicePortName, _Merge] = {}
        for held in sorted(slices.values(), key=lambda held: held.age):
            for port in held.ports:
                number = port.port or 0
                if port.name is not None and 0 < number <= PORT_MAX:
                    name = ServicePortName(service, port.name, port.protocol or "TCP")
                    self._merge(held.endpoints, number, merged.setdefault(name, {}))
        result: dict[ServicePortName, list[Endpoint]] = {}
        for name in sorted(merged):
            known = merged[name]
            if known:
                result[name] = [known[key][0] for key in sorted(known)]
        return result

    def _merge(self, sources: tuple[SliceEndpoint, ...], port: int, known: _Merge) -> None:
        """Adds one port of one slice to *known*.  A start reads every endpoint of the cluster here: mind each line."""
        family, node_name = self._family, self._node_name
        suffix, prefix = (f":{port}", "") if family == "IPv4" else (f"]:{port}", "[")
        for source in sources:
            ip = canonical_of(source.addresses[0], family) if source.addresses else None
            if ip is None:
                continue
            conditions, hints, target = source.conditions, source.hints, source.target_ref
            terminating = conditions.terminating is True
            uid = target.uid if target is not None else ""
            key = prefix + ip + suffix
            stored = known.get(key)
            if stored is not None and terminating and not stored[0].terminating and not (uid and uid == stored[1]):
                continue
            known[key] = (
                Endpoint(
                    ip,
                    port,
                    conditions.ready is not False,
                    conditions.serving is not False,
                    terminating,
                    source.node_name == node_name and node_name != "",
                    tuple([zone.name for zone in hints.for_zones or ()]) if hints is not None else (),
                    tuple([node.name for node in hints.for_nodes or ()]) if hints is not None else (),
                ),
                uid,
            )

    def _service_for(self, new: EndpointSlice | None) -> ServiceKey | None:
        if new is None or new.address_type != self._family:
            return None
        name = (new.metadata.labels or {}).get(LABEL_SERVICE_NAME)
        return ServiceKey(new.metadata.namespace, name) if name else None

    def _put(self, service: ServiceKey, key: str, held: Held) -> None:
        self._service_of[key] = service
        self._slices.setdefault(service, {})[key] = held

    def _remove(self, service: ServiceKey, key: str) -> None:
        del self._service_of[key]
        siblings = self._slices[service]
        del siblings[key]
        if not siblings:
            del self._slices[service]

    def check(self) -> None:
        """The two maps say the same, and nothing empty is kept."""
        found = {key: service for service, slices in self._slices.items() for key in slices}
        assert found == self._service_of, f"slices {found} are indexed as {self._service_of}"
        for service, slices in self._slices.items():
            assert slices, f"{service} is kept without slices"


#: "ip:port" -> the endpoint that counts so far, and its Pod's uid
_Merge = dict[str, tuple[Endpoint, str]]


def revision_of(new: EndpointSlice) -> int:
    """resourceVersion as a number; an opaque one orders as 0, so that names decide."""
    text = new.metadata.resource_version
    return int(text) if text.isascii() and text.isdigit() else 0
