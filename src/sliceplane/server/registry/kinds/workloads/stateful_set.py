"""StatefulSet: Pods with names that stay, made and replaced in order."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Final

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value
from sliceplane.api.meta import Document
from sliceplane.api.scheme import StatefulSets
from sliceplane.kit.names import check_dns_label
from sliceplane.server.documents.table.columns import AGE, NAME, Printer
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.pods.pod_spec import default_claim, validate_template
from sliceplane.server.registry.kinds.workloads.workload import (
    READY_COLUMN,
    SCALED_WORKLOAD,
    TEMPLATE_COLUMNS,
    check_at_most_100_percent,
    check_int_or_percent,
    check_runs_for_ever,
    check_selector,
    check_status_counts,
    default_template,
    int_or_percent,
)
from sliceplane.server.registry.metadata import in_go, validate_maps
from sliceplane.server.registry.validation.annotations import check_pod_annotations
from sliceplane.server.registry.validation.claims import check_claim_spec
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, fill, not_negative

_COUNTS: Final = (
    "replicas",
    "readyReplicas",
    "currentReplicas",
    "updatedReplicas",
    "availableReplicas",
)
_RETENTION: Final = ("Retain", "Delete")
_POLICIES: Final = ("OrderedReady", "Parallel")
_MUTABLE: Final = (
    *("replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit"),
    *("persistentVolumeClaimRetentionPolicy", "minReadySeconds"),
)
_POLICY: Final = "must be 'OrderedReady' or 'Parallel'"
_MAX: Final = "maxUnavailable"
_IMMUTABLE: Final = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)
_KEEPS_ALL: Final = (
    "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 "
    "is recommended"
)


_DEFAULTS: Final = Defaults(
    {
        "+spec": {
            "podManagementPolicy": "OrderedReady",
            "+updateStrategy": {},
            "+persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "replicas?": 1,
            "revisionHistoryLimit?": 10,
            "serviceName": "",
        }
    }
)


def _default(document: Document) -> None:
    _DEFAULTS(document)
    spec = document["spec"]
    strategy = spec["updateStrategy"]
    if not strategy.get("type"):
        fill(strategy, {"type": "RollingUpdate", "+rollingUpdate": {}})
    if strategy["type"] == "RollingUpdate":
        fill(strategy, {"rollingUpdate": {"partition?": 0}})
    default_template(spec)
    _default_claims(spec.get("volumeClaimTemplates", ()))


def _default_claims(claims: Iterable[Document]) -> None:
    for claim in claims:
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        default_claim(claim)
        fill(claim, {"+status": {"phase": "Pending"}})


def drop_max_unavailable(new: Document, old: Document | None) -> None:
    """The gate MaxUnavailableStatefulSet (KEP-961) is off, as upstream's default is."""
    if old is None or _MAX not in old["spec"]["updateStrategy"].get("rollingUpdate", {}):
        new["spec"]["updateStrategy"].get("rollingUpdate", {}).pop(_MAX, None)


_FIRST_ROWS: Final = Rules(
    Field("podManagementPolicy", form=lambda policy: () if policy in _POLICIES else (_POLICY,)),
    lambda _path, spec: _strategy(spec["updateStrategy"]),
    Field(
        "persistentVolumeClaimRetentionPolicy",
        rows=Rules(
            Field("whenDeleted", choices=_RETENTION), Field("whenScaled", choices=_RETENTION)
        ),
    ),
)
_CLAIMS: Final = Rules(
    Field(
        "volumeClaimTemplates",
        rows=lambda path, claim: check_claim_spec(f"{path}.spec", claim.get("spec", {})),
    )
)
_SERVICE_NAME: Final = Rules(Field("serviceName", form=check_dns_label))
_COUNT_ROWS: Final = Rules(
    Field("replicas", minimum=0),
    Field("minReadySeconds", minimum=0),
    Field("ordinals?.start", minimum=0),
)


def _validate(document: Document, old: Document | None = None) -> FieldErrors:
    spec: Document = document["spec"]
    errors = _FIRST_ROWS("spec", spec)
    if old is None:
        errors += _CLAIMS("spec", spec)
    errors += _COUNT_ROWS("spec", spec)
    if old is None:
        errors += _SERVICE_NAME("spec", spec)
    return (
        errors
        + _selector(spec, old)
        + check_runs_for_ever("spec.template", spec["template"], "StatefulSet")
    )


