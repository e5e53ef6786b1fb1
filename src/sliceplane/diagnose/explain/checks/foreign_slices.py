"""Slices and Endpoints that others write: they lead to what is not there, or are not used.

A slice counts for its Service by its label alone, whatever made it; a proxy joins all that it sees
(KEP-0752). So one that was left behind, or written by hand with a slip, is as good as the
controller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_OVER_CAPACITY,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.findings.finding import Evidence, Finding
from sliceplane.api.findings.wording import count, lasting, pairs_text, part, since, some, verb
from sliceplane.api.requests import Selection
from sliceplane.consume.agents.registration import MANAGED_BY as AGENTS
from sliceplane.diagnose.explain.case import ServiceCase, name_of, seen
from sliceplane.diagnose.explain.objects import ENDPOINTS, PODS, SERVICES, SLICES, FullPod

#: addresses of which it is looked up whose they are
FOREIGN_MAX: Final = 3
#: an Endpoints object that is cut off has this many addresses (kubernetes.io, "Over-capacity
#: endpoints")
ENDPOINTS_MAX: Final = 1000


def wants(case: ServiceCase) -> Iterator[Selection]:
    if case.service is None:
        return
    if not case.selector or len(case.endpoints) > ENDPOINTS_MAX:
        yield ENDPOINTS.named(case.namespace, case.name)
    if not case.slices:
        yield SLICES.in_namespace(case.namespace)
        yield SERVICES.in_namespace(case.namespace)
    for address, _ in list(_foreign(case))[:FOREIGN_MAX]:
        yield _pods_at(address)


def foreign_addresses(case: ServiceCase) -> Iterable[Finding]:
    """E3, E13: in slices that the controller does not keep, of a Service with a selector."""
    strays: dict[str, list[str]] = {}
    for address, endpoint_slice in list(_foreign(case))[:FOREIGN_MAX]:
        if not case.was_read(_pods_at(address)):
            continue
        owners = [
            pod for pod in case.facts.of(PODS) if address in pod.status.ips and not pod.has_ended
        ]
        elsewhere = [pod for pod in owners if pod.metadata.namespace != case.namespace]
        if elsewhere:
            yield _of_another_namespace(case, endpoint_slice, address, elsewhere[0])
        elif not owners:
            strays.setdefault(endpoint_slice.metadata.name, []).append(address)
    for name, addresses in strays.items():
        endpoint_slice = next(item for item in case.slices if item.metadata.name == name)
        manager = (endpoint_slice.metadata.labels or {}).get(LABEL_MANAGED_BY, "")
        age = since(endpoint_slice.metadata.creation_timestamp, case.now)
        told = f"managed by {manager or 'no manager'}" + (
            f", {lasting(age)} old" if age is not None else ""
        )
        yield Finding(
            code="E3",
            subject=case.subject,
            # An address outside of the cluster is no Pod's either.
            certainty="likely",
            sentence=f"slice {name} ({told}) lists {some(addresses)}, which no Pod has",
            evidence=(seen(SLICES, endpoint_slice, "endpoints", some(addresses)),),
            effect=f"{part(len(addresses), len(case.ready), 'ready endpoint', 'leads')} nowhere, "
            "unless something "
            "outside of the cluster answers there",
            remedy=_delete(case, endpoint_slice),
        )


def _delete(case: ServiceCase, endpoint_slice: EndpointSlice) -> str:
    """A program that keeps a slice writes it again."""
    manager = (endpoint_slice.metadata.labels or {}).get(LABEL_MANAGED_BY, "")
    delete = f"kubectl -n {case.namespace} delete endpointslice {endpoint_slice.metadata.name}"
    return f"see that {manager} does not write it any more, then {delete}" if manager else delete


def _foreign(case: ServiceCase) -> Iterator[tuple[str, EndpointSlice]]:
    """Addresses that no selected Pod has, in slices of other managers beside a selector; an agent's
    are no Pod's.
    """
    if not case.selector:
        return
    own = {address for pod in case.live for address in pod.status.ips}
    for endpoint_slice, endpoint in case.ready:
        manager = (endpoint_slice.metadata.labels or {}).get(LABEL_MANAGED_BY)
        if (
            manager in (MANAGED_BY_CONTROLLER, MANAGED_BY_MIRRORING, AGENTS)
            or endpoint_slice.address_type == "FQDN"
        ):
            continue
        for address in endpoint.addresses[:1]:
            if address not in own:
                yield address, endpoint_slice


def _pods_at(address: str) -> Selection:
    return Selection(PODS.resource, field_selector=f"status.podIP={address}")


def _of_another_namespace(
    case: ServiceCase, endpoint_slice: EndpointSlice, address: str, pod: FullPod
) -> Finding:
    return Finding(
        code="E13",
        subject=case.subject,
        sentence=(
            f"slice {endpoint_slice.metadata.name} lists {address}, which is Pod "
            f"{pod.metadata.key}'s"
        ),
        evidence=(seen(SLICES, endpoint_slice, "endpoints", address),),
        effect=f"clients of {case.name} reach a Pod of namespace {pod.metadata.namespace}",
        remedy=_delete(case, endpoint_slice),
    )


def mirror_beside_selector(case: ServiceCase) -> Iterable[Finding]:
    """E4"""
    for endpoint_slice in case.slices:
        manager = (endpoint_slice.metadata.labels or {}).get(LABEL_MANAGED_BY)
        if case.selector and manager == MANAGED_BY_MIRRORING:
            addresses = [
                address
                for endpoint in endpoint_slice.endpoints or ()
                for address in endpoint.addresses[:1]
            ]
            yield Finding(
                code="E4",
                subject=case.subject,
                sentence=f"slice {endpoint_slice.metadata.name} mirrors Endpoints {case.name}, "
                "which no writer keeps "
                f"since {case.name} has a selector",
                evidence=(
                    seen(SLICES, endpoint_slice, "endpoints", some(addresses) or "(none)"),
                    case.field("spec.selector", pairs_text(case.selector)),
                ),
                effect=f"{count(len(addresses), 'address', 'stays')} whatever becomes of the Pods",
                remedy=(
                    f"kubectl -n {case.namespace} delete endpointslice "
                    f"{endpoint_slice.metadata.name}"
                ),
            )


def mirror_without_endpoints(case: ServiceCase) -> Iterable[Finding]:
    """E15"""
    mirrored = [
        endpoint_slice
        for endpoint_slice in case.slices
        if (endpoint_slice.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING
    ]
    asked = ENDPOINTS.named(case.namespace, case.name)
    lost = case.was_read(asked) and case.facts.get(ENDPOINTS, case.namespace, case.name) is None
    if mirrored and not case.selector and lost:
        names = [endpoint_slice.metadata.name for endpoint_slice in mirrored]
        addresses = sum(len(endpoint_slice.endpoints or ()) for endpoint_slice in mirrored)
        yield Finding(
            code="E15",
            subject=case.subject,
            sentence=f"{count(len(names), 'slice')} ({some(names)}) {verb(len(names), 'mirrors')} "
            "Endpoints "
            f"{case.name}, which are gone",
            evidence=(seen(SLICES, mirrored[0], "endpoints", count(addresses, "address")),),
            effect=f"{count(addresses, 'address', 'stays')} that no writer keeps",
            remedy=f"kubectl -n {case.namespace} delete endpointslice {' '.join(names)}",
        )


def owner_of_before(case: ServiceCase) -> Iterable[Finding]:
    """E9"""
    service = case.service
    if service is None:
        return
    old = [
        endpoint_slice
        for endpoint_slice in case.slices
        for owner in endpoint_slice.metadata.owner_references or ()
        if (owner.kind, owner.name) == ("Service", case.name)
        and owner.uid
        and owner.uid != service.metadata.uid
    ]
    if old:
        names = [endpoint_slice.metadata.name for endpoint_slice in old]
        yield Finding(
            code="E9",
            subject=case.subject,
            sentence=f"{count(len(old), 'slice')} ({some(names)}) {verb(len(old), 'belongs')} to "
            "a Service "
            f"{case.name} that was deleted",
            evidence=(
                seen(SLICES, old[0], "metadata.ownerReferences", f"uid {_owner_uid(old[0])}"),
                case.field("metadata.uid", service.metadata.uid),
            ),
            effect="their endpoints are of the Service of before, until they are collected as garbage",
            remedy=f"kubectl -n {case.namespace} delete endpointslice {' '.join(names)}",
        )


def _owner_uid(endpoint_slice: EndpointSlice) -> str:
    return next(
        (
            owner.uid
            for owner in endpoint_slice.metadata.owner_references or ()
            if owner.kind == "Service"
        ),
        "",
    )


def one_pod_twice(case: ServiceCase) -> Iterable[Finding]:
    """E12: in slices of different managers.  One manager moves an endpoint by adding before it
    removes.
    """
    places: dict[tuple[str, str], list[EndpointSlice]] = {}
    for endpoint_slice, endpoint in case.endpoints:
        if (who := _who(endpoint)) and endpoint_slice not in places.setdefault(
            (who, endpoint_slice.address_type), []
        ):
            places[who, endpoint_slice.address_type].append(endpoint_slice)
    for (who, _), slices in places.items():
        managers = {(item.metadata.labels or {}).get(LABEL_MANAGED_BY, "") for item in slices}
        if len(managers) > 1 and MANAGED_BY_MIRRORING not in managers:
            # The controller would write its own again.
            others = [
                item
                for item in slices
                if (item.metadata.labels or {}).get(LABEL_MANAGED_BY, "") != MANAGED_BY_CONTROLLER
            ]
            later = max(others, key=lambda item: item.metadata.creation_timestamp or "")
            yield Finding(
                code="E12",
                subject=case.subject,
                sentence=(
                    f"{who} is in {len(slices)} slices: "
                    f"{some([item.metadata.name for item in slices])}"
                ),
                evidence=tuple(
                    seen(
                        SLICES,
                        item,
                        f"metadata.labels[{LABEL_MANAGED_BY}]",
                        (item.metadata.labels or {}).get(LABEL_MANAGED_BY, "(none)"),
                    )
                    for item in slices
                ),
                effect="what one manager takes away, the other keeps",
                remedy=f"kubectl -n {case.namespace} delete endpointslice {later.metadata.name}",
            )
            return


def _who(endpoint: SliceEndpoint) -> str:
    target = endpoint.target_ref
    return target.name if target is not None and target.kind == "Pod" else ""


def unmirrored(case: ServiceCase) -> Iterable[Finding]:
    """E5"""
    endpoints = case.facts.get(ENDPOINTS, case.namespace, case.name)
    if (
        case.service is None
        or case.selector
        or endpoints is None
        or case.slices
        or not endpoints.subsets
    ):
        return
    labels, annotations = endpoints.metadata.labels or {}, endpoints.metadata.annotations or {}
    if labels.get(LABEL_SKIP_MIRROR) == "true":
        why = f"label {LABEL_SKIP_MIRROR}"
        field = f"metadata.labels[{LABEL_SKIP_MIRROR}]"
        remedy = f"label endpoints {case.name} {LABEL_SKIP_MIRROR}-"
    elif ANNOTATION_LEADER in annotations:
        why = "the annotation of a leader election"
        field = f"metadata.annotations[{ANNOTATION_LEADER}]"
        remedy = f"annotate endpoints {case.name} {ANNOTATION_LEADER}-"
    else:
        return
    yield Finding(
        code="E5",
        subject=case.subject,
        sentence=f"Endpoints {case.name} is not mirrored to slices: {why}",
        evidence=(Evidence(subject=name_of(ENDPOINTS, endpoints), field=field, value="true"),),
        effect="no slice has its addresses, and nodes read slices",
        remedy=f"kubectl -n {case.namespace} {remedy}",
    )


def unlabelled(case: ServiceCase) -> Iterable[Finding]:
    """E6"""
    if (
        case.service is None
        or case.slices
        or not case.was_read(SLICES.in_namespace(case.namespace))
    ):
        return
    services = {service.metadata.name for service in case.facts.of(SERVICES, case.namespace)}
    for endpoint_slice in case.facts.of(SLICES, case.namespace):
        label = (endpoint_slice.metadata.labels or {}).get(LABEL_SERVICE_NAME, "")
        owned = _owner_uid(endpoint_slice) == case.service.metadata.uid
        looks_ours = (
            endpoint_slice.metadata.name.startswith(f"{case.name}-") and label not in services
        )
        if owned or looks_ours:
            name = endpoint_slice.metadata.name
            said = (
                f"is labelled for Service {label}"
                if label
                else f"has no label {LABEL_SERVICE_NAME}"
            )
            yield Finding(
                code="E6",
                subject=case.subject,
                certainty="certain" if owned else "likely",
                sentence=f"slice {name} {said}; {case.name} has no slice",
                evidence=(
                    seen(
                        SLICES,
                        endpoint_slice,
                        f"metadata.labels[{LABEL_SERVICE_NAME}]",
                        label or "(none)",
                    ),
                ),
                effect=(
                    f"no node takes its {count(len(endpoint_slice.endpoints or ()), 'endpoint')} "
                    f"for {case.name}"
                ),
                remedy=f"kubectl -n {case.namespace} label --overwrite endpointslice {name} "
                f"{LABEL_SERVICE_NAME}={case.name}",
            )
            return


def truncated(case: ServiceCase) -> Iterable[Finding]:
    """E8"""
    endpoints = case.facts.get(ENDPOINTS, case.namespace, case.name)
    if endpoints is None or not case.selector:
        return
    told = (endpoints.metadata.annotations or {}).get(ANNOTATION_OVER_CAPACITY)
    if told == "truncated":
        held = sum(
            len(subset.addresses or ()) + len(subset.not_ready_addresses or ())
            for subset in endpoints.subsets or ()
        )
        yield Finding(
            code="E8",
            subject=case.subject,
            certainty="possible",
            sentence=f"Endpoints {case.name} holds {held:,} of {len(case.endpoints):,} addresses",
            evidence=(
                seen(
                    ENDPOINTS, endpoints, f"metadata.annotations[{ANNOTATION_OVER_CAPACITY}]", told
                ),
            ),
            effect="programs that still read Endpoints never use the rest",
            remedy="sliceplane endpoints audit",
        )


def fqdn(case: ServiceCase) -> Iterable[Finding]:
    """E10"""
    names = [item for item in case.slices if item.address_type == "FQDN" and item.endpoints]
    if names:
        yield Finding(
            code="E10",
            subject=case.subject,
            sentence=(
                f"slice {names[0].metadata.name} has names for addresses (addressType FQDN): "
                "proxies pass it over"
            ),
            evidence=(seen(SLICES, names[0], "addressType", "FQDN"),),
            effect=f"its {count(len(names[0].endpoints or ()), 'endpoint', 'gets')} no connection",
            remedy="write the addresses that the names stand for, or make the Service an ExternalName",
        )


CHECKS = (
    foreign_addresses,
    mirror_beside_selector,
    mirror_without_endpoints,
    unmirrored,
    unlabelled,
    truncated,
    owner_of_before,
    fqdn,
    one_pod_twice,
)
