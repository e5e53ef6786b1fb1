"""Rules of one container of a Pod: environment, mounts, amounts, handlers, and what it may do on its node.

The messages and the order of complaints are those of Kubernetes (pkg/apis/core/validation/validation.go).  Where Go
ranges over a map, names are taken in alphabetical order here.
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
    not_supported,
    quote,
    required,
    while_few,
)
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact, quantity_of
from sliceplane.kit.names import check_dns_subdomain, check_qualified_name
from sliceplane.registry.validation.addresses import check_number, iana_name_problems

NOT_NEGATIVE: Final = "must be greater than or equal to 0"
ID_MAX: Final = 2**31 - 1
_RANGE: Final = f"must be between 0 and {ID_MAX}, inclusive"
_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_ENV_DETAIL: Final = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_DETAIL: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_HEADER: Final = re.compile(r"[-A-Za-z0-9]+")
_HEADER_DETAIL: Final = (
    "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for "
    "validation is '[-A-Za-z0-9]+')"
)
ENV_FIELDS: Final = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
_AMOUNTS: Final = (
    *("limits.cpu", "limits.ephemeral-storage", "limits.memory"),
    *("requests.cpu", "requests.ephemeral-storage", "requests.memory"),
)
_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_NO_SOURCE: Final = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
)
#: Characters of the names of a Pod's claims that one message lists; upstream has no bound.
CLAIMS_SHOWN_MAX: Final = 4096
_PROFILES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")


def check_env(path: str, variables: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, variable in while_few(errors, enumerate(variables)):
        where = f"{path}[{index}]"
        name = variable.get("name", "")
        if not name:
            errors.append(required(f"{where}.name"))
        elif not _ENV_NAME.fullmatch(name):
            errors.append(invalid_value(f"{where}.name", name, _ENV_DETAIL))
        if "valueFrom" in variable:
            errors += _env_source(f"{where}.valueFrom", variable["valueFrom"], variable.get("value", ""))
    return errors


def _env_source(path: str, source: Document, value: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if "fieldRef" in source:
        errors += _field_of_pod(f"{path}.fieldRef", source["fieldRef"])
    if "resourceFieldRef" in source:
        errors += _amount_of_container(f"{path}.resourceFieldRef", source["resourceFieldRef"])
    for member in ("configMapKeyRef", "secretKeyRef"):
        if member in source:
            errors += _key_of_object(f"{path}.{member}", source[member])
    given = sum(member in source for member in _SOURCES)
    if not given:
        errors.append(invalid_value(path, "", _NO_SOURCE))
    elif value:
        errors.append(invalid_value(path, "", "may not be specified when `value` is not empty"))
    elif given > 1:
        errors.append(invalid_value(path, "", "may not have more than one field specified at a time"))
    return errors


def _field_of_pod(path: str, reference: Document) -> list[FieldError]:
    field = reference.get("fieldPath", "")
    if not field:
        return [required(f"{path}.fieldPath")]
    name, bracket, rest = field.partition("['")
    if bracket and rest.endswith("']") and name in ("metadata.annotations", "metadata.labels"):
        key = rest[:-2].lower() if name == "metadata.annotations" else rest[:-2]
        return [invalid_value(path, key, problem) for problem in check_qualified_name(key)]
    # As upstream: the old name of ``spec.nodeName`` is still understood.
    if field in ENV_FIELDS or field == "spec.host":
        return []
    if field in ("metadata.annotations", "metadata.labels"):
        return [not_supported(f"{path}.fieldPath", field, ENV_FIELDS)]
    detail = f"error converting fieldPath: field label not supported: {field}"
    return [invalid_value(f"{path}.fieldPath", field, detail)]


def _amount_of_container(path: str, reference: Document) -> list[FieldError]:
    name = reference.get("resource", "")
    if not name:
        return [required(f"{path}.resource")]
    if name in _AMOUNTS or name.startswith(("limits.hugepages-", "requests.hugepages-")):
        return []
    return [not_supported(f"{path}.resource", name, _AMOUNTS)]


def _key_of_object(path: str, reference: Document) -> list[FieldError]:
    name = reference.get("name", "")
    key = reference.get("key", "")
    errors = [invalid_value(f"{path}.name", name, problem) for problem in check_dns_subdomain(name)]
    if not key:
        errors.append(required(f"{path}.key"))
    elif not _KEY.fullmatch(key):
        errors.append(invalid_value(f"{path}.key", key, _KEY_DETAIL))
    return errors


def check_env_from(path: str, sources: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, source in while_few(errors, enumerate(sources)):
        where = f"{path}[{index}]"
        prefix = source.get("prefix", "")
        if prefix and not _ENV_NAME.fullmatch(prefix):
            errors.append(invalid_value(f"{where}.prefix", prefix, _ENV_DETAIL))
        references = [member for member in ("configMapRef", "secretRef") if member in source]
        for member in references:
            name = source[member].get("name", "")
            at = f"{where}.{member}.name"
            errors += [invalid_value(at, name, problem) for problem in check_dns_subdomain(name)] if name else []
            errors += [] if name else [required(at)]
        # As upstream: the list is named, not its entry.
        if not references:
            errors.append(invalid_value(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(references) > 1:
            errors.append(invalid_value(path, "", "may not have more than one field specified at a time"))
    return errors


class ClaimNames(msgspec.Struct, frozen=True):
    """Names of a Pod's resource claims, and how a message lists them: sorted once, not for each complaint."""

    names: frozenset[str] = frozenset()
    listed: str = " which is empty"


