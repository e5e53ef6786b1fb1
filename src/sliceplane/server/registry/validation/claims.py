"""Rules of the spec of a PersistentVolumeClaim, also where it is a template (ephemeral volumes,
StatefulSets).

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.registry.metadata import check_label_selector, validate_maps
from sliceplane.server.registry.validation.resources import text_of
from sliceplane.server.registry.validation.rules import Field, Rules, among, needs

ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
_CLAIM: Final = "PersistentVolumeClaim"
#: members of ``metadata`` that a template may not have, in the order of Go's struct
_NOT_OF_TEMPLATES: Final = (
    *(
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
    ),
    *(
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ),
)


def check_claim_template(path: str, template: Document) -> FieldErrors:
    """``volumeClaimTemplate`` of an ephemeral volume."""
    head: Document = template.get("metadata", {})
    where = f"{path}.metadata"
    errors = validate_maps({"annotations": head.get("annotations", {})}, where)
    errors += validate_maps({"labels": head.get("labels", {})}, where)
    errors += [
        # As Go spells the field: ``UID`` becomes ``uID``.
        forbidden_field(f"{where}.{'uID' if member == 'uid' else member}", "cannot be set")
        for member in _NOT_OF_TEMPLATES
        if head.get(member)
    ]
    return errors + check_claim_spec(f"{path}.spec", template.get("spec", {}))


def check_claim_spec(path: str, spec: Document) -> FieldErrors:
    modes: list[str] = spec.get("accessModes", [])
    errors = needs("accessModes", detail="at least 1 access mode is required")(path, spec)
    errors += check_label_selector(f"{path}.selector", spec.get("selector"))
    for mode in until_error_limit(errors, modes):
        errors += among(f"{path}.accessModes", mode, ACCESS_MODES)
    errors += check_pod_mode(path, spec)
    where = f"{path}.resources[storage]"
    size = spec.get("resources", {}).get("requests", {}).get("storage")
    if size is None:
        errors.append(required(where))
    elif exact(size) <= 0:
        errors.append(invalid_value(where, text_of(size), "must be greater than zero"))
    return errors + _LAST_ROWS(path, spec)


def check_pod_mode(path: str, spec: Document) -> FieldErrors:
    modes = spec.get("accessModes", ())
    if "ReadWriteOncePod" not in modes or not any(mode in ACCESS_MODES[:-1] for mode in modes):
        return []
    return [
        forbidden_field(
            f"{path}.accessModes", "may not use ReadWriteOncePod with other access modes"
        )
    ]


def _same_source(path: str, spec: Document) -> FieldErrors:
    source = spec.get("dataSource")
    reference = spec.get("dataSourceRef")
    if source is None or reference is None:
        return []
    detail = ""
    if reference.get("namespace"):
        detail = "may not be specified when dataSourceRef.namespace is specified"
    elif any(
        source.get(member) != reference.get(member) for member in ("apiGroup", "kind", "name")
    ):
        detail = "must match dataSourceRef"
    return [invalid_value(path, {}, detail)] if detail else []


def _default_group(path: str, reference: Document) -> FieldErrors:
    kind = reference.get("kind", "")
    if reference.get("apiGroup") or kind == _CLAIM:
        return []
    return [invalid_value(path, kind, f"must be '{_CLAIM}' when referencing the default apiGroup")]


_REFERENCE: Final = Rules(
    needs("name", "kind"), _default_group, Field("apiGroup", form=check_dns_subdomain)
)
_LAST_ROWS: Final = Rules(
    Field("storageClassName", form=check_dns_subdomain),
    Field("volumeMode", choices=("Block", "Filesystem")),
    # As upstream: a group that is given is not checked where there is an older object to compare
    # with.
    Field("dataSource", rows=_REFERENCE),
    Field("dataSourceRef", rows=Rules(_REFERENCE, Field("namespace", form=check_dns_label))),
    _same_source,
    Field("volumeAttributesClassName", form=check_dns_subdomain),
)
