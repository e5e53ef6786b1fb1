"""Rules of a Pod's volumes; those of mounts and devices are in ``mounts``.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go), its misspellings included. ``_SOURCES`` has a row for each
type of volume.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sliceplane.api.errors import (
    ERRORS_MAX,
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.registry.validation.claims import check_claim_template
from sliceplane.server.registry.validation.environment import (
    VOLUME_FIELDS,
    check_amount_of_container,
    check_field_of_pod,
)
from sliceplane.server.registry.validation.rules import (
    Check,
    Field,
    Rules,
    among,
    each,
    file_mode,
    needs,
    no_way_up,
    of_form,
    way_down,
    way_of_user,
)

Volumes = Mapping[str, Document]
_CLASH: Final = "may not specify more than 1 volume type"
_CLASH_OF_PATHS: Final = "conflicting duplicate paths"
_PAIRS: Final = "must be a host:port pair or multiple pairs separated by commas"
_HOST_TYPES: Final = (
    *(
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ),
)
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_INITIATORS: Final = {
    "iqn": re.compile(r"iqn\.[0-9]{4}-[0-9]{2}\.[-.0-9A-Za-z]+:[^,;*&$|\t\n\f\r ]+"),
    "eui": re.compile(r"eui.[0-9A-Za-z]{16}"),
    "naa": re.compile(r"naa.[0-9A-Za-z]{32}"),
}
_PORTAL_MAX: Final = 64
_PORTAL_DETAIL: Final = (
    "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if "
    "iscsi.initiatorName is specified."
)
_TENANT_MAX: Final = 64
_DRIVER_MAX: Final = 63
_TOKEN_MIN_S: Final = 600
_TOKEN_MAX_S: Final = 2**32


_NAME: Final = Rules(Field("name", required=True, form=check_dns_label))


def check_volumes(
    path: str, volumes: list[Document], pod: str | None
) -> tuple[Volumes, FieldErrors]:
    """The good volumes by name, and the complaints.  *pod*: the name of the Pod; ``None`` for a
    template.
    """
    errors: FieldErrors = []
    good: dict[str, Document] = {}
    claims = {
        f"{pod}-{volume.get('name', '')}" for volume in volumes if pod and "ephemeral" in volume
    }
    for index, volume in until_error_limit(errors, enumerate(volumes)):
        where = f"{path}[{index}]"
        name = volume.get("name", "")
        problems = _source(where, volume, pod)
        problems += _NAME(where, volume)
        if name in good:
            problems.append(duplicate(f"{where}.name", name))
        if not problems:
            good[name] = volume
        errors += problems
        claim = volume.get("persistentVolumeClaim", {}).get("claimName", "")
        if claim in claims:
            detail = "must not reference a PVC that gets created for an ephemeral volume"
            errors.append(invalid_value(f"{where}.persistentVolumeClaim.claimName", claim, detail))
    return good, errors


def _source(path: str, volume: Document, pod: str | None) -> FieldErrors:
    present = [member for member in _SOURCES if member in volume]
    if not present:
        return [required(path, "must specify a volume type")]
    errors: FieldErrors = []
    for index, member in enumerate(present):
        source = volume[member]
        if index:
            errors.append(forbidden_field(f"{path}.{_CLASH_PATHS.get(member, member)}", _CLASH))
        else:
            errors += _SOURCES[member](f"{path}.{_PATHS.get(member, member)}", source)
        if member == "iscsi" and "initiatorName" in source:
            portal = f"{volume.get('name', '')}:{source.get('targetPortal', '')}"
            if len(portal.encode()) > _PORTAL_MAX:
                errors.append(invalid_value(f"{path}.name", volume.get("name", ""), _PORTAL_DETAIL))
        elif member == "ephemeral" and not index and pod and volume.get("name"):
            claim = f"{pod}-{volume['name']}"
            errors += [
                invalid_value(f"{path}.name", volume["name"], f'PVC name "{claim}": {problem}')
                for problem in check_dns_subdomain(claim)
            ]
        elif member == "image" and not index and pod is not None:
            # As upstream: a template's reference may be filled in later.
            errors[:0] = needs("reference")(f"{path}.image", source)
    return errors


def _empty_dir(path: str, source: Document) -> FieldErrors:
    if exact(source.get("sizeLimit", 0)) >= 0:
        return []
    return [
        forbidden_field(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")
    ]


def _host_path(path: str, source: Document) -> FieldErrors:
    return needs("path")(path, source) or _HOST_PATH(path, source)


_HOST_PATH: Final = Rules(Field("path", form=no_way_up), Field("type", choices=_HOST_TYPES))


def _nfs(path: str, source: Document) -> FieldErrors:
    errors = needs("server", "path")(path, source)
    where: str = source.get("path", "")
    return (
        errors
        if where.startswith("/")
        else [*errors, invalid_value(f"{path}.path", where, "must be an absolute path")]
    )


def _iscsi(path: str, source: Document) -> FieldErrors:
    errors = _TARGET(path, source)
    if (
        source.get("chapAuthDiscovery") or source.get("chapAuthSession")
    ) and "secretRef" not in source:
        errors.append(required(f"{path}.secretRef"))
    if "initiatorName" not in source:
        return errors
    # As upstream spells it.
    return errors + of_form(f"{path}.initiatorname", source["initiatorName"], _initiator_problems)


def _initiator_problems(name: str) -> tuple[str, ...]:
    shape = _INITIATORS.get(name[:3])
    if shape is None:
        return ("must be valid format starting with iqn, eui, or naa",)
    return () if shape.fullmatch(name) else ("must be valid format",)


_LUN: Final = Rules(Field("lun", minimum=0, maximum=255))
_TARGET: Final = Rules(needs("targetPortal", "iqn"), Field("iqn", form=_initiator_problems), _LUN)


def _flocker(path: str, source: Document) -> FieldErrors:
    name = source.get("datasetName", "")
    errors: FieldErrors = []
    if not name and not source.get("datasetUUID"):
        errors.append(required(path, "one of datasetName and datasetUUID is required"))
    if name and source.get("datasetUUID"):
        detail = "datasetName and datasetUUID can not be specified simultaneously"
        errors.append(invalid_value(path, "resource", detail))
    if "/" in name:
        errors.append(invalid_value(f"{path}.datasetName", name, "must not contain '/'"))
    return errors


def _quobyte(path: str, source: Document) -> FieldErrors:
    registry = source.get("registry", "")
    errors: FieldErrors = []
    if not registry:
        errors.append(required(f"{path}.registry", _PAIRS))
    elif len(source.get("tenant", "").encode()) > _TENANT_MAX:
        errors.append(
            required(
                f"{path}.tenant", "must be a UUID and may not exceed a length of 64 characters"
            )
        )
    else:
        bad = sum(not _HOST_PORT.fullmatch(pair) for pair in registry.split(","))
        fault = invalid_value(f"{path}.registry", registry[:_REGISTRY_CHARACTERS_MAX], _PAIRS)
        errors += [fault] * min(bad, ERRORS_MAX)
    return errors + needs("volume")(path, source)


#: what Go's ``net.SplitHostPort`` takes apart
_HOST_PORT: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*):[^\[\]:]*")
#: each error of a bad pair quotes all pairs, up to this
_REGISTRY_CHARACTERS_MAX: Final = 1024


def _fibre_channel(path: str, source: Document) -> FieldErrors:
    names = source.get("targetWWNs")
    where = f"{path}.targetWWNs"
    errors: FieldErrors = []
    if not names and not source.get("wwids"):
        errors.append(required(where, "must specify either targetWWNs or wwids, but not both"))
    if names and source.get("wwids"):
        errors.append(
            invalid_value(where, names, "targetWWNs and wwids can not be specified simultaneously")
        )
    if names and "lun" not in source:
        errors.append(required(f"{path}.lun", "lun is required if targetWWNs is specified"))
    return errors + (_LUN(path, source) if names else [])


def _flex(path: str, source: Document) -> FieldErrors:
    errors = needs("driver")(path, source)
    for option in until_error_limit(errors, sorted(source.get("options", ()))):
        domain = f".{option.partition('/')[0].lower()}"
        if domain.endswith((".kubernetes.io", ".k8s.io")):
            detail = "kubernetes.io and k8s.io namespaces are reserved"
            errors.append(invalid_value(f"{path}.options[{option}]", option, detail))
    return errors


def _disk_uri(path: str, source: Document) -> FieldErrors:
    uri = source.get("diskURI", "")
    start, shape = _DISKS["Managed" if source.get("kind") == "Managed" else "blob"]
    return (
        among(f"{path}.diskURI", uri, (shape,))
        if "kind" in source and not uri.startswith(start)
        else []
    )


_DISKS: Final = {
    "Managed": (
        "/subscriptions/",
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
    ),
    "blob": (
        "https://",
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
    ),
}


def _publish_secret(path: str, secret: Document) -> FieldErrors:
    """As upstream: a name that is wrong is called one of the volume's source."""
    name = secret.get("name", "")
    if not name:
        return [required(f"{path}.name")]
    return of_form(f"{path.rpartition('.')[0]}.name", name, check_dns_subdomain)


