"""Numbers, protocols and names of ports, shared by all kinds that have ports."""

from __future__ import annotations

import re
from typing import Any

from sliceplane.api.errors import FieldError, invalid_value, not_supported, required
from sliceplane.api.service_rules import PROTOCOLS, is_port

#: in the order in which messages list them
_PROTOCOLS = tuple(sorted(PROTOCOLS))
PORT_RANGE = "must be between 1 and 65535, inclusive"
_IANA_MAX = 15


def check_number(path: str, value: Any) -> list[FieldError]:
    return [] if is_port(value) else [invalid_value(path, value, PORT_RANGE)]


def check_protocol(path: str, value: str | None) -> list[FieldError]:
    if not value:
        return [required(path)]
    return [] if value in _PROTOCOLS else [not_supported(path, value, _PROTOCOLS)]


def iana_name_problems(value: str) -> list[str]:
    """RFC 6335 service names, which container ports and named target ports are."""
    problems = []
    if len(value) > _IANA_MAX:
        problems.append(f"must be no more than {_IANA_MAX} characters")
    if not re.fullmatch("[-a-z0-9]+", value):
        problems.append("must contain only alphanumeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", value):
        problems.append("must contain at least one letter (a-z)")
    if "--" in value:
        problems.append("must not contain consecutive hyphens")
    if value[:1] == "-" or value[-1:] == "-":
        problems.append("must not begin or end with a hyphen")
    return problems
