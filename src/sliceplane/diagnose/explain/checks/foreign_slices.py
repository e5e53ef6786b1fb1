"""Slices and Endpoints of other writers: they lead to missing Pods, or are not used.

A slice counts for its Service by its label alone, whatever its writer; a proxy merges all of them
(KEP-0752). So a leftover, or one written by hand with a mistake, counts like the controller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from sliceplane.api.discovery import (
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.findings.finding import Finding
from sliceplane.api.findings.wording import count, lasting, part, since, some, verb
from sliceplane.api.requests import Selection
from sliceplane.api.selectors.adoption import MANAGED_BY_ADOPTED, AdoptionStage, stage_of
from sliceplane.consume.agents.registration import MANAGED_BY as AGENTS
from sliceplane.diagnose.audit.facts import endpoints_facts, service_facts, slice_facts
from sliceplane.diagnose.audit.judge import judge
from sliceplane.diagnose.explain.case import ServiceCase, evidence_of, list_names
from sliceplane.diagnose.explain.objects import (
    ENDPOINTS,
    SERVICES,
    SLICES,
    FullPod,
    pods_with_address,
)

#: addresses whose Pods are read
FOREIGN_MAX: Final = 3
#: addresses of a truncated Endpoints object (kubernetes.io, "Over-capacity endpoints")
ENDPOINTS_MAX: Final = 1000

_CONTROLLERS: Final = (MANAGED_BY_CONTROLLER, MANAGED_BY_ADOPTED, MANAGED_BY_MIRRORING)


def reads(case: ServiceCase) -> Iterator[Selection]:
    if not case.selector or len(case.endpoints) > ENDPOINTS_MAX:
        yield ENDPOINTS.named(case.namespace, case.name)
    if not case.slices:
        yield SLICES.in_namespace(case.namespace)
        yield SERVICES.in_namespace(case.namespace)
    for address, _ in _to_look_up(case):
        yield pods_with_address(address)


def foreign_addresses(case: ServiceCase) -> Iterable[Finding]:
    """E3, E13: addresses in slices of other managers, of a Service with a selector."""
    strays: dict[str, list[str]] = {}
    for address, endpoint_slice in _to_look_up(case):
        if not case.was_read(pods_with_address(address)):
            continue
        owners = case.facts.pods_at(address)
        # A Pod in its node's network has the node's address, which others serve as well.
        elsewhere = [pod for pod in owners if not pod.spec.host_network]
        if elsewhere:
            yield _of_another_namespace(case, endpoint_slice, address, elsewhere[0])
        elif not owners:
            strays.setdefault(endpoint_slice.metadata.name, []).append(address)
    for name, addresses in strays.items():
        endpoint_slice = next(item for item in case.slices if item.metadata.name == name)
        manager = endpoint_slice.manager
        age = since(endpoint_slice.metadata.creation_timestamp, case.now)
        description = f"managed by {manager or 'no manager'}" + (
            f", {lasting(age)} old" if age is not None else ""
        )
        yield case.finding(
            "E3",
            f"slice {name} ({description}) lists {some(addresses)}, which no Pod has",
            evidence_of(SLICES, endpoint_slice, "endpoints", some(addresses)),
            certainty="likely",
            effect=f"{part(len(addresses), len(case.ready), 'ready endpoint', 'leads')} nowhere, "
            "unless something outside of the cluster answers there",
            remedy=_delete(case, endpoint_slice),
        )


def _delete(case: ServiceCase, endpoint_slice: EndpointSlice) -> str:
    """Returns the remedy: a program that manages a slice would write it again."""
    manager = endpoint_slice.manager
    delete = f"kubectl -n {case.namespace} delete endpointslice {endpoint_slice.metadata.name}"
    return f"see that {manager} does not write it any more, then {delete}" if manager else delete


def _foreign(case: ServiceCase) -> Iterator[tuple[str, EndpointSlice]]:
    """Yields addresses that no selected Pod has, in slices of other managers; agents' addresses are
    no Pods'.
    """
    if not case.selector:
        return
    own = {address for pod in case.live for address in pod.status.ips}
    for endpoint_slice, endpoint in case.ready:
        manager = endpoint_slice.manager
        if manager in (*_CONTROLLERS, AGENTS) or endpoint_slice.address_type == "FQDN":
            continue
        for address in endpoint.addresses[:1]:
            if address not in own:
                yield address, endpoint_slice


def _to_look_up(case: ServiceCase) -> Iterator[tuple[str, EndpointSlice]]:
    """Yields the first ``FOREIGN_MAX`` foreign addresses without those of Pods of the namespace:
    whatever else has such an address, nothing is wrong for certain.
    """
    for address, endpoint_slice in islice(_foreign(case), FOREIGN_MAX):
        owners = case.facts.pods_at(address)
        if all(pod.metadata.namespace != case.namespace for pod in owners):
            yield address, endpoint_slice


def _of_another_namespace(
    case: ServiceCase, endpoint_slice: EndpointSlice, address: str, pod: FullPod
) -> Finding:
    return case.finding(
        "E13",
        f"slice {endpoint_slice.metadata.name} lists {address}, which is Pod {pod.metadata.key}'s",
        evidence_of(SLICES, endpoint_slice, "endpoints", address),
        effect=f"clients of {case.name} reach a Pod of namespace {pod.metadata.namespace}",
        remedy=_delete(case, endpoint_slice),
    )


def of_endpoints(case: ServiceCase) -> Iterable[Finding]:
    """E4, E5, E8, E15, as ``sliceplane endpoints audit`` judges them."""
    endpoints = case.get(ENDPOINTS, case.name)
    was_read = case.was_read(ENDPOINTS.named(case.namespace, case.name))
    findings = judge(
        f"{case.namespace}/{case.name}",
        service_facts(case.service),
        endpoints_facts(endpoints) if endpoints is not None else None,
        tuple(map(slice_facts, case.slices)),
    )
    codes = {"E4", "E5", "E8", *(["E15"] if was_read else [])}
    return (finding for finding in findings if finding.code in codes)


def owner_of_before(case: ServiceCase) -> Iterable[Finding]:
    """E9"""
    service = case.service
    old = [
        endpoint_slice
        for endpoint_slice in case.slices
        for owner in endpoint_slice.metadata.owner_references or ()
        if (owner.kind, owner.name) == ("Service", case.name)
        and owner.uid
        and owner.uid != service.metadata.uid
    ]
    if old:
        names = list_names(old)
        yield case.finding(
            "E9",
            f"{count(len(old), 'slice')} ({some(names)}) {verb(len(old), 'belongs')} to a Service "
            f"{case.name} that was deleted",
            evidence_of(SLICES, old[0], "metadata.ownerReferences", f"uid {_owner_uid(old[0])}"),
            case.field("metadata.uid", service.metadata.uid),
            effect="their endpoints are of the deleted Service, until they are collected",
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
    """E12: one Pod in slices of different managers. One manager moves an endpoint by adding before
    it removes. E19 reports a Service that moves between two managers.
    """
    if stage_of(case.service) not in (
        AdoptionStage.UPSTREAM,
        AdoptionStage.UNSELECTED,
        AdoptionStage.ADOPTED,
    ):
        return
    slices_by_pod: dict[tuple[str, str], list[EndpointSlice]] = {}
    for endpoint_slice, endpoint in case.endpoints:
        if (pod := _pod_name(endpoint)) and endpoint_slice not in slices_by_pod.setdefault(
            (pod, endpoint_slice.address_type), []
        ):
            slices_by_pod[pod, endpoint_slice.address_type].append(endpoint_slice)
    for (pod, _), slices in slices_by_pod.items():
        managers = {item.manager for item in slices}
        if len(managers) > 1 and MANAGED_BY_MIRRORING not in managers:
            # The controller would recreate its own.
            others = [item for item in slices if item.manager not in _CONTROLLERS] or slices
            later = max(others, key=lambda item: item.metadata.creation_timestamp or "")
            yield case.finding(
                "E12",
                f"{pod} is in {len(slices)} slices: {some(list_names(slices))}",
                *tuple(
                    evidence_of(
                        SLICES,
                        item,
                        f"metadata.labels[{LABEL_MANAGED_BY}]",
                        (item.manager or "(none)"),
                    )
                    for item in slices
                ),
                effect="what one manager takes away, the other keeps",
                remedy=f"kubectl -n {case.namespace} delete endpointslice {later.metadata.name}",
            )
            return


def _pod_name(endpoint: SliceEndpoint) -> str:
    target = endpoint.target_ref
    return target.name if target is not None and target.kind == "Pod" else ""


def unlabelled(case: ServiceCase) -> Iterable[Finding]:
    """E6"""
    if case.slices or not case.was_read(SLICES.in_namespace(case.namespace)):
        return
    services = {service.metadata.name for service in case.of(SERVICES)}
    for endpoint_slice in case.of(SLICES):
        label = endpoint_slice.service
        owned = _owner_uid(endpoint_slice) == case.service.metadata.uid
        has_our_prefix = (
            endpoint_slice.metadata.name.startswith(f"{case.name}-") and label not in services
        )
        if owned or has_our_prefix:
            name, number = endpoint_slice.metadata.name, len(endpoint_slice.endpoints or ())
            problem = (
                f"is labelled for Service {label}"
                if label
                else f"has no label {LABEL_SERVICE_NAME}"
            )
            yield case.finding(
                "E6",
                f"slice {name} {problem}; {case.name} has no slice",
                evidence_of(
                    SLICES,
                    endpoint_slice,
                    f"metadata.labels[{LABEL_SERVICE_NAME}]",
                    label or "(none)",
                ),
                certainty="certain" if owned else "likely",
                effect=f"no node takes its {count(number, 'endpoint')} for {case.name}",
                remedy=f"kubectl -n {case.namespace} label --overwrite endpointslice {name} "
                f"{LABEL_SERVICE_NAME}={case.name}",
            )
            return


def fqdn(case: ServiceCase) -> Iterable[Finding]:
    """E10"""
    names = [item for item in case.slices if item.address_type == "FQDN" and item.endpoints]
    if names:
        yield case.finding(
            "E10",
            f"slice {names[0].metadata.name} has names for addresses (addressType FQDN): "
            "proxies pass it over",
            evidence_of(SLICES, names[0], "addressType", "FQDN"),
            effect=f"its {count(len(names[0].endpoints or ()), 'endpoint', 'gets')} no connection",
            remedy="write the addresses of these names, or make the Service an ExternalName",
        )


CHECKS = (
    foreign_addresses,
    of_endpoints,
    unlabelled,
    owner_of_before,
    fqdn,
    one_pod_twice,
)
