"""Ingress: routes HTTP requests from outside to Services, by host and path. IngressClass: the
controller that acts on it.

The rules of hosts, paths, back ends and certificates are those of
``pkg/apis/networking/validation/validation.go``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IngressClasses, Ingresses
from sliceplane.kit.names import (
    SUBDOMAIN_MAX,
    check_dns_label,
    check_dns_subdomain,
    check_path_segment,
)
from sliceplane.server.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Column,
    Printer,
    class_column,
    mapping,
    member,
    objects,
    text,
    text_or,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.types import Target
from sliceplane.server.registry.validation.addresses import (
    check_number,
    iana_name_problems,
    ip_problems,
    version_of,
)
from sliceplane.server.registry.validation.load_balancers import NOT_A_NAME, check_host_name
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, among, each, of_form

if TYPE_CHECKING:
    from sliceplane.server.registry.core import Core

#: an IngressClass with this is that of Ingresses which name none
DEFAULT_CLASS_MARK: Final = "ingressclass.kubernetes.io/is-default-class"
_PATH_TYPES: Final = ("Exact", "ImplementationSpecific", "Prefix")
_BAD_PARTS: Final = ("//", "/./", "/../", "%2f", "%2F")
_BAD_ENDS: Final = ("/..", "/.")
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_WILDCARD: Final = rf"\*\.{_LABEL}(\.{_LABEL})*"
_NOT_A_WILDCARD: Final = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which "
    "must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric "
    f"character (e.g. '*.example.com', regex used for validation is '{_WILDCARD}')"
)


def check_spec(spec: Document, before: Document) -> FieldErrors:
    """*before* is ``{}`` for a new object.  Bad names of Secrets and paths of wildcard hosts may
    stay if some were.
    """
    errors: FieldErrors = []
    rules: list[Document] = spec.get("rules", [])
    if not rules and "defaultBackend" not in spec:
        errors.append(
            invalid_value(
                "spec", rules or None, "either `defaultBackend` or `rules` must be specified"
            )
        )
    if "defaultBackend" in spec:
        errors += _backend("spec.defaultBackend", spec["defaultBackend"])
    wild = [rule for rule in before.get("rules", ()) if "*" in rule.get("host", "")]
    lenient = any(_paths("", rule) for rule in wild)
    for index, rule in until_error_limit(errors, enumerate(rules)):
        path = f"spec.rules[{index}]"
        host = rule.get("host", "")
        if version_of(host):
            errors.append(invalid_value(f"{path}.host", host, NOT_A_NAME))
        errors += of_form(f"{path}.host", host, _host_problems) if host else []
        if "*" not in host or not lenient:
            errors += _paths(path, rule)
    errors += _tls(spec.get("tls", []), before.get("tls", []))
    return errors + _CLASS_NAME("spec", spec)


def _tls(entries: list[Document], before: list[Document]) -> FieldErrors:
    lenient = any(
        entry.get("secretName") and check_dns_subdomain(entry["secretName"]) for entry in before
    )
    return each("spec.tls", entries, _TLS_HOSTS if lenient else _TLS)


def _host_problems(host: str) -> Iterable[str]:
    if "*" not in host:
        return check_dns_subdomain(host)
    too_long = [f"must be no more than {SUBDOMAIN_MAX} bytes"] if len(host) > SUBDOMAIN_MAX else []
    return too_long if re.fullmatch(_WILDCARD, host) else [*too_long, _NOT_A_WILDCARD]


_CLASS_NAME: Final = Rules(Field("ingressClassName", form=check_dns_subdomain, empty=True))
_SERVICE_NAME: Final = Rules(Field("name", required=True, form=check_dns_label))
_TLS_HOSTS: Final = Rules(Field("hosts", form=_host_problems))
_TLS: Final = Rules(_TLS_HOSTS, Field("secretName", form=check_dns_subdomain))


def _paths(where: str, rule: Document) -> FieldErrors:
    if "http" not in rule:
        return []
    paths: list[Document] = rule["http"].get("paths", [])
    return each(f"{where}.http.paths", paths, _path) if paths else [required(f"{where}.http.paths")]


def _path(where: str, entry: Document) -> FieldErrors:
    kind = entry.get("pathType")
    path = entry.get("path", "")
    if kind is None:
        return [required(f"{where}.pathType", "pathType must be specified")]
    problems: list[str] = []
    if (
        kind in _PATH_TYPES
        and not path.startswith("/")
        and (path or kind != "ImplementationSpecific")
    ):
        problems.append("must be an absolute path")
    if kind in ("Exact", "Prefix"):
        problems += [f"must not contain '{part}'" for part in _BAD_PARTS if part in path]
        problems += [f"cannot end with '{end}'" for end in _BAD_ENDS if path.endswith(end)]
    errors = of_form(f"{where}.path", path, lambda _path: problems)
    return (
        errors
        + among(f"{where}.pathType", kind, _PATH_TYPES)
        + _backend(f"{where}.backend", entry.get("backend", {}))
    )


def _backend(path: str, backend: Document) -> FieldErrors:
    service = backend.get("service")
    resource = backend.get("resource")
    if service is not None and resource is not None:
        return [invalid_value(path, "", "cannot set both resource and service backends")]
    if resource is not None:
        return check_reference(f"{path}.resource", resource)
    if service is None:
        return [invalid_value(path, "", "resource or service backend is required")]
    errors = _SERVICE_NAME(f"{path}.service", service)
    return errors + _port(path, service.get("port", {}))


def _port(path: str, port: Document) -> FieldErrors:
    name = port.get("name", "")
    number = port.get("number", 0)
    if name and number:
        return [invalid_value(path, "", "cannot set both port name & port number")]
    if name:
        return of_form(f"{path}.service.port.name", name, iana_name_problems)
    if number:
        return check_number(f"{path}.service.port.number", number)
    return [required(path, "port name or number is required")]


#: group, kind and name of an object; as upstream: an empty name is complained of twice
check_reference: Final = Rules(
    Field("apiGroup", form=check_dns_subdomain, empty=True),
    *(
        rule
        for name in ("kind", "name")
        for rule in (Field(name, form=check_path_segment, always=True), Field(name, required=True))
    ),
)
_CLASS: Final = "kubernetes.io/ingress.class"
_HOSTS_PRINTED_MAX: Final = 3


def _validate(_path: str, document: Document) -> FieldErrors:
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


def _validate_status(new: Document, old: Document) -> FieldErrors:
    ingress, before = (_addresses(document) for document in (new, old))
    previous_ips = {entry.get("ip") for entry in before}

    def entry_errors(path: str, entry: Document) -> FieldErrors:
        address = entry.get("ip", "")
        is_checked = address and address not in previous_ips
        errors = of_form(f"{path}.ip", address, ip_problems) if is_checked else []
        return errors + check_host_name(f"{path}.hostname", entry.get("hostname", ""))

    return each("status.loadBalancer.ingress", ingress, entry_errors)


def _addresses(document: Document) -> list[Document]:
    return objects(document, "status", "loadBalancer", "ingress")


def _choose_class(core: Core, _target: Target, document: Document) -> None:
    """A new Ingress that names no class gets the default."""
    spec = document["spec"]
    if "ingressClassName" in spec or _CLASS in document["metadata"].get("annotations", {}):
        return
    name = kind.default_object(core, IngressClasses, DEFAULT_CLASS_MARK)
    if name is not None:
        spec["ingressClassName"] = name


def _hosts(ingress: Document) -> str:
    rules = objects(ingress, "spec", "rules")
    named = [text(rule, "host") for rule in rules if text(rule, "host")]
    hosts = ",".join(named[:_HOSTS_PRINTED_MAX])
    if len(named) > _HOSTS_PRINTED_MAX or (
        len(named) == _HOSTS_PRINTED_MAX and not text(rules[-1], "host")
    ):
        return f"{hosts} + {len(rules) - _HOSTS_PRINTED_MAX} more..."
    return hosts or "*"


def _format_addresses(ingress: Document) -> str:
    return ",".join(
        sorted(
            {text(entry, "ip") or text(entry, "hostname") for entry in _addresses(ingress)} - {""}
        )
    )


INGRESS: Final = kind.Kind(
    resource=Ingresses,
    defaults=Defaults({"+spec": {}}),
    prepare_create=_choose_class,
    rules=Rules(_validate),
    update_rules=lambda new, old: check_spec(new["spec"], old["spec"]),
    warnings=_warnings,
    status=kind.Status(first=lambda _document: {"loadBalancer": {}}, validate=_validate_status),
    quota=kind.Quota(),
    granted=kind.edited("status"),
    columns=Printer(
        (
            NAME,
            Column(
                "Class",
                "The IngressClass that is asked to act.",
                text_or(NONE, "spec.ingressClassName"),
            ),
            Column("Hosts", "Host names that requests are for.", _hosts),
            Column("Address", "Where requests are taken.", _format_addresses),
            Column(
                "Ports",
                "Ports on which requests are taken.",
                lambda ingress: "80, 443" if member(ingress, "spec", "tls") else "80",
            ),
            AGE,
        )
    ),
)


_CONTROLLER_MAX: Final = 250
_CONTROLLER_PATH: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_SCOPES: Final = ("Cluster", "Namespace")


def _controller(path: str, value: str) -> FieldErrors:
    host, _, rest = value.partition("/")
    if not host or not rest:
        return [
            invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
        ]
    errors = of_form(path, host, check_dns_subdomain)
    if not re.fullmatch(_CONTROLLER_PATH, rest):
        errors.append(
            invalid_value(
                path, rest, f"Invalid path (regex used for validation is '{_CONTROLLER_PATH}')"
            )
        )
    return errors


def _parameters(path: str, parameters: Document) -> FieldErrors:
    errors = check_reference(path, parameters)
    scope: str = parameters["scope"]
    namespace: str | None = parameters.get("namespace")
    if scope not in _SCOPES:
        errors += among(f"{path}.scope", scope, _SCOPES)
    elif scope == "Namespace" and namespace is None:
        errors.append(required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'"))
    elif scope == "Namespace" and namespace is not None:
        errors += of_form(f"{path}.namespace", namespace, check_dns_label)
    elif namespace is not None:
        errors.append(
            forbidden_field(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'")
        )
    return errors


def _format_parameters(ingress_class: Document) -> str:
    parameters = mapping(ingress_class, "spec", "parameters")
    group = text(parameters, "apiGroup")
    kind = f"{text(parameters, 'kind')}.{group}" if group else text(parameters, "kind")
    return f"{kind}/{text(parameters, 'name')}" if parameters else NONE


INGRESS_CLASS: Final = kind.Kind(
    resource=IngressClasses,
    defaults=Defaults({"+spec": {"parameters": {"scope": "Cluster"}}}),
    rules=Rules(
        Field(
            "spec.controller",
            required=True,
            bytes_max=_CONTROLLER_MAX,
            immutable=True,
            rows=_controller,
        ),
        Field("spec.parameters", rows=_parameters),
    ),
    columns=Printer(
        (
            class_column(DEFAULT_CLASS_MARK),
            Column("Controller", "Which ingress controller is meant.", "spec.controller"),
            Column("Parameters", "An object with further settings.", _format_parameters),
            AGE,
        )
    ),
)
