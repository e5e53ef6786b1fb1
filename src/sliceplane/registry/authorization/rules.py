"""One PolicyRule, compiled once: what it allows, and whether it covers another rule (reference B17).

A rule speaks of resources (groups x resources x verbs, perhaps of certain names) or of non-resource URLs, never
of both.  ``*`` stands for everything; ``*/status`` for that subresource of everything; a URL that ends in ``*``
for everything below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sliceplane.api.errors import show
from sliceplane.api.meta import Document
from sliceplane.registry.authorization.types import Attributes

ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The members as they are spelled in the object, in its order."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, wanted: Attributes) -> bool:
        if ALL not in self.verbs and wanted.verb not in self.verbs:
            return False
        if not wanted.resource:
            return any(_url_covers(url, wanted.path) for url in self.urls)
        return (
            (ALL in self.groups or wanted.group in self.groups)
            and self._has_resource(wanted.combined_resource)
            # A request without a name (create, deletecollection, most lists) fits no rule that names objects.
            and (not self.names or wanted.name in self.names)
        )

    def covers(self, atom: Rule) -> bool:
        """Whether this rule alone grants all that *atom* (a rule from ``atoms``) does."""
        if ALL not in self.verbs and atom.verbs[0] not in self.verbs:
            return False
        if atom.urls:
            return any(_url_covers(url, atom.urls[0]) for url in self.urls)
        return (
            (ALL in self.groups or atom.groups[0] in self.groups)
            and self._has_resource(atom.resources[0])
            and (not self.names or (bool(atom.names) and atom.names[0] in self.names))
        )

    def atoms(self) -> Iterator[Rule]:
        """The rule as rules of one verb on one resource (of one name), or of one verb on one URL."""
        names: tuple[tuple[str, ...], ...] = tuple((name,) for name in self.names) or ((),)
        for group in self.groups:
            for resource in self.resources:
                for verb in self.verbs:
                    for name in names:
                        yield Rule(verbs=(verb,), groups=(group,), resources=(resource,), names=name)
        for url in self.urls:
            for verb in self.verbs:
                yield Rule(verbs=(verb,), urls=(url,))

    def _has_resource(self, combined: str) -> bool:
        if ALL in self.resources or combined in self.resources:
            return True
        _, slash, subresource = combined.partition("/")
        return bool(slash) and f"*/{subresource}" in self.resources

    def __str__(self) -> str:
        """As upstream shows a rule in its refusals; a Go list of strings has spaces between its items."""
        members = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("ResourceNames", self.names),
            ("NonResourceURLs", self.urls),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{name}:{go_list(values)}" for name, values in members if values) + "}"


def go_list(values: Iterable[str]) -> str:
    """``["a" "b"]``."""
    return "[" + " ".join(show(value) for value in values) + "]"


def rules_of(document: Document) -> tuple[Rule, ...]:
    """The rules of a Role or ClusterRole."""
    return tuple(
        Rule(
            verbs=tuple(rule.get("verbs", ())),
            groups=tuple(rule.get("apiGroups", ())),
            resources=tuple(rule.get("resources", ())),
            names=tuple(rule.get("resourceNames", ())),
            urls=tuple(rule.get("nonResourceURLs", ())),
        )
        for rule in document.get("rules", ())
    )


def document_of_rule(rule: Rule) -> Document:
    """The PolicyRule, without empty members."""
    members = {
        "verbs": rule.verbs,
        "apiGroups": rule.groups,
        "resources": rule.resources,
        "resourceNames": rule.names,
        "nonResourceURLs": rule.urls,
    }
    return {name: list(values) for name, values in members.items() if values}


def uncovered(held: Iterable[Rule], wanted: Iterable[Rule]) -> tuple[Rule, ...]:
    """What *wanted* grants and *held* does not, with the verbs of one resource or URL together, sorted as shown."""
    owned = tuple(held)
    verbs: dict[Rule, dict[str, None]] = {}
    for rule in wanted:
        for atom in rule.atoms():
            if not any(mine.covers(atom) for mine in owned):
                verbs.setdefault(replace(atom, verbs=()), {})[atom.verbs[0]] = None
    return tuple(sorted((replace(atom, verbs=tuple(found)) for atom, found in verbs.items()), key=str))


def _url_covers(pattern: str, path: str) -> bool:
    if pattern.endswith(ALL):
        return path.startswith(pattern[:-1])
    return pattern == path