def claim_names(claims: list[Document]) -> ClaimNames:
    names = frozenset(claim["name"] for claim in claims if claim.get("name"))
    return ClaimNames(names, f": {', '.join(sorted(names))}"[:CLAIMS_SHOWN_MAX]) if names else NO_CLAIMS


NO_CLAIMS: Final = ClaimNames()


def check_resources(path: str, resources: Document, claims: ClaimNames) -> list[FieldError]:
    errors: list[FieldError] = []
    limits: Document = resources.get("limits", {})
    requests: Document = resources.get("requests", {})
    for name in while_few(errors, sorted(limits)):
        errors += _amount(f"{path}.limits[{name}]", name, limits[name])
    for name in while_few(errors, sorted(requests)):
        errors += _amount(f"{path}.requests[{name}]", name, requests[name])
        errors += _within_limit(path, name, requests[name], limits.get(name))
    names = limits.keys() | requests.keys()
    if any(map(_is_huge, names)) and not names & {"cpu", "memory"}:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    return errors + _claims(f"{path}.claims", resources.get("claims", []), claims)


def _amount(path: str, name: str, quantity: Any) -> list[FieldError]:
    if name in _OF_CONTAINERS:
        errors = []
    else:
        errors = _resource_name(path, name)
    number = exact(quantity)
    if number < 0:
        errors.append(invalid_value(path, _text(quantity), NOT_NEGATIVE))
    if "/" in name and "kubernetes.io/" not in name and number.denominator != 1:
        errors.append(invalid_value(path, _text(quantity), "must be an integer"))
    if _is_huge(name):
        size = name.removeprefix("hugepages-")
        if number <= 0 or number % (exact(size) if re.fullmatch(r"[0-9]+[KMGTPE]i", size) else 1):
            detail = f"{_text(quantity)} is not positive integer multiple of {name}"
            errors.append(invalid_value(path, _text(quantity), detail))
    return errors


