"""Pod and pod template: what discovery and the emulation of workloads rely on, and that a pod's spec stays.

A kubelet would check much more (volumes, probes, security contexts); nothing here runs containers.
"""

from __future__ import annotations

from sliceplane.api.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.registry.validation.addresses import ip_problem
from sliceplane.registry.validation.ports import check_number, check_protocol, iana_name_problems

RESTART_POLICIES = ("Always", "Never", "OnFailure")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PHASES = ("Failed", "Pending", "Running", "Succeeded", "Unknown")
_CONTAINER_LISTS = ("initContainers", "containers")
_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(document: Document) -> list[FieldError]:
    return validate_pod_spec(document.get("spec", {}), "spec")


def validate_update(new: Document, old: Document) -> list[FieldError]:
    spec, before = new.get("spec", {}), old.get("spec", {})
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
    changed = _changed_members(_without_changeable(spec, before), before)
    if changed:
        detail = f"{_MAY_CHANGE}\nchanged: {', '.join(changed)}"
        errors.append(forbidden_field("spec", detail))
    return errors or validate_pod_spec(spec, "spec")


def validate_status(new: Document, old: Document) -> list[FieldError]:  # noqa: ARG001
    status: Document = new.get("status", {})
    errors: list[FieldError] = []
    for index, entry in while_few(errors, enumerate(status.get("podIPs", ()))):
        problem = ip_problem(entry.get("ip", ""))
        if problem:
            errors.append(invalid_value(f"status.podIPs[{index}]", entry.get("ip", ""), problem))
    return errors


def validate_pod_spec(spec: Document, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    containers: list[Document] = spec.get("containers", [])
    for index, container in while_few(errors, enumerate(spec.get("initContainers", ()))):
        errors += _container(f"{path}.initContainers[{index}]", container, names)
    if not containers:
        errors.append(required(f"{path}.containers"))
    for index, container in while_few(errors, enumerate(containers)):
        errors += _container(f"{path}.containers[{index}]", container, names)
    policy = spec.get("restartPolicy", "")
    if policy not in RESTART_POLICIES:
        errors.append(not_supported(f"{path}.restartPolicy", policy, RESTART_POLICIES))
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if grace < 0:
        errors.append(
            invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than or equal to 0")
        )
    for member, check in (
        ("nodeName", check_dns_subdomain),
        ("hostname", check_dns_label),
        ("subdomain", check_dns_label),
    ):
        value = spec.get(member, "")
        if value:
            errors += [invalid_value(f"{path}.{member}", value, problem) for problem in check(value)]
    for index, gate in while_few(errors, enumerate(spec.get("readinessGates", ()))):
        kind = gate.get("conditionType", "")
        where = f"{path}.readinessGates[{index}].conditionType"
        errors += [invalid_value(where, kind, problem) for problem in check_qualified_name(kind)]
    return errors


def _container(path: str, container: Document, names: set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    name, image = container.get("name", ""), container.get("image", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid_value(f"{path}.name", name, problem) for problem in check_dns_label(name)]
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    policy = container.get("imagePullPolicy", "")
    if policy not in PULL_POLICIES:
        errors.append(not_supported(f"{path}.imagePullPolicy", policy, PULL_POLICIES))
    errors += _container_ports(f"{path}.ports", container.get("ports", []))
    return errors


def _container_ports(path: str, ports: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in while_few(errors, enumerate(ports)):
        where, name, number = f"{path}[{index}]", port.get("name", ""), port.get("containerPort", 0)
        if name:
            errors += [invalid_value(f"{where}.name", name, problem) for problem in iana_name_problems(name)]
            if name in names:
                errors.append(duplicate(f"{where}.name", name))
            names.add(name)
        if number == 0:
            errors.append(required(f"{where}.containerPort"))
        else:
            errors += check_number(f"{where}.containerPort", number)
        if port.get("hostPort", 0):
            errors += check_number(f"{where}.hostPort", port["hostPort"])
        errors += check_protocol(f"{where}.protocol", port.get("protocol"))
    return errors


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


def _changed_members(spec: Document, before: Document) -> list[str]:
    return [
        f"spec.{member}" for member in sorted(spec.keys() | before.keys()) if spec.get(member) != before.get(member)
    ]
