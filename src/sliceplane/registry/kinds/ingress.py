"""Ingress: which Service answers HTTP requests from outside, by host and path.  An ingress controller acts on it."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import FieldError, invalid_value, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Ingresses
from sliceplane.documents.table.columns import (
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
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.registry.kinds import kind
from sliceplane.registry.validation.addresses import ip_problem, version_of
from sliceplane.registry.validation.ingresses import NOT_A_NAME, check_spec

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
    prepare_create=kind.created_as_sent,
    prepare_update=kind.updated_as_sent,
    validate=_validate,
    validate_update=lambda new, old: check_spec(new["spec"], old["spec"]),
    warnings=_warnings,
    status=kind.Status(
        first=lambda _document: {"loadBalancer": {}}, validate=_validate_status, not_written=kind.SPEC, kept=()
    ),
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
