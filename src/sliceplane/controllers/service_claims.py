"""Tells the owner of a Service what no node serves of it: addresses that are another's, and what is
beyond the bounds.

Every node proxy decides the same by itself (``consume.claims``, ``consume.bounds``); it writes no
Event, since one Service would cost as many as there are nodes. This controller looks at the same
objects with the same rules and writes one. Flags of proxies (``--cluster-cidr``,
``--bind-address``) are not known here, so a node may refuse more than is told.

A Service is looked at ``SETTLE_S`` after it changed, or after an address that it asks for changed
hands, and an Event is written when what there is to say is not what was said last.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.core import Node, Service, ServiceCIDR
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.meta import Object
from sliceplane.api.scheme import EndpointSlices, Nodes, ServiceCIDRs, Services
from sliceplane.consume.bounds import Excess
from sliceplane.consume.claims import AddressClaims
from sliceplane.consume.grounds import Ground
from sliceplane.consume.model import API_SERVICE, ServedPort, ServiceKey, canonical_of
from sliceplane.consume.servicemap import read
from sliceplane.kit.ip import FAMILIES, Family, networks
from sliceplane.node.tracker import node_ground
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import ControllerInfo, Done, Selection, Write
from sliceplane.watch.controller.keyed import KeyedController

#: the reasons of its Events
NOT_SERVED: Final = "AddressNotServed"
TOO_LARGE: Final = "ServiceTooLarge"
COMPONENT: Final = "service-claims-controller"

SETTLE_S: Final = 1.0
#: refusals that one Event spells out
TOLD_MAX: Final = 3


class _OfFamily:
    """The claims of Services in one IP family."""

    def __init__(self, family: Family) -> None:
        self.family: Family = family
        self.claims = AddressClaims()
        self._ports: dict[ServiceKey, tuple[ServedPort, ...]] = {}
        self.excess: dict[ServiceKey, Excess] = {}

    def on_service(self, key: ServiceKey, new: Service | None) -> set[ServiceKey]:
        ports, excess = read(new, self.family) if new is not None else ((), Excess())
        created = (new.metadata.creation_timestamp or "") if new is not None else ""
        marked = self.claims.on_service(key, created, self._ports.pop(key, ()), ports)
        if ports:
            self._ports[key] = ports
        self.excess.pop(key, None)
        if any(excess):
            self.excess[key] = excess
        return marked

    def on_node(self, name: str, new: Node | None) -> set[ServiceKey]:
        ground = Ground() if new is None else node_ground(new, self.family)
        return self.claims.set_ground(f"Node {name}", ground)

    def on_range(self, name: str, new: ServiceCIDR | None) -> set[ServiceKey]:
        cidrs = (new.spec.cidrs or ()) if new is not None else ()
        return self.claims.set_ground(
            f"ServiceCIDR {name}", Ground((), networks(cidrs, self.family))
        )

    def on_api_slice(self, name: str, new: EndpointSlice | None) -> set[ServiceKey]:
        endpoints = (new.endpoints or ()) if new is not None else ()
        texts = [text for endpoint in endpoints for text in endpoint.addresses or ()]
        addresses = dict.fromkeys(
            ip for text in texts if (ip := canonical_of(text, self.family)) is not None
        )
        return self.claims.set_ground(f"the API server ({name})", Ground(tuple(addresses)))

    def check(self) -> None:
        self.claims.check(iter(self._ports.items()))


class ServiceClaimsController(KeyedController):
    """Keys are ``namespace/name`` of Services.  It writes nothing but Events."""

    def __init__(self) -> None:
        of_api = f"{LABEL_SERVICE_NAME}={API_SERVICE.name}"
        super().__init__(
            ControllerInfo(
                name=COMPONENT,
                aliases=("service-claims",),
                watches=(
                    Selection(Services),
                    Selection(Nodes),
                    Selection(ServiceCIDRs),
                    Selection(
                        EndpointSlices, namespace=API_SERVICE.namespace, label_selector=of_api
                    ),
                ),
            )
        )
        self._families = tuple(_OfFamily(family) for family in FAMILIES)
        self._services: dict[str, Service] = {}
        self._told: dict[str, tuple[str, str]] = {}  # the two texts that were noted last

    def on_change(self, change: Change[Object], now: float) -> None:
        name = change.object.metadata.name
        marked: set[ServiceKey] = set()
        match change.new if change.new is not None else change.old:
            case Service() as service:
                marked = self._on_service(service, gone=change.new is None)
            case Node() as node:
                marked = self._each("on_node", name, node if change.new is not None else None)
            case ServiceCIDR() as service_cidr:
                marked = self._each(
                    "on_range", name, service_cidr if change.new is not None else None
                )
            case EndpointSlice() as found_slice:
                marked = self._each(
                    "on_api_slice", name, found_slice if change.new is not None else None
                )
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")
        for key in sorted(marked):
            self.enqueue_after(str(key), SETTLE_S, now)

    def _each(self, method: str, name: str, new: Object | None) -> set[ServiceKey]:
        return set[ServiceKey]().union(
            *(getattr(of_family, method)(name, new) for of_family in self._families)
        )

    def _on_service(self, service: Service, *, gone: bool) -> set[ServiceKey]:
        key = ServiceKey(service.metadata.namespace, service.metadata.name)
        marked = {key}
        for of_family in self._families:
            marked |= of_family.on_service(key, None if gone else service)
        if gone:
            self._services.pop(str(key), None)
            self._told.pop(str(key), None)
        else:
            self._services[str(key)] = service
        return marked

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        service = self._services.get(key)
        if service is None:
            return ()
        of = ServiceKey(service.metadata.namespace, service.metadata.name)
        texts = (self._refused(of), self._excess(of))
        before = self._told.get(key, ("", ""))
        for reason, text, noted in zip((NOT_SERVED, TOO_LARGE), texts, before, strict=True):
            if text and text != noted:
                self.report(Services, service, "Warning", reason, text, action="Serve")
        if any(texts):
            self._told[key] = texts
        else:
            self._told.pop(key, None)
        return ()

    def _refused(self, key: ServiceKey) -> str:
        refusals = [
            refusal for of_family in self._families for refusal in of_family.claims.refusals(key)
        ]
        more = f"; and {len(refusals) - TOLD_MAX:,} more" if len(refusals) > TOLD_MAX else ""
        sentences = "; ".join(str(refusal) for refusal in refusals[:TOLD_MAX])
        return f"no node serves what is another's: {sentences}{more}" if refusals else ""

    def _excess(self, key: ServiceKey) -> str:
        sentences = [
            f"{of_family.family}: {excess}"
            for of_family in self._families
            if (excess := of_family.excess.get(key)) is not None
        ]
        return "; ".join(sentences)

    def finished(self, done: Done, now: float) -> None:
        raise AssertionError("it has no jobs")

    def check(self) -> None:
        super().check()
        for of_family in self._families:
            of_family.check()
        assert self._told.keys() <= self._services.keys(), "told of Services that are gone"
