"""Roles and bindings by subject, derived from stored objects; and the decisions.

The key of a binding is (namespace, subject): "" for ClusterRoleBindings, which apply everywhere,
else the namespace of the RoleBinding. A decision looks up the role of a binding, so roles and
bindings may be created and deleted in any order. A binding to a missing role grants nothing, and
the refusal names the role.

The roles of a subject in one namespace are indexed by role (``_SubjectRoles``), however many
bindings name the role. So a decision checks each role once, and a write costs only its changes.

The order is by subject (the user first, then the groups as authenticated) and then by the binding's
name, so that equal requests get the same reason.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from sliceplane.api.errors import StatusError, forbidden, not_found, quote
from sliceplane.api.meta import Document
from sliceplane.api.scheme import (
    RBAC_GROUP,
    ClusterRoleBindings,
    ClusterRoles,
    Resource,
    RoleBindings,
    Roles,
)
from sliceplane.api.users import MASTERS, User
from sliceplane.server.registry.authorization.dependencies import Dependencies, identities
from sliceplane.server.registry.authorization.rules import PolicyRule, RoleRules
from sliceplane.server.registry.types import REFUSED, Attributes, Decision
from sliceplane.server.store.types import Key

RESOURCES = frozenset(
    resource.storage_key for resource in (Roles, ClusterRoles, RoleBindings, ClusterRoleBindings)
)
#: paths that every user may request: upstream's default of --authorization-always-allow-paths
_ALWAYS_ALLOWED = frozenset(("/healthz", "/livez", "/readyz"))
_ALLOWED = Decision(allowed=True)
#: maximum of missing roles in one refusal
ABSENT_ROLES_MAX = 8


class _Subject(msgspec.Struct, frozen=True, gc=False):
    """A subject with the members of the object.  *home*: the namespace of the binding."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    apiGroup: str = RBAC_GROUP  # noqa: N815  # the member's name

    def identity(self, home: str) -> str:
        """Returns ``u:NAME`` or ``g:NAME``; "" for any other subject."""
        if self.kind == "ServiceAccount":
            return f"u:system:serviceaccount:{self.namespace or home}:{self.name}"
        if self.apiGroup != RBAC_GROUP:
            return ""
        return (
            f"u:{self.name}"
            if self.kind == "User"
            else f"g:{self.name}"
            if self.kind == "Group"
            else ""
        )

    def describe(self, home: str) -> str:
        """Returns the subject as reasons name it."""
        is_account = self.kind == "ServiceAccount"
        return (
            f"{self.kind} "
            f"{quote(f'{self.name}/{self.namespace or home}' if is_account else self.name)}"
        )


_subjects_decoder = msgspec.json.Decoder(list[_Subject])


class _Binding(msgspec.Struct, frozen=True, eq=False):
    key: Key
    role: Key
    #: subjects by identity; if two have the same identity, the first counts
    subjects: Mapping[str, _Subject]
    #: the subjects as the object has them; ``None``: they were already decoded
    stored: bytes | None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Binding):
            return NotImplemented
        return (self.key, self.role, self.subjects) == (other.key, other.role, other.subjects)

    __hash__ = None  # type: ignore[assignment]

    def reason(self, identity: str) -> str:
        namespace = self.key.namespace
        name = self.key.name
        kind = "RoleBinding" if namespace else "ClusterRoleBinding"
        quoted = quote(f"{name}/{namespace}" if namespace else name)
        role = "Role" if self.role.resource == Roles.storage_key else "ClusterRole"
        to = self.subjects[identity].describe(namespace)
        return f"RBAC: allowed by {kind} {quoted} of {role} {quote(self.role.name)} to {to}"


#: namespace ("": cluster scope) -> rules, of one user
Rights = tuple[tuple[str, tuple[PolicyRule, ...]], ...]


@dataclass(slots=True)
class _SubjectRoles:
    """The roles of one subject in one namespace.  Owned by ``PolicyIndex``.

    ``shared``: subjects that have only one and the same binding share one immutable object.
    """

    #: the sorted names of the bindings of each role
    bindings: dict[Key, list[str]] = field(default_factory=dict)
    #: (first of these names, role), sorted
    roles: list[tuple[str, Key]] = field(default_factory=list)
    shared: bool = field(default=False, compare=False)

    def copy(self) -> _SubjectRoles:
        return _SubjectRoles(
            {role: list(names) for role, names in self.bindings.items()}, list(self.roles)
        )

    def add(self, role: Key, name: str) -> None:
        names = self.bindings.setdefault(role, [])
        if not names or name < names[0]:
            if names:
                self._remove_entry((names[0], role))
            insort(self.roles, (name, role))
        insort(names, name)

    def discard(self, role: Key, name: str) -> None:
        names = self.bindings[role]
        first = names[0]
        del names[bisect_left(names, name)]
        if not names:
            del self.bindings[role]
        if first == name:
            self._remove_entry((first, role))
            if names:
                insort(self.roles, (names[0], role))

    def _remove_entry(self, entry: tuple[str, Key]) -> None:
        del self.roles[bisect_left(self.roles, entry)]


