"""PersistentVolumeClaim and PersistentVolume: what Pods ask of storage, and what there is of it.

They are plain kinds: nothing here binds a claim to a volume. kube-controller-manager does
(persistentvolume-binder, attach-detach ...) where it runs; without it a claim stays Pending.
Upstream's admission adds the finalizers ``kubernetes.io/pvc-protection`` and ``pv-protection``,
which only that controller removes; here it adds them itself, so that without it a claim can be
deleted.

Rules are those of ``pkg/apis/core/validation/validation.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from sliceplane.api.core import PersistentVolumeClaim
from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from sliceplane.api.meta import Document, Object
from sliceplane.api.quantity import amount, exact
from sliceplane.api.scheme import PersistentVolumeClaims, PersistentVolumes, StorageClasses
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    UNSET,
    Column,
    Printer,
    mapping,
    member,
    text,
    text_or,
    texts,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.claims import (
    ACCESS_MODES,
    check_claim_spec,
    check_pod_mode,
)
from sliceplane.server.registry.validation.rules import (
    IMMUTABLE,
    Defaults,
    Field,
    Rules,
    at,
    fill,
    no_way_up,
)
from sliceplane.server.registry.validation.scheduling import check_node_selector

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

MODES: Final = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
#: annotations of the StorageClass of claims that name none
DEFAULT_CLASS_MARKS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_POSITIVE: Final = "must be greater than zero"
_CLAIM_IS_IMMUTABLE: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
    "bound claims"
)
_RECYCLED: Final = (
    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the "
    "recommended approach is to use dynamic provisioning."
)
_CLASS_SUFFIX: Final = ".storageclass.storage.k8s.io/"
_COUNTED: Final = (PersistentVolumeClaims.plural, "requests.storage")


def _default_claim(claim: Document) -> None:
    fill(claim, {"+spec": {"volumeMode?": "Filesystem"}, "+status": {"phase?": "Pending"}})
    spec = claim["spec"]
    source = spec.get("dataSource") or spec.get("dataSourceRef")
    if source and not spec.get("dataSourceRef", {}).get("namespace"):
        spec.setdefault("dataSource", dict(source))
        spec.setdefault("dataSourceRef", dict(source))


def _validate_claim_update(new: Document, old: Document) -> FieldErrors:
    before: Document = old["spec"]
    free = [] if before.get("volumeName") else ["volumeName"]
    if before.get("storageClassName") is None and new["spec"].get("storageClassName") is not None:
        free.append("storageClassName")
    is_bound = text(new, "status", "phase") == "Bound"
    if is_bound:
        free += ["volumeAttributesClassName", "resources"]
    errors: FieldErrors = []
    if _without(new["spec"], free) != _without(before, free):
        errors.append(forbidden_field("spec", _CLAIM_IS_IMMUTABLE))
    path = "spec.resources.requests.storage"
    size = amount(at(new, path) or 0)
    if size < amount(at(old, path) or 0) and size <= amount(
        at(old, "status.capacity.storage") or 0
    ):
        errors.append(forbidden_field(path, "field can not be less than status.capacity"))
    return errors


def _without(spec: Document, names: list[str]) -> Document:
    return {name: value for name, value in spec.items() if name not in names}


def _choose_class(core: Core, _target: Target, claim: Document) -> None:
    """A new claim that names no class gets the default."""
    if "storageClassName" not in claim["spec"] and _CLASS not in claim["metadata"].get(
        "annotations", {}
    ):
        name = kind.default_object(core, StorageClasses, *DEFAULT_CLASS_MARKS)
        if name is not None:
            claim["spec"]["storageClassName"] = name


def _warnings(new: Document, _old: Document | None) -> list[str]:
    texts_by_cause = {
        f'metadata.annotations[{_CLASS}]: deprecated since v1.8; use "storageClassName" '
        "attribute instead": (_CLASS in new["metadata"].get("annotations", {})),
        _RECYCLED: new["spec"].get("persistentVolumeReclaimPolicy") == "Recycle",
    }
    return [warning for warning, is_due in texts_by_cause.items() if is_due]


def _usage(claim: Object) -> Mapping[str, Fraction | int]:
    assert isinstance(claim, PersistentVolumeClaim)
    requests = (claim.spec.resources.requests if claim.spec.resources else None) or {}
    costs: dict[str, Fraction | int] = dict(
        zip(_COUNTED, (1, exact(requests.get("storage", 0))), strict=True)
    )
    name = (claim.metadata.annotations or {}).get(_CLASS) or claim.spec.storage_class_name
    return {
        **costs,
        **({f"{name}{_CLASS_SUFFIX}{key}": cost for key, cost in costs.items()} if name else {}),
    }


def is_class_quota(name: str) -> bool:
    """Returns True if a ResourceQuota's *name* counts the claims of one StorageClass."""
    return name.endswith(tuple(_CLASS_SUFFIX + counted for counted in _COUNTED))


