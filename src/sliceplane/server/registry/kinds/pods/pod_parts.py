"""Endpoints of a Pod that write a part of its spec: ``ephemeralcontainers`` (KEP-277) and
``resize`` (KEP-1287).

No container is started or resized by this: that is a kubelet's, which here is emulated or
somebody's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sliceplane.api.core import PodSpec
from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value, until_error_limit
from sliceplane.api.meta import Document
from sliceplane.server.registry.admission import limit_ranges
from sliceplane.server.registry.kinds.kind import SpecPart
from sliceplane.server.registry.kinds.pods import pod_quota
from sliceplane.server.registry.kinds.pods.pod_spec import validate_pod_spec
from sliceplane.server.registry.validation.annotations import MIRROR

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

_EPHEMERAL: Final = "ephemeralContainers"
_RESIZED: Final = ("containers", "initContainers")
_RESIZABLE: Final = ("resizePolicy", "resources")
_VITAL: Final = ("cpu", "memory")


def _cut_ephemeral(spec: Document) -> Document:
    return {_EPHEMERAL: spec[_EPHEMERAL]} if _EPHEMERAL in spec else {}


def _merge_ephemeral(requested: Document, before: Document) -> Document:
    return {
        **{member: value for member, value in before.items() if member != _EPHEMERAL},
        **requested,
    }


def _validate_ephemeral(new: Document, old: Document) -> FieldErrors:
    errors = validate_pod_spec(new["spec"], "spec", new["metadata"])
    if _is_static(old):
        return [forbidden_field("[]", "static pods do not support ephemeral containers")]
    path = f"spec.{_EPHEMERAL}"
    new_by_name = {
        container.get("name"): container for container in new["spec"].get(_EPHEMERAL, ())
    }
    for container in until_error_limit(errors, old["spec"].get(_EPHEMERAL, ())):
        name = container["name"]
        if name not in new_by_name:
            errors.append(
                forbidden_field(
                    path, f'existing ephemeral containers "{name}" may not be removed\n'
                )
            )
        elif new_by_name[name] != container:
            errors.append(
                forbidden_field(
                    path, f'existing ephemeral containers "{name}" may not be changed\n'
                )
            )
    return errors


def _cut_resize(spec: Document) -> Document:
    cut: Document = {}
    for member in _RESIZED:
        if member in spec:
            members = ("name", *_RESIZABLE)
            cut[member] = [
                {part: one[part] for part in members if part in one} for one in spec[member]
            ]
    return cut


def _merge_resize(requested: Document, before: Document) -> Document:
    """Keeps the requested containers as they are where they are other containers, for validation to
    refuse.
    """
    merged = dict(before)
    for member in _RESIZED:
        old, new = before.get(member, []), requested.get(member, [])
        if _names(old) != _names(new):
            return {**before, **requested}
        if old:
            merged[member] = [
                {
                    **{part: value for part, value in one.items() if part not in _RESIZABLE},
                    **resized,
                }
                for one, resized in zip(old, new, strict=True)
            ]
    return merged


def _validate_resize(new: Document, old: Document) -> FieldErrors:
    spec: Document = new["spec"]
    before: Document = old["spec"]
    if _is_static(old):
        return [forbidden_field("[]", "static pods cannot be resized")]
    if before.get("os", {}).get("name") == "windows":
        return [forbidden_field("[]", "windows pods cannot be resized")]
    for member in _RESIZED:
        if _names(spec.get(member, [])) != _names(before.get(member, [])):
            detail = "containers may not be added, removed, reordered or renamed by a resize"
            return [forbidden_field(f"spec.{member}", detail)]
    errors = validate_pod_spec(spec, "spec", new["metadata"])
    for member in _RESIZED:
        pairs = zip(spec.get(member, ()), before.get(member, ()), strict=True)
        for index, (container, had) in until_error_limit(errors, enumerate(pairs)):
            runs_to_completion = member == "initContainers" and had.get("restartPolicy") != "Always"
            errors += _resized(
                f"spec.{member}[{index}]", container, had, runs_to_completion=runs_to_completion
            )
    was = old.get("status", {}).get("qosClass") or _qos(before)
    if not errors and _qos(spec) != was:
        errors.append(
            invalid_value(
                "spec", _qos(spec), "Pod QOS Class may not change as a result of resizing"
            )
        )
    return errors


def _resized(
    path: str, container: Document, had: Document, *, runs_to_completion: bool
) -> FieldErrors:
    """*runs_to_completion*: the container ends before the others start."""
    if container == had:
        return []
    if runs_to_completion:
        return [forbidden_field(path, "resources of an init container that ends cannot be resized")]
    errors: FieldErrors = []
    if container.get("resizePolicy") != had.get("resizePolicy"):
        errors.append(forbidden_field(f"{path}.resizePolicy", "may not be changed by a resize"))
    for kind, noun in (("limits", "limits"), ("requests", "requests")):
        now: dict[str, Any] = container.get("resources", {}).get(kind, {})
        then: dict[str, Any] = had.get("resources", {}).get(kind, {})
        if set(then) - set(now):
            errors.append(
                forbidden_field(f"{path}.resources.{kind}", f"resource {noun} cannot be removed")
            )
        errors += [
            forbidden_field(
                f"{path}.resources.{kind}.{name}", "only cpu and memory resources are mutable"
            )
            for name in sorted(now.keys() | then.keys())
            if name not in _VITAL and now.get(name) != then.get(name)
        ]
    return errors


def _admit_resize(core: Core, new: Document, _old: Document | None) -> None:
    limit_ranges.check_bounds(core.store, new)


def _qos(spec: Document) -> str:
    return pod_quota.qos_class(msgspec.convert(spec, PodSpec))


def _names(containers: Iterable[Document]) -> list[str]:
    return [container.get("name", "") for container in containers]


def _is_static(pod: Document) -> bool:
    return MIRROR in pod["metadata"].get("annotations", {})


PARTS: Final = {
    "ephemeralcontainers": SpecPart(
        cut=_cut_ephemeral,
        merge=_merge_ephemeral,
        validate=_validate_ephemeral,
    ),
    "resize": SpecPart(
        cut=_cut_resize,
        merge=_merge_resize,
        validate=_validate_resize,
        admit=_admit_resize,
        charged=True,
    ),
}