def _resource_name(path: str, name: str) -> list[FieldError]:
    errors = [invalid_value(path, name, problem) for problem in check_qualified_name(name)]
    if "/" not in name and not _is_huge(name):
        if not errors:
            errors.append(invalid_value(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid_value(path, name, "must be a standard resource for containers"))
    elif "/" in name and "kubernetes.io/" not in name and name.startswith("requests."):
        errors.append(invalid_value(path, name, "doesn't follow extended resource name standard"))
    return errors


def _within_limit(path: str, name: str, request: Any, limit: Any) -> list[FieldError]:
    overcommits = ("/" not in name or "kubernetes.io/" in name) and not _is_huge(name)
    if limit is None:
        detail = "Limit must be set for non overcommitable resources"
        return [] if overcommits else [required(f"{path}.limits", detail)]
    if request == limit or exact(request) == exact(limit):
        return []
    if overcommits and exact(request) < exact(limit):
        return []
    relation = "less than or equal to" if overcommits else "equal to"
    return [invalid_value(f"{path}.requests", _text(request), f"must be {relation} {name} limit of {_text(limit)}")]


def _claims(path: str, claims: list[Document], of_pod: ClaimNames) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for index, claim in while_few(errors, enumerate(claims)):
        name = claim.get("name", "")
        pair = (name, claim.get("request", ""))
        if not name:
            errors.append(required(f"{path}[{index}]"))
            continue
        if pair in seen:
            errors.append(duplicate(f"{path}[{index}]", "/".join(filter(None, pair))))
        seen.add(pair)
        if name not in of_pod.names:
            message = f"Not found: {quote(name)}: must be one of the names in pod.spec.resourceClaims{of_pod.listed}"
            errors.append(FieldError("FieldValueNotFound", f"{path}[{index}]", message))
    return errors


def _is_huge(name: str) -> bool:
    return name.startswith("hugepages-")


def _text(quantity: Any) -> str:
    return quantity_of(exact(quantity), binary=str(quantity).endswith("i"))


def check_probe(path: str, member: str, probe: Document, grace_s: int) -> list[FieldError]:
    where = f"{path}.{member}"
    errors = check_handler(where, probe, grace_s)
    errors += [
        invalid_value(f"{where}.{name}", probe[name], NOT_NEGATIVE) for name in _COUNTS if probe.get(name, 0) < 0
    ]
    own = probe.get("terminationGracePeriodSeconds")
    if own is not None and own <= 0:
        errors.append(invalid_value(f"{where}.terminationGracePeriodSeconds", own, "must be greater than 0"))
    if member == "readinessProbe":
        if own is not None:
            detail = "must not be set for readinessProbes"
            errors.append(invalid_value(f"{where}.terminationGracePeriodSeconds", own, detail))
    elif probe.get("successThreshold", 0) != 1:
        errors.append(invalid_value(f"{where}.successThreshold", probe.get("successThreshold", 0), "must be 1"))
    return errors


def check_handler(path: str, handler: Document, grace_s: int) -> list[FieldError]:
    """Exactly one of the ways to ask or to tell a container."""
    given = [member for member in _HANDLERS if member in handler]
    if not given:
        return [required(path, "must specify a handler type")]
    action: Document = handler[given[0]]
    where = f"{path}.{given[0]}"
    errors: list[FieldError] = []
    if given[0] == "exec":
        errors += [] if action.get("command") else [required(f"{where}.command")]
    elif given[0] == "sleep":
        seconds = action.get("seconds", 0)
        if not 0 <= seconds <= grace_s:
            detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
            errors.append(invalid_value(where, seconds, detail))
    else:
        errors += _port(f"{where}.port", action.get("port", 0))
    if given[0] == "httpGet":
        if action.get("scheme") not in ("HTTP", "HTTPS"):
            errors.append(not_supported(f"{where}.scheme", action.get("scheme", ""), ("HTTP", "HTTPS")))
        names = (header.get("name", "") for header in action.get("httpHeaders", ()))
        for name in while_few(errors, names):
            if not _HEADER.fullmatch(name):
                errors.append(invalid_value(f"{where}.httpHeaders", name, _HEADER_DETAIL))
    return errors + [
        forbidden_field(f"{path}.{member}", "may not specify more than 1 handler type") for member in given[1:]
    ]


def _port(path: str, port: int | str) -> list[FieldError]:
    if isinstance(port, str):
        return [invalid_value(path, port, problem) for problem in iana_name_problems(port)]
    return check_number(path, port)


def check_security(path: str, context: Document, *, host_users: bool) -> list[FieldError]:
    errors = check_ids(path, context, ("runAsUser", "runAsGroup"))
    mount = context.get("procMount")
    if mount is not None and mount not in ("Default", "Unmasked"):
        errors.append(not_supported(f"{path}.procMount", mount, ("Default", "Unmasked")))
    if mount == "Unmasked" and host_users:
        errors.append(invalid_value(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`"))
    errors += check_seccomp(f"{path}.seccompProfile", context.get("seccompProfile"))
    if context.get("allowPrivilegeEscalation") is False and context.get("privileged"):
        detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        errors.append(invalid_value(path, context, detail))
    return errors


def check_ids(path: str, context: Document, members: tuple[str, ...]) -> list[FieldError]:
    return [
        invalid_value(f"{path}.{member}", context[member], _RANGE)
        for member in members
        if member in context and not 0 <= context[member] <= ID_MAX
    ]


def check_seccomp(path: str, profile: Document | None) -> list[FieldError]:
    if profile is None:
        return []
    kind = profile.get("type", "")
    if not kind:
        return [required(f"{path}.type", "type is required when seccompProfile is set")]
    if kind not in _PROFILES:
        return [not_supported(f"{path}.type", kind, _PROFILES)]
    if kind == "Localhost" and "localhostProfile" not in profile:
        return [required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost")]
    return []
