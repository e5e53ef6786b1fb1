"""What Pods and the templates of workloads share: defaults, and the rules of a spec."""

from __future__ import annotations

from typing import Final

import msgspec

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
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.registry.metadata import validate_labels
from sliceplane.registry.validation.addresses import check_number, check_protocol, iana_name_problems, ip_problem
from sliceplane.registry.validation.containers import (
    ID_MAX,
    NO_CLAIMS,
    ClaimNames,
    check_env,
    check_env_from,
    check_handler,
    check_ids,
    check_probe,
    check_resources,
    check_seccomp,
    check_security,
    claim_names,
)
from sliceplane.registry.validation.scheduling import (
    check_affinity,
    check_gates,
    check_tolerations,
    check_topology_spread,
)

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_TOKEN_EXPIRATION_S = 3600
RESTART_POLICIES = ("Always", "OnFailure", "Never")
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
    context = _Context(
        grace_s=spec.get("terminationGracePeriodSeconds", 0),
        claims=claim_names(spec["resourceClaims"]) if "resourceClaims" in spec else NO_CLAIMS,
        host_users=spec.get("hostUsers", True),
    )
    containers: list[Document] = spec.get("containers", [])
    if not containers:
        errors.append(required(f"{path}.containers"))
    for member in ("containers", "initContainers", "ephemeralContainers"):
        for index, container in while_few(errors, enumerate(spec.get(member, ()))):
            errors += _container(f"{path}.{member}[{index}]", container, names, context)
            errors += _handlers(f"{path}.{member}[{index}]", container, context, member)
    errors += _enums(path, spec)
    errors += _pod_security(f"{path}.securityContext", spec.get("securityContext", {}))
    errors += _dns(f"{path}.dnsConfig", spec)
    for index, gate in while_few(errors, enumerate(spec.get("readinessGates", ()))):
        kind = gate.get("conditionType", "")
        where = f"{path}.readinessGates[{index}].conditionType"
        errors += [invalid_value(where, kind, problem) for problem in check_qualified_name(kind)]
    for member, check in _PARTS:
        if member in spec:
            errors += check(f"{path}.{member}", spec[member])
    for member, check_name in _NAMES:
        value = spec.get(member, "")
        if value:
            errors += [invalid_value(f"{path}.{member}", value, problem) for problem in check_name(value)]
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= ID_MAX:
        detail = f"must be between 1 and {ID_MAX}, inclusive"
        errors.append(invalid_value(f"{path}.activeDeadlineSeconds", deadline, detail))
    return errors + _last_parts(path, spec)


class _Context(msgspec.Struct, frozen=True):
    """The facts of the Pod that rules of its containers need."""

    grace_s: int
    claims: ClaimNames
    host_users: bool


def _enums(path: str, spec: Document) -> list[FieldError]:
    return [
        not_supported(f"{path}.{member}", spec[member], values)
        for member, values in _VALUES
        if member in spec and spec[member] not in values
    ]


def _pod_security(path: str, context: Document) -> list[FieldError]:
    if not context:
        return []
    errors = check_ids(path, context, ("fsGroup", "runAsUser", "runAsGroup"))
    groups = {
        f"supplementalGroups[{index}]": group for index, group in enumerate(context.get("supplementalGroups", ()))
    }
    errors += check_ids(path, groups, tuple(groups))
    policies = ("Always", "OnRootMismatch")
    if context.get("fsGroupChangePolicy", "Always") not in policies:
        errors.append(not_supported(f"{path}.fsGroupChangePolicy", context["fsGroupChangePolicy"], policies))
    return errors + check_seccomp(f"{path}.seccompProfile", context.get("seccompProfile"))


def _dns(path: str, spec: Document) -> list[FieldError]:
    config: Document | None = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", detail)]
    if config is None:
        return []
    errors: list[FieldError] = []
    servers: list[str] = config.get("nameservers", [])
    if len(servers) > _NAMESERVERS_MAX:
        detail = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        errors.append(invalid_value(f"{path}.nameservers", servers, detail))
    for index, server in while_few(errors, enumerate(servers)):
        problem = ip_problem(server)
        errors += [invalid_value(f"{path}.nameservers[{index}]", server, problem)] if problem else []
    searches: list[str] = config.get("searches", [])
    if len(searches) > _SEARCHES_MAX:
        detail = f"must not have more than {_SEARCHES_MAX} search paths"
        errors.append(invalid_value(f"{path}.searches", searches, detail))
    for index, option in while_few(errors, enumerate(config.get("options", ()))):
        if not option.get("name"):
            errors.append(required(f"{path}.options[{index}]", "must not be empty"))
    return errors