def _downward_file(path: str, item: Document) -> FieldErrors:
    errors = _FILE_PATH(path, item)
    if "fieldRef" in item:
        errors += check_field_of_pod(f"{path}.fieldRef", item["fieldRef"], VOLUME_FIELDS)
        if "resourceFieldRef" in item:
            detail = "fieldRef and resourceFieldRef can not be specified simultaneously"
            errors.append(invalid_value(path, "resource", detail))
    elif "resourceFieldRef" in item:
        errors += check_amount_of_container(
            f"{path}.resourceFieldRef", item["resourceFieldRef"], named=True
        )
    else:
        errors.append(required(path, "one of fieldRef and resourceFieldRef is required"))
    return errors + file_mode("mode")(path, item)


def _downward_files(path: str, items: list[Document]) -> FieldErrors:
    """As upstream: without the index."""
    errors: FieldErrors = []
    for item in until_error_limit(errors, items):
        errors += _downward_file(path.rpartition(".")[0], item)
    return errors


def _projected(path: str, source: Document) -> FieldErrors:
    taken: set[str] = set()
    return each(
        f"{path}.sources",
        source.get("sources", ()),
        lambda where, projection: _projection(path, where, projection, taken),
    )


def _projection(path: str, where: str, projection: Document, taken: set[str]) -> FieldErrors:
    errors: FieldErrors = []

    def claim_path(target: str, value: str) -> None:
        if target in taken:
            errors.append(invalid_value(path, value, _CLASH_OF_PATHS))
        elif target:
            taken.add(target)

    for member in ("secret", "configMap"):
        if member in projection:
            source = projection[member]
            errors += needs("name")(f"{where}.{member}", source)
            for at, item in until_error_limit(errors, enumerate(source.get("items", ()))):
                errors += _KEY_TO_PATH(f"{where}.{member}.items[{at}]", item)
                claim_path(item.get("path", ""), source.get("name", ""))
    for item in until_error_limit(errors, projection.get("downwardAPI", {}).get("items", ())):
        errors += _downward_file(f"{where}.downwardAPI", item)
        claim_path(item.get("path", ""), item.get("path", ""))
    if "serviceAccountToken" in projection:
        errors += _token(path, f"{where}.serviceAccountToken", projection["serviceAccountToken"])
    # Of the gates that are off, as upstream's default is: ``clusterTrustBundle``,
    # ``podCertificate``.
    count = sum(
        member in projection
        for member in ("secret", "configMap", "downwardAPI", "serviceAccountToken")
    )
    if count > 1:
        errors.append(forbidden_field(where, f"{_CLASH} per source"))
    return errors


