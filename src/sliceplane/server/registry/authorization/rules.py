"""One PolicyRule, compiled once, and the actions that it allows (``coverage`` compares rules).

A rule is about resources (groups x resources x verbs, optionally certain names) or about
non-resource URLs, never about both. ``*`` stands for everything; ``*/status`` for that subresource
of everything; a URL that ends in ``*`` for all URLs with this prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sliceplane.api.errors import quote
from sliceplane.api.meta import Document
from sliceplane.server.registry.types import Attributes

ALL = "*"
#: maximum bytes of rules that are decoded and indexed when their role is stored
EAGER_INDEX_BYTES_MAX = 64 * 1024
_NO_RESOURCE = frozenset(("",))


class PolicyRule(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"groups": "apiGroups", "names": "resourceNames", "urls": "nonResourceURLs"},
):
    """A rule with the members of the object, in its order."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, attributes: Attributes) -> bool:
        if not attributes.resource:
            return self.allows_verb(attributes.verb) and any(
                _url_matches(url, attributes.path) for url in self.urls
            )
        return not self.resource_spellings(attributes).isdisjoint(
            self.resources
        ) and self.allows_on_resource(attributes)

    def allows_verb(self, verb: str) -> bool:
        return verb in self.verbs or ALL in self.verbs

    def allows_on_resource(self, attributes: Attributes) -> bool:
        """Returns True if the rule, which has the resource, allows the request."""
        return (
            self.allows_verb(attributes.verb)
            and (attributes.group in self.groups or ALL in self.groups)
            # A request without a name (create, deletecollection, most lists) matches no rule with
            # resource names.
            and (not self.names or attributes.name in self.names)
        )

    @staticmethod
    def resource_spellings(attributes: Attributes) -> frozenset[str]:
        """Returns the spellings of the requested resource in a rule; "" for a URL."""
        if not attributes.resource:
            return _NO_RESOURCE
        combined = attributes.combined_resource
        return frozenset((ALL, combined, subresource_of_all(combined) or combined))

    def __str__(self) -> str:
        """The rule as in upstream's refusals; a Go list of strings has spaces between its items."""
        members = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("ResourceNames", self.names),
            ("NonResourceURLs", self.urls),
            ("Verbs", self.verbs),
        )
        return (
            "{" + ", ".join(f"{name}:{go_list(values)}" for name, values in members if values) + "}"
        )


def go_list(values: Iterable[str]) -> str:
    """Formats a list of strings as Go does: ``["a" "b"]``."""
    return "[" + " ".join(quote(value) for value in values) + "]"


class _StoredRole(msgspec.Struct):
    metadata: Document
    rules: msgspec.Raw = msgspec.Raw(b"[]")
    aggregationRule: Document | None = None  # noqa: N815  # the member's name


_stored_role_decoder = msgspec.json.Decoder(_StoredRole)
_rules_decoder = msgspec.json.Decoder(tuple[PolicyRule, ...])


def decode_role(body: bytes) -> Document:
    """Decodes a stored Role or ClusterRole for indexes. ``rules`` stay encoded: to decode those of
    a role of megabytes takes longer than a step of the event loop may.
    """
    role = _stored_role_decoder.decode(body)
    return {"metadata": role.metadata, "rules": role.rules, "aggregationRule": role.aggregationRule}


class _StoredBinding(msgspec.Struct):
    metadata: Document
    roleRef: Document  # noqa: N815  # the member's name
    subjects: msgspec.Raw = msgspec.Raw(b"[]")


_stored_binding_decoder = msgspec.json.Decoder(_StoredBinding)


def decode_binding(body: bytes) -> Document:
    """Decodes a stored RoleBinding or ClusterRoleBinding for indexes; ``subjects`` stay encoded."""
    binding = _stored_binding_decoder.decode(body)
    return {"metadata": binding.metadata, "roleRef": binding.roleRef, "subjects": binding.subjects}