def _host_aliases(path: str, aliases: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, alias in while_few(errors, enumerate(aliases)):
        address = alias.get("ip", "")
        problem = ip_problem(address)
        errors += [invalid_value(f"{path}[{index}].ip", address, problem)] if problem else []
        for at, name in while_few(errors, enumerate(alias.get("hostnames", ()))):
            where = f"{path}[{index}].hostnames[{at}]"
            errors += [invalid_value(where, name, problem) for problem in check_dns_subdomain(name)]
    return errors


def _last_parts(path: str, spec: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    for member, check in (("tolerations", check_tolerations), ("hostAliases", _host_aliases)):
        if member in spec:
            errors += check(f"{path}.{member}", spec[member])
    if spec.get("preemptionPolicy", "Never") not in PREEMPTION_POLICIES:
        errors.append(not_supported(f"{path}.preemptionPolicy", spec["preemptionPolicy"], PREEMPTION_POLICIES))
    if "overhead" in spec:
        errors += check_resources(f"{path}.overhead", {"limits": spec["overhead"]}, NO_CLAIMS)
    if "os" in spec:
        name = spec["os"].get("name", "")
        if not name:
            errors.append(required(f"{path}.os.name"))
        elif name not in _SYSTEMS:
            errors.append(not_supported(f"{path}.os", name, _SYSTEMS))
    return errors


def _container(path: str, container: Document, names: set[str], context: _Context) -> list[FieldError]:
    errors: list[FieldError] = []
    name = container.get("name", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid_value(f"{path}.name", name, problem) for problem in check_dns_label(name)]
    image = container.get("image", "")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    policy = container.get("terminationMessagePolicy", "")
    if policy not in _MESSAGE_POLICIES:
        errors.append(not_supported(f"{path}.terminationMessagePolicy", policy, _MESSAGE_POLICIES))
    errors += _container_ports(f"{path}.ports", container.get("ports", []))
    if "env" in container:
        errors += check_env(f"{path}.env", container["env"])
    if "envFrom" in container:
        errors += check_env_from(f"{path}.envFrom", container["envFrom"])
    policy = container.get("imagePullPolicy", "")
    if policy not in PULL_POLICIES:
        errors.append(not_supported(f"{path}.imagePullPolicy", policy, PULL_POLICIES))
    if container.get("resources"):
        errors += check_resources(f"{path}.resources", container["resources"], context.claims)
    if "securityContext" in container:
        own: Document = container["securityContext"]
        errors += check_security(f"{path}.securityContext", own, host_users=context.host_users)
    if name and name in names:
        errors.append(duplicate(f"{path}.name", name))
    names.add(name)
    return errors


def _handlers(path: str, container: Document, context: _Context, member: str) -> list[FieldError]:
    """Probes and hooks, which a container that ends by itself before others begin does not have."""
    if member == "ephemeralContainers":
        return []
    given = [name for name in ("lifecycle", *_PROBE_ORDER) if name in container]
    if member == "initContainers" and container.get("restartPolicy") != "Always":
        detail = "may not be set for init containers without restartPolicy=Always"
        return [forbidden_field(f"{path}.{name}", detail) for name in given]
    errors: list[FieldError] = []
    for name in given:
        if name != "lifecycle":
            errors += check_probe(path, name, container[name], context.grace_s)
            continue
        for hook in ("postStart", "preStop"):
            if hook in container[name]:
                errors += check_handler(f"{path}.{name}.{hook}", container[name][hook], context.grace_s)
    return errors


_PROBE_ORDER: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_SYSTEMS: Final = ("linux", "windows")
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_VALUES: Final = (
    ("restartPolicy", RESTART_POLICIES),
    ("dnsPolicy", ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
)
_PARTS: Final = (
    ("nodeSelector", lambda path, labels: validate_labels(labels, path)),
    ("affinity", check_affinity),
    ("schedulingGates", check_gates),
    ("topologySpreadConstraints", check_topology_spread),
)
_NAMES: Final = (
    ("serviceAccountName", check_dns_subdomain),
    ("nodeName", check_dns_subdomain),
    ("hostname", check_dns_label),
    ("subdomain", check_dns_label),
    ("priorityClassName", check_dns_subdomain),
    ("runtimeClassName", check_dns_subdomain),
)


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
