"""Rules of the containers of a Pod: ports, probes and hooks, restarts, and what each of the three
lists may have.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    missing_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_label
from sliceplane.server.registry.validation.addresses import (
    PROTOCOL,
    check_number,
    check_port,
    iana_name_problems,
)
from sliceplane.server.registry.validation.environment import check_env_from, check_variable
from sliceplane.server.registry.validation.mounts import check_mounts
from sliceplane.server.registry.validation.resources import (
    ClaimNames,
    check_resize,
    check_resources,
)
from sliceplane.server.registry.validation.rules import (
    POSITIVE,
    Field,
    Rules,
    absent,
    check_unique,
    each,
    needs,
    of_form,
)
from sliceplane.server.registry.validation.security import check_security
from sliceplane.server.registry.validation.volumes import PULL_POLICIES, Volumes

_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
_HEADER_DETAIL: Final = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', "
    "regex used for validation is '[-A-Za-z0-9]+')"
)
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_RESTARTS: Final = ("Always", "Never", "OnFailure")
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


def check_containers(path: str, containers: list[Document], pod: PodContext) -> FieldErrors:
    """``containers``."""
    if not containers:
        return [required(path)]
    names: set[str] = set()

    def container_errors(where: str, container: Document) -> FieldErrors:
        errors = _common(where, container, pod) + check_unique(
            f"{where}.name", container.get("name", ""), names
        )
        return errors + _handlers(where, container, pod) + _restarts(where, container)

    return each(path, containers, container_errors) + _host_ports(path, containers)


def check_init_containers(
    path: str, containers: list[Document], others: list[Document], pod: PodContext
) -> FieldErrors:
    names = {container.get("name", "") for container in others}

    def container_errors(where: str, container: Document) -> FieldErrors:
        errors = _common(where, container, pod) + _restarts(where, container)
        errors += check_unique(f"{where}.name", container.get("name", ""), names)
        names.discard("")
        # As upstream: they start one by one, and each is called the first.
        errors += _host_ports(path, [container])
        if container.get("restartPolicy") == "Always":
            return errors + _handlers(where, container, pod)
        present = [member for member in ("lifecycle", *_PROBES) if member in container]
        errors += [forbidden_field(f"{where}.{member}", _NOT_INIT) for member in present]
        return errors + each(
            f"{where}.resizePolicy", container.get("resizePolicy", ()), _not_restarted
        )

    return each(path, containers, container_errors)


def _not_restarted(path: str, policy: Document) -> FieldErrors:
    if policy.get("restartPolicy") != "RestartContainer":
        return []
    detail = "must not be set to 'RestartContainer' for non-sidecar initContainers"
    return [invalid_value(f"{path}.restartPolicy", "RestartContainer", detail)]


def check_ephemeral_containers(
    path: str, containers: list[Document], others: list[Document], pod: PodContext
) -> FieldErrors:
    targets = {container.get("name", "") for container in others}
    names = set(targets)

    def container_errors(where: str, container: Document) -> FieldErrors:
        target = container.get("targetContainerName", "")
        errors = _common(where, container, pod) + check_image(where, container)
        errors += check_unique(f"{where}.name", container.get("name", ""), names)
        if target and target not in targets:
            errors.append(missing_value(f"{where}.targetContainerName", target))
        errors += [
            forbidden_field(f"{where}.{member}", _NOT_EPHEMERAL)
            for member in _OF_WORKLOADS
            if member in container and (container[member] or member != "resources")
        ]
        return errors + each(
            f"{where}.volumeMounts", container.get("volumeMounts", ()), _no_sub_path
        )

    return each(path, containers, container_errors)


def _no_sub_path(path: str, mount: Document) -> FieldErrors:
    return absent(path, mount, ("subPath", "subPathExpr"), _NOT_EPHEMERAL)


def check_image(path: str, container: Document) -> FieldErrors:
    """The rule of a Pod that a template does not have."""
    image: str = container.get("image", "")
    if image == image.strip():
        return []
    return [invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace")]


def _common(path: str, container: Document, pod: PodContext) -> FieldErrors:
    errors = (
        _FIRST_ROWS(path, container)
        + check_mounts(path, container, pod.volumes)
        + _PULL(path, container)
    )
    if container.get("resources"):
        errors += check_resources(f"{path}.resources", container["resources"], pod.claims)
    if "resizePolicy" in container:
        errors += check_resize(
            f"{path}.resizePolicy", container["resizePolicy"], pod.restart_policy
        )
    if "securityContext" in container:
        own: Document = container["securityContext"]
        errors += check_security(f"{path}.securityContext", own, host_users=pod.host_users)
    return errors


def _ports(path: str, ports: list[Document]) -> FieldErrors:
    names: set[str] = set()

    def port_errors(where: str, port: Document) -> FieldErrors:
        name = port.get("name", "")
        errors = of_form(f"{where}.name", name, iana_name_problems) if name else []
        if name and (not errors or name not in names):
            errors += check_unique(f"{where}.name", name, names)
        return errors + _PORT(where, port)

    return each(path, ports, port_errors)


def _host_ports(path: str, containers: list[Document]) -> FieldErrors:
    """A port of the node can be had once."""
    errors: FieldErrors = []
    taken: set[str] = set()
    for index, container in until_error_limit(errors, enumerate(containers)):
        for at, port in until_error_limit(errors, enumerate(container.get("ports", ()))):
            if port.get("hostPort", 0):
                host_port = (
                    f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
                )
                errors += check_unique(f"{path}[{index}].ports[{at}].hostPort", host_port, taken)
    return errors


def check_ports_of_node(path: str, spec: Document, *, is_pod: bool) -> FieldErrors:
    """With ``hostNetwork``, the container's ports are the node's.  A template need not say so
    yet.
    """

    def port_errors(where: str, port: Document) -> FieldErrors:
        number = port.get("hostPort", 0)
        if number == port.get("containerPort", 0) or not (is_pod or number):
            return []
        return [
            invalid_value(
                f"{where}.hostPort", number, "must match `containerPort` when `hostNetwork` is true"
            )
        ]

    return Rules(Field("containers", rows=Rules(Field("ports", rows=port_errors))))(path, spec)


def _restarts(path: str, container: Document) -> FieldErrors:
    """``restartPolicy`` and ``restartPolicyRules`` of a container (KEP-5307)."""
    errors: FieldErrors = []
    if container.get("restartPolicyRules") and "restartPolicy" not in container:
        errors.append(
            required(
                f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used"
            )
        )
        if path.rpartition(".")[2].startswith("initContainers"):
            return errors
    return errors + _RESTART(path, container)


def _has_codes(path: str, rule: Document) -> FieldErrors:
    return [] if "exitCodes" in rule else [required(f"{path}.exitCodes", "must be specified")]


def _handlers(path: str, container: Document, pod: PodContext) -> FieldErrors:
    errors: FieldErrors = []
    lifecycle = container.get("lifecycle", {})
    for hook in ("postStart", "preStop"):
        if hook in lifecycle:
            errors += _handler(f"{path}.lifecycle.{hook}", lifecycle[hook], pod.grace_s)
    for member in _PROBES:
        if member in container:
            where = f"{path}.{member}"
            probe: Document = container[member]
            errors += _handler(where, probe, pod.grace_s)
            errors += (_READINESS if member == "readinessProbe" else _LIVENESS)(where, probe)
    return errors


def _check_success_threshold(path: str, probe: Document) -> FieldErrors:
    success = probe.get("successThreshold", 0)
    return [] if success == 1 else [invalid_value(f"{path}.successThreshold", success, "must be 1")]


def _handler(path: str, handler: Document, grace_s: int) -> FieldErrors:
    """Exactly one of the ways to ask or to tell a container."""
    present = [member for member in _HANDLERS if member in handler]
    if not present:
        return [required(path, "must specify a handler type")]
    action: Document = handler[present[0]]
    where = f"{path}.{present[0]}"
    errors: FieldErrors = []
    if present[0] == "exec":
        errors += needs("command")(where, action)
    elif present[0] == "sleep":
        seconds = action.get("seconds", 0)
        if not 0 <= seconds <= grace_s:
            detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
            errors.append(invalid_value(where, seconds, detail))
    else:
        errors += check_port(f"{where}.port", action.get("port", 0))
    if present[0] == "httpGet":
        errors += _SCHEME(where, action)
        # As upstream: the list is named, not its entry.
        for header in until_error_limit(errors, action.get("httpHeaders", ())):
            errors += of_form(f"{where}.httpHeaders", header.get("name", ""), _header_problems)
    return errors + [
        forbidden_field(f"{path}.{member}", "may not specify more than 1 handler type")
        for member in present[1:]
    ]


def _header_problems(name: str) -> tuple[str, ...]:
    return () if _HEADER.fullmatch(name) else (_HEADER_DETAIL,)


def _host_port(path: str, number: int) -> FieldErrors:
    return check_number(path, number) if number else []


_PORT: Final = Rules(
    Field("containerPort", required=True, rows=check_number),
    Field("hostPort", rows=_host_port),
    PROTOCOL,
)
_SCHEME: Final = Rules(Field("scheme", choices=("HTTP", "HTTPS")))
_COUNTS: Final = tuple(
    Field(member, minimum=0)
    for member in (
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    )
)
_GRACE: Final = Field("terminationGracePeriodSeconds", minimum=1, detail=POSITIVE)
_LIVENESS: Final = Rules(*_COUNTS, _GRACE, _check_success_threshold)
_READINESS: Final = Rules(
    *_COUNTS,
    _GRACE,
    Field(
        "terminationGracePeriodSeconds",
        form=lambda _seconds: ("must not be set for readinessProbes",),
        empty=True,
    ),
)
_RESTART_RULE: Final = Rules(
    Field("action", choices=("Restart", "RestartAllContainers"), always=True),
    _has_codes,
    Field(
        "exitCodes",
        rows=Rules(
            Field("operator", choices=("In", "NotIn"), always=True), Field("values", most=255)
        ),
    ),
)
_RESTART: Final = Rules(
    Field("restartPolicy", choices=_RESTARTS),
    Field("restartPolicyRules", most=20, rows=_RESTART_RULE),
)
_PULL: Final = Rules(Field("imagePullPolicy", choices=PULL_POLICIES))
_FIRST_ROWS: Final = Rules(
    Field("name", required=True, form=check_dns_label),
    Field("image", required=True),
    Field("terminationMessagePolicy", choices=("File", "FallbackToLogsOnError")),
    Field("ports", whole=_ports),
    Field("env", rows=check_variable),
    Field("envFrom", whole=check_env_from),
)