def _selector(spec: Document, old: Document | None) -> FieldErrors:
    """The selector and the template."""
    path = "spec.template"
    errors, is_valid = check_selector(spec, "statefulset", "")
    if not is_valid:
        return errors
    template = spec["template"]
    head: Document = template["metadata"]
    claims = spec.get("volumeClaimTemplates", [])
    if (
        old is None
        or template != old["spec"]["template"]
        or claims != old["spec"].get("volumeClaimTemplates", [])
    ):
        # Host name and subdomain are the set's to give, and it adds volumes.
        own = {
            name: value
            for name, value in template["spec"].items()
            if name not in ("hostname", "subdomain")
        }
        own["volumes"] = _volumes(claims, own.get("volumes", []))
        errors += validate_template({**template, "spec": own}, path)
    # As upstream: twice.
    annotations = head.get("annotations", {})
    return (
        errors
        + validate_maps(head, path)
        + check_pod_annotations(f"{path}.annotations", annotations, template["spec"])
    )


def _volumes(claims: list[Document], volumes: list[Document]) -> list[Document]:
    """The volumes of a Pod of the set."""
    names = {claim.get("metadata", {}).get("name", ""): None for claim in claims}
    return [
        *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names),
        *(volume for volume in volumes if volume.get("name", "") not in names),
    ]


def _strategy(strategy: Document) -> FieldErrors:
    path = "spec.updateStrategy"
    kind = strategy["type"]
    rolling = strategy.get("rollingUpdate")
    rendered = (
        None if rolling is None else in_go(rolling, "partition", "maxUnavailable", partition=0)
    )
    if kind == "OnDelete" and rolling is not None:
        return [
            invalid_value(
                f"{path}.rollingUpdate", rendered, "only allowed for updateStrategy 'RollingUpdate'"
            )
        ]
    if kind not in ("OnDelete", "RollingUpdate"):
        return [
            invalid_value(
                path,
                {"Type": kind, "RollingUpdate": rendered},
                "must be 'RollingUpdate' or 'OnDelete'",
            )
        ]
    errors = not_negative("partition")(f"{path}.rollingUpdate", rolling or {})
    limit = (rolling or {}).get(_MAX)
    if limit is not None:
        where = f"{path}.rollingUpdate.{_MAX}"
        errors += check_int_or_percent(where, limit)
        errors += [] if int_or_percent(limit) else [invalid_value(where, limit, "cannot be 0")]
        errors += check_at_most_100_percent(where, limit)
    return errors


def _validate_update(new: Document, old: Document) -> FieldErrors:
    errors = _validate(new, old)
    return errors if _fixed(new) == _fixed(old) else [*errors, forbidden_field("spec", _IMMUTABLE)]


def _fixed(document: Document) -> Document:
    """The part of the spec that may not change.  An older server stored claims without their
    defaults.
    """
    fixed = {name: value for name, value in document["spec"].items() if name not in _MUTABLE}
    claims = copy.deepcopy(fixed.pop("volumeClaimTemplates", []))
    _default_claims(claims)
    return {**fixed, "volumeClaimTemplates": claims}


def _warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    return (_KEEPS_ALL,) if new["spec"].get("revisionHistoryLimit", 0) < 0 else ()


def _validate_status(new: Document, _old: Document) -> FieldErrors:
    counts = (*_COUNTS, "observedGeneration", "collisionCount")
    return check_status_counts(new, counts, _COUNTS[1:], ready="status.readyReplicas")


STATEFUL_SET: Final = kind.Kind(
    resource=StatefulSets,
    defaults=_default,
    prepare_create=lambda _core, _target, new: drop_max_unavailable(new, None),
    prepare_update=lambda _core, _target, new, old: drop_max_unavailable(new, old),
    rules=Rules(lambda _path, document: _validate(document)),
    update_rules=_validate_update,
    warnings=_warnings,
    status=kind.Status(
        first=lambda _document: {"replicas": 0, "availableReplicas": 0}, validate=_validate_status
    ),
    quota=kind.Quota(),
    granted=SCALED_WORKLOAD,
    columns=Printer(
        (
            NAME,
            READY_COLUMN,
            AGE,
            *TEMPLATE_COLUMNS[:2],
        )
    ),
)
