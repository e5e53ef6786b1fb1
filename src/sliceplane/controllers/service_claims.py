"""Reports to the owner of a Service the parts that no node serves: addresses that belong to another
object, and fields beyond the bounds.

Every node proxy makes the same decision by itself (``consume.claims``, ``consume.bounds``) without
an Event, since one Service would cost an Event for each node. This controller applies the same
rules to the same objects and writes one Event. It does not know flags of proxies
(``--cluster-cidr``, ``--bind-address``), so a node may refuse more than is reported.

A Service is checked ``DELAY_S`` after a change of it, or of the owner of an address that it
requests. An Event is written if its text differs from the last one.
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

#: reasons of the Events
NOT_SERVED: Final = "AddressNotServed"
TOO_LARGE: Final = "ServiceTooLarge"
COMPONENT: Final = "service-claims-controller"

DELAY_S: Final = 1.0
#: refusals that one Event lists
REPORTED_MAX: Final = 3


class _FamilyClaims:
    """The claims of Services in one IP family."""

    def __init__(self, family: Family) -> None:
        self.family: Family = family
        self.claims = AddressClaims()
        self._ports: dict[ServiceKey, tuple[ServedPort, ...]] = {}
        self.excess: dict[ServiceKey, Excess] = {}

    def on_service(self, key: ServiceKey, new: Service | None) -> set[ServiceKey]:
        ports, excess = read(new, self.family) if new is not None else ((), Excess())
        created = (new.metadata.creation_timestamp or "") if new is not None else ""
        affected = self.claims.on_service(key, created, self._ports.pop(key, ()), ports)
        if ports:
            self._ports[key] = ports
        self.excess.pop(key, None)
        if any(excess):
            self.excess[key] = excess
        return affected

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
    """The controller. Keys are ``namespace/name`` of Services. It writes only Events."""

    def __init__(self) -> None:
        api_selector = f"{LABEL_SERVICE_NAME}={API_SERVICE.name}"
        super().__init__(
            ControllerInfo(
                name=COMPONENT,
                aliases=("service-claims",),
                watches=(
                    Selection(Services),
                    Selection(Nodes),
                    Selection(ServiceCIDRs),
                    Selection(
                        EndpointSlices, namespace=API_SERVICE.namespace, label_selector=api_selector
                    ),
                ),
            )
        )
        self._families = tuple(_FamilyClaims(family) for family in FAMILIES)
        self._services: dict[str, Service] = {}
        self._reported_texts: dict[str, tuple[str, str]] = {}  # the last two texts by Service

    def on_change(self, change: Change[Object], now: float) -> None:
        name = change.object.metadata.name
        affected: set[ServiceKey] = set()
        match change.new if change.new is not None else change.old:
            case Service() as service:
                affected = self._on_service(service, gone=change.new is None)
            case Node() as node:
                affected = self._each("on_node", name, node if change.new is not None else None)
            case ServiceCIDR() as service_cidr:
                affected = self._each(
                    "on_range", name, service_cidr if change.new is not None else None
                )
            case EndpointSlice() as endpoint_slice:
                affected = self._each(
                    "on_api_slice", name, endpoint_slice if change.new is not None else None
                )
            case unexpected:
                raise AssertionError(f"{change.resource} is not watched: {unexpected!r}")
        for key in sorted(affected):
            self.enqueue_after(str(key), DELAY_S, now)

    def _each(self, method: str, name: str, new: Object | None) -> set[ServiceKey]:
        return set[ServiceKey]().union(
            *(getattr(family_claims, method)(name, new) for family_claims in self._families)
        )

    def _on_service(self, service: Service, *, gone: bool) -> set[ServiceKey]:
        key = ServiceKey(service.metadata.namespace, service.metadata.name)
        affected = {key}
        for family_claims in self._families:
            affected |= family_claims.on_service(key, None if gone else service)
        if gone:
            self._services.pop(str(key), None)
            self._reported_texts.pop(str(key), None)
        else:
            self._services[str(key)] = service
        return affected

    def plan(self, key: str, now: float) -> tuple[Write, ...]:
        service = self._services.get(key)
        if service is None:
            return ()
        service_key = ServiceKey(service.metadata.namespace, service.metadata.name)
        texts = (self._refused(service_key), self._excess(service_key))
        before = self._reported_texts.get(key, ("", ""))
        for reason, text, reported in zip((NOT_SERVED, TOO_LARGE), texts, before, strict=True):
            if text and text != reported:
                self.report(Services, service, "Warning", reason, text, action="Serve")
        if any(texts):
            self._reported_texts[key] = texts
        else:
            self._reported_texts.pop(key, None)
        return ()

    def _refused(self, key: ServiceKey) -> str:
        refusals = [
            refusal
            for family_claims in self._families
            for refusal in family_claims.claims.refusals(key)
        ]
        more = (
            f"; and {len(refusals) - REPORTED_MAX:,} more" if len(refusals) > REPORTED_MAX else ""
        )
        sentences = "; ".join(str(refusal) for refusal in refusals[:REPORTED_MAX])
        return f"no node serves addresses of another owner: {sentences}{more}" if refusals else ""

    def _excess(self, key: ServiceKey) -> str:
        sentences = [
            f"{family_claims.family}: {excess}"
            for family_claims in self._families
            if (excess := family_claims.excess.get(key)) is not None
        ]
        return "; ".join(sentences)

    def finished(self, done: Done, now: float) -> None:
        raise AssertionError("it has no jobs")

    def check(self) -> None:
        super().check()
        for family_claims in self._families:
            family_claims.check()
        assert self._reported_texts.keys() <= self._services.keys(), (
            "reported Services that are gone"
        )
