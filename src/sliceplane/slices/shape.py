"""The *shape* of a Service: the fields that its slices are built from, and the labels and owner of
its slices.

Two versions of a Service with equal shapes need equal slices. A version that differs only in labels
needs its slices written again, but no endpoint built again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

import msgspec

from sliceplane.api.core import Service, ServicePort
from sliceplane.api.discovery import (
    LABEL_FOR_REGION,
    LABEL_FOR_ZONE,
    LABEL_HEADLESS,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
)
from sliceplane.api.gates import (
    ENDPOINT_SLICE_NODE_NAME,
    ENDPOINT_SLICE_TERMINATING_CONDITION,
    PREFER_SAME_TRAFFIC_DISTRIBUTION,
    SERVICE_TRAFFIC_DISTRIBUTION,
    TOPOLOGY_AWARE_HINTS,
    Gates,
)
from sliceplane.api.meta import OwnerReference
from sliceplane.api.selectors.adoption import AdoptionStage, Scope, selector_of, stage_of
from sliceplane.api.selectors.distribution import requested_distribution, requests_annotation_hints
from sliceplane.kit.ip import FAMILIES, Family, family, parse_lenient
from sliceplane.kit.names import is_domain_qualified
from sliceplane.kit.times import parse_time
from sliceplane.slices.heuristics.types import ServiceView
from sliceplane.slices.removing.guard import ANNOTATION_RELEASE, requests_retention
from sliceplane.slices.subsets import ANNOTATION_SUBSETTING, APPROACHES, Subsetting

#: the label value of every heuristic in metrics
IMPLEMENTATION_SPECIFIC = "ImplementationSpecific"

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NEWEST = Gates()
_RESERVED_LABELS = (LABEL_SERVICE_NAME, LABEL_MANAGED_BY, LABEL_HEADLESS)
_SUBSET_LABELS = (LABEL_FOR_ZONE, LABEL_FOR_REGION)


class HintMode(Enum):
    """The kind of hints that ready endpoints get.

    ``AUTO``: by the zones' shares of CPU, requested by the annotation (KEP-2433). The others follow
    ``spec.trafficDistribution`` (KEP-4444, KEP-3015); ``PLUGIN`` uses the heuristic that it names.
    """

    NONE = "none"
    ZONE = "zone"
    NODE = "node"
    AUTO = "auto"
    PLUGIN = "plugin"


_HINT_MODES = {
    "PreferClose": HintMode.ZONE,
    "PreferSameZone": HintMode.ZONE,
    "PreferSameNode": HintMode.NODE,
}


class ServiceShape(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a Service that its slices depend on.

    ``active`` False: the controller makes no endpoints for it (no selector, or ExternalName:
    ``external``); the other fields then have no meaning.

    ``node_names`` and ``all_conditions`` are False if a feature gate removes ``nodeName``, or
    ``serving`` and ``terminating``, from slices; in the second case terminating Pods are no
    endpoints (KEP-1672).

    ``families`` are in the order of the spec. ``labels`` are those of the slices, without the label
    of their subset. ``distribution`` is the effective value of ``spec.trafficDistribution``.
    ``terminating`` forbids only creates. ``subsetting_problem`` is the reason for ignoring the
    subsetting annotation.
    """

    namespace: str
    name: str
    uid: str
    created: str | None
    terminating: bool
    active: bool
    external: bool
    selector: dict[str, str]
    families: tuple[Family, ...]
    ports: tuple[ServicePort, ...]
    publish_not_ready: bool
    hints: HintMode
    labels: dict[str, str]
    distribution: str = ""
    node_names: bool = True
    all_conditions: bool = True
    subsetting: Subsetting = Subsetting.OFF
    subsetting_problem: str = ""
    #: the annotation requests that mass removals are retained; ``None`` without the annotation
    retention_requested: bool | None = None
    #: retentions that began before this time have ended; seconds since the epoch
    released_at: float = 0.0
    #: annotations for the heuristic; empty without one
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: between upstream's controllers and ours; matters to controllers of adopted Services only
    stage: AdoptionStage = AdoptionStage.UPSTREAM

    @property
    def view(self) -> ServiceView:
        """The Service as heuristics get it."""
        return ServiceView(
            namespace=self.namespace,
            name=self.name,
            annotations=MappingProxyType(dict(self.annotations)),
        )

    @property
    def distribution_group(self) -> str:
        """The label value for metrics. Heuristics share one: users who write Services must not be
        able to create label values.
        """
        return IMPLEMENTATION_SPECIFIC if self.hints is HintMode.PLUGIN else self.distribution

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def owner(self) -> OwnerReference:
        """The controlling owner of every slice of the Service."""
        return OwnerReference(
            api_version="v1",
            kind="Service",
            name=self.name,
            uid=self.uid,
            controller=True,
            block_owner_deletion=True,
        )

    def same_endpoints(self, other: ServiceShape) -> bool:
        """Returns True if *other* differs at most in labels, termination and the annotations of a
        heuristic: every endpoint, but for its hints, and every port group is the same.
        """
        return self.endpoint_inputs == other.endpoint_inputs

    @property
    def endpoint_inputs(self) -> tuple[object, ...]:
        return (
            *(self.uid, self.active, self.external, self.selector, self.families, self.ports),
            *(self.publish_not_ready, self.hints, self.subsetting),
            *((self.distribution,) if self.hints is HintMode.PLUGIN else ()),
        )

    def owns(self, owners: tuple[OwnerReference, ...] | None) -> bool:
        return any(
            o.uid == self.uid and o.kind == "Service" and o.api_version == "v1"
            for o in owners or ()
        )


