"""NetworkPolicy: which traffic some Pods may have.  Stored for network plug-ins; nothing here filters."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from sliceplane.api.errors import FieldError, forbidden_field, invalid_value, not_supported, required, while_few
from sliceplane.api.meta import Document
from sliceplane.api.scheme import NetworkPolicies
from sliceplane.server.documents.table.columns import AGE, NAME, Cell, Column, Printer, age, mapping, name_of
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workload import selector_text
from sliceplane.server.registry.metadata import check_label_selector
from sliceplane.server.registry.validation.addresses import check_number, iana_name_problems, range_spelling
from sliceplane.server.registry.validation.load_balancers import cidr_problem

_TYPES: Final = ("Ingress", "Egress")
_PEERS: Final = {"ingress": "from", "egress": "to"}
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")


def _default(document: Document) -> None:
    spec = document.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = list(_TYPES if spec.get("egress") else _TYPES[:1])
    for direction in _PEERS:
        for rule in spec.get(direction, ()):
            for port in rule.get("ports", ()):
                port.setdefault("protocol", "TCP")


def _validate_update(new: Document, old: Document) -> list[FieldError]:
    """A range that the old policy had may stay as it is spelled."""
    spec: Document = old["spec"]
    peers = (
        peer for direction, name in _PEERS.items() for rule in spec.get(direction, ()) for peer in rule.get(name, ())
    )
    blocks = [peer.get("ipBlock", {}) for peer in peers]
    known = {cidr for block in blocks for cidr in (block.get("cidr", ""), *block.get("except", ()))}
    return _rules(new["spec"], known)


def _rules(spec: Document, known: Collection[str]) -> list[FieldError]:
    errors = check_label_selector("spec.podSelector", spec["podSelector"])
    for direction, peers in _PEERS.items():
        for index, rule in while_few(errors, enumerate(spec.get(direction, ()))):
            path = f"spec.{direction}[{index}]"
            for at, port in while_few(errors, enumerate(rule.get("ports", ()))):
                errors += _port(f"{path}.ports[{at}]", port)
            for at, peer in while_few(errors, enumerate(rule.get(peers, ()))):
                errors += _peer(f"{path}.{peers}[{at}]", peer, known)
    types = spec["policyTypes"]
    if len(types) > len(_TYPES):
        return [*errors, invalid_value("spec.policyTypes", types, "may not specify more than two policyTypes")]
    return errors + [
        not_supported(f"spec.policyTypes[{index}]", kind, _TYPES)
        for index, kind in enumerate(types)
        if kind not in _TYPES
    ]


def _warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    spellings: list[str] = []
    for direction, peers in _PEERS.items():
        for index, rule in enumerate(new["spec"].get(direction, ())):
            for at, peer in enumerate(rule.get(peers, ())):
                block = peer.get("ipBlock", {})
                path = f"spec.{direction}[{index}].{peers}[{at}].ipBlock"
                ranges = {f"{path}.except[{number}]": cidr for number, cidr in enumerate(block.get("except", ()))}
                ranges = {f"{path}.cidr": block.get("cidr", ""), **ranges}
                spellings += [f"{where}: {why}" for where, cidr in ranges.items() if (why := range_spelling(cidr))]
    return tuple(spellings)


def _port(path: str, port: Document) -> list[FieldError]:
    errors: list[FieldError] = []
    number = port.get("port")
    end = port.get("endPort")
    if port["protocol"] not in _PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", port["protocol"], _PROTOCOLS))
    if number is None or isinstance(number, str):
        if end is not None:
            why = "not specified" if number is None else "non-numeric"
            errors.append(invalid_value(f"{path}.endPort", end, f"may not be specified when `port` is {why}"))
        problems = iana_name_problems(number) if number is not None else []
        return errors + [invalid_value(f"{path}.port", number, problem) for problem in problems]
    errors += check_number(f"{path}.port", number)
    if end is not None:
        if end < number:
            errors.append(invalid_value(f"{path}.endPort", number, "must be greater than or equal to `port`"))
        errors += check_number(f"{path}.endPort", end)
    return errors


def _peer(path: str, peer: Document, known: Collection[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    for member in ("podSelector", "namespaceSelector"):
        errors += check_label_selector(f"{path}.{member}", peer.get(member))
    block = peer.get("ipBlock")
    if block is not None:
        errors += _block(f"{path}.ipBlock", block, known)
    peers = sum(member in peer for member in ("podSelector", "namespaceSelector", "ipBlock"))
    if not peers:
        errors.append(required(path, "must specify a peer"))
    elif peers > 1 and block is not None:
        errors.append(forbidden_field(path, "may not specify both ipBlock and another peer"))
    return errors


def _block(path: str, block: Document, known: Collection[str]) -> list[FieldError]:
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.cidr")]
    errors = _cidr(f"{path}.cidr", cidr, known)
    for index, inner in while_few(errors, enumerate(block.get("except", ()))):
        where = f"{path}.except[{index}]"
        errors += _cidr(where, inner, known)
        try:
            outer_range, inner_range = (ipaddress.ip_network(text, strict=False) for text in (cidr, inner))
        except ValueError:
            continue
        is_within = inner_range.version == outer_range.version and inner_range.network_address in outer_range
        if not is_within or outer_range.prefixlen >= inner_range.prefixlen:
            errors.append(invalid_value(where, inner, "must be a strict subset of `cidr`"))
    return errors


def _cidr(path: str, cidr: str, known: Collection[str]) -> list[FieldError]:
    problem = "" if cidr in known else cidr_problem(cidr)
    return [invalid_value(path, cidr, problem)] if problem else []


def _cells(policy: Document, now: float) -> tuple[Cell, ...]:
    return name_of(policy), selector_text(mapping(policy, "spec", "podSelector")), age(policy, now)


NETWORK_POLICY: Final = kind.stored_as_sent(
    resource=NetworkPolicies,
    defaults=_default,
    validate=lambda document: _rules(document["spec"], ()),
    validate_update=_validate_update,
    warnings=_warnings,
    quota=kind.COUNTED,
    granted=kind.edited(),
    columns=Printer((NAME, Column(name="Pod-Selector", description="Labels of the Pods that are meant."), AGE), _cells),
)
