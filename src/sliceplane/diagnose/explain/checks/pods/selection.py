"""From the selector of a Service to Pods, and back: no Pod matches, or no Service does.

If no Pod matches, the most likely reason is reported: a label with another value, a template
without it, Pods in another namespace. ``workloads`` has the case that the Pods were not created.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.findings.finding import Finding, TooYoung
from sliceplane.api.findings.wording import (
    count,
    nearest,
    pairs_text,
    part,
    patch,
    since,
    some,
    verb,
)
from sliceplane.api.requests import Selection
from sliceplane.diagnose.explain.case import PodCase, ServiceCase, evidence_of, selector_of
from sliceplane.diagnose.explain.checks.foreign_slices import unlabelled
from sliceplane.diagnose.explain.checks.pods.workloads import (
    BY_KIND,
    GENERATED_LABELS,
    MAKERS,
    NO_ENDPOINTS,
    STARTING_S,
    by_template,
    matching,
    name_of_workload,
    pods_of,
    readable_of,
    root_of,
    short,
    workloads,
)
from sliceplane.diagnose.explain.checks.slices import API_SERVER
from sliceplane.diagnose.explain.objects import (
    ENDPOINTS,
    PODS,
    SERVICES,
    SLICES,
    FullPod,
    Workload,
    events_about,
)


def reads(case: ServiceCase) -> Iterator[Selection]:
    if not case.selector:
        yield case.slices_selection
        yield ENDPOINTS.named(case.namespace, case.name)
        return
    yield case.pods_selection()
    if not case.was_read(case.pods_selection()):
        return
    if case.live:
        roots = sorted({root_of(pod) for pod in case.live})
        yield from (
            BY_KIND[kind].named(case.namespace, name) for kind, name in roots if kind in BY_KIND
        )
    else:
        yield from (readable.in_namespace(case.namespace) for readable in MAKERS)
    for workload in short(case):
        yield events_about(
            case.namespace, readable_of(workload).resource.kind, workload.metadata.name
        )
    if not case.selected:
        yield PODS.in_namespace(case.namespace)
        if case.question.kind != "everything" and not _near(case) and not matching(case):
            yield case.pods_selection(everywhere=True)


def nothing_selected(case: ServiceCase) -> Iterable[Finding]:
    """B1, B5 or B6. A warning if slices of another manager have endpoints."""
    for finding in _why_none(case):
        if case.ready:
            others = some(sorted({item.metadata.name for item, _ in case.ready}))
            effect = f"its endpoints are those of {others} alone"
            finding = msgspec.structs.replace(finding, weight="warning", effect=effect)
        yield finding


def _why_none(case: ServiceCase) -> Iterator[Finding]:
    if (
        not case.selector
        or case.selected
        or matching(case)
        or not case.was_read(PODS.in_namespace(case.namespace))
    ):
        return
    near = _near(case)
    lacking = _lacking_template(case)
    outdated = next((workload for workload in by_template(case) if pods_of(case, workload)), None)
    if any(key in GENERATED_LABELS for key in case.selector):
        yield _selects_one_rollout(case)
    elif outdated is not None:
        yield _older_pods(case, outdated)
    elif near is not None and (near.is_alike or lacking is None):
        yield _other_value(case, near)
    elif lacking is not None:
        yield _template_lacks(case, *lacking)
    elif elsewhere := _elsewhere(case):
        yield _in_another_namespace(case, elsewhere)
    else:
        yield _plainly_none(case)


class _Near:
    """Pods that match all pairs of the selector except one: they have ``value`` for ``key``, or no
    such label (None).
    """

    def __init__(self, key: str, value: str | None, required: str, pods: list[FullPod]) -> None:
        self.key = key
        self.value = value
        self.pods = pods
        self.is_alike = value is not None and bool(nearest(required, [value]))


def _near(case: ServiceCase) -> _Near | None:
    """Returns the most likely candidate; for a selector with one pair only Pods with a similar
    value count.
    """
    groups: dict[tuple[str, str | None], list[FullPod]] = {}
    for pod in case.of(PODS):
        missed = [key for key, value in case.selector.items() if pod.labels.get(key) != value]
        if len(missed) == 1 and not pod.has_ended:
            groups.setdefault((missed[0], pod.labels.get(missed[0])), []).append(pod)
    candidates = [
        _Near(key, value, case.selector[key], pods) for (key, value), pods in groups.items()
    ]
    if len(case.selector) == 1:
        candidates = [candidate for candidate in candidates if candidate.is_alike]
    return max(candidates, key=lambda near: (near.is_alike, len(near.pods)), default=None)


def _selects_one_rollout(case: ServiceCase) -> Finding:
    """B1: no template can give its Pods such a label."""
    generated = [key for key in case.selector if key in GENERATED_LABELS]
    rest = {key: value for key, value in case.selector.items() if key not in generated}
    matched = [pod for pod in case.facts.pods_with(case.namespace, rest) if not pod.has_ended]
    required = pairs_text({key: case.selector[key] for key in generated})
    change = {"spec": {"selector": dict.fromkeys(generated)}}
    return case.finding(
        "B1",
        f"{_pods_here(case)} match {required}, which a controller writes anew at each rollout"
        + (f"; {count(len(matched), 'Pod', 'matches')} {pairs_text(rest)}" if rest else ""),
        case.field("spec.selector", pairs_text(case.selector)),
        effect=NO_ENDPOINTS,
        remedy=case.patch(change)
        if rest
        else (
            f"select by a label of the template: kubectl -n {case.namespace} get pods --show-labels"
        ),
    )


def _older_pods(case: ServiceCase, workload: Workload) -> Finding:
    """B6, about Pods that are older than the template."""
    name = name_of_workload(workload)
    pods = pods_of(case, workload)
    labels = pods[0].labels
    lacking = {key: value for key, value in case.selector.items() if labels.get(key) != value}
    return case.finding(
        "B6",
        f"{_pods_here(case)} match; the template of {name.kind} {name.name} has "
        f"{pairs_text(lacking)}, and its {count(len(pods), 'Pod', 'was')} made before",
        evidence_of(PODS, pods[0], "metadata.labels", pairs_text(labels) or "(none)"),
        case.field("spec.selector", pairs_text(case.selector)),
        effect=NO_ENDPOINTS,
        remedy=f"kubectl -n {case.namespace} rollout restart {name.kind.lower()} {name.name}",
    )


def _other_value(case: ServiceCase, near: _Near) -> Finding:
    required = case.selector[near.key]
    pronoun = f"{'it' if len(near.pods) == 1 else 'they'} {verb(len(near.pods), 'has')}"
    have = (
        f"{pronoun} no such label"
        if near.value is None
        else f"{pronoun} {near.value or '(empty)'}, not {required}"
    )
    return case.finding(
        "B1",
        f"{_pods_here(case)} match; {len(near.pods)} {verb(len(near.pods), 'matches')} "
        f"all but {near.key}: {have}",
        case.field("spec.selector", pairs_text(case.selector)),
        evidence_of(PODS, near.pods[0], f"metadata.labels[{near.key}]", near.value or "(none)"),
        effect=NO_ENDPOINTS,
        remedy=case.patch({"spec": {"selector": {near.key: near.value}}}),
    )


def _pods_here(case: ServiceCase) -> str:
    return part(0, sum(not pod.has_ended for pod in case.of(PODS)), "Pod")


def _lacking_template(case: ServiceCase) -> tuple[Workload, str] | None:
    """Returns a workload whose template lacks only one label of the selector, or that has the
    Service's name, and the label.
    """
    for workload in workloads(case):
        labels = workload.spec.template.metadata.labels or {}
        missed = [key for key, value in case.selector.items() if labels.get(key) != value]
        is_ours = len(case.selector) > 1 or workload.metadata.name == case.name
        if len(missed) == 1 and missed[0] not in labels and is_ours:
            return workload, missed[0]
    return None


def _template_lacks(case: ServiceCase, workload: Workload, key: str) -> Finding:
    name = name_of_workload(workload)
    labels = workload.spec.template.metadata.labels or {}
    change = {"spec": {"template": {"metadata": {"labels": {key: case.selector[key]}}}}}
    return case.finding(
        "B6",
        f"{_pods_here(case)} match; {name.kind} {name.name} makes Pods without "
        f"{key}={case.selector[key]}",
        evidence_of(
            readable_of(workload),
            workload,
            "spec.template.metadata.labels",
            pairs_text(labels) or "(none)",
        ),
        case.field("spec.selector", pairs_text(case.selector)),
        effect=NO_ENDPOINTS,
        remedy=patch(case.namespace, name.kind.lower(), name.name, change),
    )


def _elsewhere(case: ServiceCase) -> dict[str, int]:
    """Counts the live Pods that match, by namespace."""
    if not case.was_read(case.pods_selection(everywhere=True)):
        return {}
    pods = case.facts.of(PODS)
    return Counter(
        pod.metadata.namespace
        for pod in pods
        if not pod.has_ended and case.selector.items() <= pod.labels.items()
    )


def _in_another_namespace(case: ServiceCase, elsewhere: dict[str, int]) -> Finding:
    namespace, number = max(elsewhere.items(), key=lambda item: item[1])
    return case.finding(
        "B5",
        f"{_pods_here(case)} match; {count(number, 'Pod', 'matches')} in namespace {namespace}: "
        "selectors do not cross namespaces",
        case.field("spec.selector", pairs_text(case.selector)),
        effect=NO_ENDPOINTS,
        remedy=f"make the Service in {namespace}, and let clients dial {case.name}.{namespace}",
    )


def _plainly_none(case: ServiceCase) -> Finding:
    sentence = f"{_pods_here(case)} match {pairs_text(case.selector)}"
    for key in case.selector:
        values = sorted({pod.labels[key] for pod in case.of(PODS) if key in pod.labels})
        if case.selector[key] not in values:
            sentence += f"; {key} is {some(values)} here" if values else f"; none has a label {key}"
            break
    return case.finding(
        "B1",
        sentence,
        case.field("spec.selector", pairs_text(case.selector)),
        too_young=_young(case),
        effect=NO_ENDPOINTS,
        remedy=f"kubectl -n {case.namespace} get pods --show-labels",
    )


def _young(case: ServiceCase) -> TooYoung | None:
    age = since(case.service.metadata.creation_timestamp, case.now)
    return TooYoung(age, STARTING_S) if age is not None and age < STARTING_S else None


def neither_selector_nor_slice(case: ServiceCase) -> Iterable[Finding]:
    """B2"""
    service = case.service
    slices = case.slices_selection
    endpoints = ENDPOINTS.named(case.namespace, case.name)
    if case.selector or case.slices:
        return
    if (case.namespace, case.name) == API_SERVER:
        return  # the API server manages it, and writes no slice while it listens on loopback alone
    if not case.was_read(slices) or not case.was_read(endpoints) or list(unlabelled(case)):
        return
    # Leader elections keep Endpoints without addresses, which no client connects to.
    if case.get(ENDPOINTS, case.name) is not None:
        return
    ports = [
        {"name": port.name, "port": port.port, "protocol": port.protocol}
        for port in service.spec.ports or ()
    ]
    template = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{case.name}-1", "labels": {LABEL_SERVICE_NAME: case.name}},
        "addressType": (service.spec.ip_families or ("IPv4",))[0],
        "endpoints": [{"addresses": ["ADDRESS"]}],
        "ports": ports,
    }
    yield case.finding(
        "B2",
        f"{case.name} has no selector, and no slice is labelled for it",
        case.field("spec.selector", "(none)"),
        too_young=_young(case),
        effect=NO_ENDPOINTS,
        remedy=f"kubectl -n {case.namespace} apply -f - <<< "
        f"'{json.dumps(template, separators=(',', ':'))}'",
    )


def pod_reads(case: PodCase) -> Iterator[Selection]:
    """Yields the reads of Services, and of their slices: the answer has the Pod's state in them."""
    yield SERVICES.in_namespace(case.namespace)
    for service in case.services:
        yield SLICES.in_namespace(case.namespace, f"{LABEL_SERVICE_NAME}={service.metadata.name}")


