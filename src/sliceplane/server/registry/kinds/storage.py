"""The kinds of ``storage.k8s.io``: classes of volumes, what is attached where, and what drivers say
of themselves.

They are plain kinds, for drivers, kube-controller-manager and kube-scheduler to write and read.
Rules are those of ``pkg/apis/storage/validation/validation.go``.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    until_error_limit,
)
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
    Printer,
    class_column,
    flag_at,
    member,
    objects,
    text,
    text_or,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.volumes import DEFAULT_CLASS_MARKS
from sliceplane.server.registry.metadata import check_label_selector
from sliceplane.server.registry.validation.rules import (
    IMMUTABLE,
    NOT_NEGATIVE,
    Defaults,
    Field,
    Rules,
    check_unique,
    each,
    of_form,
)

_PARAMETERS_MAX: Final = 512
_BYTES_MAX: Final = 256 * 1024
_MESSAGE_MAX: Final = 1024
_DRIVER_MAX: Final = 63
_NODE_ID_MAX: Final = 256
_TOKEN_S_MIN: Final = 600
_IN_SECRETS: Final = "serviceAccountTokenInSecrets"
_TOKENS_IN_ATTRIBUTES: Final = (
    "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to "
    "prevent possible logging of tokens in volume attributes"
)


def _driver_name(name: str) -> tuple[str, ...]:
    return check_dns_subdomain(name.lower())


def _provisioner(name: str) -> tuple[str, ...]:
    return check_qualified_name(name.lower())


def _parameters(_path: str, document: Document) -> FieldErrors:
    parameters: Document = document.get("parameters", {})
    if len(parameters) > _PARAMETERS_MAX:
        return [too_long("parameters", _PARAMETERS_MAX)]
    errors = [
        invalid_value("parameters", key, "field can not be empty.") for key in parameters if not key
    ]
    return errors + _check_size("parameters", parameters)


def _check_size(path: str, texts_by_key: Document) -> FieldErrors:
    size = sum(len(key.encode()) + len(value.encode()) for key, value in texts_by_key.items())
    return [too_long(path, _BYTES_MAX)] if size > _BYTES_MAX else []


def _flag(name: str, description: str, path: str) -> Column:
    return Column(name, description, flag_at(path), type="boolean")


STORAGE_CLASS: Final = kind.Kind(
    resource=StorageClasses,
    defaults=Defaults({"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}),
    rules=Rules(
        Field("provisioner", required=True, form=_provisioner, immutable=True),
        Field("parameters", immutable=True),
        Field("reclaimPolicy", choices=("Delete", "Retain"), immutable=True),
        Field("volumeBindingMode", choices=("Immediate", "WaitForFirstConsumer"), immutable=True),
        Field("allowedTopologies[].matchLabelExpressions[].key", required=True),
        Field("allowedTopologies[].matchLabelExpressions[].values", required=True),
        _parameters,
    ),
    columns=Printer(
        (
            class_column(*DEFAULT_CLASS_MARKS),
            Column("Provisioner", "The driver that makes volumes of this class.", "provisioner"),
            Column(
                "ReclaimPolicy", "What becomes of a volume when its claim goes.", "reclaimPolicy"
            ),
            Column("VolumeBindingMode", "When a claim is bound to a volume.", "volumeBindingMode"),
            Column(
                "AllowVolumeExpansion", "Whether volumes may grow.", flag_at("allowVolumeExpansion")
            ),
            AGE,
        )
    ),
)
VOLUME_ATTRIBUTES_CLASS: Final = kind.Kind(
    resource=VolumeAttributesClasses,
    rules=Rules(
        Field("driverName", required=True, form=_provisioner),
        Field("parameters", required="must contain at least one key/value pair"),
        _parameters,
    ),
    change_rules=lambda new, old: [
        forbidden_field(name, f"updates to {name} are forbidden.")
        for name in ("driverName", "parameters")
        if new.get(name) != old.get(name)
    ],
    columns=Printer(
        (NAME, Column("DriverName", "The driver that honours the parameters.", "driverName"), AGE)
    ),
)


def _source(_path: str, attachment: Document) -> FieldErrors:
    source = member(attachment, "spec", "source") or {}
    detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
    if not source:
        return [required("spec.source", detail)]
    return [forbidden_field("spec.source", detail)] if len(source) > 1 else []


def _attachment_status(new: Document, _old: Document) -> FieldErrors:
    errors = _check_size(
        "status.attachmentMetadata", member(new, "status", "attachmentMetadata") or {}
    )
    for name in ("attachError", "detachError"):
        if len(text(new, "status", name, "message")) > _MESSAGE_MAX:
            errors.append(too_long(f"status.{name}.message", _BYTES_MAX))
    return errors


VOLUME_ATTACHMENT: Final = kind.Kind(
    resource=VolumeAttachments,
    rules=Rules(
        Field("spec.attacher", required=True, bytes_max=_DRIVER_MAX, form=_driver_name),
        Field("spec.nodeName", form=check_dns_subdomain, always=True),
        Field("spec.source.persistentVolumeName", form=check_dns_subdomain),
        Field("spec", immutable=True),
        _source,
    ),
    columns=Printer(
        (
            NAME,
            Column("Attacher", "The driver that attaches.", "spec.attacher", format="name"),
            Column("PV", "The volume.", "spec.source.persistentVolumeName"),
            Column("Node", "The node that the volume is attached to.", "spec.nodeName"),
            _flag("Attached", "Whether it is attached.", "status.attached"),
            AGE,
        )
    ),
    status=kind.Status(
        first=lambda _attachment: {"attached": False},
        validate=_attachment_status,
        not_written=fields.of_paths([("f:metadata",), ("f:spec",)]),
        kept=("annotations", "finalizers", "labels", "ownerReferences"),
    ),
)


def _tokens(_path: str, driver: Document) -> FieldErrors:
    spec: Document = driver["spec"]
    audiences: set[str] = set()

    def request_errors(path: str, request: Document) -> FieldErrors:
        return check_unique(f"{path}.audience", request.get("audience", ""), audiences) or _REQUEST(
            path, request
        )

    errors = each("spec.tokenRequests", spec.get("tokenRequests", ()), request_errors)
    if spec.get(_IN_SECRETS) is not None and not audiences:
        detail = f"{_IN_SECRETS} is set but no tokenRequests are specified"
        errors.append(invalid_value(f"spec.{_IN_SECRETS}", spec[_IN_SECRETS], detail))
    return errors


_REQUEST: Final = Rules(
    Field(
        "expirationSeconds",
        minimum=_TOKEN_S_MIN,
        detail="may not specify a duration less than 10 minutes",
    )
)


def _driver_warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    is_due = bool(new["spec"].get("tokenRequests")) and new["spec"].get(_IN_SECRETS) is None
    return (_TOKENS_IN_ATTRIBUTES,) if is_due else ()


def _driver_update(new: Document, old: Document) -> FieldErrors:
    paths = {
        "attachRequired": "spec.attachedRequired",
        "volumeLifecycleModes": "spec.volumeLifecycleModes",
    }
    return [
        invalid_value(path, new["spec"].get(name), IMMUTABLE)
        for name, path in paths.items()
        if new["spec"].get(name) != old["spec"].get(name)
    ]


def _audiences(driver: Document) -> str:
    if member(driver, "spec", "tokenRequests") is None:
        return UNSET
    return ",".join(
        text(request, "audience") for request in objects(driver, "spec", "tokenRequests")
    )


CSI_DRIVER: Final = kind.Kind(
    resource=CSIDrivers,
    defaults=Defaults(
        {
            "+spec": {
                "attachRequired?": True,
                **dict.fromkeys(
                    ("podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"),
                    False,
                ),
                "fsGroupPolicy": "ReadWriteOnceWithFSType",
                "volumeLifecycleModes": ["Persistent"],
            }
        }
    ),
    rules=Rules(
        Field("spec.fsGroupPolicy", choices=("File", "None", "ReadWriteOnceWithFSType")),
        Field("spec.volumeLifecycleModes", choices=("Persistent", "Ephemeral")),
        Field(
            "spec.nodeAllocatableUpdatePeriodSeconds",
            minimum=10,
            detail="must be greater than or equal to 10 seconds",
        ),
        _tokens,
    ),
    columns=Printer(
        (
            NAME,
            _flag(
                "AttachRequired",
                "Whether volumes are attached before they are mounted.",
                "spec.attachRequired",
            ),
            _flag(
                "PodInfoOnMount",
                "Whether the driver receives the Pod's names.",
                "spec.podInfoOnMount",
            ),
            _flag(
                "StorageCapacity",
                "Whether the driver publishes its capacity.",
                "spec.storageCapacity",
            ),
            Column("TokenRequests", "Audiences of the tokens that the driver gets.", _audiences),
            _flag(
                "RequiresRepublish",
                "Whether mounts are renewed from time to time.",
                "spec.requiresRepublish",
            ),
            Column(
                "Modes",
                "Which volumes the driver makes.",
                lambda driver: ",".join(texts(driver, "spec", "volumeLifecycleModes")) or NONE,
            ),
            AGE,
        )
    ),
    warnings=_driver_warnings,
    change_rules=_driver_update,
)


def _node_drivers(_path: str, node: Document) -> FieldErrors:
    names: set[str] = set()

    def driver_errors(path: str, driver: Document) -> FieldErrors:
        errors: FieldErrors = []
        if len(driver.get("nodeID", "")) > _NODE_ID_MAX:
            detail = f"must be {_NODE_ID_MAX} characters or less"
            errors.append(invalid_value(f"{path}.nodeID", driver["nodeID"], detail))
        errors += check_unique(f"{path}.name", driver.get("name", ""), names)
        keys: set[str] = set()
        for key in until_error_limit(errors, driver.get("topologyKeys", ())):
            errors += check_unique(path, key, keys) + of_form(path, key, check_qualified_name)
        return errors

    return each("spec.drivers", objects(node, "spec", "drivers"), driver_errors)


def _node_update(new: Document, old: Document) -> FieldErrors:
    """Refuses changes of a driver's entry, but for the number of volumes that it takes."""

    def drivers_by_name(node: Document) -> dict[str, Document]:
        drivers = objects(node, "spec", "drivers")
        return {text(driver, "name"): {**driver, "allocatable": None} for driver in drivers}

    before, after = drivers_by_name(old), drivers_by_name(new)
    return [
        invalid_value("spec.drivers", after[name], IMMUTABLE)
        for name in before.keys() & after.keys()
        if before[name] != after[name]
    ]