def rules_of(document: Document) -> tuple[PolicyRule, ...]:
    """Returns the rules of a Role or ClusterRole."""
    rules = document.get("rules", ())
    if isinstance(rules, msgspec.Raw):
        return _rules_decoder.decode(rules)
    if isinstance(rules, tuple):
        return rules
    return tuple(
        PolicyRule(
            verbs=tuple(rule.get("verbs", ())),
            groups=tuple(rule.get("apiGroups", ())),
            resources=tuple(rule.get("resources", ())),
            names=tuple(rule.get("resourceNames", ())),
            urls=tuple(rule.get("nonResourceURLs", ())),
        )
        for rule in rules
    )


def size_of(rules: Iterable[PolicyRule]) -> int:
    """Returns the approximate number of characters of *rules* in an object."""
    sides = (
        side
        for rule in rules
        for side in (rule.verbs, rule.groups, rule.resources, rule.names, rule.urls)
    )
    return sum(16 + 3 * len(side) + sum(map(len, side)) for side in sides if side)


def document_of_rule(rule: PolicyRule) -> Document:
    """Returns the PolicyRule as a document, without empty members."""
    members = {
        "verbs": rule.verbs,
        "apiGroups": rule.groups,
        "resources": rule.resources,
        "resourceNames": rule.names,
        "nonResourceURLs": rule.urls,
    }
    return {name: list(values) for name, values in members.items() if values}


class RoleRules:
    """The rules of one role, indexed by resource: a decision checks only those of its resource.
    Frozen.

    The first decision that needs a large role decodes and indexes it, so that storing and indexing
    are two steps.
    """

    __slots__ = ("_by_resource", "_on_urls", "_stored", "resources", "rules")

    def __init__(self, document: Document) -> None:
        rules = document.get("rules")
        #: the rules as the object has them; ``None``: they were already decoded
        self._stored: bytes | None = bytes(rules) if isinstance(rules, msgspec.Raw) else None
        if self._stored is None or len(self._stored) <= EAGER_INDEX_BYTES_MAX:
            self.rules = rules_of(document)
            self._index()

    def __getattr__(self, name: str) -> Any:
        if name not in ("_by_resource", "_on_urls", "resources", "rules"):
            raise AttributeError(name)
        assert self._stored is not None, "decoded when it was stored"
        self.rules = _rules_decoder.decode(self._stored)
        self._index()
        return getattr(self, name)

    def _index(self) -> None:
        rules = self.rules
        self._on_urls = tuple(rule for rule in rules if rule.urls)
        by_resource: dict[str, list[PolicyRule]] = {}
        for rule in rules:
            for resource in rule.resources:
                if resource in by_resource:
                    by_resource[resource].append(rule)
                else:
                    by_resource[resource] = [rule]
        self._by_resource = by_resource
        #: resources as the rules spell them; "" for rules about URLs
        self.resources = by_resource.keys() | ({""} if self._on_urls else set())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RoleRules):
            return NotImplemented
        if self._stored is not None and self._stored == other._stored:
            return True
        return self.rules == other.rules

    __hash__ = None  # type: ignore[assignment]

    def allow(self, attributes: Attributes, spellings: frozenset[str]) -> bool:
        """Returns True if a rule allows the action.  *spellings*: the result of
        ``PolicyRule.resource_spellings``, which is the same for all roles.
        """
        if not attributes.resource:
            return any(rule.allows(attributes) for rule in self._on_urls)
        by_resource = self._by_resource
        return any(
            rule.allows_on_resource(attributes)
            for resource in spellings
            if resource in by_resource
            for rule in by_resource[resource]
        )


def subresource_of_all(combined: str) -> str:
    """Returns the spelling of a subresource of everything in a rule, ``*/status`` for
    ``pods/status``; "" if it is not a subresource.
    """
    _, slash, subresource = combined.partition("/")
    return f"*/{subresource}" if slash else ""


def url_prefix(pattern: str) -> str | None:
    """Returns the prefix of the URLs that match *pattern*; ``None`` if it is an exact URL."""
    return pattern.rstrip(ALL) if pattern.endswith(ALL) else None


def _url_matches(pattern: str, path: str) -> bool:
    prefix = url_prefix(pattern)
    return pattern == path or (prefix is not None and path.startswith(prefix))
