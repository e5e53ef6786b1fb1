"""What kinds with a pod template share: counts, a selector that fits the template and stays, wide columns."""

from __future__ import annotations

from typing import Final

import msgspec

from sliceplane.api.errors import FieldError, StatusError, invalid_value, not_supported, required
from sliceplane.api.meta import Document, LabelSelector
from sliceplane.api.selectors.labels import from_label_selector
from sliceplane.documents.table.columns import NONE, Column, mapping, objects, text
from sliceplane.registry.kinds.kind import Granted
from sliceplane.registry.kinds.pod_template import default_pod_spec, validate_pod_spec
from sliceplane.registry.validation.metadata import IMMUTABLE, validate_maps

NOT_NEGATIVE = "must be greater than or equal to 0"
TEMPLATE_COLUMNS: Final = (
    Column(name="Containers", priority=1, description="Names of the template's containers."),
    Column(name="Images", priority=1, description="Images of the template's containers."),
    Column(name="Selector", priority=1, description="Labels that select the pods."),
)


def default_template(spec: Document) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def check_counts(spec: Document, members: tuple[str, ...]) -> list[FieldError]:
    return [
        invalid_value(f"spec.{member}", spec[member], NOT_NEGATIVE) for member in members if spec.get(member, 0) < 0
    ]


def check_same_selector(new: Document, old: Document) -> list[FieldError]:
    selector = new["spec"].get("selector")
    if selector == old["spec"].get("selector"):
        return []
    return [invalid_value("spec.selector", selector, IMMUTABLE)]


def check_selector_and_template(spec: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    selector = spec.get("selector")
    template = spec.get("template", {})
    if selector is None:
        errors.append(required("spec.selector"))
    elif not selector:
        # As upstream: the same sentence for ReplicaSets.
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


def template_cells(document: Document) -> tuple[str, str, str]:
    containers = objects(document, "spec", "template", "spec", "containers")
    return (
        ",".join(text(container, "name") for container in containers),
        ",".join(text(container, "image") for container in containers),
        _selector(mapping(document, "spec", "selector")),
    )


def _selector(selector: Document) -> str:
    try:
        return str(from_label_selector(msgspec.convert(selector, LabelSelector))) or NONE
    except (StatusError, msgspec.ValidationError):
        return "<error>"


#: as many as wanted, and edited as that, too
SCALED_WORKLOAD: Final = Granted(view=("", "scale"), edit_reads=(), edit=("", "scale"), admin=())
