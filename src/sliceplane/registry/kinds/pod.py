"""Pod: what discovery and the emulation of workloads rely on, and that a Pod's spec stays.

A kubelet would check much more (volumes, probes, security contexts); nothing here runs containers.  What a new Pod is
given by its namespace and node is in ``registry.admission.pods``, what Pods share with templates in
``pod_spec``, and the Status column in ``pod_columns``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sliceplane.api.core import Pod
from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, while_few
from sliceplane.api.meta import Document, Object
from sliceplane.api.scheme import Pods
from sliceplane.documents import fields
from sliceplane.registry.admission import pods
from sliceplane.registry.kinds import kind, pod_columns
from sliceplane.registry.kinds.pod_spec import default_pod_spec, validate_pod_spec
from sliceplane.registry.types import Target
from sliceplane.registry.validation.addresses import ip_problem

if TYPE_CHECKING:
    from sliceplane.registry.core import Core

_CONTAINER_LISTS = ("initContainers", "containers")
_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
POD_GRACE_DEFAULT_S = 30


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    status = document.get("status", {})
    _agree(status, "podIP", "podIPs")
    _agree(status, "hostIP", "hostIPs")


def _agree(status: Document, single: str, plural: str) -> None:
    """``podIP`` is ``podIPs[0].ip``; a writer of one of them wrote both."""
    first = status.get(single)
    every = status.get(plural)
    if first and (not every or every[0].get("ip") != first):
        status[plural] = [{"ip": first}]
    elif every and not first and every[0].get("ip"):
        status[single] = every[0]["ip"]


def _prepare_create(core: Core, _target: Target, new: Document) -> None:
    pods.complete(core.store, new)


def _prepare_update(_core: Core, _target: Target, new: Document, old: Document) -> None:
    pods.carry_over(new, old)


def _qos_class(spec: Document) -> str:
    """Who is evicted first: BestEffort asks for nothing, Guaranteed has a cpu and memory limit equal to its request."""
    guaranteed = True
    asks = False
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        resources = container.get("resources", {})
        requests = resources.get("requests", {})
        limits = resources.get("limits", {})
        asks = asks or bool(requests or limits)
        guaranteed = guaranteed and all(
            name in limits and limits[name] == requests.get(name, limits[name]) for name in ("cpu", "memory")
        )
    if not asks:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _validate_status(new: Document, _old: Document) -> list[FieldError]:
    status: Document = new.get("status", {})
    errors: list[FieldError] = []
    for index, entry in while_few(errors, enumerate(status.get("podIPs", ()))):
        problem = ip_problem(entry.get("ip", ""))
        if problem:
            errors.append(invalid_value(f"status.podIPs[{index}]", entry.get("ip", ""), problem))
    return errors


def _validate(document: Document) -> list[FieldError]:
    return validate_pod_spec(document.get("spec", {}), "spec")


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    spec = new.get("spec", {})
    before = old.get("spec", {})
    if spec == before:
        return []
    for member in _CONTAINER_LISTS:
        if len(spec.get(member, ())) != len(before.get(member, ())):
            return [forbidden_field(f"spec.{member}", "pod updates may not add or remove containers")]
    errors: list[FieldError] = []
    # Their members are scalars.
    tolerations = {frozenset(toleration.items()) for toleration in spec.get("tolerations", ())}
    if any(frozenset(toleration.items()) not in tolerations for toleration in before.get("tolerations", ())):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        errors.append(forbidden_field("spec.tolerations", detail))
    spec = _without_changeable(spec, before)
    changed = [
        f"spec.{member}" for member in sorted(spec.keys() | before.keys()) if spec.get(member) != before.get(member)
    ]
    if changed:
        detail = f"{_MAY_CHANGE}\nchanged: {', '.join(changed)}"
        errors.append(forbidden_field("spec", detail))
    return errors or _validate(new)


def _without_changeable(spec: Document, before: Document) -> Document:
    """*spec* with everything that may change set back to what it was."""
    result = dict(spec)
    for member in ("activeDeadlineSeconds", "tolerations"):
        _reset(result, before, member)
    if before.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        _reset(result, before, "terminationGracePeriodSeconds")
    for member in _CONTAINER_LISTS:
        if member in result:
            pairs = zip(result[member], before[member], strict=True)
            result[member] = [{**new, "image": old.get("image", "")} for new, old in pairs]
    return result


def _reset(result: Document, before: Document, member: str) -> None:
    result.pop(member, None)
    if member in before:
        result[member] = before[member]


def _grace_s(pod: Document, asked: int | None) -> int:
    """What was asked for, else the Pod's own; nothing if no kubelet has to stop it."""
    spec = pod.get("spec", {})
    status = pod.get("status", {})
    if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
        return 0
    grace_s: int = spec.get("terminationGracePeriodSeconds", POD_GRACE_DEFAULT_S) if asked is None else asked
    return 1 if grace_s < 0 else grace_s


def _usage(pod: Object) -> dict[str, int]:
    """Pods that are done use nothing."""
    assert isinstance(pod, Pod)
    return {} if pod.status.phase in ("Failed", "Succeeded") else {Pods.plural: 1}


POD: Final = kind.Kind(
    resource=Pods,
    defaults=_default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    status=kind.Status(
        first=lambda pod: {"phase": "Pending", "qosClass": _qos_class(pod["spec"])},
        validate=_validate_status,
        not_written=fields.of_paths(
            [("f:spec",), ("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:ownerReferences")]
        ),
        kept=("ownerReferences",),
    ),
    admission=kind.ADMITTED,
    deletion=kind.Deletion(
        admit=kind.any_name,
        linger=kind.goes_at_once,
        grace=_grace_s,
        is_held=lambda pod: bool(pod["metadata"].get("deletionGracePeriodSeconds")),
    ),
    quota=kind.Quota(counted=True, names=(Pods.plural,), usage=_usage, rises=False),
    granted=kind.edited("status"),
    columns=pod_columns.PRINTER,
)
