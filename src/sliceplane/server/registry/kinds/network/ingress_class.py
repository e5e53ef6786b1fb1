"""IngressClass: a kind of ingress controller that an Ingress can name."""

from __future__ import annotations

import re
from typing import Final

from sliceplane.api.errors import FieldErrors, forbidden_field, invalid_value, required
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IngressClasses
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.server.documents.table.columns import (
    AGE,
    NONE,
    Column,
    Printer,
    class_column,
    mapping,
    text,
)
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.network.ingress import DEFAULT_CLASS_MARK, check_reference
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules, among, of_form

_CONTROLLER_MAX: Final = 250
_PATH: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_SCOPES: Final = ("Cluster", "Namespace")


def _controller(path: str, value: str) -> FieldErrors:
    host, _, rest = value.partition("/")
    if not host or not rest:
        return [
            invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')
        ]
    errors = of_form(path, host, check_dns_subdomain)
    if not re.fullmatch(_PATH, rest):
        errors.append(
            invalid_value(path, rest, f"Invalid path (regex used for validation is '{_PATH}')")
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


def _shown_parameters(ingress_class: Document) -> str:
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
            Column("Parameters", "An object with further settings.", _shown_parameters),
            AGE,
        )
    ),
)
