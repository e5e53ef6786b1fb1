"""Rules of annotations of Pods and templates that Kubernetes itself reads, and that must agree with
newer fields.

The messages are those of Kubernetes (pkg/apis/core/validation/validation.go). Where Go ranges over
a map, names are taken in alphabetical order here.
"""

from __future__ import annotations

import re
from typing import Final

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value, until_error_limit
from sliceplane.api.meta import Document
from sliceplane.server.registry.validation.rules import of_form, way_down
from sliceplane.server.registry.validation.security import containers_of

MIRROR: Final = "kubernetes.io/config.mirror"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_SECCOMP: Final = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_OF: Final = "container.seccomp.security.alpha.kubernetes.io/"
_APP_ARMOR_OF: Final = "container.apparmor.security.beta.kubernetes.io/"
_LOCALHOST: Final = "localhost/"
_RUNTIME: Final = "runtime/default"
_UNCONFINED: Final = "unconfined"
#: by the type of a profile, the annotations that say the same
_SAME: Final = {"Unconfined": (_UNCONFINED,), "RuntimeDefault": (_RUNTIME, "docker/default")}
_INTEGER: Final = re.compile(r"-[0-9]+|0|[1-9][0-9]*")


def check_pod_annotations(path: str, annotations: dict[str, str], spec: Document) -> FieldErrors:
    if not annotations:
        return []
    errors: FieldErrors = []
    if MIRROR in annotations and not spec.get("nodeName"):
        detail = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(invalid_value(f"{path}[{MIRROR}]", annotations[MIRROR], detail))
    cost = annotations.get(DELETION_COST, "0")
    if (
        not _INTEGER.fullmatch(cost)
        or len(cost) > len(str(-(2**31)))
        or not -(2**31) <= int(cost) < 2**31
    ):
        errors.append(invalid_value(f"{path}[{DELETION_COST}]", cost, "must be a 32bit integer"))
    if _SECCOMP in annotations:
        errors += _seccomp(f"{path}.{_SECCOMP}", annotations[_SECCOMP])
    for key in until_error_limit(
        errors, sorted(key for key in annotations if key.startswith(_SECCOMP_OF))
    ):
        errors += _seccomp(f"{path}.{key}", annotations[key])
    names = {container.get("name", "") for _, container in containers_of("", spec)}
    for key in until_error_limit(
        errors, sorted(key for key in annotations if key.startswith(_APP_ARMOR_OF))
    ):
        name = key.removeprefix(_APP_ARMOR_OF)
        profile = annotations[key]
        if name not in names:
            errors.append(invalid_value(f"{path}[{key}]", name, "container not found"))
        if profile not in ("", _RUNTIME, _UNCONFINED) and not profile.startswith(_LOCALHOST):
            errors.append(
                invalid_value(
                    f"{path}[{key}]", profile, f'invalid AppArmor profile name: "{profile}"'
                )
            )
    return errors


def _seccomp(path: str, profile: str) -> FieldErrors:
    if profile in (_RUNTIME, "docker/default", _UNCONFINED):
        return []
    if profile.startswith(_LOCALHOST):
        return of_form(path, profile.removeprefix(_LOCALHOST), way_down)
    return [invalid_value(path, profile, "must be a valid seccomp profile")]


def check_agreement(path: str, annotations: dict[str, str], spec: Document) -> FieldErrors:
    """Profiles that are given in both ways.  *path*: the spec's."""
    if not any(
        key == _SECCOMP or key.startswith((_SECCOMP_OF, _APP_ARMOR_OF)) for key in annotations
    ):
        return []
    errors: FieldErrors = []
    context: Document = spec.get("securityContext", {})
    for kind, prefix, member in (
        ("seccomp", _SECCOMP_OF, "seccompProfile"),
        ("apparmor", _APP_ARMOR_OF, "appArmorProfile"),
    ):
        of_pod = context.get(member)
        if kind == "seccomp" and of_pod is not None and _SECCOMP in annotations:
            errors += _agrees(
                f"{path}.securityContext.{member}", kind, of_pod, annotations[_SECCOMP]
            )
        if kind == "apparmor" and spec.get("os", {}).get("name") == "windows":
            continue
        for where, container in until_error_limit(errors, containers_of(path, spec)):
            own = container.get("securityContext", {}).get(member)
            profile = of_pod if own is None and kind == "apparmor" else own
            key = prefix + container.get("name", "")
            if profile is not None and key in annotations:
                errors += _agrees(
                    f"{where}.securityContext.{member}", kind, profile, annotations[key]
                )
    return errors


def _agrees(path: str, kind: str, profile: Document, annotation: str) -> FieldErrors:
    differs = f"{kind} type in annotation and field must match"
    profile_type = profile.get("type", "")
    if profile_type in _SAME:
        same = _SAME[profile_type] if kind == "seccomp" else _SAME[profile_type][:1]
        return [] if annotation in same else [forbidden_field(f"{path}.type", differs)]
    if profile_type != "Localhost":
        return []
    if not annotation.startswith(_LOCALHOST):
        return [forbidden_field(f"{path}.type", differs)]
    if annotation.removeprefix(_LOCALHOST) == profile.get("localhostProfile"):
        return []
    return [
        forbidden_field(
            f"{path}.localhostProfile", f"{kind} profile in annotation and field must match"
        )
    ]


def check_annotation_update(path: str, new: dict[str, str], old: dict[str, str]) -> FieldErrors:
    """Annotations of a Pod that stay as they were."""
    errors: FieldErrors = []
    for verb, keys in (("remove or update", old), ("add", new.keys() - old.keys())):
        for key in until_error_limit(errors, sorted(keys)):
            if new.get(key) == old.get(key):
                continue
            if key.startswith(_APP_ARMOR_OF):
                errors.append(
                    forbidden_field(f"{path}[{key}]", f"may not {verb} AppArmor annotations")
                )
            if key == MIRROR:
                errors.append(
                    forbidden_field(f"{path}[{key}]", f"may not {verb} mirror pod annotation")
                )
    return errors