def _missed_alone(service: Service, pod: FullPod) -> str:
    """Returns the only label that *pod* lacks to be selected, or "". A selector with one pair must
    have a value similar to the Pod's.
    """
    selector = selector_of(service)
    missed = [key for key, value in selector.items() if pod.labels.get(key) != value]
    if len(missed) != 1:
        return ""
    value = pod.labels.get(missed[0])
    is_near = len(selector) > 1 or (value and nearest(selector[missed[0]], [value]))
    return missed[0] if is_near else ""


def unselected(case: PodCase) -> Iterable[Finding]:
    """B9"""
    pod = case.pod
    if (
        pod is None
        or case.services
        or pod.has_ended
        or not case.was_read(SERVICES.in_namespace(case.namespace))
    ):
        return
    services = case.of(SERVICES)
    near = [(service, key) for service in services if (key := _missed_alone(service, pod))]
    if near:
        service, key = near[0]
        selector, value = selector_of(service), pod.labels.get(key)
        required = f"{key}={selector[key]}"
        names = [
            other.metadata.name
            for other, missed in near
            if f"{missed}={selector_of(other)[missed]}" == required
        ]
        has = f"{key}={value}" if value is not None else "no such label"
        name = service.metadata.name
        yield case.finding(
            "B9",
            f"no Service of {case.namespace} selects it; "
            f"{some(names, verb_of_one='wants')} {required}, it has {has}",
            case.field("metadata.labels", pairs_text(pod.labels)),
            evidence_of(SERVICES, service, "spec.selector", pairs_text(selector)),
            weight="note" if pod.metadata.is_deleting else None,
            effect="it is no endpoint of any Service",
            remedy=f"sliceplane explain service -n {case.namespace} {name}",
        )
        return
    yield case.finding(
        "B9",
        f"no Service of {case.namespace} selects it; the namespace has "
        f"{count(len(services), 'Service')}",
        case.field("metadata.labels", pairs_text(pod.labels) or "(none)"),
        weight="note",
        effect="it is no endpoint of any Service",
        remedy=f"kubectl -n {case.namespace} get services -o wide",
    )


CHECKS: Final = (nothing_selected, neither_selector_nor_slice)