def _class_of(document: Document) -> str:
    return text(document, "metadata", "annotations", _CLASS) or text(
        document, "spec", "storageClassName"
    )


def _phase(document: Document) -> str:
    return (
        "Terminating"
        if member(document, "metadata", "deletionTimestamp")
        else text(document, "status", "phase")
    )


def _modes(part: str) -> Callable[[Document], str]:
    def render(document: Document) -> str:
        modes = texts(document, part, "accessModes")
        return ",".join(short for mode, short in MODES.items() if mode in modes)

    return render


def _if_bound(render: Callable[[Document], str]) -> Callable[[Document], str]:
    return lambda claim: render(claim) if text(claim, "spec", "volumeName") else ""


_SHARED_COLUMNS: Final = (
    Column("StorageClass", "The StorageClass that it belongs to.", _class_of),
    Column(
        "VolumeAttributesClass",
        "The VolumeAttributesClass that it belongs to.",
        text_or(UNSET, "spec.volumeAttributesClassName"),
    ),
)
_VOLUME_MODE: Final = Column(
    "VolumeMode",
    "Whether it is a file system or a block device.",
    text_or(UNSET, "spec.volumeMode"),
    priority=1,
)
PERSISTENT_VOLUME_CLAIM: Final = kind.Kind(
    resource=PersistentVolumeClaims,
    defaults=_default_claim,
    prepare_create=_choose_class,
    rules=Rules(lambda _path, claim: check_claim_spec("spec", claim["spec"])),
    change_rules=_validate_claim_update,
    columns=Printer(
        (
            NAME,
            Column("Status", "Where the claim is in its life.", _phase),
            Column("Volume", "The PersistentVolume that the claim is bound to.", "spec.volumeName"),
            Column(
                "Capacity",
                "The size of the bound volume.",
                _if_bound(text_or("0", "status.capacity.storage")),
            ),
            Column(
                "Access Modes", "How the bound volume may be mounted.", _if_bound(_modes("status"))
            ),
            *_SHARED_COLUMNS,
            AGE,
            _VOLUME_MODE,
        )
    ),
    status=kind.Status(first=lambda _claim: {"phase": "Pending"}),
    quota=kind.Quota(names=_COUNTED, usage=_usage, rises=True, counts=is_class_quota),
    granted=kind.edited("status"),
    warnings=_warnings,
)

#: what each source of a volume must say
SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "csi": ("driver", "volumeHandle"),
    "fc": (),
    "flexVolume": ("driver",),
    "flocker": (),
    "gcePersistentDisk": ("pdName",),
    "glusterfs": ("endpoints", "path"),
    "hostPath": ("path",),
    "iscsi": ("targetPortal", "iqn"),
    "local": ("path",),
    "nfs": ("server", "path"),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": (),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}


VOLUME_RULES: Final = (
    Field("spec.accessModes", required=True, choices=ACCESS_MODES),
    Field("spec.capacity", required=True),
    Field("spec.persistentVolumeReclaimPolicy", choices=("Delete", "Recycle", "Retain")),
    Field("spec.nodeAffinity?.required", required=True),
    *(
        Field(f"spec.{source}?.{name}", required=True)
        for source, names in SOURCES.items()
        for name in names
    ),
    Field(
        "spec.quobyte?.registry",
        required="must be a host:port pair or multiple pairs separated by commas",
    ),
    Field("spec.quobyte?.volume", required=True),
    *(Field(f"spec.{source}?.path", form=no_way_up) for source in ("hostPath", "local")),
    Field("spec.storageClassName", form=check_dns_subdomain),
    Field("spec.volumeMode", choices=("Block", "Filesystem")),
    Field("spec.volumeAttributesClassName", form=check_dns_subdomain),
)