def shape_of(
    service: Service,
    gates: Gates = _NEWEST,
    subsetting: Subsetting = Subsetting.OFF,
    scope: Scope = Scope.SELECTING,
) -> ServiceShape:
    """Returns the shape of *service* for controllers of *scope*. *subsetting* is the approach of
    Services without the annotation.
    """
    spec = service.spec
    selector = selector_of(service, scope)
    approach, problem = subsetting_of(service, subsetting)
    hints = hint_mode(service, gates)
    return ServiceShape(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        uid=service.metadata.uid,
        created=service.metadata.creation_timestamp,
        terminating=service.metadata.deletion_timestamp is not None,
        # an empty selector would be dropped by a storage round trip: it selects nothing
        external=spec.type == "ExternalName",
        active=spec.type != "ExternalName" and bool(selector),
        selector=selector,
        families=families_of(service),
        ports=spec.ports or (),
        publish_not_ready=spec.publish_not_ready_addresses,
        hints=hints,
        labels=slice_labels(service, subsets=approach is not Subsetting.OFF, manager=scope.manager),
        distribution=traffic_distribution(service, gates),
        node_names=gates.enabled(ENDPOINT_SLICE_NODE_NAME),
        all_conditions=gates.enabled(ENDPOINT_SLICE_TERMINATING_CONDITION),
        subsetting=approach,
        subsetting_problem=problem,
        retention_requested=requests_retention(service.metadata.annotations),
        released_at=_released_at(service),
        annotations=_parameters(service) if hints is HintMode.PLUGIN else {},
        stage=stage_of(service) if scope is Scope.ADOPTED else AdoptionStage.UPSTREAM,
    )


def _released_at(service: Service) -> float:
    """Returns the time of the release annotation; 0 if it is missing or invalid."""
    try:
        return parse_time((service.metadata.annotations or {}).get(ANNOTATION_RELEASE, ""))
    except ValueError:
        return 0.0


def subsetting_of(service: Service, default: Subsetting) -> tuple[Subsetting, str]:
    """Returns the approach, and the reason why it differs from the annotation ("" if it
    does not).
    """
    requested = (service.metadata.annotations or {}).get(ANNOTATION_SUBSETTING)
    if requested is None:
        return default, ""
    if default is Subsetting.OFF:
        return (
            default,
            f"{ANNOTATION_SUBSETTING}={requested} is ignored: subsetting is switched off",
        )
    if requested in APPROACHES:
        return APPROACHES[requested], ""
    values = ", ".join(APPROACHES)
    return (
        Subsetting.ORIGINAL,
        f"{ANNOTATION_SUBSETTING}={requested} counts as Original: must be one of {values}",
    )


def families_of(service: Service) -> tuple[Family, ...]:
    """Returns the listed families; else the cluster IP's family; else (headless) both.
    ``staging/src/k8s.io/endpointslice/utils.go``.
    """
    listed = tuple(kind for kind in FAMILIES if kind in (service.spec.ip_families or ()))
    if listed:
        first = (service.spec.ip_families or ())[0]
        return listed if listed[0] == first else listed[::-1]
    address = parse_lenient(service.spec.cluster_ip)
    return FAMILIES if address is None else (family(address),)


def is_headless(service: Service) -> bool:
    return service.spec.cluster_ip in ("", "None")


def slice_labels(
    service: Service, *, subsets: bool = False, manager: str = Scope.SELECTING.manager
) -> dict[str, str]:
    """Returns the labels of a Service's slices, sorted by key: the Service's own, except reserved
    ones, and the labels that identify its slices.

    *subsets*: labels of subsets are reserved, too.
    """
    labels = {k: v for k, v in (service.metadata.labels or {}).items() if k not in _RESERVED_LABELS}
    if subsets:
        labels = {k: v for k, v in labels.items() if k not in _SUBSET_LABELS}
    labels[LABEL_SERVICE_NAME] = service.metadata.name
    labels[LABEL_MANAGED_BY] = manager
    if is_headless(service):
        labels[LABEL_HEADLESS] = ""
    return dict(sorted(labels.items()))


def _parameters(service: Service) -> dict[str, str]:
    """Returns all annotations except kubectl's copy of the object, which changes with
    every edit.
    """
    return {
        k: v for k, v in sorted((service.metadata.annotations or {}).items()) if k != _LAST_APPLIED
    }


def hint_mode(service: Service, gates: Gates = _NEWEST) -> HintMode:
    """Returns the mode of hints. The annotation takes precedence over the field, whatever its
    result. Unknown values, and values of a disabled feature, are ignored (KEP-4444, "Feature
    Enablement and Rollback").
    """
    if not gates.enabled(TOPOLOGY_AWARE_HINTS):
        return HintMode.NONE
    if requests_annotation_hints(service.metadata.annotations or {}):
        return HintMode.AUTO
    value = traffic_distribution(service, gates)
    return HintMode.PLUGIN if is_domain_qualified(value) else _HINT_MODES.get(value, HintMode.NONE)


def traffic_distribution(service: Service, gates: Gates = _NEWEST) -> str:
    """Returns the field's value if it is valid and enabled; otherwise "". A heuristic that the
    annotation names takes precedence.
    """
    annotations = service.metadata.annotations or {}
    value = requested_distribution(annotations, service.spec.traffic_distribution)
    if not gates.enabled(SERVICE_TRAFFIC_DISTRIBUTION):
        return ""
    if value not in _HINT_MODES:
        return value if is_domain_qualified(value) else ""
    return (
        value if value == "PreferClose" or gates.enabled(PREFER_SAME_TRAFFIC_DISTRIBUTION) else ""
    )
