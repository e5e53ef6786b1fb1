"""Rules and columns of kinds with a pod template: counts, and a selector that fits the template and
stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from sliceplane.api.errors import FieldErrors, StatusError, forbidden_field, invalid_value, required
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.selectors.labels import LabelRequirements, from_label_selector
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    mapping,
    number,
    number_at,
    objects,
    text,
)
from sliceplane.server.registry.kinds.kind import Granted
from sliceplane.server.registry.kinds.pods.pod_spec import default_pod_spec, validate_template
from sliceplane.server.registry.metadata import check_label_selector, in_go
from sliceplane.server.registry.validation.rules import IMMUTABLE, NOT_NEGATIVE, among, not_negative

_PERCENT = re.compile("[0-9]+%")
_PERCENT_SHAPE = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
#: further digits do not change whether a percentage is too large
_DIGITS_MAX = 10


def default_template(spec: Document) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def check_status_counts(
    document: Document,
    members: tuple[str, ...],
    bounded: tuple[str, ...] = (),
    *,
    ready: str = "readyReplicas",
) -> FieldErrors:
    """Counts of the status; those of *bounded* are at most ``status.replicas``.  *ready* is its
    name in a message.
    """
    status: Document = document.get("status", {})
    errors = not_negative(*members)("status", status)
    errors += [
        invalid_value(
            f"status.{member}", status.get(member, 0), "cannot be greater than status.replicas"
        )
        for member in bounded
        if status.get(member, 0) > status.get("replicas", 0)
    ]
    if bounded and status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
        detail = f"cannot be greater than {ready}"
        errors.append(
            invalid_value("status.availableReplicas", status.get("availableReplicas", 0), detail)
        )
    return errors


def check_same_selector(new: Document, old: Document) -> FieldErrors:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", render_selector(selector), IMMUTABLE)]


def check_selector(spec: Document, kind: str, detail: str) -> tuple[FieldErrors, bool]:
    """Checks the selector alone and against the template's labels. Returns False beside the
    complaints if it does not parse, which *detail* says: nothing else counts then.
    """
    selector = spec.get("selector")
    if selector is None:
        errors = [required("spec.selector")]
    else:
        errors = check_label_selector("spec.selector", selector) + check_not_empty(selector, kind)
        if not is_selector(selector):
            return [
                *errors,
                invalid_value("spec.selector", render_selector(selector), detail),
            ], False
    return errors + labels_fit(selector, spec["template"]), True


def check_selector_and_template(spec: Document, old: Document | None = None) -> FieldErrors:
    """*old*: the spec that is updated."""
    # As upstream: the same sentence for ReplicaSets.
    errors, is_valid = check_selector(spec, "deployment", "invalid label selector")
    if not is_valid:
        return errors
    return errors + check_template(
        "spec.template", spec["template"], "ReplicaSet", (old or {}).get("template")
    )


def check_not_empty(selector: Document, kind: str) -> FieldErrors:
    if selector.get("matchLabels") or selector.get("matchExpressions"):
        return []
    return [
        invalid_value(
            "spec.selector", render_selector(selector), f"empty selector is invalid for {kind}"
        )
    ]


def check_template(path: str, template: Document, kind: str, old: Document | None) -> FieldErrors:
    """The template of a workload, whose Pods run for ever; messages name *kind*.

    *old*: the template that an update replaces. One that stays was accepted once, perhaps by an
    earlier release.
    """
    if template == old:
        return []
    return validate_template(template, path) + check_runs_for_ever(path, template, kind)


def check_runs_for_ever(path: str, template: Document, kind: str) -> FieldErrors:
    pod = template.get("spec", {})
    errors = among(f"{path}.spec.restartPolicy", pod.get("restartPolicy", ""), ("Always",))
    if "activeDeadlineSeconds" in pod:
        detail = f"activeDeadlineSeconds in {kind} is not Supported"
        errors.append(forbidden_field(f"{path}.spec.activeDeadlineSeconds", detail))
    return errors


def labels_fit(selector: Document | None, template: Document) -> FieldErrors:
    """As upstream: no selector matches nothing, an empty one everything."""
    labels: dict[str, str] | None = template.get("metadata", {}).get("labels")
    if selector is not None and _selects(selector, labels or {}):
        return []
    detail = "`selector` does not match template `labels`"
    return [
        invalid_value(
            "spec.template.metadata.labels", labels and dict(sorted(labels.items())), detail
        )
    ]


def _selects(selector: Document, labels: dict[str, str]) -> bool:
    if selector.get("matchExpressions"):
        return _requirements(selector).matches(labels)
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def is_selector(selector: Document) -> bool:
    try:
        _requirements(selector)
    except StatusError:
        return False
    return True


def render_selector(selector: Document | None) -> Document | None:
    """Returns a selector in the form of Kubernetes' messages."""
    if selector is None:
        return None
    rendered: Document = {}
    if selector.get("matchLabels"):
        rendered["matchLabels"] = dict(sorted(selector["matchLabels"].items()))
    if selector.get("matchExpressions"):
        rendered["matchExpressions"] = [
            {
                "key": one.get("key", ""),
                "operator": one.get("operator", ""),
                **({"values": one["values"]} if one.get("values") else {}),
            }
            for one in selector["matchExpressions"]
        ]
    return rendered


