"""Ingress: which Service answers HTTP requests from outside, by host and path.  An ingress controller acts on it.

The rules of hosts, paths, back ends and certificates are those of ``pkg/apis/networking/validation/validation.go``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IngressClasses, Ingresses
from sliceplane.kit.names import SUBDOMAIN_MAX, check_dns_label, check_dns_subdomain, check_path_segment
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    member,
    name_of,
    objects,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.plain import default_object
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.addresses import check_number, iana_name_problems, ip_problem, version_of

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

#: an IngressClass with this is that of Ingresses which name none
DEFAULT_CLASS_MARK: Final = "ingressclass.kubernetes.io/is-default-class"
NOT_A_NAME: Final = "must be a DNS name, not an IP address"
_PATH_TYPES: Final = ("Exact", "ImplementationSpecific", "Prefix")
_BAD_PARTS: Final = ("//", "/./", "/../", "%2f", "%2F")
_BAD_ENDS: Final = ("/..", "/.")
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WILDCARD: Final = rf"\*\.{_LABEL}(\.{_LABEL})*"
_NOT_A_WILDCARD: Final = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of "
    "lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', "
    f"regex used for validation is '{_WILDCARD}')"
)


def check_spec(spec: Document, before: Document) -> list[FieldError]:
    """*before* is ``{}`` for a new object.  Bad names of Secrets and paths of wildcard hosts may stay if some were."""
    errors: list[FieldError] = []
    rules: list[Document] = spec.get("rules", [])
    if not rules and "defaultBackend" not in spec:
        errors.append(invalid_value("spec", rules or None, "either `defaultBackend` or `rules` must be specified"))
    if "defaultBackend" in spec:
        errors += _backend("spec.defaultBackend", spec["defaultBackend"])
    wild = [rule for rule in before.get("rules", ()) if "*" in rule.get("host", "")]
    lenient = any(_paths("", rule) for rule in wild)
    for index, rule in while_few(errors, enumerate(rules)):
        path = f"spec.rules[{index}]"
        host = rule.get("host", "")
        if version_of(host):
            errors.append(invalid_value(f"{path}.host", host, NOT_A_NAME))
        errors += _host(f"{path}.host", host) if host else []
        if "*" not in host or not lenient:
            errors += _paths(path, rule)
    errors += _tls(spec.get("tls", []), before.get("tls", []))
    name = spec.get("ingressClassName")
    problems = check_dns_subdomain(name) if name is not None else ()
    return errors + [invalid_value("spec.ingressClassName", name, problem) for problem in problems]


def _tls(entries: list[Document], before: list[Document]) -> list[FieldError]:
    errors: list[FieldError] = []
    lenient = any(entry.get("secretName") and check_dns_subdomain(entry["secretName"]) for entry in before)
    for index, entry in while_few(errors, enumerate(entries)):
        path = f"spec.tls[{index}]"
        secret = entry.get("secretName", "")
        for at, host in while_few(errors, enumerate(entry.get("hosts", ()))):
            errors += _host(f"{path}.hosts[{at}]", host)
        problems = check_dns_subdomain(secret) if secret and not lenient else ()
        errors += [invalid_value(f"{path}.secretName", secret, problem) for problem in problems]
    return errors


def _host(path: str, host: str) -> list[FieldError]:
    if "*" not in host:
        return [invalid_value(path, host, problem) for problem in check_dns_subdomain(host)]
    too_long = [f"must be no more than {SUBDOMAIN_MAX} bytes"] if len(host) > SUBDOMAIN_MAX else []
    problems = too_long if re.fullmatch(_WILDCARD, host) else [*too_long, _NOT_A_WILDCARD]
    return [invalid_value(path, host, problem) for problem in problems]


def _paths(where: str, rule: Document) -> list[FieldError]:
    if "http" not in rule:
        return []
    paths: list[Document] = rule["http"].get("paths", [])
    errors: list[FieldError] = [] if paths else [required(f"{where}.http.paths")]
    for index, entry in while_few(errors, enumerate(paths)):
        errors += _path(f"{where}.http.paths[{index}]", entry)
    return errors


def _path(where: str, entry: Document) -> list[FieldError]:
    kind = entry.get("pathType")
    path = entry.get("path", "")
    if kind is None:
        return [required(f"{where}.pathType", "pathType must be specified")]
    problems: list[str] = []
    if kind in _PATH_TYPES and not path.startswith("/") and (path or kind != "ImplementationSpecific"):
        problems.append("must be an absolute path")
    if kind in ("Exact", "Prefix"):
        problems += [f"must not contain '{part}'" for part in _BAD_PARTS if part in path]
        problems += [f"cannot end with '{end}'" for end in _BAD_ENDS if path.endswith(end)]
    errors = [invalid_value(f"{where}.path", path, problem) for problem in problems]
    if kind not in _PATH_TYPES:
        errors.append(not_supported(f"{where}.pathType", kind, _PATH_TYPES))
    return errors + _backend(f"{where}.backend", entry.get("backend", {}))


def _backend(path: str, backend: Document) -> list[FieldError]:
    service = backend.get("service")
    resource = backend.get("resource")
    if service is not None and resource is not None:
        return [invalid_value(path, "", "cannot set both resource and service backends")]
    if resource is not None:
        return check_reference(f"{path}.resource", resource)
    if service is None:
        return [invalid_value(path, "", "resource or service backend is required")]
    name = service.get("name", "")
    errors = [invalid_value(f"{path}.service.name", name, problem) for problem in check_dns_label(name) if name]
    errors += [] if name else [required(f"{path}.service.name")]
    return errors + _port(path, service.get("port", {}))


def _port(path: str, port: Document) -> list[FieldError]:
    name = port.get("name", "")
    number = port.get("number", 0)
    if name and number:
        return [invalid_value(path, "", "cannot set both port name & port number")]
    if name:
        return [invalid_value(f"{path}.service.port.name", name, problem) for problem in iana_name_problems(name)]
    if number:
        return check_number(f"{path}.service.port.number", number)
    return [required(path, "port name or number is required")]


def check_reference(path: str, reference: Document) -> list[FieldError]:
    """Group, kind and name of an object."""
    errors: list[FieldError] = []
    if "apiGroup" in reference:
        group = reference["apiGroup"]
        errors += [invalid_value(f"{path}.apiGroup", group, problem) for problem in check_dns_subdomain(group)]
    for name in ("kind", "name"):
        value = reference.get(name, "")
        problems = check_path_segment(value)
        errors += [invalid_value(f"{path}.{name}", value, problem) for problem in problems]
        errors += [] if value else [required(f"{path}.{name}")]
    return errors


_CLASS: Final = "kubernetes.io/ingress.class"
_HOSTS_SHOWN_MAX: Final = 3


def _default(document: Document) -> None:
    document.setdefault("spec", {})


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    errors = check_spec(spec, {})
    annotation = document["metadata"].get("annotations", {}).get(_CLASS)
    name = spec.get("ingressClassName")
    if annotation is not None and name is not None and annotation != name:
        detail = "must match `ingressClassName` when both are specified"
        errors.append(invalid_value(f"annotations.{_CLASS}", annotation, detail))
    return errors


def _warnings(new: Document, old: Document | None) -> tuple[str, ...]:
    annotations = new["metadata"].get("annotations", {})
    if old is not None or _CLASS not in annotations or "ingressClassName" in new["spec"]:
        return ()
    return (f"annotation \"{_CLASS}\" is deprecated, please use 'spec.ingressClassName' instead",)


def _validate_status(new: Document, old: Document) -> list[FieldError]:
    ingress, before = (_addresses(document) for document in (new, old))
    known = {entry.get("ip") for entry in before}
    errors: list[FieldError] = []
    for index, entry in while_few(errors, enumerate(ingress)):
        path = f"status.loadBalancer.ingress[{index}]"
        address = entry.get("ip", "")
        host = entry.get("hostname", "")
        if address and address not in known and (problem := ip_problem(address)):
            errors.append(invalid_value(f"{path}.ip", address, problem))
        errors += [invalid_value(f"{path}.hostname", host, problem) for problem in check_dns_subdomain(host) if host]
        if version_of(host):
            errors.append(invalid_value(f"{path}.hostname", host, NOT_A_NAME))
    return errors


def _addresses(document: Document) -> list[Document]:
    return objects(document, "status", "loadBalancer", "ingress")


def _choose_class(core: Core, _target: Target, document: Document) -> None:
    """A new Ingress that names no class gets the default."""
    spec = document["spec"]
    if "ingressClassName" in spec or _CLASS in document["metadata"].get("annotations", {}):
        return
    name = default_object(core, IngressClasses, DEFAULT_CLASS_MARK)
    if name is not None:
        spec["ingressClassName"] = name


def _cells(ingress: Document, now: float) -> tuple[Cell, ...]:
    rules = objects(ingress, "spec", "rules")
    named = [text(rule, "host") for rule in rules if text(rule, "host")]
    hosts = ",".join(named[:_HOSTS_SHOWN_MAX])
    if len(named) > _HOSTS_SHOWN_MAX or (len(named) == _HOSTS_SHOWN_MAX and not text(rules[-1], "host")):
        hosts = f"{hosts} + {len(rules) - _HOSTS_SHOWN_MAX} more..."
    return (
        name_of(ingress),
        text(ingress, "spec", "ingressClassName") or NONE,
        hosts or "*",
        ",".join(sorted({text(entry, "ip") or text(entry, "hostname") for entry in _addresses(ingress)} - {""})),
        "80, 443" if member(ingress, "spec", "tls") else "80",
        age(ingress, now),
    )


INGRESS: Final = kind.Kind(
    resource=Ingresses,
    defaults=_default,
    prepare_create=_choose_class,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=lambda new, old: check_spec(new["spec"], old["spec"]),
    warnings=_warnings,
    status=kind.beside_spec(lambda _document: {"loadBalancer": {}}, _validate_status),
    parts=kind.NO_PARTS,
    admission=kind.ADMITTED,
    deletion=kind.AT_ONCE,
    quota=kind.COUNTED,
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column(name="Class", description="The IngressClass that is asked to act."),
            Column(name="Hosts", description="Host names that requests are for."),
            Column(name="Address", description="Where requests are taken."),
            Column(name="Ports", description="Ports on which requests are taken."),
            AGE,
        ),
        _cells,
    ),
)
