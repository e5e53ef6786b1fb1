"""Name rules of RFC 1123 as Kubernetes applies them, with the sentences that it answers.

Each ``check_*`` returns the complaints about a value, none if it is good. The sentences are
wire-visible and therefore exact
(``staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go``).
"""

from __future__ import annotations

import re

from sliceplane.kit.ip import parse_strict

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_SEARCH_LABEL = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH = rf"{_SEARCH_LABEL}(\.{_SEARCH_LABEL})*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = rf"({_QUALIFIED})?"

_LABEL_RE = re.compile(_LABEL)
_SUBDOMAIN_RE = re.compile(_SUBDOMAIN)
_SEARCH_RE = re.compile(_SEARCH)
_QUALIFIED_RE = re.compile(_QUALIFIED)
_LABEL_VALUE_RE = re.compile(_LABEL_VALUE)

LABEL_MAX = 63
SUBDOMAIN_MAX = 253


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} bytes"


def check_dns_label(value: str) -> tuple[str, ...]:
    """RFC 1123 label: a Namespace, a Service, a port name, a host name."""
    problems = []
    if len(value) > LABEL_MAX:
        problems.append(_too_long(LABEL_MAX))
    if _SUBDOMAIN_RE.fullmatch(value) and "." in value:
        problems.append("must not contain dots")
    elif not _LABEL_RE.fullmatch(value):
        problems.append(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or "
            "'-', and must start and "
            "end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for "
            "validation is "
            f"'{_LABEL}')"
        )
    return tuple(problems)


def check_dns_subdomain(value: str) -> tuple[str, ...]:
    """RFC 1123 subdomain: most object names."""
    problems = []
    if len(value) > SUBDOMAIN_MAX:
        problems.append(_too_long(SUBDOMAIN_MAX))
    if not _SUBDOMAIN_RE.fullmatch(value):
        problems.append(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
            "'-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for "
            "validation is "
            f"'{_LABEL}(\\.{_LABEL})*')"
        )
    return tuple(problems)


def check_dns_search(value: str) -> tuple[str, ...]:
    """A subdomain with underscores: a search path of a resolver."""
    problems = [_too_long(SUBDOMAIN_MAX)] if len(value) > SUBDOMAIN_MAX else []
    if not _SEARCH_RE.fullmatch(value):
        problems.append(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
            "'_', '-' or '.', and "
            "must start and end with an alphanumeric character (e.g. 'example.com', regex used "
            "for validation is "
            f"'{_SEARCH}')"
        )
    return tuple(problems)


def check_ip_name(value: str) -> tuple[str, ...]:
    """A name that is an IP address in its one canonical spelling: an IPAddress object."""
    address = parse_strict(value)
    if address is None:
        return ("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",)
    return () if str(address) == value else (f'must be in canonical form ("{address}")',)


def check_qualified_name(value: str) -> tuple[str, ...]:
    """An optional DNS subdomain prefix, a slash, a name: label and annotation keys, appProtocol."""
    problems: list[str] = []
    shape = (
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and "
        "end with an "
        "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
        "validation is "
        f"'{_QUALIFIED}')"
    )
    parts = value.split("/")
    if len(parts) > 2:
        shape = shape.replace("name part must", "a qualified name must")
        return (
            f"{shape} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
        )
    if len(parts) == 2:
        prefix = parts[0]
        if not prefix:
            problems.append("prefix part must be non-empty")
        else:
            problems.extend(f"prefix part {complaint}" for complaint in check_dns_subdomain(prefix))
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > LABEL_MAX:
        problems.append(f"name part {_too_long(LABEL_MAX)}")
    if not _QUALIFIED_RE.fullmatch(name):
        problems.append(shape)
    return tuple(problems)


def is_domain_qualified(value: str) -> bool:
    """``domain/Name``: a qualified name with its prefix, such as that of a heuristic."""
    return "/" in value and not check_qualified_name(value)


def check_label_value(value: str) -> tuple[str, ...]:
    problems = []
    if len(value) > LABEL_MAX:
        problems.append(_too_long(LABEL_MAX))
    if not _LABEL_VALUE_RE.fullmatch(value):
        problems.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', "
            "'_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
            "'12345', regex used for "
            f"validation is '{_LABEL_VALUE}')"
        )
    return tuple(problems)


GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
GENERATED_SUFFIX_LENGTH = 5
GENERATED_BASE_MAX = 58


def check_path_segment(value: str) -> tuple[str, ...]:
    """A name that may be anything which is one segment of a URL path (RBAC objects)."""
    if value in (".", ".."):
        return (f"may not be '{value}'",)
    return tuple(f"may not contain '{mark}'" for mark in "/%" if mark in value)
