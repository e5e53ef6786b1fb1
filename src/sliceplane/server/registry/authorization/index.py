"""Roles and bindings by subject, kept up to date from stored objects; and the decisions.

A binding is found by (namespace, subject): "" for ClusterRoleBindings, which count everywhere, else
the namespace of the RoleBinding. A role is looked up when a binding leads to it, so that roles and
bindings may come and go in any order; a binding to a role that is missing grants nothing, and a
refusal tells of it.

What a subject has in one place is kept by role (``_Place``), however many bindings lead to the
role: a decision asks each role once, a write costs what it changes.

Order is by subject (the user first, then the groups as authenticated) and then by the binding's
name, so that the reason given is always the same one.
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
from sliceplane.server.registry.authorization.rules import PolicyRule, RoleRules
from sliceplane.server.registry.authorization.standing import Standing, identities
from sliceplane.server.registry.types import REFUSED, Attributes, Decision
from sliceplane.server.store.types import Key

RESOURCES = frozenset(
    resource.storage_key for resource in (Roles, ClusterRoles, RoleBindings, ClusterRoleBindings)
)
#: what everybody may ask, with any method: upstream's default of --authorization-always-allow-paths
_ALWAYS_ALLOWED = frozenset(("/healthz", "/livez", "/readyz"))
_ALLOWED = Decision(allowed=True)
#: how many roles that do not exist one refusal names
ABSENT_ROLES_MAX = 8


class _Subject(msgspec.Struct, frozen=True, gc=False):
    """The members as they are spelled in the object.  *home*: the namespace of the binding."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    apiGroup: str = RBAC_GROUP  # noqa: N815  # the member's name

    def identity(self, home: str) -> str:
        """``u:NAME`` or ``g:NAME``; "" for what is neither."""
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

    def shown(self, home: str) -> str:
        """The subject as reasons name it."""
        is_account = self.kind == "ServiceAccount"
        return (
            f"{self.kind} "
            f"{quote(f'{self.name}/{self.namespace or home}' if is_account else self.name)}"
        )


_subjects_decoder = msgspec.json.Decoder(list[_Subject])


class _Binding(msgspec.Struct, frozen=True, eq=False):
    key: Key
    role: Key
    #: by identity; of two spellings of one subject the first is shown
    subjects: Mapping[str, _Subject]
    #: the same as the object has them; ``None``: they came decoded
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
        shown = quote(f"{name}/{namespace}" if namespace else name)
        role = "Role" if self.role.resource == Roles.storage_key else "ClusterRole"
        to = self.subjects[identity].shown(namespace)
        return f"RBAC: allowed by {kind} {shown} of {role} {quote(self.role.name)} to {to}"


#: namespace ("": cluster scope) -> rules, of one user
Rights = tuple[tuple[str, tuple[PolicyRule, ...]], ...]


@dataclass(slots=True)
class _Place:
    """The roles that one subject has in one namespace.  Owned by ``PolicyIndex``.

    ``shared``: the subjects of a binding that have nothing else have one place together, which is
    not changed.
    """

    #: the names of the bindings that lead to a role, sorted
    bindings: dict[Key, list[str]] = field(default_factory=dict)
    #: (first of these names, role), sorted
    roles: list[tuple[str, Key]] = field(default_factory=list)
    shared: bool = field(default=False, compare=False)

    def copy(self) -> _Place:
        return _Place(
            {role: list(names) for role, names in self.bindings.items()}, list(self.roles)
        )

    def add(self, role: Key, name: str) -> None:
        names = self.bindings.setdefault(role, [])
        if not names or name < names[0]:
            if names:
                self._leave((names[0], role))
            insort(self.roles, (name, role))
        insort(names, name)

    def discard(self, role: Key, name: str) -> None:
        names = self.bindings[role]
        first = names[0]
        del names[bisect_left(names, name)]
        if not names:
            del self.bindings[role]
        if first == name:
            self._leave((first, role))
            if names:
                insort(self.roles, (names[0], role))

    def _leave(self, entry: tuple[str, Key]) -> None:
        del self.roles[bisect_left(self.roles, entry)]


