"""StatefulSet: Pods with names that stay, made and replaced in order."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import StatefulSets
from sliceplane.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, name_of, number
from sliceplane.kit.names import check_dns_label
from sliceplane.registry.kinds import kind
from sliceplane.registry.kinds.volumes import check_claim_spec, default_claim
from sliceplane.registry.kinds.workload import (
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_counts,
    check_status_counts,
    check_template,
    default_template,
    labels_fit,
    template_cells,
)
from sliceplane.registry.metadata import check_label_selector, in_go
from sliceplane.registry.types import Target

if TYPE_CHECKING:
    from sliceplane.registry.core import Core

_COUNTS: Final = ("replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas")
_RETENTION: Final = ("Retain", "Delete")
_MUTABLE: Final = (
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"),
    *("persistentVolumeClaimRetentionPolicy", "minReadySeconds"),
)
_IMMUTABLE: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)
_KEEPS_ALL: Final = (
    "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
)


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec["podManagementPolicy"] = spec.get("podManagementPolicy") or "OrderedReady"
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy["rollingUpdate"].setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    for member in ("whenDeleted", "whenScaled"):
        retention[member] = retention.get(member) or "Retain"
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("serviceName", "")
    default_template(spec)
    _default_claims(spec.get("volumeClaimTemplates", ()))


def _default_claims(claims: Iterable[Document]) -> None:
    for claim in claims:
        claim.update(apiVersion="v1", kind="PersistentVolumeClaim")
        default_claim(claim)


def _prepare_create(_core: Core, _target: Target, new: Document) -> None:
    _drop_max_unavailable(new)


def _prepare_update(_core: Core, _target: Target, new: Document, old: Document) -> None:
    if "maxUnavailable" not in old["spec"]["updateStrategy"].get("rollingUpdate", {}):
        _drop_max_unavailable(new)


def _drop_max_unavailable(new: Document) -> None:
    """The gate MaxUnavailableStatefulSet (KEP-961) is off, as upstream's default is."""
    new["spec"]["updateStrategy"].get("rollingUpdate", {}).pop("maxUnavailable", None)


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = _rules(spec)
    name = spec["serviceName"]
    if name:
        errors += [invalid_value("spec.serviceName", name, problem) for problem in check_dns_label(name)]
    for index, claim in while_few(errors, enumerate(spec.get("volumeClaimTemplates", ()))):
        errors += check_claim_spec(f"spec.volumeClaimTemplates[{index}].spec", claim["spec"])
    return errors


def _rules(spec: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    policy = spec["podManagementPolicy"]
    selector = spec.get("selector")
    template = spec["template"]
    if policy not in ("OrderedReady", "Parallel"):
        errors.append(invalid_value("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'"))
    errors += _strategy(spec["updateStrategy"])
    for member, value in sorted(spec["persistentVolumeClaimRetentionPolicy"].items()):
        if value not in _RETENTION:
            errors.append(not_supported(f"spec.persistentVolumeClaimRetentionPolicy.{member}", value, _RETENTION))
    errors += check_counts(spec, ("replicas", "minReadySeconds"))
    start = spec.get("ordinals", {}).get("start", 0)
    if start < 0:
        errors.append(invalid_value("spec.ordinals.start", start, "must be greater than or equal to 0"))
    if selector is None:
        errors.append(required("spec.selector"))
    else:
        problems = check_label_selector("spec.selector", selector)
        if not (selector.get("matchLabels") or selector.get("matchExpressions")):
            problems.append(invalid_value("spec.selector", selector, "empty selector is invalid for statefulset"))
        errors += problems or labels_fit(selector, template)
    # Host name and subdomain are the set's to give.
    own = {name: value for name, value in template["spec"].items() if name not in ("hostname", "subdomain")}
    return errors + check_template("spec.template", {**template, "spec": own}, "StatefulSet")


def _strategy(strategy: Document) -> list[FieldError]:
    path = "spec.updateStrategy"
    kind = strategy["type"]
    rolling = strategy.get("rollingUpdate")
    shown = rolling and in_go(rolling, "partition", "maxUnavailable", partition=0)
    if kind == "OnDelete" and rolling is not None:
        return [invalid_value(f"{path}.rollingUpdate", shown, "only allowed for updateStrategy 'RollingUpdate'")]
    if kind not in ("OnDelete", "RollingUpdate"):
        return [invalid_value(path, {"Type": kind, "RollingUpdate": shown}, "must be 'RollingUpdate' or 'OnDelete'")]
    partition = (rolling or {}).get("partition", 0)
    if partition < 0:
        return [invalid_value(f"{path}.rollingUpdate.partition", partition, "must be greater than or equal to 0")]
    return []


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    errors = _rules(new["spec"])
    return errors if _fixed(new) == _fixed(old) else [*errors, forbidden_field("spec", _IMMUTABLE)]


def _fixed(document: Document) -> Document:
    """The part of the spec that may not change.  An older server stored claims without their defaults."""
    fixed = {name: value for name, value in document["spec"].items() if name not in _MUTABLE}
    claims = copy.deepcopy(fixed.pop("volumeClaimTemplates", []))
    _default_claims(claims)
    return {**fixed, "volumeClaimTemplates": claims}


def _warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    return (_KEEPS_ALL,) if new["spec"].get("revisionHistoryLimit", 0) < 0 else ()


def _validate_status(new: Document, _old: Document) -> list[FieldError]:
    counts = (*_COUNTS, "observedGeneration", "collisionCount")
    return check_status_counts(new, counts, _COUNTS[1:], ready="status.readyReplicas")


def _cells(stateful_set: Document, now: float) -> tuple[Cell, ...]:
    ready = number(stateful_set, "status", "readyReplicas")
    wanted = number(stateful_set, "spec", "replicas")
    return (name_of(stateful_set), f"{ready}/{wanted}", age(stateful_set, now), *template_cells(stateful_set)[:2])


STATEFUL_SET: Final = kind.Kind(
    resource=StatefulSets,
    defaults=_default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate=_validate,
    validate_update=_validate_update,
    warnings=_warnings,
    status=kind.Status(
        first=lambda _document: {"replicas": 0, "availableReplicas": 0},
        validate=_validate_status,
        not_written=kind.SPEC,
        kept=(),
    ),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=SCALED_WORKLOAD,
    columns=Printer(
        (
            NAME,
            Column(name="Ready", description="Pods that are ready, of those that are wanted."),
            AGE,
            *TEMPLATE_COLUMNS[:2],
        ),
        _cells,
    ),
)
