"""NetworkPolicy: which traffic some Pods may have.  Stored for network plug-ins; nothing here
filters.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    required,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.api.scheme import NetworkPolicies
from sliceplane.server.documents.table.columns import AGE, NAME, Column, Printer, mapping
from sliceplane.server.registry.kinds import kind
from sliceplane.server.registry.kinds.workloads.workload import selector_text
from sliceplane.server.registry.metadata import check_label_selector
from sliceplane.server.registry.validation.addresses import (
    check_number,
    iana_name_problems,
    range_spelling,
)
from sliceplane.server.registry.validation.load_balancers import cidr_problem
from sliceplane.server.registry.validation.rules import Rules, among, each, fill, of_form

_TYPES: Final = ("Ingress", "Egress")
_PEERS: Final = {"ingress": "from", "egress": "to"}
_NOT_A_SUBSET: Final = "must be a strict subset of `cidr`"
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")


def _default(document: Document) -> None:
    types = list(_TYPES if document.get("spec", {}).get("egress") else _TYPES[:1])
    rules = [{"ports": [{"protocol?": "TCP"}]}]
    fill(
        document,
        {"+spec": {"podSelector": {}, "policyTypes": types, **dict.fromkeys(_PEERS, rules)}},
    )


def _validate_update(new: Document, old: Document) -> FieldErrors:
    """A range that the old policy had may stay as it is spelled."""
    spec: Document = old["spec"]
    peers = (
        peer
        for direction, name in _PEERS.items()
        for rule in spec.get(direction, ())
        for peer in rule.get(name, ())
    )
    blocks = [peer.get("ipBlock", {}) for peer in peers]
    accepted_cidrs = {
        cidr for block in blocks for cidr in (block.get("cidr", ""), *block.get("except", ()))
    }
    return _rules(new["spec"], accepted_cidrs)


def _rules(spec: Document, accepted_cidrs: Collection[str]) -> FieldErrors:
    errors = check_label_selector("spec.podSelector", spec["podSelector"])
    for direction, peers in _PEERS.items():
        for index, rule in until_error_limit(errors, enumerate(spec.get(direction, ()))):
            path = f"spec.{direction}[{index}]"
            errors += each(f"{path}.ports", rule.get("ports", ()), _port)
            errors += each(
                f"{path}.{peers}",
                rule.get(peers, ()),
                lambda where, peer: _peer(where, peer, accepted_cidrs),
            )
    types = spec["policyTypes"]
    if len(types) > len(_TYPES):
        return [
            *errors,
            invalid_value("spec.policyTypes", types, "may not specify more than two policyTypes"),
        ]
    return errors + each("spec.policyTypes", types, lambda path, kind: among(path, kind, _TYPES))


def _warnings(new: Document, _old: Document | None) -> tuple[str, ...]:
    spellings: list[str] = []
    for direction, peers in _PEERS.items():
        for index, rule in enumerate(new["spec"].get(direction, ())):
            for at, peer in enumerate(rule.get(peers, ())):
                block = peer.get("ipBlock", {})
                path = f"spec.{direction}[{index}].{peers}[{at}].ipBlock"
                ranges = {
                    f"{path}.except[{number}]": cidr
                    for number, cidr in enumerate(block.get("except", ()))
                }
                ranges = {f"{path}.cidr": block.get("cidr", ""), **ranges}
                spellings += [
                    f"{where}: {why}"
                    for where, cidr in ranges.items()
                    if (why := range_spelling(cidr))
                ]
    return tuple(spellings)


def _port(path: str, port: Document) -> FieldErrors:
    number = port.get("port")
    end = port.get("endPort")
    errors = among(f"{path}.protocol", port["protocol"], _PROTOCOLS)
    if number is None or isinstance(number, str):
        if end is not None:
            why = "not specified" if number is None else "non-numeric"
            errors.append(
                invalid_value(f"{path}.endPort", end, f"may not be specified when `port` is {why}")
            )
        return errors + (
            of_form(f"{path}.port", number, iana_name_problems) if number is not None else []
        )
    errors += check_number(f"{path}.port", number)
    if end is not None:
        if end < number:
            errors.append(
                invalid_value(f"{path}.endPort", number, "must be greater than or equal to `port`")
            )
        errors += check_number(f"{path}.endPort", end)
    return errors


def _peer(path: str, peer: Document, accepted_cidrs: Collection[str]) -> FieldErrors:
    errors: FieldErrors = []
    for member in ("podSelector", "namespaceSelector"):
        errors += check_label_selector(f"{path}.{member}", peer.get(member))
    block = peer.get("ipBlock")
    if block is not None:
        errors += _block(f"{path}.ipBlock", block, accepted_cidrs)
    peers = sum(member in peer for member in ("podSelector", "namespaceSelector", "ipBlock"))
    if not peers:
        errors.append(required(path, "must specify a peer"))
    elif peers > 1 and block is not None:
        errors.append(forbidden_field(path, "may not specify both ipBlock and another peer"))
    return errors


def _block(path: str, block: Document, accepted_cidrs: Collection[str]) -> FieldErrors:
    cidr = block.get("cidr", "")
    if not cidr:
        return [required(f"{path}.cidr")]
    errors = _cidr(f"{path}.cidr", cidr, accepted_cidrs)
    return errors + each(
        f"{path}.except",
        block.get("except", ()),
        lambda where, inner: (
            _cidr(where, inner, accepted_cidrs)
            + of_form(where, inner, lambda text: _not_within(cidr, text))
        ),
    )


def _not_within(outer: str, inner: str) -> tuple[str, ...]:
    try:
        outer_range, inner_range = (
            ipaddress.ip_network(text, strict=False) for text in (outer, inner)
        )
    except ValueError:
        return ()
    is_within = (
        inner_range.version == outer_range.version and inner_range.network_address in outer_range
    )
    return () if is_within and outer_range.prefixlen < inner_range.prefixlen else (_NOT_A_SUBSET,)


def _cidr(path: str, cidr: str, accepted_cidrs: Collection[str]) -> FieldErrors:
    problem = "" if cidr in accepted_cidrs else cidr_problem(cidr)
    return [invalid_value(path, cidr, problem)] if problem else []


NETWORK_POLICY: Final = kind.Kind(
    resource=NetworkPolicies,
    defaults=_default,
    rules=Rules(lambda _path, document: _rules(document["spec"], ())),
    update_rules=_validate_update,
    warnings=_warnings,
    quota=kind.Quota(),
    granted=kind.edited(),
    columns=Printer(
        (
            NAME,
            Column(
                "Pod-Selector",
                "Labels of the Pods that are meant.",
                lambda policy: selector_text(mapping(policy, "spec", "podSelector")),
            ),
            AGE,
        )
    ),
)