def _token(path: str, where: str, token: Document) -> FieldErrors:
    # As upstream: the path is looked for in the volume.
    return _TOKEN_AGE(where, token) + _FILE_PATH(path, token)


_FILE_PATH: Final = Rules(Field("path", required=True, form=way_of_user))
_TOKEN_AGE: Final = Rules(
    Field(
        "expirationSeconds",
        minimum=_TOKEN_MIN_S,
        detail="may not specify a duration less than 10 minutes",
    ),
    Field(
        "expirationSeconds",
        maximum=_TOKEN_MAX_S,
        detail="may not specify a duration larger than 2^32 seconds",
    ),
)
_KEY_TO_PATH: Final = Rules(Field("key", required=True), _FILE_PATH, file_mode("mode"))
_PARTITION: Final = Field(
    "partition", minimum=0, maximum=255, detail="must be between 1 and 255, inclusive"
)
_SECRET: Final = Field("secretRef", rows=needs("name"))
_FILES: Final = (file_mode("defaultMode"), Field("items", rows=_KEY_TO_PATH))
#: by the member of a volume, in the order in which they are looked for
_SOURCES: Final[dict[str, Check]] = {
    "emptyDir": _empty_dir,
    "hostPath": _host_path,
    "gitRepo": Rules(Field("repository", required=True), Field("directory", form=way_down)),
    "gcePersistentDisk": Rules(Field("pdName", required=True), _PARTITION),
    "awsElasticBlockStore": Rules(Field("volumeID", required=True), _PARTITION),
    "secret": Rules(Field("secretName", required=True), *_FILES),
    "nfs": _nfs,
    "iscsi": _iscsi,
    "glusterfs": needs("endpoints", "path"),
    "flocker": _flocker,
    "persistentVolumeClaim": needs("claimName"),
    "rbd": needs("monitors", "image"),
    "cinder": Rules(Field("volumeID", required=True), _SECRET),
    "cephfs": needs("monitors"),
    "quobyte": _quobyte,
    "downwardAPI": Rules(
        file_mode("defaultMode"),
        Field("items", whole=_downward_files),
    ),
    "fc": _fibre_channel,
    "flexVolume": _flex,
    "configMap": Rules(Field("name", required=True), *_FILES),
    "azureFile": needs("secretName", "shareName"),
    "vsphereVolume": needs("volumePath"),
    "photonPersistentDisk": needs("pdID"),
    "portworxVolume": needs("volumeID"),
    "azureDisk": Rules(
        needs("diskName", "diskURI"),
        Field("cachingMode", choices=("None", "ReadOnly", "ReadWrite")),
        Field("kind", choices=("Dedicated", "Managed", "Shared")),
        _disk_uri,
    ),
    "storageos": Rules(
        Field("volumeName", required=True, form=check_dns_label),
        Field("volumeNamespace", form=check_dns_label),
        _SECRET,
    ),
    "projected": Rules(file_mode("defaultMode"), _projected),
    "scaleIO": needs("gateway", "system", "volumeName"),
    "csi": Rules(
        Field(
            "driver",
            required=True,
            bytes_max=_DRIVER_MAX,
            form=lambda driver: check_dns_subdomain(driver.lower()),
        ),
        Field("nodePublishSecretRef", rows=_publish_secret),
    ),
    "ephemeral": Rules(
        needs("volumeClaimTemplate"), Field("volumeClaimTemplate", rows=check_claim_template)
    ),
    "image": Rules(Field("pullPolicy", choices=PULL_POLICIES)),
}
#: where upstream names a member otherwise: in complaints about it, and about one type too many
_PATHS: Final = {"gcePersistentDisk": "persistentDisk"}
_CLASH_PATHS: Final = {"cephfs": "cephFS", "downwardAPI": "downwarAPI"}
