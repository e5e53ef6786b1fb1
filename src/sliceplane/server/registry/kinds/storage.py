"""The kinds of ``storage.k8s.io``: classes of volumes, what is attached where, and what drivers say of themselves.

They are plain kinds, for drivers, kube-controller-manager and kube-scheduler to write and read.  Rules are those of
``pkg/apis/storage/validation/validation.go``.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, duplicate, forbidden_field, invalid_value, required, too_long, while_few
from sliceplane.api.meta import Document
from sliceplane.api.quantity import amount
from sliceplane.api.scheme import (
    CSIDrivers,
    CSINodes,
    CSIStorageCapacities,
    StorageClasses,
    VolumeAttachments,
    VolumeAttributesClasses,
)
from sliceplane.kit.names import check_dns_subdomain, check_qualified_name
from sliceplane.server.documents import fields
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    UNSET,
    Column,
    flag,
    member,
    objects,
    text,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.plain import FieldRule, ShownColumn, marked_name, plain_kind, printer
from sliceplane.server.registry.kinds.volumes import DEFAULT_CLASS_MARKS
from sliceplane.server.registry.metadata import IMMUTABLE, check_label_selector

_PARAMETERS_MAX: Final = 512
_BYTES_MAX: Final = 256 * 1024
_MESSAGE_MAX: Final = 1024
_DRIVER_MAX: Final = 63
_NODE_ID_MAX: Final = 256
_TOKEN_S_MIN: Final = 600
_IN_SECRETS: Final = "serviceAccountTokenInSecrets"
_TOKENS_IN_ATTRIBUTES: Final = (
    "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible "
    "logging of tokens in volume attributes"
)


def _driver_name(name: str) -> tuple[str, ...]:
    return check_dns_subdomain(name.lower())


def _provisioner(name: str) -> tuple[str, ...]:
    return check_qualified_name(name.lower())


def _parameters(document: Document) -> list[FieldError]:
    parameters: Document = document.get("parameters", {})
    if len(parameters) > _PARAMETERS_MAX:
        return [too_long("parameters", _PARAMETERS_MAX)]
    errors = [invalid_value("parameters", key, "field can not be empty.") for key in parameters if not key]
    return errors + _check_size("parameters", parameters)


def _check_size(path: str, texts_by_key: Document) -> list[FieldError]:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in texts_by_key.items())
    return [too_long(path, _BYTES_MAX)] if size > _BYTES_MAX else []


def _flag(name: str, description: str, *path: str) -> ShownColumn:
    return Column(name=name, type="boolean", description=description), lambda document: flag(document, *path)


STORAGE_CLASS: Final = plain_kind(
    StorageClasses,
    (
        FieldRule("provisioner", required=True, check=_provisioner, immutable=True),
        FieldRule("parameters", immutable=True),
        FieldRule("reclaimPolicy", default="Delete", choices=("Delete", "Retain"), immutable=True),
        FieldRule(
            "volumeBindingMode", default="Immediate", choices=("Immediate", "WaitForFirstConsumer"), immutable=True
        ),
        *(
            FieldRule(f"allowedTopologies[].matchLabelExpressions[].{name}", required=True)
            for name in ("key", "values")
        ),
    ),
    printer(
        marked_name(*DEFAULT_CLASS_MARKS),
        (Column(name="Provisioner", description="The driver that makes volumes of this class."), "provisioner"),
        (Column(name="ReclaimPolicy", description="What becomes of a volume when its claim goes."), "reclaimPolicy"),
        (Column(name="VolumeBindingMode", description="When a claim is bound to a volume."), "volumeBindingMode"),
        (
            Column(name="AllowVolumeExpansion", description="Whether volumes may grow."),
            lambda storage_class: flag(storage_class, "allowVolumeExpansion"),
        ),
        AGE,
    ),
    validate=_parameters,
)

VOLUME_ATTRIBUTES_CLASS: Final = plain_kind(
    VolumeAttributesClasses,
    (FieldRule("driverName", required=True, check=_provisioner),),
    printer(
        NAME, (Column(name="DriverName", description="The driver that honours the parameters."), "driverName"), AGE
    ),
    validate=lambda document: (
        _parameters(document)
        if document.get("parameters")
        else [required("parameters", "must contain at least one key/value pair")]
    ),
    validate_update=lambda new, old: [
        forbidden_field(name, f"updates to {name} are forbidden.")
        for name in ("driverName", "parameters")
        if new.get(name) != old.get(name)
    ],
)


def _source(attachment: Document) -> list[FieldError]:
    source = member(attachment, "spec", "source") or {}
    detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if not source:
        return [required("spec.source", detail)]
    return [forbidden_field("spec.source", detail)] if len(source) > 1 else []


def _attachment_status(new: Document, _old: Document) -> list[FieldError]:
    errors = _check_size("status.attachmentMetadata", member(new, "status", "attachmentMetadata") or {})
    for name in ("attachError", "detachError"):
        if len(text(new, "status", name, "message")) > _MESSAGE_MAX:
            errors.append(too_long(f"status.{name}.message", _BYTES_MAX))
    return errors


VOLUME_ATTACHMENT: Final = plain_kind(
    VolumeAttachments,
    (
        FieldRule("spec.attacher", required=True, length=_DRIVER_MAX, check=_driver_name),
        FieldRule("spec.nodeName", check=check_dns_subdomain, always=True),
        FieldRule("spec.source.persistentVolumeName", check=check_dns_subdomain),
        FieldRule("spec", immutable=True),
    ),
    printer(
        NAME,
        (Column(name="Attacher", format="name", description="The driver that attaches."), "spec.attacher"),
        (Column(name="PV", description="The volume."), "spec.source.persistentVolumeName"),
        (Column(name="Node", description="The node that the volume is attached to."), "spec.nodeName"),
        _flag("Attached", "Whether it is attached.", "status", "attached"),
        AGE,
    ),
    validate=_source,
    status=kind.Status(
        first=lambda _attachment: {"attached": False},
        validate=_attachment_status,
        not_written=fields.of_paths([("f:metadata",), ("f:spec",)]),
        kept=("annotations", "finalizers", "labels", "ownerReferences"),
    ),
)


def _driver(driver: Document) -> list[FieldError]:
    spec: Document = driver["spec"]
    errors: list[FieldError] = []
    audiences: set[str] = set()
    for index, request in while_few(errors, enumerate(spec.get("tokenRequests", ()))):
        path = f"spec.tokenRequests[{index}]"
        audience = request.get("audience", "")
        seconds = request.get("expirationSeconds")
        if audience in audiences:
            errors.append(duplicate(f"{path}.audience", audience))
        elif seconds is not None and seconds < _TOKEN_S_MIN:
            detail = "may not specify a duration less than 10 minutes"
            errors.append(invalid_value(f"{path}.expirationSeconds", seconds, detail))
        audiences.add(audience)
    if spec.get(_IN_SECRETS) is not None and not audiences:
        detail = f"{_IN_SECRETS} is set but no tokenRequests are specified"
        errors.append(invalid_value(f"spec.{_IN_SECRETS}", spec[_IN_SECRETS], detail))
    return errors


def _driver_warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    is_due = bool(new["spec"].get("tokenRequests")) and new["spec"].get(_IN_SECRETS) is None
    return (_TOKENS_IN_ATTRIBUTES,) if is_due else ()


def _driver_update(new: Document, old: Document) -> list[FieldError]:
    paths = {"attachRequired": "spec.attachedRequired", "volumeLifecycleModes": "spec.volumeLifecycleModes"}
    return [
        invalid_value(path, new["spec"].get(name), IMMUTABLE)
        for name, path in paths.items()
        if new["spec"].get(name) != old["spec"].get(name)
    ]


def _audiences(driver: Document) -> str:
    if member(driver, "spec", "tokenRequests") is None:
        return UNSET
    return ",".join(text(request, "audience") for request in objects(driver, "spec", "tokenRequests"))


CSI_DRIVER: Final = plain_kind(
    CSIDrivers,
    (
        FieldRule("spec.attachRequired", default=True),
        *(FieldRule(f"spec.{name}", default=False) for name in ("podInfoOnMount", "requiresRepublish", "seLinuxMount")),
        FieldRule("spec.storageCapacity", default=False),
        FieldRule(
            "spec.fsGroupPolicy",
            default="ReadWriteOnceWithFSType",
            choices=("File", "None", "ReadWriteOnceWithFSType"),
        ),
        FieldRule("spec.volumeLifecycleModes", default=["Persistent"], choices=("Persistent", "Ephemeral")),
        FieldRule(
            "spec.nodeAllocatableUpdatePeriodSeconds",
            minimum=10,
            too_small="must be greater than or equal to {} seconds",
        ),
    ),
    printer(
        NAME,
        _flag("AttachRequired", "Whether volumes are attached before they are mounted.", "spec", "attachRequired"),
        _flag("PodInfoOnMount", "Whether the driver receives the Pod's names.", "spec", "podInfoOnMount"),
        _flag("StorageCapacity", "Whether the driver publishes its capacity.", "spec", "storageCapacity"),
        (Column(name="TokenRequests", description="Audiences of the tokens that the driver gets."), _audiences),
        _flag("RequiresRepublish", "Whether mounts are renewed from time to time.", "spec", "requiresRepublish"),
        (
            Column(name="Modes", description="Which volumes the driver makes."),
            lambda driver: ",".join(texts(driver, "spec", "volumeLifecycleModes")) or NONE,
        ),
        AGE,
    ),
    validate=_driver,
    warnings=_driver_warnings,
    validate_update=_driver_update,
)


def _node_drivers(node: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, driver in while_few(errors, enumerate(objects(node, "spec", "drivers"))):
        path = f"spec.drivers[{index}]"
        name = driver.get("name", "")
        if len(driver.get("nodeID", "")) > _NODE_ID_MAX:
            detail = f"must be {_NODE_ID_MAX} characters or less"
            errors.append(invalid_value(f"{path}.nodeID", driver["nodeID"], detail))
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        keys: set[str] = set()
        for key in while_few(errors, driver.get("topologyKeys", ())):
            errors += [duplicate(path, key)] if key in keys else []
            errors += [invalid_value(path, key, problem) for problem in check_qualified_name(key)]
            keys.add(key)
    return errors


def _node_update(new: Document, old: Document) -> list[FieldError]:
    """Refuses changes of a driver's entry, but for the number of volumes that it takes."""

    def said(node: Document) -> dict[str, Document]:
        drivers = objects(node, "spec", "drivers")
        return {text(driver, "name"): {**driver, "allocatable": None} for driver in drivers}

    before, after = said(old), said(new)
    return [
        invalid_value("spec.drivers", after[name], IMMUTABLE)
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]