class PolicyIndex:
    """A ``server.registry.core.Follower``.  ``standing`` learns whose rights may have become
    fewer.
    """

    follows = RESOURCES

    def __init__(self, standing: Standing | None = None) -> None:
        self._standing = Standing() if standing is None else standing
        self._roles: dict[Key, RoleRules] = {}
        self._bindings: dict[Key, _Binding] = {}
        #: the bindings that lead to a role, which need not exist
        self._led_by: dict[Key, dict[Key, None]] = {}
        #: by (namespace, identity)
        self._places: dict[tuple[str, str], _Place] = {}
        #: comparisons of rules that were given up, for metrics
        self.given_up = 0

    # Keeping up

    def rebuild(self, objects: Iterable[tuple[Key, Document]]) -> None:
        self._standing.doubt_all()
        self._roles.clear()
        self._bindings.clear()
        self._led_by.clear()
        self._places.clear()
        for key, document in objects:
            self.on_stored(key, document)

    def on_stored(self, key: Key, document: Document) -> None:
        """A new version of an object of any kind; other kinds are passed over."""
        if key.resource not in RESOURCES:
            return
        if key.resource in (Roles.storage_key, ClusterRoles.storage_key):
            made = RoleRules(document)
            before = self._roles.get(key)
            if before is None or before != made:
                self._roles[key] = made
                if (
                    before is not None
                    and self._standing
                    and not set(before.rules) <= set(made.rules)
                ):
                    self._doubt_led_by(key)
            return
        role = role_key(document, key.namespace)
        listed = document.get("subjects", ())
        stored = bytes(listed) if isinstance(listed, msgspec.Raw) else None
        old = self._bindings.get(key)
        if old is not None and stored is not None and (old.role, old.stored) == (role, stored):
            return
        found = (
            msgspec.convert(listed, list[_Subject])
            if stored is None
            else _subjects_decoder.decode(stored)
        )
        subjects = _by_identity(found, key.namespace)
        if old is not None and (old.role, old.subjects) == (role, subjects):
            return
        self._unbind(key, kept=subjects if old is not None and old.role == role else {})
        self._bindings[key] = _Binding(key, role, subjects, stored)
        self._led_by.setdefault(role, {})[key] = None
        alone = _Place({role: [key.name]}, [(key.name, role)], shared=True)
        places = self._places
        for identity in subjects:
            at = (key.namespace, identity)
            place = places.setdefault(at, alone)
            if place is not alone:
                if place.shared:
                    place = places[at] = place.copy()
                place.add(role, key.name)

    def on_removed(self, key: Key) -> None:
        if key.resource not in RESOURCES:
            return
        if self._roles.pop(key, None) is not None:
            self._doubt_led_by(key)
        self._unbind(key)

    def _unbind(self, key: Key, kept: Mapping[str, _Subject] | None = None) -> None:
        """*kept*: who is in the next version, too, and loses nothing."""
        old = self._bindings.pop(key, None)
        if old is None:
            return
        others = self._led_by[old.role]
        del others[key]
        if not others:
            del self._led_by[old.role]
        for identity in old.subjects:
            place = self._places[key.namespace, identity]
            if not place.shared:
                place.discard(old.role, key.name)
            if place.shared or not place.roles:
                del self._places[key.namespace, identity]
        self._standing.doubt(identity for identity in old.subjects if identity not in (kept or {}))

    def _doubt_led_by(self, role: Key) -> None:
        if self._standing:
            for key in self._led_by.get(role, ()):
                self._standing.doubt(self._bindings[key].subjects)

    # Deciding

    def decide(self, user: User, wanted: Attributes) -> Decision:
        if MASTERS in user.groups:
            return _ALLOWED
        if not wanted.resource and wanted.path in _ALWAYS_ALLOWED:
            return _ALLOWED
        # A rule in a namespace says nothing of URLs.
        namespace = wanted.namespace if wanted.resource else ""
        spoken = PolicyRule.spoken_resources(wanted)
        roles = self._roles
        absent: dict[Key, None] = {}
        for scope, identity, place in self._places_of(user, namespace):
            for name, role in place.roles:
                rules = roles.get(role)
                if rules is None:
                    absent[role] = None
                elif not rules.resources.isdisjoint(spoken) and rules.allow(wanted, spoken):
                    return Decision(
                        True, self._bindings[_binding_key(scope, name)].reason(identity)
                    )
        if not absent:
            return REFUSED
        return Decision(False, f"RBAC: {absence(tuple(islice(absent, ABSENT_ROLES_MAX)))}")

    def rules_for(self, user: User, namespace: str) -> tuple[PolicyRule, ...]:
        """All rules that count for *user* in *namespace* ("": cluster scope alone), each once."""
        roles = dict.fromkeys(
            role for _, _, place in self._places_of(user, namespace) for _, role in place.roles
        )
        found: dict[PolicyRule, None] = {}
        for role in roles:
            if role in self._roles:
                found.update(dict.fromkeys(self._roles[role].rules))
        return tuple(found)

    def rights(self, user: User) -> Rights:
        """Returns all rules that count for *user*, for each namespace in which there are some and
        for cluster scope.
        """
        known = set(identities(user))
        scopes = {"", *(scope for scope, identity in self._places if identity in known)}
        return tuple((scope, self.rules_for(user, scope)) for scope in sorted(scopes))

    def role(self, key: Key) -> tuple[PolicyRule, ...] | None:
        """The rules of a Role or ClusterRole; ``None`` if there is none of that name."""
        role = self._roles.get(key)
        return None if role is None else role.rules

    def absent_roles(self, user: User, namespace: str) -> tuple[Key, ...]:
        """Roles that do not exist and that a binding of *user* leads to: some of them, if they are
        very many.
        """
        absent = (
            role
            for _, _, place in self._places_of(user, namespace)
            for _, role in place.roles
            if role not in self._roles
        )
        return tuple(islice(dict.fromkeys(absent), ABSENT_ROLES_MAX))

    def _places_of(self, user: User, namespace: str) -> Iterator[tuple[str, str, _Place]]:
        for scope in ("", namespace) if namespace else ("",):
            for identity in identities(user):
                place = self._places.get((scope, identity))
                if place is not None:
                    yield scope, identity, place

    def check(self, objects: Iterable[tuple[Key, Document]]) -> None:
        """The index is what one made from *objects* (all of RBAC) would be."""
        fresh = PolicyIndex()
        for key, document in objects:
            fresh.on_stored(key, document)
        for member in ("_roles", "_bindings", "_led_by", "_places"):
            mine = getattr(self, member)
            theirs = getattr(fresh, member)
            assert mine == theirs, f"{member} is {mine}, stored objects say {theirs}"


