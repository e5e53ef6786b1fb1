"""Rules of the containers of a Pod: ports, probes and hooks, restarts, and what each of the three lists may have.

The messages and the order of complaints are those of Kubernetes (pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from sliceplane.api.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    missing_value,
    required,
    too_many,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_label
from sliceplane.server.registry.validation.addresses import check_number, check_protocol, iana_name_problems
from sliceplane.server.registry.validation.environment import check_env, check_env_from
from sliceplane.server.registry.validation.resources import ClaimNames, check_resize, check_resources
from sliceplane.server.registry.validation.rules import POSITIVE, check, named, needs, not_negative, one_of, part
from sliceplane.server.registry.validation.security import check_security
from sliceplane.server.registry.validation.volumes import PULL_POLICIES, Volumes, check_mounts

_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
_HEADER_DETAIL: Final = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_HOOKS: Final = ("postStart", "preStop")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_RESTARTS: Final = ("Always", "Never", "OnFailure")
_ACTIONS: Final = ("Restart", "RestartAllContainers")
_RULES_MAX: Final = 20
_CODES_MAX: Final = 255
_NOT_EPHEMERAL: Final = "cannot be set for an Ephemeral Container"
#: what a container that is no part of the workload cannot have
_OF_WORKLOADS: Final = (
    *("ports", "resources", "resizePolicy", "restartPolicy", "restartPolicyRules"),
    *(*_PROBES, "lifecycle"),
)
_NOT_INIT: Final = "may not be set for init containers without restartPolicy=Always"


class PodContext(msgspec.Struct, frozen=True):
    """The facts of the Pod that rules of its containers need."""

    grace_s: int
    volumes: Volumes
    claims: ClaimNames
    host_users: bool
    restart_policy: str


def check_containers(path: str, containers: list[Document], pod: PodContext) -> list[FieldError]:
    """``containers``."""
    if not containers:
        return [required(path)]
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, container in while_few(errors, enumerate(containers)):
        where = f"{path}[{index}]"
        errors += _common(where, container, pod) + _taken(where, container, names)
        errors += _handlers(where, container, pod) + _restarts(where, container)
    return errors + _host_ports(path, containers)


def check_init_containers(
    path: str, containers: list[Document], others: list[Document], pod: PodContext
) -> list[FieldError]:
    errors: list[FieldError] = []
    names = {container.get("name", "") for container in others}
    for index, container in while_few(errors, enumerate(containers)):
        where = f"{path}[{index}]"
        stays = container.get("restartPolicy") == "Always"
        errors += _common(where, container, pod) + _restarts(where, container)
        errors += _taken(where, container, names)
        names.discard("")
        # As upstream: they start one by one, and each is called the first.
        errors += _host_ports(path, [container])
        if stays:
            errors += _handlers(where, container, pod)
            continue
        given = [member for member in ("lifecycle", *_PROBES) if member in container]
        errors += [forbidden_field(f"{where}.{member}", _NOT_INIT) for member in given]
        for at, policy in enumerate(container.get("resizePolicy", ())):
            if policy.get("restartPolicy") == "RestartContainer":
                detail = "must not be set to 'RestartContainer' for non-sidecar initContainers"
                told = invalid_value(f"{where}.resizePolicy[{at}].restartPolicy", "RestartContainer", detail)
                errors.append(told)
    return errors


def check_ephemeral_containers(
    path: str, containers: list[Document], others: list[Document], pod: PodContext
) -> list[FieldError]:
    errors: list[FieldError] = []
    targets = {container.get("name", "") for container in others}
    names = set(targets)
    for index, container in while_few(errors, enumerate(containers)):
        where = f"{path}[{index}]"
        target = container.get("targetContainerName", "")
        errors += _common(where, container, pod) + check_image(where, container) + _taken(where, container, names)
        if target and target not in targets:
            errors.append(missing_value(f"{where}.targetContainerName", target))
        errors += [
            forbidden_field(f"{where}.{member}", _NOT_EPHEMERAL)
            for member in _OF_WORKLOADS
            if member in container and (container[member] or member != "resources")
        ]
        for at, mount in while_few(errors, enumerate(container.get("volumeMounts", ()))):
            given = [member for member in ("subPath", "subPathExpr") if mount.get(member)]
            errors += [forbidden_field(f"{where}.volumeMounts[{at}].{member}", _NOT_EPHEMERAL) for member in given]
    return errors


def check_image(path: str, container: Document) -> list[FieldError]:
    """The rule of a Pod that a template does not have."""
    image: str = container.get("image", "")
    if image == image.strip():
        return []
    return [invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")]


def _taken(path: str, container: Document, names: set[str]) -> list[FieldError]:
    name = container.get("name", "")
    if name in names:
        return [duplicate(f"{path}.name", name)]
    names.add(name)
    return []


def _common(path: str, container: Document, pod: PodContext) -> list[FieldError]:
    errors = check(path, container, _FIRST_ROWS)
    errors += check_mounts(path, container, pod.volumes)
    errors += one_of("imagePullPolicy", *PULL_POLICIES)(path, container)
    if container.get("resources"):
        errors += check_resources(f"{path}.resources", container["resources"], pod.claims)
    if "resizePolicy" in container:
        errors += check_resize(f"{path}.resizePolicy", container["resizePolicy"], pod.restart_policy)
    if "securityContext" in container:
        own: Document = container["securityContext"]
        errors += check_security(f"{path}.securityContext", own, host_users=pod.host_users)
    return errors


def _ports(path: str, ports: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in while_few(errors, enumerate(ports)):
        where = f"{path}[{index}]"
        name = port.get("name", "")
        number = port.get("containerPort", 0)
        if name:
            problems = [invalid_value(f"{where}.name", name, problem) for problem in iana_name_problems(name)]
            if not problems and name in names:
                problems.append(duplicate(f"{where}.name", name))
            errors += problems
            names.add(name)
        errors += check_number(f"{where}.containerPort", number) if number else [required(f"{where}.containerPort")]
        if port.get("hostPort", 0):
            errors += check_number(f"{where}.hostPort", port["hostPort"])
        errors += check_protocol(f"{where}.protocol", port.get("protocol"))
    return errors


def _host_ports(path: str, containers: list[Document]) -> list[FieldError]:
    """A port of the node can be had once."""
    errors: list[FieldError] = []
    taken: set[str] = set()
    for index, container in while_few(errors, enumerate(containers)):
        for at, port in while_few(errors, enumerate(container.get("ports", ()))):
            if port.get("hostPort", 0):
                shown = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
                if shown in taken:
                    errors.append(duplicate(f"{path}[{index}].ports[{at}].hostPort", shown))
                taken.add(shown)
    return errors


def check_ports_of_node(path: str, spec: Document, *, is_pod: bool) -> list[FieldError]:
    """With ``hostNetwork``, the container's ports are the node's.  A template need not say so yet."""
    errors: list[FieldError] = []
    for index, container in while_few(errors, enumerate(spec.get("containers", ()))):
        for at, port in while_few(errors, enumerate(container.get("ports", ()))):
            number = port.get("hostPort", 0)
            if (is_pod or number) and number != port.get("containerPort", 0):
                detail = "must match `containerPort` when `hostNetwork` is true"
                errors.append(invalid_value(f"{path}.containers[{index}].ports[{at}].hostPort", number, detail))
    return errors


def _restarts(path: str, container: Document) -> list[FieldError]:
    """``restartPolicy`` and ``restartPolicyRules`` of a container (KEP-5307)."""
    rules: list[Document] = container.get("restartPolicyRules", [])
    errors: list[FieldError] = []
    if rules and "restartPolicy" not in container:
        errors.append(required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used"))
        if path.rpartition(".")[2].startswith("initContainers"):
            return errors
    errors += one_of("restartPolicy", *_RESTARTS)(path, container)
    where = f"{path}.restartPolicyRules"
    if len(rules) > _RULES_MAX:
        errors.append(too_many(where, len(rules), _RULES_MAX))
    for index, rule in while_few(errors, enumerate(rules)):
        errors += _restart_rule(f"{where}[{index}]", rule)
    return errors


def _restart_rule(path: str, rule: Document) -> list[FieldError]:
    errors = one_of("action", *_ACTIONS)(path, {"action": rule.get("action", "")})
    codes = rule.get("exitCodes")
    if codes is None:
        return [*errors, required(f"{path}.exitCodes", "must be specified")]
    errors += one_of("operator", "In", "NotIn")(f"{path}.exitCodes", {"operator": codes.get("operator", "")})
    if len(codes.get("values", ())) > _CODES_MAX:
        errors.append(too_many(f"{path}.exitCodes.values", len(codes["values"]), _CODES_MAX))
    return errors


def _handlers(path: str, container: Document, pod: PodContext) -> list[FieldError]:
    errors: list[FieldError] = []
    lifecycle = container.get("lifecycle", {})
    for hook in _HOOKS:
        if hook in lifecycle:
            errors += _handler(f"{path}.lifecycle.{hook}", lifecycle[hook], pod.grace_s)
    for member in _PROBES:
        if member in container:
            errors += _probe(path, member, container[member], pod.grace_s)
    return errors


def _probe(path: str, member: str, probe: Document, grace_s: int) -> list[FieldError]:
    where = f"{path}.{member}"
    errors = _handler(where, probe, grace_s) + _COUNTS(where, probe)
    own = probe.get("terminationGracePeriodSeconds")
    if own is not None and own <= 0:
        errors.append(invalid_value(f"{where}.terminationGracePeriodSeconds", own, POSITIVE))
    if member != "readinessProbe":
        success = probe.get("successThreshold", 0)
        return errors if success == 1 else [*errors, invalid_value(f"{where}.successThreshold", success, "must be 1")]
    if own is not None:
        detail = "must not be set for readinessProbes"
        errors.append(invalid_value(f"{where}.terminationGracePeriodSeconds", own, detail))
    return errors


def _handler(path: str, handler: Document, grace_s: int) -> list[FieldError]:
    """Exactly one of the ways to ask or to tell a container."""
    given = [member for member in _HANDLERS if member in handler]
    if not given:
        return [required(path, "must specify a handler type")]
    action: Document = handler[given[0]]
    where = f"{path}.{given[0]}"
    errors: list[FieldError] = []
    if given[0] == "exec":
        errors += needs("command")(where, action)
    elif given[0] == "sleep":
        seconds = action.get("seconds", 0)
        if not 0 <= seconds <= grace_s:
            detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
            errors.append(invalid_value(where, seconds, detail))
    else:
        errors += _port(f"{where}.port", action.get("port", 0))
    if given[0] == "httpGet":
        errors += one_of("scheme", "HTTP", "HTTPS")(where, action)
        names = (header.get("name", "") for header in action.get("httpHeaders", ()))
        for name in while_few(errors, names):
            if not _HEADER.fullmatch(name):
                errors.append(invalid_value(f"{where}.httpHeaders", name, _HEADER_DETAIL))
    return errors + [
        forbidden_field(f"{path}.{member}", "may not specify more than 1 handler type") for member in given[1:]
    ]


def _port(path: str, port: Any) -> list[FieldError]:
    if isinstance(port, str):
        return [invalid_value(path, port, problem) for problem in iana_name_problems(port)]
    return check_number(path, port)


_COUNTS: Final = not_negative(
    "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"
)
_FIRST_ROWS: Final = (
    named("name", check_dns_label, must=True),
    needs("image"),
    one_of("terminationMessagePolicy", "File", "FallbackToLogsOnError"),
    part("ports", _ports),
    part("env", check_env),
    part("envFrom", check_env_from),
)