CSI_NODE: Final = plain_kind(
    CSINodes,
    (
        FieldRule("spec.drivers[].name", required=True, length=_DRIVER_MAX, check=_driver_name),
        FieldRule("spec.drivers[].nodeID", required=True),
        FieldRule("spec.drivers[].allocatable?.count", minimum=0),
    ),
    printer(
        NAME,
        (
            Column(name="Drivers", type="integer", description="How many drivers have registered on the node."),
            lambda node: len(objects(node, "spec", "drivers")),
        ),
        AGE,
    ),
    validate=_node_drivers,
    validate_update=_node_update,
)


def _capacity(document: Document) -> list[FieldError]:
    errors = check_label_selector("nodeTopology", document.get("nodeTopology"))
    if amount(document.get("capacity", 0)) < 0:
        errors.append(invalid_value("capacity", document["capacity"], "must be greater than or equal to 0"))
    return errors


CSI_STORAGE_CAPACITY: Final = plain_kind(
    CSIStorageCapacities,
    (
        FieldRule("nodeTopology", immutable=True),
        FieldRule("storageClassName", check=check_dns_subdomain, always=True, immutable=True),
    ),
    printer(
        NAME,
        (Column(name="StorageClassName", description="The class that the capacity is of."), "storageClassName"),
        (
            Column(name="Capacity", description="The capacity that is left."),
            lambda capacity: text(capacity, "capacity") or UNSET,
        ),
    ),
    validate=_capacity,
    quota=kind.COUNTED,
)