class PolicyIndex:
    """Roles and bindings.  A ``server.registry.core.Follower``.  It invalidates in *dependencies*
    the identities that may have lost rights.
    """

    follows = RESOURCES

    def __init__(self, dependencies: Dependencies | None = None) -> None:
        self._dependencies = Dependencies() if dependencies is None else dependencies
        self._roles: dict[Key, RoleRules] = {}
        self._bindings: dict[Key, _Binding] = {}
        #: the bindings of each role, which need not exist
        self._bindings_by_role: dict[Key, dict[Key, None]] = {}
        #: by (namespace, identity)
        self._roles_by_subject: dict[tuple[str, str], _SubjectRoles] = {}
        #: comparisons of rules that were stopped as too costly, for metrics
        self.comparisons_aborted = 0

    # Updates

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._dependencies.invalidate_all()
        self._roles.clear()
        self._bindings.clear()
        self._bindings_by_role.clear()
        self._roles_by_subject.clear()
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        """Handles a new version of an object; ignores other kinds."""
        if key.resource not in RESOURCES:
            return
        if key.resource in (Roles.storage_key, ClusterRoles.storage_key):
            new = RoleRules(document)
            before = self._roles.get(key)
            if before is None or before != new:
                self._roles[key] = new
                if (
                    before is not None
                    and self._dependencies
                    and not set(before.rules) <= set(new.rules)
                ):
                    self._invalidate_bound_to(key)
            return
        role = role_key(document, key.namespace)
        listed = document.get("subjects", ())
        stored = bytes(listed) if isinstance(listed, msgspec.Raw) else None
        old = self._bindings.get(key)
        if old is not None and stored is not None and (old.role, old.stored) == (role, stored):
            return
        entries = (
            msgspec.convert(listed, list[_Subject])
            if stored is None
            else _subjects_decoder.decode(stored)
        )
        subjects = _by_identity(entries, key.namespace)
        if old is not None and (old.role, old.subjects) == (role, subjects):
            return
        self._unbind(key, kept=subjects if old is not None and old.role == role else {})
        self._bindings[key] = _Binding(key, role, subjects, stored)
        self._bindings_by_role.setdefault(role, {})[key] = None
        alone = _SubjectRoles({role: [key.name]}, [(key.name, role)], shared=True)
        by_subject = self._roles_by_subject
        for identity in subjects:
            at = (key.namespace, identity)
            subject_roles = by_subject.setdefault(at, alone)
            if subject_roles is not alone:
                if subject_roles.shared:
                    subject_roles = by_subject[at] = subject_roles.copy()
                subject_roles.add(role, key.name)

    def on_removed(self, key: Key) -> None:
        if key.resource not in RESOURCES:
            return
        if self._roles.pop(key, None) is not None:
            self._invalidate_bound_to(key)
        self._unbind(key)

    def _unbind(self, key: Key, kept: Mapping[str, _Subject] | None = None) -> None:
        """Removes a binding.  *kept*: the subjects of its next version, which lose nothing."""
        old = self._bindings.pop(key, None)
        if old is None:
            return
        others = self._bindings_by_role[old.role]
        del others[key]
        if not others:
            del self._bindings_by_role[old.role]
        for identity in old.subjects:
            subject_roles = self._roles_by_subject[key.namespace, identity]
            if not subject_roles.shared:
                subject_roles.discard(old.role, key.name)
            if subject_roles.shared or not subject_roles.roles:
                del self._roles_by_subject[key.namespace, identity]
        self._dependencies.invalidate(
            identity for identity in old.subjects if identity not in (kept or {})
        )

    def _invalidate_bound_to(self, role: Key) -> None:
        if self._dependencies:
            for key in self._bindings_by_role.get(role, ()):
                self._dependencies.invalidate(self._bindings[key].subjects)

    # Decisions

    def decide(self, user: User, attributes: Attributes) -> Decision:
        if MASTERS in user.groups:
            return _ALLOWED
        if not attributes.resource and attributes.path in _ALWAYS_ALLOWED:
            return _ALLOWED
        # A RoleBinding does not apply to URLs.
        namespace = attributes.namespace if attributes.resource else ""
        spellings = PolicyRule.resource_spellings(attributes)
        roles = self._roles
        absent: dict[Key, None] = {}
        for scope, identity, subject_roles in self._subject_roles_of(user, namespace):
            for name, role in subject_roles.roles:
                rules = roles.get(role)
                if rules is None:
                    absent[role] = None
                elif not rules.resources.isdisjoint(spellings) and rules.allow(
                    attributes, spellings
                ):
                    return Decision(
                        True, self._bindings[_binding_key(scope, name)].reason(identity)
                    )
        if not absent:
            return REFUSED
        return Decision(False, f"RBAC: {absence(tuple(islice(absent, ABSENT_ROLES_MAX)))}")

    def rules_for(self, user: User, namespace: str) -> tuple[PolicyRule, ...]:
        """Returns the distinct rules of *user* in *namespace* ("": only cluster scope)."""
        roles = dict.fromkeys(
            role
            for _, _, subject_roles in self._subject_roles_of(user, namespace)
            for _, role in subject_roles.roles
        )
        rules: dict[PolicyRule, None] = {}
        for role in roles:
            if role in self._roles:
                rules.update(dict.fromkeys(self._roles[role].rules))
        return tuple(rules)

    def rights(self, user: User) -> Rights:
        """Returns all rules of *user*, for cluster scope and each namespace with rules."""
        own = set(identities(user))
        scopes = {"", *(scope for scope, identity in self._roles_by_subject if identity in own)}
        return tuple((scope, self.rules_for(user, scope)) for scope in sorted(scopes))

    def role(self, key: Key) -> tuple[PolicyRule, ...] | None:
        """Returns the rules of a Role or ClusterRole, or ``None`` if it does not exist."""
        role = self._roles.get(key)
        return None if role is None else role.rules

    def absent_roles(self, user: User, namespace: str) -> tuple[Key, ...]:
        """Returns missing roles that bindings of *user* name, at most ``ABSENT_ROLES_MAX``."""
        absent = (
            role
            for _, _, subject_roles in self._subject_roles_of(user, namespace)
            for _, role in subject_roles.roles
            if role not in self._roles
        )
        return tuple(islice(dict.fromkeys(absent), ABSENT_ROLES_MAX))

    def _subject_roles_of(
        self, user: User, namespace: str
    ) -> Iterator[tuple[str, str, _SubjectRoles]]:
        for scope in ("", namespace) if namespace else ("",):
            for identity in identities(user):
                subject_roles = self._roles_by_subject.get((scope, identity))
                if subject_roles is not None:
                    yield scope, identity, subject_roles

    def check(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """Asserts that the index equals one built from *objects* (all of RBAC)."""
        fresh = PolicyIndex()
        for key, document in objects:
            fresh.on_stored(key, document)
        for member in ("_roles", "_bindings", "_bindings_by_role", "_roles_by_subject"):
            mine = getattr(self, member)
            theirs = getattr(fresh, member)
            assert mine == theirs, f"{member} is {mine}, stored objects say {theirs}"


def absence(absent: tuple[Key, ...]) -> str:
    """Returns the text of a decision about missing roles; "" if there are none."""
    return _aggregate(
        [not_found(_of(key).singular, RBAC_GROUP, key.name).message for key in absent]
    )


def resolution_errors(absent: tuple[Key, ...]) -> str:
    """Returns the text of a refused grant about missing roles.  As upstream reads storage there, it
    has the kind in the plural.
    """
    return _aggregate([not_found(_of(key).plural, RBAC_GROUP, key.name).message for key in absent])


def _of(role: Key) -> Resource:
    return Roles if role.resource == Roles.storage_key else ClusterRoles


def _aggregate(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""


def _binding_key(scope: str, name: str) -> Key:
    return Key(RoleBindings.storage_key if scope else ClusterRoleBindings.storage_key, scope, name)


def role_key(binding: Document, namespace: str) -> Key:
    """Returns the key of the role of a RoleBinding in *namespace*, or of a ClusterRoleBinding."""
    reference = binding.get("roleRef", {})
    if reference.get("kind") == "Role":
        return Key(Roles.storage_key, namespace, reference.get("name", ""))
    return Key(ClusterRoles.storage_key, "", reference.get("name", ""))


def _by_identity(entries: Iterable[_Subject], home: str) -> dict[str, _Subject]:
    subjects: dict[str, _Subject] = {}
    for subject in entries:
        subjects.setdefault(subject.identity(home), subject)
    return subjects


#: escapes markup, in case the message is ever rendered as HTML
_NO_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def require(policy: PolicyIndex, user: User, attributes: Attributes) -> None:
    """Raises the 403 ``StatusError`` unless *user* may perform the action *attributes*."""
    decision = policy.decide(user, attributes)
    if not decision.allowed:
        raise refusal(user, attributes, decision.reason)


def refusal(user: User, attributes: Attributes, reason: str = "") -> StatusError:
    """Returns the 403 of a request that no rule allows, with upstream's text
    (staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go).

    *reason* is that of the decision: bindings to missing roles."""
    cannot = f"User {quote(user.name)} cannot {attributes.verb}"
    more = f": {reason}" if reason else ""
    if not attributes.resource:
        why = f"{cannot} path {quote(attributes.path)}".translate(_NO_MARKUP)
        return StatusError(403, "Forbidden", f"forbidden: {why}{more}", {})
    where = (
        f"in the namespace {quote(attributes.namespace)}"
        if attributes.namespace
        else "at the cluster scope"
    )
    why = (
        f"{cannot} resource {quote(attributes.combined_resource)} in API group {quote(attributes.group)} "
        f"{where}"
    )
    return forbidden(
        attributes.resource, attributes.group, attributes.name, why.translate(_NO_MARKUP) + more
    )
