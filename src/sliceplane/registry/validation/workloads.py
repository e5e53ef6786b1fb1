"""Deployment and ReplicaSet: counts, strategy, and the selector that must fit its template and stay."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sliceplane.api.errors import FieldError, StatusError, forbidden_field, invalid_value, not_supported, required
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.selectors import from_label_selector
from sliceplane.registry.validation.metadata import IMMUTABLE, validate_maps
from sliceplane.registry.validation.pods import validate_pod_spec

NOT_NEGATIVE = "must be greater than or equal to 0"
STRATEGIES = ("Recreate", "RollingUpdate")
_PERCENT = re.compile("[0-9]+%")
_PERCENT_SHAPE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)


def validate_deployment(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = _counts(spec, ("replicas",))
    errors += _selector_and_template(spec)
    errors += _strategy(spec.get("strategy", {}))
    errors += _counts(spec, ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"))
    deadline, ready = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds", 0)
    if deadline is not None and deadline <= ready:
        errors.append(invalid_value("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"))
    return errors


def validate_deployment_update(new: Document, old: Document) -> list[FieldError]:
    return validate_deployment(new) + _same_selector(new, old)


def validate_replica_set(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    return _counts(spec, ("replicas", "minReadySeconds")) + _selector_and_template(spec)


def validate_replica_set_update(new: Document, old: Document) -> list[FieldError]:
    return validate_replica_set(new) + _same_selector(new, old)


def _counts(spec: Document, members: tuple[str, ...]) -> list[FieldError]:
    return [
        invalid_value(f"spec.{member}", spec[member], NOT_NEGATIVE) for member in members if spec.get(member, 0) < 0
    ]


def _same_selector(new: Document, old: Document) -> list[FieldError]:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", selector, IMMUTABLE)]


def _selector_and_template(spec: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    selector, template = spec.get("selector"), spec.get("template", {})
    if selector is None:
        errors.append(required("spec.selector"))
    elif not selector:
        # The same sentence for ReplicaSets [quirk].
        errors.append(invalid_value("spec.selector", selector, "empty selector is invalid for deployment"))
    else:
        errors += _fits(selector, template.get("metadata", {}).get("labels", {}))
    errors += validate_maps(template.get("metadata", {}), "spec.template.metadata")
    pod = template.get("spec", {})
    errors += validate_pod_spec(pod, "spec.template.spec")
    if pod.get("restartPolicy") in ("Never", "OnFailure"):
        errors.append(not_supported("spec.template.spec.restartPolicy", pod["restartPolicy"], ("Always",)))
    return errors


def _fits(selector: Document, labels: dict[str, str]) -> list[FieldError]:
    try:
        matches = from_label_selector(msgspec.convert(selector, LabelSelector)).matches(labels)
    except StatusError as error:
        return [invalid_value("spec.selector", selector, error.message)]
    if matches:
        return []
    detail = "`selector` does not match template `labels`"
    return [invalid_value("spec.template.metadata.labels", labels, detail)]


def _strategy(strategy: Document) -> list[FieldError]:
    kind, rolling = strategy.get("type", ""), strategy.get("rollingUpdate")
    if kind not in STRATEGIES:
        return [not_supported("spec.strategy.type", kind, STRATEGIES)]
    path = "spec.strategy.rollingUpdate"
    if kind == "Recreate":
        detail = "may not be specified when strategy `type` is 'Recreate'"
        return [forbidden_field(path, detail)] if rolling is not None else []
    rolling = rolling or {}
    unavailable, surge = rolling.get("maxUnavailable", 0), rolling.get("maxSurge", 0)
    errors = _int_or_percent(f"{path}.maxUnavailable", unavailable) + _int_or_percent(f"{path}.maxSurge", surge)
    if not errors and _is_zero(unavailable) and _is_zero(surge):
        errors.append(invalid_value(f"{path}.maxUnavailable", unavailable, "may not be 0 when `maxSurge` is 0"))
    if (
        isinstance(unavailable, str)
        and not errors
        and len(unavailable.lstrip("0")) > 3
        and unavailable.lstrip("0") != "100%"
    ):
        errors.append(invalid_value(f"{path}.maxUnavailable", unavailable, "must not be greater than 100%"))
    return errors


def _int_or_percent(path: str, value: Any) -> list[FieldError]:
    if isinstance(value, str):
        return [] if _PERCENT.fullmatch(value) else [invalid_value(path, value, _PERCENT_SHAPE)]
    return [] if value >= 0 else [invalid_value(path, value, NOT_NEGATIVE)]


def _is_zero(value: Any) -> bool:
    return value in (0, "0%")
