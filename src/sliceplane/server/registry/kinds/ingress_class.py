"""IngressClass: a kind of ingress controller that an Ingress can name."""

from __future__ import annotations

import re
from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IngressClasses
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.documents.table.columns import AGE, NONE, Column, mapping, member, text
from sliceplane.server.registry.kinds.ingress import DEFAULT_CLASS_MARK, check_reference
from sliceplane.server.registry.kinds.plain import FieldRule, marked_name, plain_kind, printer

_CONTROLLER_MAX: Final = 250
_PATH: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_SCOPES: Final = ("Cluster", "Namespace")


def _prefixed_path(value: str) -> list[FieldError]:
    path = "spec.controller"
    host, _, rest = value.partition("/")
    if value and (not host or not rest):
        return [invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    errors = [invalid_value(path, host, problem) for problem in check_dns_subdomain(host) if value]
    if value and not re.fullmatch(_PATH, rest):
        errors.append(invalid_value(path, rest, f"Invalid path (regex used for validation is '{_PATH}')"))
    return errors


def _validate(document: Document) -> list[FieldError]:
    errors = _prefixed_path(text(document, "spec", "controller"))
    parameters = member(document, "spec", "parameters")
    return errors if parameters is None else errors + _parameters("spec.parameters", parameters)


def _parameters(path: str, parameters: Document) -> list[FieldError]:
    errors = check_reference(path, parameters)
    scope: str = parameters["scope"]
    namespace: str | None = parameters.get("namespace")
    if scope not in _SCOPES:
        errors.append(not_supported(f"{path}.scope", scope, _SCOPES))
    elif scope == "Namespace" and namespace is None:
        errors.append(required(f"{path}.namespace", "`parameters.scope` is set to 'Namespace'"))
    elif scope == "Namespace" and namespace is not None:
        errors += [invalid_value(f"{path}.namespace", namespace, why) for why in check_dns_label(namespace)]
    elif namespace is not None:
        errors.append(forbidden_field(f"{path}.namespace", "`parameters.scope` is set to 'Cluster'"))
    return errors


def _shown_parameters(ingress_class: Document) -> str:
    parameters = mapping(ingress_class, "spec", "parameters")
    group = text(parameters, "apiGroup")
    kind = f"{text(parameters, 'kind')}.{group}" if group else text(parameters, "kind")
    return f"{kind}/{text(parameters, 'name')}" if parameters else NONE


INGRESS_CLASS: Final = plain_kind(
    IngressClasses,
    (
        FieldRule("spec.controller", required=True, length=_CONTROLLER_MAX, immutable=True),
        FieldRule("spec.parameters?.scope", default="Cluster"),
    ),
    printer(
        marked_name(DEFAULT_CLASS_MARK),
        (Column(name="Controller", description="Which ingress controller is meant."), "spec.controller"),
        (Column(name="Parameters", description="An object with further settings."), _shown_parameters),
        AGE,
    ),
    validate=_validate,
)