CSI_NODE: Final = kind.Kind(
    resource=CSINodes,
    rules=Rules(
        Field("spec.drivers[].name", required=True, bytes_max=_DRIVER_MAX, form=_driver_name),
        Field("spec.drivers[].nodeID", required=True),
        Field("spec.drivers[].allocatable?.count", minimum=0),
        _node_drivers,
    ),
    columns=Printer(
        (
            NAME,
            Column(
                "Drivers",
                "How many drivers have registered on the node.",
                lambda node: len(objects(node, "spec", "drivers")),
                type="integer",
            ),
            AGE,
        )
    ),
    change_rules=_node_update,
)


def _capacity(_path: str, document: Document) -> FieldErrors:
    errors = check_label_selector("nodeTopology", document.get("nodeTopology"))
    if amount(document.get("capacity", 0)) < 0:
        errors.append(invalid_value("capacity", document["capacity"], NOT_NEGATIVE))
    return errors


CSI_STORAGE_CAPACITY: Final = kind.Kind(
    resource=CSIStorageCapacities,
    rules=Rules(
        Field("nodeTopology", immutable=True),
        Field("storageClassName", form=check_dns_subdomain, always=True, immutable=True),
        _capacity,
    ),
    columns=Printer(
        (
            NAME,
            Column("StorageClassName", "The class that the capacity is of.", "storageClassName"),
            Column("Capacity", "The capacity that is left.", text_or(UNSET, "capacity")),
        )
    ),
    quota=kind.Quota(),
)
