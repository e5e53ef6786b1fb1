"""IngressClass: a kind of ingress controller that an Ingress can name."""

from __future__ import annotations

import re
from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported, required, too_long
from sliceplane.api.meta import Document
from sliceplane.api.scheme import IngressClasses
from sliceplane.documents.table.columns import (
    AGE,
    NAME,
    NONE,
    Cell,
    Column,
    Printer,
    age,
    mapping,
    member,
    name_of,
    text,
)
from sliceplane.kit.names import check_dns_label, check_dns_subdomain
from sliceplane.registry.kinds import kind
from sliceplane.registry.kinds.ingress import check_reference
from sliceplane.registry.metadata import IMMUTABLE

_DEFAULT_CLASS: Final = "ingressclass.kubernetes.io/is-default-class"
_CONTROLLER_MAX: Final = 250
_PATH: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"
_SCOPES: Final = ("Cluster", "Namespace")


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    if "parameters" in spec:
        spec["parameters"].setdefault("scope", "Cluster")


def _validate(document: Document) -> list[FieldError]:
    spec: Document = document["spec"]
    controller = spec.get("controller", "")
    parameters = spec.get("parameters")
    errors: list[FieldError] = []
    if len(controller) > _CONTROLLER_MAX:
        errors.append(too_long("spec.controller", _CONTROLLER_MAX))
    errors += _prefixed_path("spec.controller", controller)
    return errors + (_parameters("spec.parameters", parameters) if parameters is not None else [])


def _prefixed_path(path: str, value: str) -> list[FieldError]:
    if not value:
        return [required(path)]
    host, _, rest = value.partition("/")
    if not host or not rest:
        return [invalid_value(path, value, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    errors = [invalid_value(path, host, problem) for problem in check_dns_subdomain(host)]
    if not re.fullmatch(_PATH, rest):
        errors.append(invalid_value(path, rest, f"Invalid path (regex used for validation is '{_PATH}')"))
    return errors


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


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    controller = new["spec"].get("controller", "")
    errors = _validate(new)
    if controller != old["spec"].get("controller", ""):
        return [invalid_value("spec.controller", controller, IMMUTABLE), *errors]
    return errors


def _cells(ingress_class: Document, now: float) -> tuple[Cell, ...]:
    parameters = mapping(ingress_class, "spec", "parameters")
    group = text(parameters, "apiGroup")
    kind = f"{text(parameters, 'kind')}.{group}" if group else text(parameters, "kind")
    is_default = member(ingress_class, "metadata", "annotations", _DEFAULT_CLASS) == "true"
    return (
        f"{name_of(ingress_class)} (default)" if is_default else name_of(ingress_class),
        text(ingress_class, "spec", "controller"),
        f"{kind}/{text(parameters, 'name')}" if parameters else NONE,
        age(ingress_class, now),
    )


INGRESS_CLASS: Final = kind.stored_as_sent(
    resource=IngressClasses,
    defaults=_default,
    validate=_validate,
    validate_update=_validate_update,
    warnings=kind.no_warnings,
    quota=kind.UNCOUNTED,
    granted=kind.NOT_GRANTED,
    columns=Printer(
        (
            NAME,
            Column(name="Controller", description="Which ingress controller is meant."),
            Column(name="Parameters", description="An object with further settings."),
            AGE,
        ),
        _cells,
    ),
)
