"""What Pods and the templates of workloads share: defaults, and the rules of a spec."""

from __future__ import annotations

from sliceplane.api.errors import FieldError, duplicate, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.registry.validation.addresses import check_number, check_protocol, iana_name_problems

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_TOKEN_EXPIRATION_S = 3600
RESTART_POLICIES = ("Always", "Never", "OnFailure")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def default_pod_spec(spec: Document) -> None:
    spec["restartPolicy"] = spec.get("restartPolicy") or "Always"
    spec["dnsPolicy"] = spec.get("dnsPolicy") or "ClusterFirst"
    spec["schedulerName"] = spec.get("schedulerName") or "default-scheduler"
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    # ``serviceAccount`` is the old name of ``serviceAccountName``; both are shown.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for member in _CONTAINER_LISTS:
        for container in spec.get(member, ()):
            _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def _default_container(container: Document, *, host_network: bool) -> None:
    container["imagePullPolicy"] = container.get("imagePullPolicy") or _pull_policy(container.get("image", ""))
    container["terminationMessagePath"] = container.get("terminationMessagePath") or "/dev/termination-log"
    container["terminationMessagePolicy"] = container.get("terminationMessagePolicy") or "File"
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        # A limit without a request asks for as much as it allows.
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    for port in container.get("ports", ()):
        port["protocol"] = port.get("protocol") or PROTOCOL_DEFAULT
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort", 0)
    for variable in container.get("env", ()):
        reference = variable.get("valueFrom", {}).get("fieldRef")
        if reference is not None:
            reference["apiVersion"] = reference.get("apiVersion") or "v1"
    for member in _PROBES:
        if member in container:
            _default_probe(container[member])
    for hook in container.get("lifecycle", {}).values():
        if type(hook) is dict:
            _default_http(hook)


def _pull_policy(image: str) -> str:
    """``Always`` for ``latest`` and for no tag at all, unless a digest pins the image."""
    if "@" in image:
        return "IfNotPresent"
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Document) -> None:
    for member, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe[member] = probe.get(member) or value
    _default_http(probe)
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http(handler: Document) -> None:
    request = handler.get("httpGet")
    if request is not None:
        request["path"] = request.get("path") or "/"
        request["scheme"] = request.get("scheme") or "HTTP"


def _default_volume(volume: Document) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for member in ("configMap", "secret", "downwardAPI", "projected"):
        if member in volume:
            volume[member].setdefault("defaultMode", _FILE_MODE)
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_EXPIRATION_S)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")


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
    for index, container in while_few(errors, enumerate(spec.get("ephemeralContainers", ()))):
        errors += _container(f"{path}.ephemeralContainers[{index}]", container, names)
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
    name = container.get("name", "")
    image = container.get("image", "")
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
        where = f"{path}[{index}]"
        name = port.get("name", "")
        number = port.get("containerPort", 0)
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
