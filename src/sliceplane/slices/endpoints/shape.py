"""The fields of a Service that its Endpoints depend on. Two versions with equal shapes need equal
Endpoints.

``Role`` matters most: the controller makes the Endpoints of a Service with a selector; the user
makes those of a Service without one; an ExternalName needs none.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from sliceplane.api.core import Service, ServicePort
from sliceplane.api.discovery import (
    ENDPOINTS_MANAGED_BY_CONTROLLER,
    LABEL_ENDPOINTS_MANAGED_BY,
    LABEL_HEADLESS,
    LABEL_SKIP_MIRROR,
)
from sliceplane.api.selectors.adoption import AdoptionStage, Scope, selector_of, stage_of
from sliceplane.kit.ip import Family, family, parse_lenient


class Role(Enum):
    SELECTING = "selecting"
    WITHOUT_SELECTOR = "without selector"
    EXTERNAL_NAME = "external name"


class EndpointsShape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a Service. ``family`` None: the family of each Pod's first address. ``labels``
    are those of the Endpoints.
    """

    namespace: str
    name: str
    uid: str
    created: str | None
    role: Role
    selector: dict[str, str]
    family: Family | None
    ports: tuple[ServicePort, ...]
    publish_not_ready: bool
    headless: bool
    labels: dict[str, str]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def active(self) -> bool:
        return self.role is Role.SELECTING

    def same_addresses(self, other: EndpointsShape) -> bool:
        """Returns True if *other* differs at most in labels: every address and port is the same."""
        return self._address_inputs == other._address_inputs

    @property
    def _address_inputs(self) -> tuple[object, ...]:
        return (
            *(self.uid, self.role, self.selector, self.family, self.ports),
            *(self.publish_not_ready, self.headless),
        )


def endpoints_shape(
    service: Service,
    *,
    skip_mirror: bool,
    managed_by: str = ENDPOINTS_MANAGED_BY_CONTROLLER,
    scope: Scope = Scope.SELECTING,
) -> EndpointsShape:
    """Returns the shape of *service* for controllers of *scope*. *managed_by* and *skip_mirror*
    determine labels of its Endpoints.
    """
    meta = service.metadata
    spec = service.spec
    role = role_of(service, scope)
    return EndpointsShape(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp,
        role=role,
        selector=selector_of(service, scope) if role is Role.SELECTING else {},
        family=primary_family(service),
        ports=spec.ports or (),
        publish_not_ready=spec.publish_not_ready_addresses,
        headless=spec.cluster_ip in ("", "None"),
        labels=_labels(service, managed_by, skip_mirror=skip_mirror),
    )


def role_of(service: Service, scope: Scope = Scope.SELECTING) -> Role:
    if service.spec.type == "ExternalName":
        return Role.EXTERNAL_NAME
    if scope is Scope.ADOPTED and stage_of(service) is not AdoptionStage.ADOPTED:
        # There is only one object, so upstream's controller has it while spec.selector exists.
        return Role.WITHOUT_SELECTOR
    # an empty selector would be dropped by a storage round trip: it selects nothing
    return Role.SELECTING if selector_of(service, scope) else Role.WITHOUT_SELECTOR


def primary_family(service: Service) -> Family | None:
    """Returns the first listed family; else the cluster IP's."""
    match service.spec.ip_families:
        case ("IPv6", *_):
            return "IPv6"
        case (_, *_):
            return "IPv4"
    address = parse_lenient(service.spec.cluster_ip)
    return None if address is None else family(address)


def _labels(service: Service, managed_by: str, *, skip_mirror: bool) -> dict[str, str]:
    labels = dict(service.metadata.labels or {})
    labels.pop(LABEL_HEADLESS, None)
    labels[LABEL_ENDPOINTS_MANAGED_BY] = managed_by
    if skip_mirror:
        labels[LABEL_SKIP_MIRROR] = "true"
    if service.spec.cluster_ip in ("", "None"):
        labels[LABEL_HEADLESS] = ""
    return dict(sorted(labels.items()))
