"""Roles and bindings by subject, kept up to date from stored objects; and the decisions (reference B17).

A binding is found by (namespace, subject): "" for ClusterRoleBindings, which count everywhere, else the namespace of
the RoleBinding.  A role is looked up when a binding leads to it, so that roles and bindings may come and go in any
order; a binding to a role that is missing grants nothing.

Order is by subject (the user first, then the groups as authenticated) and then by the binding's name, so that the
reason given is always the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sliceplane.api.errors import show
from sliceplane.api.meta import Document
from sliceplane.api.scheme import RBAC_GROUP, ClusterRoleBindings, ClusterRoles, RoleBindings, Roles
from sliceplane.registry.authorization.rules import Rule, rules_of
from sliceplane.registry.authorization.types import MASTERS, REFUSED, Attributes, Decision
from sliceplane.registry.types import User
from sliceplane.store.types import Key

RESOURCES = frozenset(each.storage_key for each in (Roles, ClusterRoles, RoleBindings, ClusterRoleBindings))
#: what everybody may ask, with any method: upstream's default of --authorization-always-allow-paths
_ALWAYS_ALLOWED = frozenset(("/healthz", "/livez", "/readyz"))
_ALLOWED = Decision(allowed=True)


@dataclass(frozen=True, slots=True)
class _Subject:
    """``identity`` is ``u:NAME`` or ``g:NAME``; ``shown`` is how reasons name it."""

    identity: str
    shown: str


@dataclass(frozen=True, slots=True)
class _Binding:
    key: Key
    role: Key
    subjects: tuple[_Subject, ...]

    def reason(self, subject: _Subject) -> str:
        namespace, name = self.key.namespace, self.key.name
        kind = "RoleBinding" if namespace else "ClusterRoleBinding"
        shown = show(f"{name}/{namespace}" if namespace else name)
        role = "Role" if self.role.resource == Roles.storage_key else "ClusterRole"
        return f"RBAC: allowed by {kind} {shown} of {role} {show(self.role.name)} to {subject.shown}"


class PolicyIndex:
    """Owned by ``registry.core.Core``, which tells it of every write; one caller at a time."""

    def __init__(self) -> None:
        self._roles: dict[Key, tuple[Rule, ...]] = {}
        self._bindings: dict[Key, _Binding] = {}
        #: (namespace, identity) to the bindings with that subject, by name
        self._by_subject: dict[tuple[str, str], tuple[_Binding, ...]] = {}

    # Keeping up

    def reset(self) -> None:
        self._roles.clear()
        self._bindings.clear()
        self._by_subject.clear()

    def on_stored(self, key: Key, document: Document) -> None:
        """A new version of an object of any kind; other kinds are passed over."""
        if key.resource not in RESOURCES:
            return
        if key.resource in (Roles.storage_key, ClusterRoles.storage_key):
            self._roles[key] = rules_of(document)
            return
        self._unbind(key)
        subjects = tuple(_subject(subject, key.namespace) for subject in document.get("subjects", ()))
        binding = _Binding(key, role_key(document, key.namespace), subjects)
        self._bindings[key] = binding
        for identity in {subject.identity for subject in subjects}:
            place = (key.namespace, identity)
            others = self._by_subject.get(place, ())
            self._by_subject[place] = tuple(sorted((*others, binding), key=lambda each: each.key.name))

    def on_removed(self, key: Key) -> None:
        if key.resource not in RESOURCES:
            return
        self._roles.pop(key, None)
        self._unbind(key)

    def _unbind(self, key: Key) -> None:
        old = self._bindings.pop(key, None)
        for identity in {subject.identity for subject in old.subjects} if old else ():
            place = (key.namespace, identity)
            left = tuple(binding for binding in self._by_subject[place] if binding.key != key)
            if left:
                self._by_subject[place] = left
            else:
                del self._by_subject[place]

    # Deciding

    def decide(self, user: User, wanted: Attributes) -> Decision:
        if MASTERS in user.groups:
            return _ALLOWED
        if not wanted.resource and wanted.path in _ALWAYS_ALLOWED:
            return _ALLOWED
        # A rule in a namespace says nothing of URLs.
        namespace = wanted.namespace if wanted.resource else ""
        for binding, identity in self._bindings_of(user, namespace):
            for rule in self._roles.get(binding.role, ()):
                if rule.allows(wanted):
                    subject = next(each for each in binding.subjects if each.identity == identity)
                    return Decision(True, binding.reason(subject))
        return REFUSED

    def rules_for(self, user: User, namespace: str) -> tuple[Rule, ...]:
        """All rules that count for *user* in *namespace* ("": cluster scope alone), each once."""
        found: dict[Rule, None] = {}
        for binding, _ in self._bindings_of(user, namespace):
            found.update(dict.fromkeys(self._roles.get(binding.role, ())))
        return tuple(found)

    def role(self, key: Key) -> tuple[Rule, ...] | None:
        """The rules of a Role or ClusterRole; ``None`` if there is none of that name."""
        return self._roles.get(key)

    def _bindings_of(self, user: User, namespace: str) -> Iterator[tuple[_Binding, str]]:
        identities = (f"u:{user.name}", *(f"g:{group}" for group in user.groups))
        for scope in ("", namespace) if namespace else ("",):
            for identity in identities:
                for binding in self._by_subject.get((scope, identity), ()):
                    yield binding, identity

    def check(self, stored: Iterable[tuple[Key, Document]]) -> None:
        """The index is what one made from *stored* (all RBAC objects) would be."""
        fresh = PolicyIndex()
        for key, document in stored:
            fresh.on_stored(key, document)
        for member in ("_roles", "_bindings", "_by_subject"):
            mine, theirs = getattr(self, member), getattr(fresh, member)
            assert mine == theirs, f"{member} is {mine}, stored objects say {theirs}"


def role_key(binding: Document, namespace: str) -> Key:
    """Where the role of a RoleBinding in *namespace*, or of a ClusterRoleBinding, is stored."""
    reference = binding.get("roleRef", {})
    if reference.get("kind") == "Role":
        return Key(Roles.storage_key, namespace, reference.get("name", ""))
    return Key(ClusterRoles.storage_key, "", reference.get("name", ""))


def _subject(subject: Document, namespace: str) -> _Subject:
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind == "ServiceAccount":
        home = subject.get("namespace") or namespace
        return _Subject(f"u:system:serviceaccount:{home}:{name}", f"ServiceAccount {show(f'{name}/{home}')}")
    if subject.get("apiGroup", RBAC_GROUP) != RBAC_GROUP or kind not in ("User", "Group"):
        return _Subject("", "")
    return _Subject(f"{kind[0].lower()}:{name}", f"{kind} {show(name)}")
