"""Rules of the mounts and devices of a container: they name volumes of the Pod, and share no path.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

from typing import Any, Final

from sliceplane.api.errors import (
    FieldError,
    FieldErrors,
    forbidden_field,
    invalid_value,
    missing_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.server.registry.validation.rules import Field, Rules, each, no_way_up, way_down
from sliceplane.server.registry.validation.volumes import Volumes

_PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE: Final = ("Disabled", "Enabled", "IfPossible")


def check_mounts(path: str, container: Document, volumes: Volumes) -> FieldErrors:
    """*path*: the container's."""
    mounts: list[Document] = container.get("volumeMounts", [])
    devices: list[Document] = container.get("volumeDevices", [])
    return _mounts(
        f"{path}.volumeMounts", container, volumes, _paths_by_name(devices, "devicePath")
    ) + _devices(f"{path}.volumeDevices", devices, volumes, _paths_by_name(mounts, "mountPath"))


def _paths_by_name(uses: list[Document], member: str) -> dict[str, str]:
    return {use.get("name", ""): use.get(member, "") for use in uses}


def _mounts(
    path: str, container: Document, volumes: Volumes, devices: dict[str, str]
) -> FieldErrors:
    seen: set[str] = set()
    device_paths = set(devices.values())
    privileged = bool(container.get("securityContext", {}).get("privileged"))

    def mount_errors(where: str, mount: Document) -> FieldErrors:
        name = mount.get("name", "")
        target = mount.get("mountPath", "")
        errors = [] if name else [required(f"{where}.name")]
        errors += [] if name in volumes else [missing_value(f"{where}.name", name)]
        errors += [] if target else [required(f"{where}.mountPath")]
        errors += (
            [invalid_value(f"{where}.mountPath", target, "must be unique")]
            if target in seen
            else []
        )
        seen.add(target)
        if name in devices:
            errors.append(
                invalid_value(f"{where}.name", name, "must not already exist in volumeDevices")
            )
        if target in device_paths:
            detail = "must not already exist as a path in volumeDevices"
            errors.append(invalid_value(f"{where}.mountPath", target, detail))
        return errors + _mount_options(path, where, mount, privileged=privileged)

    return each(path, container.get("volumeMounts", ()), mount_errors)


def _mount_options(path: str, where: str, mount: Document, *, privileged: bool) -> FieldErrors:
    """As upstream: most complaints name the list, not its entry."""
    errors = _SUB_PATH(path, mount)
    expression = mount.get("subPathExpr", "")
    if expression and mount.get("subPath"):
        detail = "subPathExpr and subPath are mutually exclusive"
        errors.append(invalid_value(f"{where}.subPathExpr", expression, detail))
    errors += _EXPRESSION(path, mount)
    propagation = mount.get("mountPropagation")
    if propagation == "Bidirectional" and not privileged:
        detail = "Bidirectional mount propagation is available only to privileged containers"
        errors.append(forbidden_field(f"{path}.mountPropagation", detail))
    errors += _READ_ONLY(path, mount)
    if mount.get("recursiveReadOnly") in _RECURSIVE[1:]:
        only = "may only be specified when"
        if not mount.get("readOnly"):
            errors.append(forbidden_field(f"{path}.recursiveReadOnly", f"{only} readOnly is true"))
        if propagation not in (None, "None"):
            detail = f"{only} mountPropagation is None or not specified"
            errors.append(forbidden_field(f"{path}.recursiveReadOnly", detail))
    return errors


_SUB_PATH: Final = Rules(Field("subPath", form=way_down))
_EXPRESSION: Final = Rules(
    Field("subPathExpr", form=way_down), Field("mountPropagation", choices=_PROPAGATIONS)
)
_READ_ONLY: Final = Rules(Field("recursiveReadOnly", choices=_RECURSIVE))


def _devices(
    path: str, devices: list[Document], volumes: Volumes, mounts: dict[str, str]
) -> FieldErrors:
    errors: FieldErrors = []
    names: set[str] = set()
    paths: set[str] = set()
    mount_paths = set(mounts.values())
    for index, device in until_error_limit(errors, enumerate(devices)):
        where = f"{path}[{index}]"
        name = device.get("name", "")
        target = device.get("devicePath", "")
        has_backsteps = bool(no_way_up(target))
        faults = (
            (not name, "name", None),
            (name in names, "name", "must be unique"),
            (name in volumes and not volumes[name].keys() & _BLOCK, "name", _BLOCK_DETAIL),
            (name not in volumes, "name", ""),
            (not target, "devicePath", None),
            (target in paths, "devicePath", "must be unique"),
            (has_backsteps, "devicePath", "can not contain backsteps ('..')"),
            (name in mounts, "name", "must not already exist in volumeMounts"),
            (
                target in mount_paths,
                "devicePath",
                "must not already exist as a path in volumeMounts",
            ),
        )
        errors += [
            _device_fault(f"{where}.{member}", device.get(member, ""), why)
            for is_bad, member, why in faults
            if is_bad
        ]
        if name:
            names.add(name)
        if not has_backsteps:
            paths.add(target)
    return errors


_BLOCK: Final = {"persistentVolumeClaim", "ephemeral"}
_BLOCK_DETAIL: Final = (
    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
)


def _device_fault(path: str, value: Any, why: str | None) -> FieldError:
    """*why*: ``None``: the value is missing; "": it stands for nothing."""
    if why is None:
        return required(path)
    return invalid_value(path, value, why) if why else missing_value(path, value)