def absence(absent: tuple[Key, ...]) -> str:
    """Returns what a decision reports of roles that do not exist; "" if there are none."""
    return _aggregate(
        [not_found(_of(key).singular, RBAC_GROUP, key.name).message for key in absent]
    )


def resolution_errors(absent: tuple[Key, ...]) -> str:
    """Returns what the refusal of a grant reports of them: upstream reads storage there, which has
    the kind in the plural.
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


def _by_identity(found: Iterable[_Subject], home: str) -> dict[str, _Subject]:
    subjects: dict[str, _Subject] = {}
    for subject in found:
        subjects.setdefault(subject.identity(home), subject)
    return subjects


#: nothing in the message is markup, should it ever be shown as such
_NO_MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def require(policy: PolicyIndex, user: User, wanted: Attributes) -> None:
    """Raises the 403 ``StatusError`` unless *user* may do what is *wanted*."""
    decision = policy.decide(user, wanted)
    if not decision.allowed:
        raise refusal(user, wanted, decision.reason)


def refusal(user: User, wanted: Attributes, reason: str = "") -> StatusError:
    """The 403 of a request that no rule allows, as upstream has it
    (staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go).

    *reason* is what the decision said: bindings to roles that do not exist."""
    who = f"User {quote(user.name)} cannot {wanted.verb}"
    more = f": {reason}" if reason else ""
    if not wanted.resource:
        why = f"{who} path {quote(wanted.path)}".translate(_NO_MARKUP)
        return StatusError(403, "Forbidden", f"forbidden: {why}{more}", {})
    where = (
        f"in the namespace {quote(wanted.namespace)}"
        if wanted.namespace
        else "at the cluster scope"
    )
    why = (
        f"{who} resource {quote(wanted.combined_resource)} in API group {quote(wanted.group)} "
        f"{where}"
    )
    return forbidden(wanted.resource, wanted.group, wanted.name, why.translate(_NO_MARKUP) + more)