def _sources(spec: Document) -> list[str]:
    return [name for name in SOURCES if name in spec]


def _validate_volume(_path: str, volume: Document) -> FieldErrors:
    spec: Document = volume["spec"]
    errors = check_pod_mode("spec", spec)
    capacity: Document = spec.get("capacity", {})
    if set(capacity) != {"storage"}:
        errors.append(not_supported("spec.capacity", capacity, ("storage",)))
    errors += [
        invalid_value(f"spec.capacity[{name}]", size, _POSITIVE)
        for name, size in capacity.items()
        if amount(size) <= 0
    ]
    selector = mapping(spec, "nodeAffinity", "required")
    errors += check_node_selector("spec.nodeAffinity.required", selector) if selector else []
    used = _sources(spec)
    if not used:
        errors.append(required("spec", "must specify a volume type"))
    errors += [
        forbidden_field(f"spec.{name}", "may not specify more than 1 volume type")
        for name in used[1:]
    ]
    fibre, flocker = spec.get("fc"), spec.get("flocker")
    if fibre is not None and bool(fibre.get("targetWWNs")) is bool(fibre.get("wwids")):
        errors.append(
            required("spec.fc.targetWWNs", "must specify either targetWWNs or wwids, but not both")
        )
    if flocker is not None and not (flocker.get("datasetName") or flocker.get("datasetUUID")):
        errors.append(required("spec.flocker", "one of datasetName and datasetUUID is required"))
    if "local" in spec and "nodeAffinity" not in spec:
        errors.append(required("spec.nodeAffinity", "Local volume requires node affinity"))
    if spec.get("volumeAttributesClassName") and "csi" not in spec:
        errors.append(
            required("spec.csi", "has to be specified when using volumeAttributesClassName")
        )
    return errors


def _validate_volume_update(new: Document, old: Document) -> FieldErrors:
    before, after = (
        {name: document["spec"][name] for name in _sources(document["spec"])}
        for document in (old, new)
    )
    if "controllerExpandSecretRef" not in before.get("csi", {}) and "csi" in after:
        after["csi"] = _without(after["csi"], ["controllerExpandSecretRef"])
    errors: FieldErrors = []
    if before != after:
        path = "spec.persistentvolumesource"
        errors.append(forbidden_field(path, f"{path} is immutable after creation"))
    if new["spec"]["volumeMode"] != old["spec"].get("volumeMode"):
        errors.append(invalid_value("volumeMode", new["spec"]["volumeMode"], IMMUTABLE))
    return errors


def _claim_of(volume: Document) -> str:
    reference = mapping(volume, "spec", "claimRef")
    return f"{text(reference, 'namespace')}/{text(reference, 'name')}" if reference else ""


PERSISTENT_VOLUME: Final = kind.Kind(
    resource=PersistentVolumes,
    defaults=Defaults(
        {
            "+status": {"phase": "Pending"},
            "+spec": {
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"type": ""},
                "volumeMode": "Filesystem",
            },
        }
    ),
    rules=Rules(*VOLUME_RULES, _validate_volume),
    change_rules=_validate_volume_update,
    columns=Printer(
        (
            NAME,
            Column("Capacity", "The size of the volume.", text_or("0", "spec.capacity.storage")),
            Column("Access Modes", "How the volume may be mounted.", _modes("spec")),
            Column(
                "Reclaim Policy",
                "What becomes of the volume when its claim goes.",
                "spec.persistentVolumeReclaimPolicy",
            ),
            Column("Status", "Where the volume is in its life.", _phase),
            Column("Claim", "The claim that the volume is bound to.", _claim_of),
            *_SHARED_COLUMNS,
            Column("Reason", "Why the volume is in this state.", "status.reason"),
            AGE,
            _VOLUME_MODE,
        )
    ),
    status=kind.Status(first=lambda _volume: {"phase": "Pending"}),
    warnings=_warnings,
)
