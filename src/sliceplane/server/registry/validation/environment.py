"""Rules of what a container reads from elsewhere: variables, keys of other objects, fields of its own Pod.

The messages and the order of complaints are those of Kubernetes (pkg/apis/core/validation/validation.go).
"""

from __future__ import annotations

import re
from typing import Any, Final

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.quantity import exact
from sliceplane.kit.names import check_dns_label, check_dns_subdomain, check_qualified_name
from sliceplane.server.registry.validation.resources import text_of
from sliceplane.server.registry.validation.rules import named, needs, no_way_up, part, rows_of

_ENV_NAME: Final = re.compile(r"[ -<>-~]+")
_ENV_DETAIL: Final = "a valid environment variable name must consist only of printable ASCII characters other than '='"
_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_DETAIL: Final = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
KEY_MAX_BYTES: Final = 253
_MAPS: Final = ("metadata.annotations", "metadata.labels")
ENV_FIELDS: Final = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
VOLUME_FIELDS: Final = ("metadata.annotations", "metadata.labels", *ENV_FIELDS[:3])
#: fields that a Pod has, and that neither can use
_FURTHER_FIELDS: Final = ("spec.restartPolicy", "spec.schedulerName", "status.phase")
_AMOUNTS: Final = (
    *("limits.cpu", "limits.ephemeral-storage", "limits.memory"),
    *("requests.cpu", "requests.ephemeral-storage", "requests.memory"),
)
_HUGE: Final = ("limits.hugepages-", "requests.hugepages-")
_SIZES: Final = ("1", *(f"1{prefix}" for prefix in "kMGTPE"), *(f"1{prefix}i" for prefix in "KMGTPE"))
_DIVISORS: Final = {
    "cpu": (("1m", "1"), "only divisor's values 1m and 1 are supported with the cpu resource"),
    **{
        name: (_SIZES, f"only divisor's values {', '.join(_SIZES)} are supported with the {told} resource")
        for name, told in (
            ("memory", "memory"),
            ("ephemeral-storage", "local ephemeral storage"),
            ("hugepages", "hugepages"),
        )
    },
}
_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
_NO_SOURCE: Final = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
)
_TWO_SOURCES: Final = "may not have more than one field specified at a time"


def env_name_problems(name: str) -> tuple[str, ...]:
    return () if _ENV_NAME.fullmatch(name) else (_ENV_DETAIL,)


def key_problems(key: str) -> list[str]:
    """The faults of a key of a ConfigMap or Secret."""
    problems = [f"must be no more than {KEY_MAX_BYTES} characters"] if len(key.encode()) > KEY_MAX_BYTES else []
    if not _KEY.fullmatch(key):
        problems.append(_KEY_DETAIL)
    if key in (".", "..") or key.startswith(".."):
        problems.append(f"must not be '{key}'" if key in (".", "..") else "must not start with '..'")
    return problems


def check_env(path: str, variables: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, variable in while_few(errors, enumerate(variables)):
        where = f"{path}[{index}]"
        errors += _NAME(where, variable)
        if "valueFrom" in variable:
            errors += _env_source(f"{where}.valueFrom", variable["valueFrom"], variable.get("value", ""))
    return errors


def _env_source(path: str, source: Document, value: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if "fieldRef" in source:
        errors += check_field_of_pod(f"{path}.fieldRef", source["fieldRef"], ENV_FIELDS)
    if "resourceFieldRef" in source:
        errors += check_amount_of_container(f"{path}.resourceFieldRef", source["resourceFieldRef"], named=False)
    for member in ("configMapKeyRef", "secretKeyRef"):
        if member in source:
            name = source[member].get("name", "")
            problems = check_dns_subdomain(name)
            errors += [invalid_value(f"{path}.{member}.name", name, problem) for problem in problems]
            errors += _OBJECT_KEY(f"{path}.{member}", source[member])
    if "fileKeyRef" in source:
        errors += _FILE_KEY(f"{path}.fileKeyRef", source["fileKeyRef"])
    given = sum(member in source for member in _SOURCES)
    if not given:
        errors.append(invalid_value(path, "", _NO_SOURCE))
    elif value:
        errors.append(invalid_value(path, "", "may not be specified when `value` is not empty"))
    elif given > 1:
        errors.append(invalid_value(path, "", _TWO_SOURCES))
    return errors


def check_field_of_pod(path: str, reference: Document, allowed: tuple[str, ...]) -> list[FieldError]:
    where = f"{path}.fieldPath"
    field = reference.get("fieldPath", "")
    version = reference.get("apiVersion", "v1")
    if not field:
        return [required(where)]
    name, bracket, rest = field.partition("['")
    why = ""
    if version != "v1":
        why = f"unsupported pod version: {version}"
    elif bracket and name and rest.endswith("']"):
        if name in _MAPS:
            key = rest[:-2].lower() if name == _MAPS[0] else rest[:-2]
            return [invalid_value(path, key, problem) for problem in check_qualified_name(key)]
        why = f"field label does not support subscript: {field}"
    # As upstream: the old name of ``spec.nodeName`` is still understood.
    elif field not in (*ENV_FIELDS, *_MAPS, *_FURTHER_FIELDS, "spec.host"):
        why = f"field label not supported: {field}"
    if why:
        return [invalid_value(where, field, f"error converting fieldPath: {why}")]
    field = "spec.nodeName" if field == "spec.host" else field
    return [] if field in allowed else [not_supported(where, field, allowed)]


def check_amount_of_container(path: str, reference: Document, *, named: bool) -> list[FieldError]:
    """*named*: the reference says of which container."""
    name = reference.get("resource", "")
    errors: list[FieldError] = []
    if named and not reference.get("containerName"):
        errors.append(required(f"{path}.containerName"))
    elif not name:
        errors.append(required(f"{path}.resource"))
    elif name not in _AMOUNTS and not name.startswith(_HUGE):
        errors.append(not_supported(f"{path}.resource", name, _AMOUNTS))
    resource = "hugepages" if name.startswith(_HUGE) else name.partition(".")[2] if name in _AMOUNTS else ""
    divisor: Any = reference.get("divisor", 0)
    if resource and exact(divisor) and text_of(divisor) not in _DIVISORS[resource][0]:
        errors.append(invalid_value(f"{path}.divisor", name, _DIVISORS[resource][1]))
    return errors


_NAME: Final = named("name", env_name_problems, must=True)
_PREFIX: Final = named("prefix", env_name_problems)
_OBJECT_KEY: Final = named("key", key_problems, must=True)
# As upstream: a name that ends with a dash passes, as if something were to be added to it.
_OBJECT_NAME: Final = named(
    "name",
    lambda name: check_dns_subdomain(name[:-2] + "a" if len(name) > 1 and name.endswith("-") else name),
    must=True,
)
_FILE_KEY: Final = rows_of(
    named("key", env_name_problems, must=True),
    named("volumeName", check_dns_label, must=True),
    needs("path"),
    part("path", no_way_up),
)


def check_env_from(path: str, sources: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, source in while_few(errors, enumerate(sources)):
        where = f"{path}[{index}]"
        errors += _PREFIX(where, source)
        references = [member for member in ("configMapRef", "secretRef") if member in source]
        for member in references:
            errors += _OBJECT_NAME(f"{where}.{member}", source[member])
        # As upstream: the list is named, not its entry.
        if not references:
            errors.append(invalid_value(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(references) > 1:
            errors.append(invalid_value(path, "", _TWO_SOURCES))
    return errors