def selector_text(selector: Document) -> str:
    try:
        return str(_requirements(selector)) or NONE
    except (StatusError, msgspec.ValidationError):
        return "<error>"


def _requirements(selector: Document) -> LabelRequirements:
    return from_label_selector(msgspec.convert(selector, LabelSelector))


def check_int_or_percent(path: str, value: Any) -> FieldErrors:
    if isinstance(value, str):
        return [] if _PERCENT.fullmatch(value) else [invalid_value(path, value, _PERCENT_SHAPE)]
    return [] if value >= 0 else [invalid_value(path, value, NOT_NEGATIVE)]


def check_at_most_100_percent(path: str, value: Any) -> FieldErrors:
    if isinstance(value, str) and int_or_percent(value) > 100:
        return [invalid_value(path, value, "must not be greater than 100%")]
    return []


def render_rolling_update(rolling: Document | None) -> Document | None:
    """Returns the parameters of a rolling update in the form of Kubernetes' messages."""
    return (
        None
        if rolling is None
        else in_go(rolling, "maxUnavailable", "maxSurge", maxUnavailable=0, maxSurge=0)
    )


def int_or_percent(value: Any) -> int:
    """The number, or that of the percentage; 0 for what is neither."""
    if isinstance(value, str):
        digits = (
            value.removesuffix("%").lstrip("0")[:_DIGITS_MAX] if _PERCENT.fullmatch(value) else ""
        )
        return int(digits or "0")
    return int(value)


#: as many as wanted, and edited as that, too
SCALED_WORKLOAD: Final = Granted(view=("", "scale"), edit=("", "scale"))


def _of_containers(member: str) -> Callable[[Document], str]:
    return lambda workload: ",".join(
        text(container, member)
        for container in objects(workload, "spec", "template", "spec", "containers")
    )


SELECTOR_COLUMN: Final = Column(
    "Selector",
    "Labels that select the pods.",
    lambda workload: selector_text(mapping(workload, "spec", "selector")),
    priority=1,
)
TEMPLATE_COLUMNS: Final = (
    Column("Containers", "Names of the template's containers.", _of_containers("name"), priority=1),
    Column("Images", "Images of the template's containers.", _of_containers("image"), priority=1),
    SELECTOR_COLUMN,
)


def _ready(workload: Document) -> str:
    ready = number(workload, "status", "readyReplicas")
    return f"{ready}/{number(workload, 'spec', 'replicas')}"


READY_COLUMN: Final = Column("Ready", "Pods that are ready, of those that are wanted.", _ready)
#: of what keeps a number of Pods
REPLICAS_COLUMNS: Final = (
    NAME,
    Column("Desired", "Pods that are wanted.", number_at("spec.replicas"), type="integer"),
    Column("Current", "Pods that there are.", number_at("status.replicas"), type="integer"),
    Column("Ready", "Pods that are ready.", number_at("status.readyReplicas"), type="integer"),
    AGE,
)
